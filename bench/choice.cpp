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

#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/read_file.h"
#include "ingot/runtime/util/text.h"

namespace ingot::bench {
namespace {

struct Line {
  const char* layer;
  const char* call;  // the spec, then M, N and K
};

constexpr Line kLines[] = {
    {"Mistral 7B qkv", "gemm e4m3fn*e4m3fn->bf16 fast 1202 6144 4096"},
    {"Mistral 7B gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 5754 28672 4096"},
    {"Mistral 7B down grad_weight", "gemm e5m2*e4m3fn->f32 scale=row,row 4096 14336 3072"},
    {"Mixtral 8x22B expert gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 819 32768 6144"},
    {"Mixtral 8x22B expert down", "gemm e4m3fn*e4m3fn->bf16 fast 1308 6144 16384"},
    {"DeepSeek-V3 expert gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 250 4096 7168"},
    {"DeepSeek-V3 expert down", "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 270 7168 2048"},
    {"DeepSeek-V3 q_b", "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 4336 24576 1536"},
    {"DeepSeek-V3 o grad_weight", "gemm e5m2*e4m3fn->f32 scale=1x128,1x128 7168 16384 3616"},
    {"DeepSeek-V3 dense gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 2976 36864 7168"},
    {"Kimi K2 expert gate_up grad_weight", "gemm e5m2*e4m3fn->f32 scale=1x128,1x128 4096 7168 2960"},
    {"Qwen2.5 32B qkv", "gemm e4m3fn*e4m3fn->bf16 bias fast 4861 7168 5120"},
    {"Qwen2.5 32B gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 1597 55296 5120"},
    {"Qwen2.5 32B down", "gemm e4m3fn*e4m3fn->bf16 4786 5120 27648"},
    {"Qwen2.5 72B attention_out", "gemm e4m3fn*e4m3fn->bf16 scale=row,row 1354 8192 8192"},
    {"Qwen2.5 72B down grad_input", "gemm e5m2*e4m3fn->bf16 fast 1662 29568 8192"},
    {"Qwen2.5 7B down", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 4805 3584 18944"},
    {"Qwen2.5 7B gate_up grad_input", "gemm e5m2*e4m3fn->bf16 scale=1x128,128x128 1280 3584 37888"},
    {"Llama 3.2 1B gate_up", "gemm e4m3fn*e4m3fn->bf16 fast 4683 16384 2048"},
    {"Llama 3.2 3B down", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 8106 3072 8192"},
    {"Llama 3.2 3B qkv", "gemm e4m3fn*e4m3fn->bf16 1335 5120 3072"},
    {"Llama 3.1 405B attention_out", "gemm e4m3fn*e4m3fn->bf16 fast 583 16384 16384"},
    {"Llama 3.1 405B down, few tokens", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 94 16384 53248"},
    {"Falcon 40B fc1", "gemm e4m3fn*e4m3fn->bf16 bias 2707 32768 8192"},
    {"Falcon 40B fc2", "gemm e4m3fn*e4m3fn->bf16 scale=row,row bias fast 1317 8192 32768"},
    {"GPT-NeoX 20B qkv", "gemm e4m3fn*e4m3fn->bf16 bias fast 3937 18432 6144"},
    {"GPT-NeoX 20B fc2 grad_weight", "gemm bf16*bf16->bf16 tn 6144 24576 3936"},
    {"MPT 30B up", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 1114 28672 7168"},
    {"MPT 30B down", "gemm e4m3fn*e4m3fn->bf16 fast 1223 7168 28672"},
    {"Gemma 2 9B gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 4657 28672 3584"},
    {"Gemma 2 9B down", "gemm e4m3fn*e4m3fn->bf16 5233 3584 14336"},
    {"Gemma 2 27B attention_out", "gemm e4m3fn*e4m3fn->bf16 fast 5725 4608 4096"},
    {"Phi-3 medium qkv", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 5467 7680 5120"},
    {"Phi-3 medium down", "gemm e4m3fn*e4m3fn->bf16 fast 861 5120 17920"},
    {"Command R+ gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 1271 67584 12288"},
    {"Yi 6B down", "gemm e4m3fn*e4m3fn->bf16 scale=row,row 1282 4096 11008"},
    {"StableLM 2 12B gate_up", "gemm e4m3fn*e4m3fn->bf16 fast 5309 27648 5120"},
    {"GLM-4.5 Air expert gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 264 2816 4096"},
    {"GLM-4.5 expert down grad_input", "gemm e5m2*e4m3fn->bf16 scale=row,row fast 1174 1536 5120"},
    {"MiniMax M2 expert gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 693 3072 3072"},
    {"ERNIE 4.5 21B expert down", "gemm e4m3fn*e4m3fn->bf16 fast 1247 2560 1536"},
    {"Hunyuan A13B expert gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 546 6144 4096"},
    {"Seed-OSS 36B gate_up", "gemm e4m3fn*e4m3fn->bf16 fast 2575 55296 5120"},
    {"Seed-OSS 36B down", "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 2032 5120 27648"},
    {"Nemotron-H 8B up", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 2268 21504 4096"},
    {"Nemotron-H 8B down grad_weight", "gemm e5m2*e4m3fn->f32 4096 21504 2128"},
    {"SmolLM3 3B gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=row,row 4350 22016 2048"},
    {"SmolLM3 3B down, few tokens", "gemm e4m3fn*e4m3fn->bf16 fast 42 2048 11008"},
    {"OLMo 2 32B down", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 1563 5120 27648"},
    {"OLMo 2 32B qkv grad_input", "gemm bf16*bf16->bf16 nn 2937 5120 7168"},
    {"Jamba 1.5 mini expert gate_up", "gemm e4m3fn*e4m3fn->bf16 fast 1483 28672 4096"},
    {"EXAONE 3.5 32B attention_out", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 4652 5120 5120"},
    {"InternVL vision fc1", "gemm e4m3fn*e4m3fn->bf16 bias fast 7860 12800 3200"},
    {"InternVL vision fc2", "gemm e4m3fn*e4m3fn->bf16 scale=row,row bias fast 8637 3200 12800"},
    {"ViT-22B fc1", "gemm e4m3fn*e4m3fn->bf16 scale=row,row bias 2585 24576 6144"},
    {"Whisper large fc1", "gemm e4m3fn*e4m3fn->bf16 bias fast 10131 5120 1280"},
    {"Whisper large fc2", "gemm e4m3fn*e4m3fn->bf16 scale=row,row bias 3251 1280 5120"},
    {"Wan 2.1 14B fc1", "gemm e4m3fn*e4m3fn->bf16 scale=row,row bias fast 15933 13824 5120"},
    {"PixArt cross attention_out", "gemm e4m3fn*e4m3fn->bf16 bias fast 7765 1152 1152"},
    {"BERT large fc2 grad_input", "gemm e5m2*e4m3fn->bf16 fast 7511 4096 1024"}};

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
