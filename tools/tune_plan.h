// Which products `ingot tune` is to tune: from the command line's shapes, from the layers of a known model, or from
// what a run has recorded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ingot/codegen/product.h"

namespace ingot::tools {

struct PlannedGemm {
  std::string label;  // "gate_up grad_weight, tensorwise"
  ProductCall call;
  std::optional<ProductCall> bf16{};  // the same product in bf16, which an FP8 one is compared with
};

struct TuneRequest {
  std::vector<std::string> mnk{};  // "16384,8192,7168": tokens, out_features, in_features
  std::string set{};               // "llama3-8b"
  std::int64_t tokens = 8192;      // of the set
  std::string recipe{};            // only this one; empty: all
  std::string weight_only{};       // instead of recipes' GEMMs: products with weights of this dtype, a factor to a row
  std::filesystem::path manifest{};
  std::function<void(const std::string&)> warn = [](const std::string&) {};  // of lines that the manifest lost
};

// Each product once, those in bf16 before those that are compared with them. Throws Error{invalid_argument, not_found,
// io_failed}.
std::vector<PlannedGemm> plan(const TuneRequest& request);

// "60s", "5m", "1.5h", "90": seconds. Throws Error{invalid_argument}.
double parse_seconds(const std::string& text);

}  // namespace ingot::tools
