#include "ingot/codegen/recording.h"
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>
#include "ingot/codegen/dequant/dequant_candidates.h"
#include "ingot/codegen/gemm/gemm_candidates.h"
#include "ingot/codegen/generate.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

constexpr const char* kTitle = "# Ingot recording\n";
// No spec is as long. A longer line is not parsed, because its message would be as long.
constexpr std::size_t kLongestLine = 64 * 1024;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool is_decimal_digit(char c) { return c >= '0' && c <= '9'; }

// Takes the last word off.
std::string_view take_word(std::string_view& line) {
  while (!line.empty() && is_blank(line.back())) line.remove_suffix(1);
  const std::size_t begin = line.find_last_of(" \t") + 1;  // 0 if there is none
  const std::string_view word = line.substr(begin);
  line.remove_suffix(word.size());
  return word;
}

// Does the line name a matmul and its sizes? One number among the last three words is enough, as the others may be
// damaged, and no word of a spec is a number.
bool is_matmul_call(std::string_view line) {
  constexpr std::array kMatmuls{GemmSpec::kWord, DequantMatmulSpec::kWord};
  const std::string_view first = line.substr(0, line.find_first_of(" \t"));
  if (std::ranges::find(kMatmuls, first) == kMatmuls.end()) return false;
  for (int i = 0; i < 3; ++i) {
    const std::string_view word = take_word(line);
    if (!word.empty() && std::ranges::all_of(word, is_decimal_digit)) return true;
  }
  return false;
}

std::string_view trimmed(std::string_view line) {
  while (!line.empty() && is_blank(line.front())) line.remove_prefix(1);
  while (!line.empty() && is_blank(line.back())) line.remove_suffix(1);
  return line;
}

// Empty, or why the line could not be read.
std::string add_line(std::string_view line, Recording& recording) {
  if (line.size() > kLongestLine) return fmt::format("{} bytes are too many for a line", line.size());
  if (line.find('\0') != std::string_view::npos) return "has a NUL byte";
  try {
    if (is_matmul_call(line)) {
      recording.add(parse_matmul_call(line));
    } else {
      recording.add(parse(line));
    }
    return {};
  } catch (const Error& error) {  // whose subject is the line
    return error.message();
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

bool Recording::add(const KernelSpec& kernel) {
  if (!known_kernels_.insert(kernel).second) return false;
  kernels_.push_back(kernel);
  return true;
}

bool Recording::has(const MatmulCall& matmul) const {
  return known_matmuls_.contains({.spec = without_kernel(matmul.spec), .size = matmul.size});
}

bool Recording::add(const MatmulCall& matmul) {
  const MatmulCall call{.spec = without_kernel(matmul.spec), .size = matmul.size};
  if (!known_matmuls_.insert(call).second) return false;
  matmuls_.push_back(call);
  return true;
}

void Recording::add(const Recording& other) {
  for (const KernelSpec& kernel : other.kernels_) add(kernel);
  for (const MatmulCall& matmul : other.matmuls_) add(matmul);
}

std::string print(const Recording& recording) {
  std::string text = kTitle;
  for (const KernelSpec& kernel : recording.kernels()) text += print(kernel) + '\n';
  for (const MatmulCall& matmul : recording.matmuls()) text += print(matmul) + '\n';
  return text;
}

ParsedRecording parse_recording(std::string_view text) {
  ParsedRecording parsed;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.starts_with('#')) continue;
    const std::string problem = add_line(line, parsed.recording);
    if (!problem.empty() && parsed.damaged++ == 0) parsed.first = fmt::format("line {}: {}", number, problem);
  }
  return parsed;
}

namespace {

struct HashSpec {
  std::size_t operator()(const KernelSpec& spec) const { return hash_value(spec); }
};

// ---- Which kernels run on a GPU: the first rules of gemm_rules.h and its like ---------------------------------------

bool runs_on(const GemmSpec& spec, Target target) {
  switch (spec.kernel) {
    case GemmKernel::sm90: return target == target_for(9, 0);
    case GemmKernel::mma: return target.major >= 8;
    case GemmKernel::simt: return true;
    case GemmKernel::automatic:  // names none
    case GemmKernel::cublaslt: return false;
  }
  return false;
}

bool runs_on(const GemmPairSpec& spec, Target target) {
  return runs_on(spec.first, target) && runs_on(spec.second, target);
}

bool runs_on(const GroupedGemmSpec&, Target target) { return target == target_for(9, 0); }

bool runs_on(const DequantMatmulSpec& spec, Target target) {
  switch (spec.kernel) {
    case DequantKernel::sm90: return target == target_for(9, 0);
    case DequantKernel::mma: return target.major >= 8;
    case DequantKernel::automatic: return false;
  }
  return false;
}

// The kernels for rows of some numbers of columns run from sm_90 on.
bool runs_on(const NormSpec& spec, Target target) { return spec.cols == 0 || target.major >= 9; }

template <class Spec>
bool runs_on(const Spec&, Target) {
  return true;
}

// A cast's wide rows may stay in one block.
bool needs_clusters(const KernelSpec& spec, Pass pass) {
  return std::holds_alternative<NormBackwardSpec>(spec) && pass == Pass::wide;
}

// ---- What is launched before a kernel ------------------------------------------------------------------------------

std::vector<RelayoutSpec> stages(const GemmSpec& spec) {
  std::vector<RelayoutSpec> all;
  if (spec.kernel != GemmKernel::sm90) return all;
  if (spec.staged_a) all.push_back({.transposed = spec.layout_a == Layout::mn_major});
  if (spec.staged_b) all.push_back({.transposed = spec.layout_b == Layout::mn_major});
  return all;
}

template <class Spec>
std::vector<RelayoutSpec> stages(const Spec&) {
  return {};
}

// ---- What could be chosen ------------------------------------------------------------------------------------------

std::vector<GemmSpec> order(const GemmSpec& spec, const MatmulSize& size, const MatmulDevice& device) {
  return gemm_order({.spec = spec, .size = size}, device);
}
std::vector<DequantMatmulSpec> order(const DequantMatmulSpec& spec, const MatmulSize& size,
                                     const MatmulDevice& device) {
  return dequant_order(spec, size, device);
}

// Do the two GEMMs have the operands of a layer's gradients in one of the recipes? first: grad_output[M, N] @ weight[N,
// K], second: grad_output^T @ input[M, K].
bool are_of_one_recipe(const GemmSpec& first, const GemmSpec& second) {
  const auto fits = [](const GemmSpec& spec, Layout layout_a) {
    return is_fp8(spec.a) || (spec.layout_a == layout_a && spec.layout_b == Layout::mn_major);
  };
  if (!fits(first, Layout::k_major) || !fits(second, Layout::mn_major)) return false;
  if (!is_fp8(first.a)) return first.a == second.a;
  if (!is_fp8(second.a)) return !has_group_scale_inv(first) && !first.fast_accumulation;
  if (first.a != second.a || first.fast_accumulation != second.fast_accumulation) return false;
  const bool groups = first.scale_b == kBlocks && second.scale_b == kRowGroups;
  return has_group_scale_inv(first) || has_group_scale_inv(second) ? groups : first.scale_a == second.scale_a;
}

class KernelList {
 public:
  explicit KernelList(const MatmulDevice& device) : device_(device) {}

  template <class Spec>
  void add(const Spec& spec) {
    if (!runs_on(spec, device_.target)) return;
    for (const RelayoutSpec& before : stages(spec)) add_passes(before);
    add_passes(spec);
  }

  template <class Spec>
  void add_matmul(const Spec& spec, const MatmulSize& size) {
    for (const Spec& named : order(spec, size, device_)) add(named);
  }

  std::vector<KernelPass> take() { return std::move(kernels_); }

 private:
  void add_passes(const KernelSpec& spec) {
    if (!specs_.insert(spec).second) return;
    for (const Pass pass : passes(spec)) {
      if (needs_clusters(spec, pass) && device_.target.major < 9) continue;
      if (sources_.insert(generate(spec, pass).text).second) kernels_.push_back({.spec = spec, .pass = pass});
    }
  }

  MatmulDevice device_;
  std::vector<KernelPass> kernels_;
  std::unordered_set<KernelSpec, HashSpec> specs_;  // a source takes longer to make than a choice
  std::unordered_set<std::string> sources_;
};

struct HashSize {
  std::size_t operator()(const MatmulSize& size) const { return hash_with(0, size); }
};

// The pairs that runs on this device compute in one launch, whichever device was recorded.
std::vector<GemmPairSpec> gradient_pairs(const Recording& recording, const MatmulDevice& device,
                                         const std::function<bool()>& stopped) {
  std::vector<GemmCall> gemms;
  std::unordered_map<MatmulSize, std::vector<std::size_t>, HashSize> by_size;
  for (const MatmulCall& matmul : recording.matmuls()) {
    const auto* const gemm = std::get_if<GemmSpec>(&matmul.spec);
    if (gemm == nullptr) continue;
    by_size[matmul.size].push_back(gemms.size());
    gemms.push_back({*gemm, matmul.size});
  }
  std::vector<GemmPairSpec> pairs;
  for (const GemmCall& first : gemms) {
    if (stopped()) break;
    const auto found = by_size.find({.m = first.size.k, .n = first.size.n, .k = first.size.m});
    if (found == by_size.end()) continue;
    for (const std::size_t at : found->second) {
      const GemmCall& second = gemms[at];
      if (!are_of_one_recipe(first.spec, second.spec)) continue;
      if (const auto pair = choose_gemm_pair(first, second, device)) pairs.push_back(*pair);
    }
  }
  return pairs;
}

}  // namespace

std::vector<KernelPass> kernels_of(const Recording& recording, const MatmulDevice& device,
                                   const RecordedKernelsOptions& options) {
  KernelList list(device);
  const auto add = [&](const auto& spec) { list.add(spec); };
  const auto stopped = [&] { return options.stop && options.stop(); };
  for (const KernelSpec& kernel : recording.kernels()) {
    if (stopped()) return list.take();
    std::visit(add, kernel);
  }
  for (const MatmulCall& matmul : recording.matmuls()) {
    if (stopped()) break;
    options.tuned.for_each(matmul, [&](const MatmulSpec& chosen) { std::visit(add, chosen); });
    std::visit([&](const auto& spec) { list.add_matmul(spec, matmul.size); }, matmul.spec);
  }
  for (const GemmPairSpec& pair : gradient_pairs(recording, device, stopped)) {
    if (stopped()) break;
    list.add(pair);
  }
  return list.take();
}

}  // namespace ingot
