// Which products `ingot tune` is to tune: from the command line's shapes, from the layers of a known model, or from
// what a run has recorded.
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
  std::optional<MatmulCall> bf16{};  // the same product in 16 bits, which one with codes is compared with
};

struct TuneRequest {
  std::vector<std::string> mnk{};  // "16384,8192,7168": tokens, out_features, in_features
  std::string set{};               // "llama3-8b"
  // Of the set. Without: 8192, as in training, and with `weight_only` 16, as in decoding.
  std::optional<std::int64_t> tokens{};
  std::string recipe{};        // only this one; empty: all
  std::string weight_only{};   // instead of recipes' GEMMs: products with weights of this dtype
  std::string weight_scale{};  // "tensor", "row", ..., "mx" of those; empty: row for FP8, mx for fewer bits
  std::string activations{};   // "bf16" or "f16" of those, packed for them; empty: bf16
  std::filesystem::path manifest{};
  std::function<void(const std::string&)> warn = [](const std::string&) {};  // of lines that the manifest lost
};

// Each product once, those in bf16 before those that are compared with them. Throws Error{invalid_argument, not_found,
// io_failed}.
std::vector<PlannedGemm> plan(const TuneRequest& request);

// "60s", "5m", "1.5h", "90": seconds. Throws Error{invalid_argument}.
double parse_seconds(const std::string& text);

}  // namespace ingot::tools
