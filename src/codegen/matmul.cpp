#include "ingot/codegen/matmul.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <system_error>

#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

[[noreturn]] void refuse(std::string_view line, const std::string& message) {
  throw Error(ErrorCode::invalid_spec, std::string(line), message);
}

// Takes the number at the end of `rest` off, with the spaces around it.
std::int64_t take_size(std::string_view line, std::string_view& rest, const char* name) {
  const auto end = rest.find_last_not_of(" \t\r");
  rest = rest.substr(0, end == std::string_view::npos ? 0 : end + 1);
  const auto space = rest.find_last_of(" \t");
  const std::string_view word = space == std::string_view::npos ? rest : rest.substr(space + 1);
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc{} || stop != word.data() + word.size() || value <= 0) {
    refuse(line, fmt::format("\"{}\" is no {}; expected the spec of a matmul and then its m, n and k, such as "
                             "\"gemm bf16*bf16->bf16 nt 8192 4096 4096\"",
                             word, name));
  }
  if (value > kLargestMatmulSize) {
    refuse(line, fmt::format("{} is {}, but may be at most {} (2^48)", name, value, kLargestMatmulSize));
  }
  rest.remove_suffix(word.size());
  return value;
}

}  // namespace

std::size_t hash_value(const MatmulCall& call) {
  return hash_with(std::visit([](const auto& spec) { return hash_value(spec); }, call.spec), call.size);
}

KernelSpec kernel_spec(const MatmulSpec& matmul) {
  return std::visit([](const auto& spec) { return KernelSpec(spec); }, matmul);
}

MatmulSpec parse_matmul_spec(std::string_view line) {
  const KernelSpec spec = parse(line);
  if (const auto* const gemm = std::get_if<GemmSpec>(&spec)) return *gemm;
  if (const auto* const dequant = std::get_if<DequantMatmulSpec>(&spec)) return *dequant;
  refuse(line, "is no GEMM and no dequant_matmul");
}

GemmSpec without_kernel(GemmSpec spec) {
  spec.kernel = GemmKernel::automatic;
  spec.tiling.reset();
  spec.algorithm = 0;
  spec.staged_a = false;
  spec.staged_b = false;
  return spec;
}

DequantMatmulSpec without_kernel(DequantMatmulSpec spec) {
  spec.kernel = DequantKernel::automatic;
  spec.tiling.reset();
  return spec;
}

MatmulSpec without_kernel(const MatmulSpec& matmul) {
  return std::visit([](const auto& spec) { return MatmulSpec(without_kernel(spec)); }, matmul);
}

bool names_kernel(const MatmulSpec& matmul) { return matmul != without_kernel(matmul); }

bool is_tuned(const GemmSpec&) { return true; }

bool is_tuned(const DequantMatmulSpec& spec) { return !spec.batch_invariant && !spec.experts; }

bool is_tuned(const MatmulSpec& matmul) {
  return std::visit([](const auto& spec) { return is_tuned(spec); }, matmul);
}

std::string kernel_of(const MatmulSpec& matmul) {
  const std::string line = print(kernel_spec(matmul));
  constexpr std::string_view kKey = " kernel=";
  const auto at = line.find(kKey);
  return at == std::string::npos ? "automatic" : line.substr(at + kKey.size());
}

std::string print(const MatmulCall& call) {
  return fmt::format("{} {} {} {}", print(kernel_spec(call.spec)), call.size.m, call.size.n, call.size.k);
}

MatmulCall parse_matmul_call(std::string_view line) {
  std::string_view rest = line;
  MatmulCall call;
  call.size.k = take_size(line, rest, "k");
  call.size.n = take_size(line, rest, "n");
  call.size.m = take_size(line, rest, "m");
  call.spec = without_kernel(parse_matmul_spec(rest));
  return call;
}

std::string print(const GemmCall& call) {
  return fmt::format("{} {} {} {}", print(KernelSpec(call.spec)), call.size.m, call.size.n, call.size.k);
}

GemmCall parse_gemm_call(std::string_view line) {
  const MatmulCall call = parse_matmul_call(line);
  const auto* const gemm = std::get_if<GemmSpec>(&call.spec);
  if (gemm == nullptr) throw Error(ErrorCode::invalid_spec, std::string(line), "is no GEMM");
  return {.spec = *gemm, .size = call.size};
}

}  // namespace ingot
