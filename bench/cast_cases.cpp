#include "cast_cases.h"

#include <fmt/format.h>

#include <array>
#include <numeric>
#include <utility>
#include <variant>

namespace ingot::bench {
namespace {

constexpr std::array<std::int64_t, 3> kSizes{4096, 8192, 16384};
// One for each size; none where no target was set.
using Targets = std::array<std::optional<double>, kSizes.size()>;

struct Work {
  std::string name;
  std::string spec;
  Traffic traffic;
  Targets targets;
  std::function<Operation(std::int64_t rows, std::int64_t cols)> operation;
};

Work cast_work(const std::string& name, const std::string& line, Traffic traffic, Targets targets) {
  const auto spec = std::get<CastSpec>(parse(line));
  return {.name = name,
          .spec = print(spec),
          .traffic = std::move(traffic),
          .targets = targets,
          .operation = [spec](std::int64_t rows, std::int64_t cols) { return cast_operation(spec, rows, cols); }};
}

// A scale that depends on elements still to come takes two reads; a row's own fits into registers between the two.
// Transposed codes are written by tiles that hold parts of many rows, so there even a row's scale takes both reads.
std::vector<Work> all_work() {
  constexpr auto kNone = std::nullopt;
  return {
      cast_work("rowwise codes", "cast bf16->e4m3fn scale=row out=codes", {.reads = {2}, .writes = {1}},
                {kNone, 0.95, kNone}),
      cast_work("rowwise codes+transposed", "cast bf16->e4m3fn scale=row out=codes,transposed",
                {.reads = {2, 2}, .writes = {1, 1}}, {kNone, kNone, kNone}),
      cast_work("tensorwise codes", "cast bf16->e4m3fn scale=tensor out=codes", {.reads = {2, 2}, .writes = {1}},
                {kNone, 0.98, kNone}),
      cast_work("tensorwise codes+transposed", "cast bf16->e4m3fn scale=tensor out=codes,transposed",
                {.reads = {2, 2}, .writes = {1, 1}}, {1.00, 0.95, 0.95}),
  };
}

}  // namespace

int Traffic::bytes_per_element() const {
  return std::accumulate(reads.begin(), reads.end(), 0) + std::accumulate(writes.begin(), writes.end(), 0);
}

std::string Traffic::text() const {
  std::string text;
  for (const int bytes : reads) text += fmt::format("{}{}r", text.empty() ? "" : " + ", bytes);
  for (const int bytes : writes) text += fmt::format("{}{}w", text.empty() ? "" : " + ", bytes);
  return text;
}

std::string name(const CastCase& cast_case) {
  return fmt::format("{} {}x{}", cast_case.work, cast_case.rows, cast_case.cols);
}

double ideal_bytes(const CastCase& cast_case) {
  return static_cast<double>(cast_case.rows) * static_cast<double>(cast_case.cols) *
         cast_case.traffic.bytes_per_element();
}

std::vector<CastCase> cast_cases() {
  std::vector<CastCase> cases;
  const std::vector<Work> works = all_work();
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    for (const Work& work : works) {
      cases.push_back({.work = work.name,
                       .rows = kSizes[i],
                       .cols = kSizes[i],
                       .spec = work.spec,
                       .traffic = work.traffic,
                       .target = work.targets[i],
                       .operation = work.operation});
    }
  }
  return cases;
}

CastTensors cast_tensors(const Tensors& tensors) {
  return {.input = tensors["input"],
          .codes = tensors["codes"],
          .transposed = tensors["transposed"],
          .factors = tensors["factors"]};
}

Operation cast_operation(const CastSpec& spec, std::int64_t rows, std::int64_t cols) {
  using Role = Operand::Role;
  Operation operation;
  const auto add = [&](const char* name, Role role, Dtype dtype, std::int64_t r, std::int64_t c) {
    operation.operands.push_back({.name = name, .role = role, .dtype = dtype, .rows = r, .cols = c});
  };
  add("input", Role::input, spec.in, rows, cols);
  if (spec.codes) add("codes", Role::output, spec.out, rows, cols);
  if (spec.transposed) add("transposed", Role::output, spec.out, cols, rows);
  add("factors", Role::output, Dtype::f32, 1, scale_count(spec.scale, rows, cols));
  operation.call = [spec](Backend& backend, const Tensors& tensors, Stream& stream) {
    backend.cast(spec, cast_tensors(tensors), stream);
  };
  return operation;
}

}  // namespace ingot::bench
