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
    {"Mistral 7B qkv", "gemm e4m3fn*e4m3fn->bf16 fast 2017 6144 4096"},
    {"Mistral 7B gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 2193 28672 4096"},
    {"Mistral 7B down", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 843 4096 14336"},
    {"Mistral 7B attention_out", "gemm e4m3fn*e4m3fn->bf16 1684 4096 4096"},
    {"Mistral 7B gate_up grad_input", "gemm e5m2*e4m3fn->bf16 6555 4096 28672"},
    {"Mistral 7B down grad_weight", "gemm e5m2*e4m3fn->f32 scale=row,row 4096 14336 2144"},
    {"Mistral 7B down, few tokens", "gemm e4m3fn*e4m3fn->bf16 fast 8 4096 14336"},
    {"Qwen2 7B qkv", "gemm e4m3fn*e4m3fn->bf16 scale=row,row bias fast 733 4608 3584"},
    {"Qwen2 7B qkv, few tokens", "gemm e4m3fn*e4m3fn->bf16 scale=row,row bias fast 40 4608 3584"},
    {"Qwen2 7B gate_up", "gemm e4m3fn*e4m3fn->bf16 fast 570 37888 3584"},
    {"Qwen2 7B down", "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 2625 3584 18944"},
    {"Qwen2 7B down grad_input", "gemm e5m2*e4m3fn->bf16 scale=row,row 5113 18944 3584"},
    {"Qwen2.5 14B qkv", "gemm e4m3fn*e4m3fn->bf16 bias 5245 7168 5120"},
    {"Qwen2.5 14B gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=row,row 1311 27648 5120"},
    {"Qwen2.5 14B down", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 11795 5120 13824"},
    {"Gemma 2 9B qkv", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 4488 8192 3584"},
    {"Gemma 2 9B attention_out", "gemm e4m3fn*e4m3fn->bf16 fast 660 3584 4096"},
    {"Gemma 2 9B down", "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 3366 3584 14336"},
    {"Gemma 2 2B lm_head", "gemm e4m3fn*e4m3fn->bf16 scale=row,row 90 256000 2304"},
    {"Gemma 2B gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 149 32768 2048"},
    {"Gemma 2B down", "gemm e4m3fn*e4m3fn->bf16 fast 3280 2048 16384"},
    {"Gemma 2B gate_up grad_weight", "gemm e5m2*e4m3fn->f32 16384 2048 3584"},
    {"GPT-J 6B fc_in", "gemm e4m3fn*e4m3fn->bf16 bias fast 1970 16384 4096"},
    {"GPT-J 6B fc_out", "gemm e4m3fn*e4m3fn->bf16 bias fast 1098 4096 16384"},
    {"GPT-J 6B fc_in grad_input", "gemm e5m2*e4m3fn->bf16 7865 4096 16384"},
    {"OPT 125M qkv", "gemm e4m3fn*e4m3fn->bf16 bias fast 2993 2304 768"},
    {"OPT 125M fc1", "gemm e4m3fn*e4m3fn->bf16 scale=row,row bias fast 2687 3072 768"},
    {"OPT 350M fc1", "gemm e4m3fn*e4m3fn->bf16 scale=row,row bias 246 4096 1024"},
    {"OPT 1.3B fc2", "gemm e4m3fn*e4m3fn->bf16 bias 1346 2048 8192"},
    {"OPT 13B fc1", "gemm e4m3fn*e4m3fn->bf16 scale=row,row bias fast 376 20480 5120"},
    {"OPT 13B fc2 grad_weight", "gemm e5m2*e4m3fn->f32 scale=row,row fast 5120 20480 2864"},
    {"GPT-2 XL fc1", "gemm e4m3fn*e4m3fn->bf16 bias fast 2245 6400 1600"},
    {"GPT-2 XL fc2", "gemm e4m3fn*e4m3fn->bf16 scale=row,row bias fast 4371 1600 6400"},
    {"GPT-2 XL fc2 grad_weight", "gemm e5m2*e4m3fn->f32 1600 6400 2864"},
    {"Phi-3 mini gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 13105 16384 3072"},
    {"Phi-3 mini down", "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 514 3072 8192"},
    {"Phi-2 fc1", "gemm e4m3fn*e4m3fn->bf16 bias fast 110 10240 2560"},
    {"Phi-2 fc2 grad_input", "gemm e5m2*e4m3fn->bf16 scale=row,row fast 937 10240 2560"},
    {"Falcon 7B qkv", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 1460 4672 4544"},
    {"Falcon 7B up, few tokens", "gemm e4m3fn*e4m3fn->bf16 scale=row,row 30 18176 4544"},
    {"Falcon 7B down", "gemm e4m3fn*e4m3fn->bf16 6555 4544 18176"},
    {"Mixtral expert gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 246 28672 4096"},
    {"Mixtral expert down", "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 594 4096 14336"},
    {"Mixtral expert down grad_weight", "gemm e5m2*e4m3fn->f32 scale=row,row 4096 14336 352"},
    {"Qwen MoE expert gate_up", "gemm e4m3fn*e4m3fn->bf16 fast 256 2816 2048"},
    {"Qwen MoE expert gate_up, full", "gemm e4m3fn*e4m3fn->bf16 scale=row,row 2558 2816 2048"},
    {"Qwen MoE expert down", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 256 2048 1408"},
    {"DeepSeek-V3 expert gate_up", "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 189 4096 7168"},
    {"DeepSeek-V3 expert down", "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 1577 7168 2048"},
    {"DeepSeek-V3 q_b", "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 2193 24576 1536"},
    {"DeepSeek-V3 kv_a", "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 10736 576 7168"},
    {"ViT-L qkv", "gemm e4m3fn*e4m3fn->bf16 scale=row,row bias fast 9206 3072 1024"},
    {"ViT-L fc2", "gemm e4m3fn*e4m3fn->bf16 bias fast 16384 1024 4096"},
    {"ViT-L fc2 grad_weight", "gemm e5m2*e4m3fn->f32 scale=row,row 1024 4096 8816"},
    {"Whisper large fc1", "gemm e4m3fn*e4m3fn->bf16 bias 15725 5120 1280"},
    {"Whisper large attention_out", "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast 1098 1280 1280"},
    {"BERT base qkv", "gemm e4m3fn*e4m3fn->bf16 bias fast 8389 2304 768"},
    {"BERT base fc2", "gemm e4m3fn*e4m3fn->bf16 scale=row,row bias 283 768 3072"},
    {"T5 large wo", "gemm e4m3fn*e4m3fn->f32 scale=row,row fast 1184 1024 2816"},
    {"Llama 3.2 1B gate_up", "gemm e4m3fn*e4m3fn->bf16 11963 16384 2048"}};

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
