// Plans which matmuls `ingot tune` tunes: from the shapes on the command line, the layers of a known model, or
// a recording of a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ingot/codegen/matmul.h"

namespace ingot::tools {

struct PlannedGemm {
  std::string label;  // "gate_up grad_weight, tensorwise"
  MatmulCall call;
  std::optional<MatmulCall> bf16{};  // the same matmul in 16 bits, for comparison; none if it is in 16 bits itself
};

struct TuneRequest {
  std::vector<std::string> mnk{};  // "16384,8192,7168": tokens, out_features, in_features
  std::string set{};               // "llama3-8b"
  // The set's tokens. Default: 8192, as in training, or with `weight_only` 16, as in decoding.
  std::optional<std::int64_t> tokens{};
  std::string recipe{};        // only this one; empty: all
  std::string weight_only{};   // instead of the recipes' GEMMs: matmuls with packed weights of this dtype
  std::string weight_scale{};  // those weights' scale_inv: "tensor", "row", ..., "mx"; empty: row for FP8, else mx
  std::string activations{};   // what those weights are packed for: "bf16" or "f16"; empty: bf16
  std::filesystem::path recording{};
  std::function<void(const std::string&)> warn = [](const std::string&) {};  // about damaged lines of the recording
};

// Lists each matmul once, and the ones in 16 bits before those that are compared with them. Throws
// Error{invalid_argument, not_found, io_failed}.
std::vector<PlannedGemm> plan(const TuneRequest& request);

// Parses --tokens; none if the text is empty. Throws Error{invalid_argument}.
std::optional<std::int64_t> parse_tokens(const std::string& text);
// Parses "60s", "5m", "1.5h" or "90" as seconds. Throws Error{invalid_argument}.
double parse_seconds(const std::string& text);

}  // namespace ingot::tools
