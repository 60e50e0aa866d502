// What the library chooses without tuning, against the best that tuning finds: the GEMMs that bench_choice runs, and
// what it says of them.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "ingot/codegen/gemm/gemm_call.h"

namespace ingot::bench {

struct ChoiceCase {
  std::string layer;  // "Mistral 7B qkv"
  GemmCall call;
};

std::string name(const ChoiceCase& choice);  // "Mistral 7B qkv 1536x6144x4096": M x N x K

// Products that the cost model was not fitted on: layers of language, vision and speech models, of experts and of
// backward passes, at 8 to 16384 tokens, most of them no round number.
std::vector<ChoiceCase> choice_cases();

// A case to each line of a file: a call as `ingot tune` takes it ("gemm e4m3fn*e4m3fn->bf16 fast 2017 6144 4096"),
// after its name and a tab. Throws Error{not_found or invalid_argument}, and what parse_gemm_call() does.
std::vector<ChoiceCase> read_choice_cases(const std::string& path);

struct KernelTime {
  std::string kernel;
  double us = 0;
};

// Of one case, both measured in the same rounds.
struct Choice {
  ChoiceCase gemm;
  std::string untuned{};  // the kernel that the library takes by itself
  double untuned_us = 0;
  std::string best{};
  double best_us = 0;               // the untuned time where that is the best
  std::string problem{};            // why there are no times: not reached, or a wrong result
  std::vector<KernelTime> every{};  // of each kernel that takes the call, where all were asked for

  double ratio() const { return best_us / untuned_us; }
  bool measured() const { return problem.empty(); }
};

struct ChoiceSummary {
  std::size_t cases = 0;
  std::size_t measured = 0;
  std::size_t near = 0;  // within kNear of the best
  double geometric = 0;  // mean of the ratios
  double worst = 0;      // ratio

  double share() const { return measured == 0 ? 0.0 : static_cast<double>(near) / static_cast<double>(measured); }
  // All were measured, and enough of them are near.
  bool passes() const;
};

inline constexpr double kNear = 0.95;       // of the best, at least
inline constexpr double kShareNear = 0.90;  // of the cases

ChoiceSummary summary_of(std::span<const Choice> choices);

std::string to_text(std::span<const Choice> choices);
nlohmann::ordered_json to_json(const Choice& choice);
nlohmann::ordered_json to_json(const ChoiceSummary& summary);

}  // namespace ingot::bench
