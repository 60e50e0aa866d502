#include "cast_cases.h"

#include <fmt/format.h>

#include <array>
#include <numeric>
#include <utility>
#include <variant>

#include "expert_slots.cuh"
#include "mx_operation.h"
#include "norm_operation.h"

namespace ingot::bench {
namespace {

constexpr std::int64_t kExperts = 8;  // that the rows of casts for experts belong to
constexpr std::array<std::int64_t, 3> kSizes{4096, 8192, 16384};
// One target per size; nullopt where no target is set.
using Targets = std::array<std::optional<double>, kSizes.size()>;

struct Work {
  std::string name;
  std::string spec;
  Traffic traffic;
  Targets targets;
  std::function<Operation(std::int64_t rows, std::int64_t cols)> operation;
};

RowIndex row_index(const Tensor& index) {
  return {.data = static_cast<const std::int32_t*>(index.data), .rows = index.cols, .device = index.device};
}

std::array<Tensor, kMaxPointwiseInputs> inputs_of(const Tensors& tensors) {
  return {tensors["inputs[0]"], tensors["inputs[1]"], tensors["inputs[2]"], tensors["inputs[3]"]};
}

void add_input(Operation& operation, std::int64_t number, const PointwiseInput& input, Dtype dtype, std::int64_t rows,
               std::int64_t cols) {
  Operand operand{.name = fmt::format("inputs[{}]", number), .dtype = dtype, .rows = 1, .cols = cols};
  if (input.kind == PointwiseInput::Kind::matrix) operand.rows = rows;
  if (input.kind == PointwiseInput::Kind::row) operand.cols = rows;
  const bool in_f32 = input.kind == PointwiseInput::Kind::row || input.kind == PointwiseInput::Kind::column_f32;
  if (in_f32) operand.dtype = Dtype::f32;
  operation.operands.push_back(std::move(operand));
}

Work cast_work(const std::string& name, const std::string& line, Traffic traffic, Targets targets) {
  const auto spec = std::get<CastSpec>(parse(line));
  return {.name = name,
          .spec = print(spec),
          .traffic = std::move(traffic),
          .targets = targets,
          .operation = [spec](std::int64_t rows, std::int64_t cols) { return cast_operation(spec, rows, cols); }};
}

// With the scale_inv of 1x128 groups as layers have them.
Work by_group(Work work) {
  const auto spec = std::get<CastSpec>(parse(work.spec));
  work.name += ", factors by group";
  work.operation = [spec](std::int64_t rows, std::int64_t cols) { return cast_operation(spec, rows, cols, true); };
  return work;
}

template <class Spec>
Work norm_work(const std::string& name, const std::string& line, Traffic traffic, const Targets& targets = {}) {
  const auto spec = std::get<Spec>(parse(line));
  return {.name = name,
          .spec = print(spec),
          .traffic = std::move(traffic),
          .targets = targets,
          .operation = [spec](std::int64_t rows, std::int64_t cols) { return norm_operation(spec, rows, cols); }};
}

Work mx_work(const std::string& name, const std::string& line, Traffic traffic) {
  const auto spec = std::get<MxQuantizeSpec>(parse(line));
  return {.name = name,
          .spec = print(spec),
          .traffic = std::move(traffic),
          .targets = {},
          .operation = [spec](std::int64_t rows, std::int64_t cols) { return mx_operation(spec, rows, cols); }};
}

// Sums the rows of tokens, `chosen` of each, all in disorder.
Work combine_work(const std::string& name, const std::string& line, std::int64_t chosen, Traffic traffic) {
  using Role = Operand::Role;
  const auto spec = std::get<CombineSpec>(parse(line));
  const auto operation = [=](std::int64_t tokens, std::int64_t cols) {
    const std::int64_t rows = tokens * chosen;
    return Operation{
        .operands = {{.name = "input", .role = Role::input, .dtype = spec.in, .rows = rows, .cols = cols},
                     {.name = "index", .dtype = Dtype::f32, .rows = 1, .cols = rows, .permutation = true},
                     {.name = "output", .role = Role::output, .dtype = spec.in, .rows = tokens, .cols = cols}},
        .call = [spec](Backend& backend, const Tensors& tensors, Stream& stream) {
          backend.combine(
              spec, {.input = tensors["input"], .index = row_index(tensors["index"]), .output = tensors["output"]},
              stream);
        }};
  };
  return {.name = name, .spec = print(spec), .traffic = std::move(traffic), .targets = {}, .operation = operation};
}

// Of an activation, with the sums of rows that are the gradients of tokens' weights, and with maxima those that a cast
// of both outputs takes.
Work gradients_work(const std::string& name, const std::string& line, Traffic traffic) {
  using Role = Operand::Role;
  const auto spec = std::get<ElementwiseSpec>(parse(line));
  const auto operation = [spec](std::int64_t rows, std::int64_t cols) {
    Operation made{.operands = {{.name = "input", .dtype = spec.in, .rows = rows, .cols = cols}}, .call = {}};
    std::int64_t count = 0;
    for (const PointwiseInput* const input : ElementwiseInputs(spec).all()) {
      add_input(made, count++, *input, spec.in, rows, cols);
    }
    const auto add = [&](const std::string& output, Dtype dtype, std::int64_t r, std::int64_t c) {
      made.operands.push_back({.name = output, .role = Role::output, .dtype = dtype, .rows = r, .cols = c});
    };
    add("output", spec.in, rows, cols);
    add("second", spec.in, rows, cols);
    add("sums", Dtype::f32, 1, rows);
    if (spec.maxima) add("row_amax", Dtype::f32, 1, rows);
    if (spec.maxima) add("column_amax", Dtype::f32, 1, 2 * cols);
    made.call = [spec](Backend& backend, const Tensors& tensors, Stream& stream) {
      backend.elementwise(spec,
                          {.input = tensors["input"],
                           .inputs = inputs_of(tensors),
                           .output = tensors["output"],
                           .second = tensors["second"],
                           .sums = tensors["sums"],
                           .row_amax = tensors["row_amax"],
                           .column_amax = tensors["column_amax"]},
                          stream);
    };
    return made;
  };
  return {.name = name, .spec = print(spec), .traffic = std::move(traffic), .targets = {}, .operation = operation};
}

// A scale that depends on elements still to come needs two reads of the input. A row fits into registers between the
// two reads, and a group or a block into its tile, so these need one. Transposed codes are written in tiles that hold
// parts of many rows, so there even a row's scale needs both reads.
std::vector<Work> all_work() {
  constexpr auto kNone = std::nullopt;
  // The forward pass computes x * sigmoid(x); `grad` flows back through it.
  const std::string d_silu = print_word(backward(parse_pointwise("silu(x)"), "x"));
  const std::string swiglu = "x*sigmoid(x)*up*router[row]";
  const std::string gradients =
      "of=grad*((sigmoid(x)+x*(sigmoid(x)*(1-sigmoid(x))))*up*router[row]) second=grad*(x*sigmoid(x)*router[row]) "
      "row_sum=grad*(x*sigmoid(x)*up)";
  const Work groups = cast_work("1x128 groups codes", "cast bf16->e4m3fn scale=1x128 out=codes",
                                {.reads = {2}, .writes = {1}}, {kNone, 0.92, kNone});
  const Work both_groups =
      cast_work("1x128 groups codes, 128x1 transposed", "cast bf16->e4m3fn scale=1x128+128x1 out=codes,transposed",
                {.reads = {2}, .writes = {1, 1}}, {kNone, 0.88, kNone});
  return {
      cast_work("rowwise codes", "cast bf16->e4m3fn scale=row out=codes", {.reads = {2}, .writes = {1}},
                {kNone, 0.95, kNone}),
      cast_work("rowwise codes+transposed", "cast bf16->e4m3fn scale=row out=codes,transposed",
                {.reads = {2, 2}, .writes = {1, 1}}, {kNone, kNone, kNone}),
      cast_work("row+column codes+transposed", "cast bf16->e4m3fn scale=row+col out=codes,transposed",
                {.reads = {2, 2}, .writes = {1, 1}}, {kNone, 0.92, kNone}),
      cast_work("tensorwise codes", "cast bf16->e4m3fn scale=tensor out=codes", {.reads = {2, 2}, .writes = {1}},
                {kNone, 0.98, kNone}),
      cast_work("tensorwise codes+transposed", "cast bf16->e4m3fn scale=tensor out=codes,transposed",
                {.reads = {2, 2}, .writes = {1, 1}}, {1.00, 0.95, 0.95}),
      cast_work("given scale codes+transposed, amax", "cast bf16->e4m3fn scale=tensor out=codes,transposed given",
                {.reads = {2}, .writes = {1, 1}}, {kNone, 0.94, kNone}),
      groups,
      by_group(groups),
      both_groups,
      by_group(both_groups),
      cast_work("128x128 blocks codes+transposed", "cast bf16->e4m3fn scale=128x128 out=codes,transposed",
                {.reads = {2}, .writes = {1, 1}}, {kNone, 0.90, kNone}),
      cast_work("d(silu)*grad given codes+transposed+bias gradient",
                "cast bf16->e5m2 of=" + d_silu + " scale=tensor out=codes,transposed,sum:f32 given",
                {.reads = {2, 2}, .writes = {1, 1}}, {kNone, 0.85, kNone}),
      cast_work("d(silu)*grad given codes+transposed+bias gradient, fast math",
                "cast bf16->e5m2 of=" + d_silu + " scale=tensor out=codes,transposed,sum:f32 given fast",
                {.reads = {2, 2}, .writes = {1, 1}}, {kNone, kNone, kNone}),
      cast_work("d(silu)*grad tensorwise codes+transposed+bias gradient",
                "cast bf16->e5m2 of=" + d_silu + " scale=tensor out=codes,transposed,sum:f32",
                {.reads = {2, 2, 2, 2}, .writes = {1, 1}}, {kNone, kNone, kNone}),
      cast_work("swiglu rowwise codes", "cast bf16->e4m3fn of=silu(x)*gate scale=row out=codes",
                {.reads = {2, 2}, .writes = {1}}, {kNone, kNone, kNone}),
      // Every row reads gamma and beta, but from caches.
      norm_work<NormSpec>("rmsnorm rowwise codes", "norm rms bf16->e4m3fn affine scale=row out=codes,stats",
                          {.reads = {2}, .writes = {1}}, {kNone, 0.90, kNone}),
      norm_work<NormSpec>("layernorm rowwise codes", "norm layer bf16->e4m3fn affine scale=row out=codes,stats",
                          {.reads = {2}, .writes = {1}}, {kNone, 0.90, kNone}),
      norm_work<NormSpec>("rmsnorm rowwise codes+result",
                          "norm rms bf16->e4m3fn affine scale=row out=codes,result,stats",
                          {.reads = {2}, .writes = {1, 2}}),
      norm_work<NormSpec>("layernorm rowwise codes+result",
                          "norm layer bf16->e4m3fn affine scale=row out=codes,result,stats",
                          {.reads = {2}, .writes = {1, 2}}),
      norm_work<NormSpec>("rmsnorm result", "norm rms bf16 affine out=result,stats", {.reads = {2}, .writes = {2}}),
      norm_work<NormSpec>("layernorm result", "norm layer bf16 affine out=result,stats", {.reads = {2}, .writes = {2}}),
      norm_work<NormSpec>("layernorm result, not affine", "norm layer bf16 out=result,stats",
                          {.reads = {2}, .writes = {2}}),
      norm_work<NormSpec>("rmsnorm statistics", "norm rms bf16 out=stats", {.reads = {2}, .writes = {}}),
      norm_work<NormSpec>("layernorm statistics", "norm layer bf16 out=stats", {.reads = {2}, .writes = {}}),
      norm_work<NormBackwardSpec>("rmsnorm backward", "norm_backward rms bf16 affine sums=f32",
                                  {.reads = {2, 2}, .writes = {2}}),
      norm_work<NormBackwardSpec>("layernorm backward, not affine", "norm_backward layer bf16",
                                  {.reads = {2, 2}, .writes = {2}}),
      // Each row once, so that all of them come from memory.
      cast_work("gathered rowwise codes", "cast bf16->e4m3fn scale=row out=codes gathered",
                {.reads = {2}, .writes = {1}}, {kNone, 0.90, kNone}),
      cast_work("gathered 1x128 groups codes", "cast bf16->e4m3fn scale=1x128 out=codes gathered",
                {.reads = {2}, .writes = {1}}, {kNone, 0.90, kNone}),
      cast_work("gathered row+column codes+transposed", "cast bf16->e4m3fn scale=row+col out=codes,transposed gathered",
                {.reads = {2, 2}, .writes = {1, 1}}, {kNone, kNone, kNone}),
      // What a mixture of experts runs besides; a row of the input is that of a token for one of its experts.
      cast_work("experts gathered 1x128 codes, 128x1 slots",
                "cast bf16->e4m3fn scale=1x128+128x1 out=codes,transposed gathered experts",
                {.reads = {2}, .writes = {1, 1}}, {kNone, 0.90, kNone}),
      cast_work("experts swiglu 1x128 codes, 128x1 slots",
                "cast bf16->e4m3fn of=" + swiglu + " scale=1x128+128x1 out=codes,transposed experts",
                {.reads = {2, 2}, .writes = {1, 1}}, {kNone, 0.90, kNone}),
      cast_work("experts 1x128 codes, 128x1 slots", "cast bf16->e4m3fn scale=1x128+128x1 out=codes,transposed experts",
                {.reads = {2}, .writes = {1, 1}}, {kNone, 0.90, kNone}),
      cast_work("experts swiglu row+column codes+transposed",
                "cast bf16->e4m3fn of=" + swiglu + " scale=row+col out=codes,transposed",
                {.reads = {2, 2, 2, 2}, .writes = {1, 1}}, {kNone, 0.90, kNone}),
      gradients_work("experts swiglu gradients", "elementwise bf16 " + gradients,
                     {.reads = {2, 2, 2}, .writes = {2, 2}}),
      gradients_work("experts swiglu gradients, maxima", "elementwise bf16 " + gradients + " maxima",
                     {.reads = {2, 2, 2}, .writes = {2, 2}}),
      combine_work("experts combination of 2", "combine bf16", 2, {.reads = {2, 2}, .writes = {2}}),
      mx_work("mx e4m3fn", "quantize_mx bf16->e4m3fn", {.reads = {2}, .writes = {1}}),
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

// Numbers of tokens that are no multiple of 16, a small odd matrix and a small even one, and rows as wide as down
// projections have. Nothing was tuned at the last four sizes.
constexpr std::array<std::pair<std::int64_t, std::int64_t>, 15> kMoreSizes{{{3000, 4096},
                                                                            {3000, 11008},
                                                                            {333, 1111},
                                                                            {1024, 1024},
                                                                            {6144, 13824},
                                                                            {6144, 18944},
                                                                            {6144, 28672},
                                                                            {2998, 11008},
                                                                            {3001, 5120},
                                                                            {2048, 40960},
                                                                            {2048, 53248},
                                                                            {3000, 3584},
                                                                            {4096, 14336},
                                                                            {5000, 21504},
                                                                            {12345, 2560}}};

std::vector<CastCase> cast_cases() {
  std::vector<CastCase> cases;
  const std::vector<Work> works = all_work();
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    for (const Work& work : works) {
      if (kSizes[i] == kSizes.back() && !work.targets[i]) continue;  // checking one takes seconds
      cases.push_back({.work = work.name,
                       .rows = kSizes[i],
                       .cols = kSizes[i],
                       .spec = work.spec,
                       .traffic = work.traffic,
                       .target = work.targets[i],
                       .operation = work.operation});
    }
  }
  constexpr std::int64_t kMostColsOfNorms = 16384;  // no model normalises wider rows
  for (const auto& [rows, cols] : kMoreSizes) {
    for (const Work& work : works) {
      const bool norm = work.spec.starts_with("norm");
      if (norm && cols > kMostColsOfNorms) continue;
      cases.push_back({.work = work.name,
                       .rows = rows,
                       .cols = cols,
                       .spec = work.spec,
                       .traffic = work.traffic,
                       .operation = work.operation});
    }
  }
  return cases;
}

CastTensors cast_tensors(const Tensors& tensors) {
  const Tensor ends = tensors["ends"];
  return {.input = tensors["input"],
          .row_index = row_index(tensors["row_index"]),
          .ends = {.data = static_cast<const std::int32_t*>(ends.data), .experts = ends.cols, .device = ends.device},
          .codes = tensors["codes"],
          .transposed = tensors["transposed"],
          .scale_inv = tensors["scale_inv"],
          .transposed_scale_inv = tensors["transposed_scale_inv"],
          .scales = tensors["scales"],
          .amax = tensors["amax"],
          .transposed_scales = tensors["transposed_scales"],
          .transposed_amax = tensors["transposed_amax"],
          .inputs = inputs_of(tensors),
          .result = tensors["result"],
          .sum = tensors["sum"]};
}

Operation cast_operation(const CastSpec& spec, std::int64_t rows, std::int64_t cols, bool scale_inv_by_group) {
  using Role = Operand::Role;
  Operation operation{.operands = {}, .exact = !spec.fast_math, .call = {}};
  const auto add = [&](const std::string& name, Role role, Dtype dtype, std::int64_t r, std::int64_t c) {
    operation.operands.push_back({.name = name, .role = role, .dtype = dtype, .rows = r, .cols = c});
  };
  const auto add_scales = [&](const std::string& prefix, ScaleGranularity granularity, std::int64_t of_rows) {
    const std::int64_t count = scale_count(granularity, of_rows, cols);
    if (scale_inv_by_group && granularity == kRowGroups) {
      add(prefix + "scale_inv", Role::output, Dtype::f32, scale_count(granularity, 1, cols), of_rows);
    } else {
      add(prefix + "scale_inv", Role::output, Dtype::f32, 1, count);
    }
    if (spec.source == ScaleSource::dynamic) return;
    add(prefix + "scales", Role::input, Dtype::f32, 1, count);
    operation.operands.back().value = 64.0F;
    add(prefix + "amax", Role::output, Dtype::f32, 1, count);
    operation.operands.back().value = 0.0F;
  };
  add("input", Role::input, spec.in, rows, cols);
  if (spec.gathered) {
    add("row_index", Role::input, Dtype::f32, 1, rows);
    operation.operands.back().permutation = true;
  }
  if (spec.experts) {
    add("ends", Role::input, Dtype::f32, 1, kExperts);
    operation.operands.back().ends_of = rows;
  }
  std::int64_t count = 0;
  for (const PointwiseInput& input : spec.pointwise.inputs()) add_input(operation, count++, input, spec.in, rows, cols);
  if (spec.codes) add("codes", Role::output, spec.out, rows, cols);
  const std::int64_t lines = in_slots(spec) ? ExpertSlots::kRows * expert_slots(rows, kExperts) : rows;
  if (spec.transposed) add("transposed", Role::output, spec.out, cols, lines);
  if (in_slots(spec)) operation.operands.back().value = 0.0F;  // slots that are nobody's are not written
  if (spec.result) add("result", Role::output, spec.in, rows, cols);
  if (spec.sum) add("sum", Role::output, *spec.sum, 1, cols);
  add_scales("", spec.scale, rows);
  if (spec.transposed_scale) add_scales("transposed_", *spec.transposed_scale, lines);
  if (in_slots(spec)) operation.operands.back().value = 0.0F;
  operation.call = [spec](Backend& backend, const Tensors& tensors, Stream& stream) {
    backend.cast(spec, cast_tensors(tensors), stream);
  };
  return operation;
}

}  // namespace ingot::bench
