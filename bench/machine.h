// Describes the machine and the software that a figure was measured with.
#pragma once

#include <string>

#include "ingot/runtime/context/context.h"

namespace ingot::bench {

struct Machine {
  std::string date{};  // UTC, "2026-11-21"
  std::string commit{};
  std::string ingot{};
  std::string device{};
  std::string target{};
  std::string driver{};  // the kernel module's version, as nvidia-smi shows it; otherwise the API's, "CUDA 13.0"
  std::string nvrtc{};
  std::string cublaslt{};
  std::string processor{};  // "16 x Intel(R) Xeon(R) Platinum 8480+"
};

// If `commit` is empty, asks git about the current folder.
Machine machine_of(const Context& context, const std::string& commit);

// Extracts "580.159.04" from the text of /proc/driver/nvidia/version; empty if it is not there.
std::string driver_version(const std::string& proc_text);
// Extracts the processor's name from the text of /proc/cpuinfo; empty if it is not there.
std::string processor_name(const std::string& proc_text);

}  // namespace ingot::bench
