#include "ingot/codegen/gemm_call.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <system_error>
#include <variant>

#include "ingot/runtime/error.h"

namespace ingot {
namespace {

[[noreturn]] void refuse(std::string_view line, const std::string& message) {
  throw Error(ErrorCode::invalid_spec, std::string(line), message);
}

// The number at the end of `rest`, which is dropped with the spaces before it.
std::int64_t take_size(std::string_view line, std::string_view& rest, const char* name) {
  const auto end = rest.find_last_not_of(" \t\r");
  rest = rest.substr(0, end == std::string_view::npos ? 0 : end + 1);
  const auto space = rest.find_last_of(" \t");
  const std::string_view word = space == std::string_view::npos ? rest : rest.substr(space + 1);
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc{} || stop != word.data() + word.size() || value <= 0) {
    refuse(line, fmt::format("\"{}\" is no {}; expected a GEMM's spec and then its m, n and k, such as "
                             "\"gemm bf16*bf16->bf16 nt 8192 4096 4096\"",
                             word, name));
  }
  rest.remove_suffix(word.size());
  return value;
}

}  // namespace

std::size_t hash_value(const GemmCall& call) {
  std::uint64_t hash = hash_value(KernelSpec(call.spec));
  for (const std::int64_t value : {call.size.m, call.size.n, call.size.k}) {
    hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9e3779b97f4a7c15U;
    hash ^= hash >> 32U;
  }
  return static_cast<std::size_t>(hash);
}

GemmSpec without_kernel(GemmSpec spec) {
  spec.kernel = GemmKernel::automatic;
  spec.tiling.reset();
  spec.algorithm = 0;
  return spec;
}

std::string kernel_of(const GemmSpec& spec) {
  const std::string line = print(KernelSpec(spec));
  constexpr std::string_view kKey = " kernel=";
  const auto at = line.find(kKey);
  return at == std::string::npos ? "automatic" : line.substr(at + kKey.size());
}

std::string print(const GemmCall& call) {
  return fmt::format("{} {} {} {}", print(KernelSpec(call.spec)), call.size.m, call.size.n, call.size.k);
}

GemmCall parse_gemm_call(std::string_view line) {
  std::string_view rest = line;
  GemmCall call;
  call.size.k = take_size(line, rest, "k");
  call.size.n = take_size(line, rest, "n");
  call.size.m = take_size(line, rest, "m");
  const KernelSpec spec = parse(rest);
  const auto* const gemm = std::get_if<GemmSpec>(&spec);
  if (gemm == nullptr) refuse(line, "is no GEMM");
  call.spec = without_kernel(*gemm);
  return call;
}

}  // namespace ingot
