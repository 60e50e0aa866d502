// Plans which kernels `ingot warm` makes: what layers ask for when they are run dry, and what recordings name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "ingot/codegen/generate.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/tuning/tuning_record.h"

namespace ingot::tools {

struct WarmRequest {
  std::vector<std::string> sets{};              // known models: "llama3-8b"
  std::vector<std::filesystem::path> layers{};  // JSON files with layers
  std::vector<std::filesystem::path> recordings{};
  std::vector<std::string> gpus{"h200"};  // names of known GPUs
  std::vector<std::string> recipes{};     // empty: all
  std::vector<std::string> weights{};     // weight-only formats, "e4m3fn" or "e4m3fn:1x128"; empty: e4m3fn
  std::string dtype = "bf16";             // of activations: bf16 or f16
  std::string training_tokens = "8192";   // a list of numbers and ranges; empty: no training
  std::string decoding_tokens = "1-256";  // the same
  std::vector<TuningRecord> tuned{};      // whose kernels are made, too
  std::function<void(const std::string&)> warn = [](const std::string&) {};
};

// One kernel to make.
struct WarmJob {
  std::string name;  // the spec's line, and which of its passes
  Target target{};
  Source source{};
  double weight = 1;  // about how long it takes to compile, relative to others
};

// The longest first, and each kernel once. Throws Error{invalid_argument, not_found, io_failed}.
std::vector<WarmJob> plan_warm(const WarmRequest& request);

// "1,16,64-66" is 1, 16, 64, 65, 66: another number of tokens may need another kernel. Throws Error{invalid_argument}.
std::vector<std::int64_t> parse_tokens(const std::string& option, const std::string& text);

}  // namespace ingot::tools
