// The commands of the program `ingot`. Each prints to stdout and throws ingot::Error.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace ingot::tools {

struct InfoOptions {
  bool json = false;
};
void info(const InfoOptions& options);

struct ShowOptions {
  std::string spec;
  std::string target;  // empty: the device's, or sm_90a where there is none
  bool source = false;
  bool ptx = false;
  bool json = false;
  std::filesystem::path cubin;  // empty: not written
};
void show(const ShowOptions& options);

// "0 B", "7.4 KiB", "1.2 GiB"
std::string print_bytes(double bytes);

}  // namespace ingot::tools
