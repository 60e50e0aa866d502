// The cases of bench_choice, how more of them are read from a file, and how results are summed up and printed.
//
// Layer sizes are those that the models were published with. Fused projections are one GEMM (query, key and value; gate
// and up). In a backward pass, grad_input has e5m2 as its first operand; grad_weight has the tokens as its K, and an
// f32 output to which gradients are added.
#include "choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "ingot/runtime/error.h"
#include "ingot/runtime/util/lines.h"
#include "ingot/runtime/util/read_file.h"

namespace ingot::bench {
namespace {

struct Line {
  const char* layer;
  const char* call;  // the spec, then M, N and K
};

constexpr Line kLines[] = {
    {"Llama 3.1 8B qkv", "gemm e4m3fn*e4m3fn->bf16 fast 1903 6144 4096"},
    {"Llama 3.1 8B gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 3391 28672 4096"},
    {"Llama 3.1 8B down, few tokens", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 8 4096 14336"},
    {"Llama 3.1 8B down grad_weight", "gemm bf16*bf16->bf16 tn 4096 14336 3392"},
    {"Qwen3 8B gate_up grad_input in bf16", "gemm bf16*bf16->bf16 nn 3083 4096 24576"},
    {"Llama 3.1 70B qkv", "gemm e4m3fn*e4m3fn->bf16 scale=row,row 1177 10240 8192"},
    {"Llama 3.1 70B down", "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 1846 8192 28672"},
    {"Llama 3.1 70B attention_out", "gemm e4m3fn*e4m3fn->bf16 fast 5437 8192 8192"},
    {"Qwen3 4B gate_up", "gemm e4m3fn*e4m3fn->bf16 fast 4051 19456 2560"},
    {"Qwen3 4B down", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 914 2560 9728"},
    {"Qwen3 8B gate_up grad_input", "gemm e5m2*e4m3fn->bf16 3083 4096 24576"},
    {"Qwen3 8B down grad_weight", "gemm e5m2*e4m3fn->f32 scale=row,row 4096 12288 5264"},
    {"Qwen3 14B gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 771 34816 5120"},
    {"Qwen3 14B down", "gemm e4m3fn*e4m3fn->bf16 2482 5120 17408"},
    {"Qwen3 32B down, few tokens", "gemm e4m3fn*e4m3fn->bf16 fast 60 5120 25600"},
    {"Gemma 3 4B gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 7212 20480 2560"},
    {"Gemma 3 4B qkv", "gemm e4m3fn*e4m3fn->bf16 scale=row,row 463 4096 2560"},
    {"Gemma 3 12B down", "gemm e4m3fn*e4m3fn->bf16 fast 1258 3840 15360"},
    {"Gemma 3 27B gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 680 43008 5376"},
    {"Gemma 3 27B down grad_input", "gemm e5m2*e4m3fn->bf16 scale=row,row 2914 21504 5376"},
    {"Yi 34B gate_up", "gemm e4m3fn*e4m3fn->bf16 fast 2074 40960 7168"},
    {"Yi 34B attention_out grad_weight", "gemm bf16*bf16->bf16 tn 7168 7168 2560"},
    {"InternLM2 20B down", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 3775 6144 16384"},
    {"InternLM2 20B down grad_input", "gemm e5m2*e4m3fn->bf16 scale=row,row fast 3775 16384 6144"},
    {"Command R gate_up", "gemm e4m3fn*e4m3fn->bf16 1021 45056 8192"},
    {"Phi-4 down", "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 6133 5120 17920"},
    {"Phi-4 qkv", "gemm e4m3fn*e4m3fn->bf16 fast 6133 7680 5120"},
    {"OLMo 2 7B gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 1529 22016 4096"},
    {"OLMo 2 7B down grad_weight", "gemm e5m2*e4m3fn->f32 4096 11008 6112"},
    {"SmolLM2 1.7B gate_up", "gemm e4m3fn*e4m3fn->bf16 fast 9310 16384 2048"},
    {"SmolLM2 1.7B attention_out", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 1357 2048 2048"},
    {"StarCoder2 7B fc1", "gemm e4m3fn*e4m3fn->bf16 bias fast 2329 18432 4608"},
    {"StarCoder2 7B fc2", "gemm e4m3fn*e4m3fn->bf16 scale=row,row bias fast 415 4608 18432"},
    {"Granite 3 8B down", "gemm e4m3fn*e4m3fn->bf16 scale=row,row 4660 4096 12800"},
    {"GLM-4 9B gate_up", "gemm e4m3fn*e4m3fn->bf16 fast 1117 27392 4096"},
    {"Baichuan 2 13B qkv", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 3556 15360 5120"},
    {"BLOOM 7B fc1", "gemm e4m3fn*e4m3fn->bf16 bias 1621 16384 4096"},
    {"BLOOM 7B fc2 grad_input", "gemm e5m2*e4m3fn->bf16 fast 5021 16384 4096"},
    {"Nemotron 4B up", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 2855 9216 3072"},
    {"DBRX expert gate_up", "gemm e4m3fn*e4m3fn->bf16 fast 378 21504 6144"},
    {"DBRX expert down", "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 1204 6144 10752"},
    {"OLMoE expert gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 512 2048 2048"},
    {"OLMoE expert down", "gemm e4m3fn*e4m3fn->bf16 fast 130 2048 1024"},
    {"gpt-oss expert gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 720 5760 2880"},
    {"gpt-oss expert down", "gemm e4m3fn*e4m3fn->bf16 1450 2880 2880"},
    {"Llama 4 expert gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 333 16384 5120"},
    {"Llama 4 expert down grad_weight", "gemm e5m2*e4m3fn->f32 scale=row,row 5120 8192 1136"},
    {"DeepSeek-V2 q_a", "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 4873 1536 5120"},
    {"DeepSeek-V2 kv_b", "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 3102 32768 512"},
    {"SigLIP so400m fc1", "gemm e4m3fn*e4m3fn->bf16 scale=row,row bias fast 16384 4304 1152"},
    {"DINOv2 g fc2", "gemm e4m3fn*e4m3fn->bf16 bias fast 8224 1536 4096"},
    {"DINOv2 g qkv", "gemm e4m3fn*e4m3fn->bf16 scale=row,row bias 1028 4608 1536"},
    {"wav2vec 2.0 large fc1", "gemm e4m3fn*e4m3fn->bf16 bias fast 5998 4096 1024"},
    {"wav2vec 2.0 large fc2 grad_weight", "gemm bf16*bf16->bf16 tn 1024 4096 6000"},
    {"FLUX MLP in", "gemm e4m3fn*e4m3fn->bf16 scale=row,row bias fast 4608 12288 3072"},
    {"FLUX MLP out", "gemm e4m3fn*e4m3fn->bf16 bias fast 4608 3072 12288"},
    {"SD3 attention_out", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 4250 1536 1536"},
    {"ESM-2 3B fc1", "gemm e4m3fn*e4m3fn->bf16 bias 2041 10240 2560"},
    {"ESM-2 3B fc2 grad_input", "gemm e5m2*e4m3fn->bf16 scale=row,row fast 2041 10240 2560"},
    {"T5 XL wi", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 1711 10240 2048"}};

// Prints the spec's line without what all lines share: "e4m3fn*e4m3fn->bf16 row,row fast".
std::string formats(const GemmSpec& spec) {
  constexpr std::string_view kKind = "gemm ";
  constexpr std::string_view kLayout = " nt scale=";
  const std::string line = print(KernelSpec(spec));
  const std::string_view words = std::string_view(line).substr(kKind.size());
  const std::size_t at = words.find(kLayout);
  if (at == std::string_view::npos) return std::string(words);
  return fmt::format("{} {}", words.substr(0, at), words.substr(at + kLayout.size()));
}

}  // namespace

std::string name(const ChoiceCase& choice) {
  const auto& [m, n, k] = choice.call.size;
  return fmt::format("{} {}x{}x{}", choice.layer, m, n, k);
}

std::vector<ChoiceCase> choice_cases() {
  std::vector<ChoiceCase> cases;
  for (const Line& line : kLines) cases.push_back({.layer = line.layer, .call = parse_gemm_call(line.call)});
  return cases;
}

std::vector<ChoiceCase> read_choice_cases(const std::string& path) {
  constexpr std::uint64_t kMostBytes = 64 << 20;
  const std::string text = read_file(path, kMostBytes);
  std::vector<ChoiceCase> cases;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = take_line(rest);
    const std::size_t tab = line.find('\t');
    if (tab == std::string_view::npos)
      throw Error(ErrorCode::invalid_argument, "--calls", fmt::format("no tab in \"{}\"", line));
    cases.push_back({.layer = std::string(line.substr(0, tab)), .call = parse_gemm_call(line.substr(tab + 1))});
  }
  return cases;
}

bool ChoiceSummary::passes() const { return cases != 0 && measured == cases && share() >= kShareNear; }

ChoiceSummary summary_of(std::span<const Choice> choices) {
  ChoiceSummary summary{.cases = choices.size()};
  double logarithms = 0;
  for (const Choice& choice : choices) {
    if (!choice.measured()) continue;
    const double ratio = choice.ratio();
    summary.worst = summary.measured == 0 ? ratio : std::min(summary.worst, ratio);
    logarithms += std::log(ratio);
    ++summary.measured;
    if (ratio >= kNear) ++summary.near;
  }
  if (summary.measured != 0) summary.geometric = std::exp(logarithms / static_cast<double>(summary.measured));
  return summary;
}

std::string to_text(std::span<const Choice> choices) {
  std::string text = fmt::format("{:<48}{:<34}{:<34}{:>9}{:<3}{:<34}{:>9}{:>8}\n", "M x N x K", "formats", "untuned",
                                 "us", "", "best", "us", "ratio");
  for (const Choice& choice : choices) {
    text += fmt::format("{:<48}{:<34}", name(choice.gemm), formats(choice.gemm.call.spec));
    if (!choice.measured()) {
      text += fmt::format("{}\n", choice.problem);
      continue;
    }
    text += fmt::format("{:<34}{:>9.1f}   {:<34}{:>9.1f}{:>8.3f}{}\n", choice.untuned, choice.untuned_us, choice.best,
                        choice.best_us, choice.ratio(), choice.ratio() < kNear ? " *" : "");
  }
  const ChoiceSummary s = summary_of(choices);
  text += fmt::format(
      "\n{} of {} within {:.0f} % of the best ({:.1f} %; {:.0f} % are asked for: {}); geometric mean {:.3f}, worst "
      "{:.3f}",
      s.near, s.measured, 100 * (1 - kNear), 100 * s.share(), 100 * kShareNear, s.passes() ? "pass" : "short",
      s.geometric, s.worst);
  if (s.measured != s.cases) text += fmt::format("; {} not measured", s.cases - s.measured);
  return text + "\n";
}

nlohmann::ordered_json to_json(const Choice& choice) {
  const auto& [m, n, k] = choice.gemm.call.size;
  nlohmann::ordered_json json{
      {"case", choice.gemm.layer}, {"m", m}, {"n", n}, {"k", k}, {"spec", print(KernelSpec(choice.gemm.call.spec))}};
  if (!choice.measured()) {
    json["problem"] = choice.problem;
    return json;
  }
  json["untuned"] = {{"kernel", choice.untuned}, {"us", choice.untuned_us}};
  json["best"] = {{"kernel", choice.best}, {"us", choice.best_us}};
  json["ratio"] = choice.ratio();
  for (const auto& [kernel, us] : choice.every) json["every"][kernel] = us;
  return json;
}

nlohmann::ordered_json to_json(const ChoiceSummary& summary) {
  return {{"cases", summary.cases},
          {"measured", summary.measured},
          {"near", summary.near},
          {"share", summary.share()},
          {"limit", kNear},
          {"share_asked_for", kShareNear},
          {"geometric", summary.geometric},
          {"worst", summary.worst},
          {"pass", summary.passes()}};
}

}  // namespace ingot::bench
