// The cases, results and report of bench_choice, which compares the kernel that the library chooses without tuning with
// the best one that tuning finds.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "ingot/codegen/matmul.h"

namespace ingot::bench {

struct ChoiceCase {
  std::string layer;  // "Mistral 7B qkv"
  GemmCall call;
};

std::string name(const ChoiceCase& choice);  // "Llama 3.1 8B qkv 1903x6144x4096": M x N x K

// GEMMs that the cost model was not fitted on: layers of language, vision and speech models, of experts and of backward
// passes, with 8 to 16384 tokens, mostly not round numbers. The list was renewed on 2026-11-26, when the choices stood,
// except for those of bf16 gradients.
std::vector<ChoiceCase> choice_cases();

// Reads cases from a file, one per line: a name, a tab, and a call as `ingot tune` takes it ("gemm e4m3fn*e4m3fn->bf16
// fast 2017 6144 4096"). Throws Error{not_found or invalid_argument}, and what parse_gemm_call() throws.
std::vector<ChoiceCase> read_choice_cases(const std::string& path);

struct KernelTime {
  std::string kernel;
  double us = 0;
};

// The result of one case; both kernels are timed in the same rounds.
struct Choice {
  ChoiceCase gemm;
  std::string untuned{};  // the kernel that the library takes without tuning
  double untuned_us = 0;
  std::string best{};
  double best_us = 0;               // untuned_us if no other kernel is faster
  std::string problem{};            // why there are no times: out of time, or a wrong result
  std::vector<KernelTime> every{};  // with --every: the time of each kernel that takes the call

  double ratio() const { return best_us / untuned_us; }
  bool measured() const { return problem.empty(); }
};

struct ChoiceSummary {
  std::size_t cases = 0;
  std::size_t measured = 0;
  std::size_t near = 0;  // number of cases within kNear of the best
  double geometric = 0;  // geometric mean of the ratios
  double worst = 0;      // the worst ratio

  double share() const { return measured == 0 ? 0.0 : static_cast<double>(near) / static_cast<double>(measured); }
  // Were all cases measured, and are enough of them near the best?
  bool passes() const;
};

inline constexpr double kNear = 0.95;       // least speed as a share of the best
inline constexpr double kShareNear = 0.90;  // least share of the cases that must be near

ChoiceSummary summary_of(std::span<const Choice> choices);

std::string to_text(std::span<const Choice> choices);
nlohmann::ordered_json to_json(const Choice& choice);
nlohmann::ordered_json to_json(const ChoiceSummary& summary);

}  // namespace ingot::bench
