// The commands of the program `ingot`. Each prints to stdout and throws ingot::Error if it fails; tune() and warm()
// return an exit code, as they can also end halfway.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace ingot::tools {

struct InfoOptions {
  bool json = false;
};
void info(const InfoOptions& options);

struct ShowOptions {
  std::string spec;
  std::string target;  // empty: this GPU's, or sm_90a if there is none
  bool source = false;
  bool ptx = false;
  bool sass = false;
  bool json = false;
  std::filesystem::path cubin;  // where to write the machine code; empty: nowhere
};
void show(const ShowOptions& options);

struct TuneOptions {
  std::vector<std::string> mnk{};  // tokens, out_features, in_features
  std::string set{};
  std::string tokens{};  // of --set; empty: its default
  std::string recipe{};
  std::string weight_only{};
  std::string weight_scale{};
  std::string activations{};
  std::filesystem::path manifest{};
  std::string budget{};  // "60s"; empty: as long as it takes
  bool again = false;    // also tune what has a record
  bool list = false;
  bool json = false;
  std::filesystem::path import_from{};
  std::filesystem::path export_to{};
};
int tune(const TuneOptions& options);

struct WarmOptions {
  std::vector<std::string> sets{};
  std::vector<std::filesystem::path> layers{};
  std::vector<std::filesystem::path> recordings{};
  std::vector<std::string> gpus{};          // empty: h200
  std::vector<std::string> recipes{};       // empty: all
  std::vector<std::string> weights{};       // weight-only formats; empty: e4m3fn
  std::vector<std::string> grad_weights{};  // empty: dtype
  bool accumulate = false;
  bool weight_lists = false;
  std::string dtype = "bf16";
  std::optional<std::string> tokens{};  // in a training step, "none" for no training
  std::optional<std::string> decode{};  // decoded at once, "none" for no decoding
  std::filesystem::path tuning{};       // an exported file of tuning records
  bool candidates = false;
  int jobs = 0;  // worker processes; 0: one per core
  std::string shard{};
  std::filesystem::path bundle{};
  bool list = false;
  bool check = false;  // compile nothing, only tell what is missing
  bool json = false;
};
// Returns 0, 1 if a kernel failed or `check` found one missing, or 130 if it was stopped before the end.
int warm(const WarmOptions& options);

// "0 B", "7.4 KiB", "1.2 GiB"
std::string print_bytes(double bytes);

}  // namespace ingot::tools
