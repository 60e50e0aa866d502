// The commands of the program `ingot`. Each prints to stdout and throws ingot::Error if it fails; tune() returns an
// exit code, as it can also end halfway.
#pragma once

#include <cstdint>
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
  bool json = false;
  std::filesystem::path cubin;  // where to write the machine code; empty: nowhere
};
void show(const ShowOptions& options);

struct TuneOptions {
  std::vector<std::string> mnk{};  // tokens, out_features, in_features
  std::string set{};
  std::optional<std::int64_t> tokens{};
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

// "0 B", "7.4 KiB", "1.2 GiB"
std::string print_bytes(double bytes);

}  // namespace ingot::tools
