// What a figure was measured with: without it the figure means little.
#pragma once

#include <string>

#include "ingot/runtime/context.h"

namespace ingot::bench {

struct Machine {
  std::string date{};  // UTC, "2026-11-21"
  std::string commit{};
  std::string ingot{};
  std::string device{};
  std::string target{};
  std::string driver{};  // the kernel module's version, as nvidia-smi shows it; else the API's, "CUDA 13.0"
  std::string nvrtc{};
  std::string cublaslt{};
  std::string processor{};  // "16 x Intel(R) Xeon(R) Platinum 8480+"
};

// `commit`: empty to ask git about the current folder.
Machine machine_of(const Context& context, const std::string& commit);

// "580.159.04" of the text of /proc/driver/nvidia/version; empty if there is none in it.
std::string driver_version(const std::string& proc_text);
// The processor's name in the text of /proc/cpuinfo; empty if there is none in it.
std::string processor_name(const std::string& proc_text);

}  // namespace ingot::bench
