// Collects the description of a machine: from the context, from the files of /proc, and the commit from git.
#include "machine.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <regex>
#include <thread>

#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/read_file.h"
#include "ingot/runtime/util/text.h"

namespace ingot::bench {
namespace {

// Returns "b213646" or, with uncommitted changes, "b213646-dirty".
std::string commit_of_folder() {
  const auto close = [](std::FILE* pipe) { pclose(pipe); };
  const std::unique_ptr<std::FILE, decltype(close)> pipe(popen("git describe --always --dirty 2>/dev/null", "r"),
                                                         close);
  std::array<char, 128> line{};
  if (pipe == nullptr || std::fgets(line.data(), line.size(), pipe.get()) == nullptr) return "unknown";
  const std::string text = line.data();
  return text.substr(0, text.find('\n'));
}

// Empty if there is no such file.
std::string text_of(const char* path) {
  constexpr std::uint64_t kMostBytes = 16 << 20;
  try {
    return read_file(path, kMostBytes);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

std::string driver_version(const std::string& proc_text) {
  std::smatch found;
  return std::regex_search(proc_text, found, std::regex(R"(\b\d{3,}\.\d+(\.\d+)?\b)")) ? found.str() : std::string{};
}

std::string processor_name(const std::string& proc_text) {
  std::smatch found;
  return std::regex_search(proc_text, found, std::regex(R"(model name\s*:\s*([^\n]*))")) ? found.str(1) : std::string{};
}

Machine machine_of(const Context& context, const std::string& commit) {
  const ContextInfo info = context.info();
  const auto version_of = [&](const std::string& name) {
    for (const LibraryInfo& library : info.libraries) {
      if (library.name == name) return library.version;
    }
    return std::string{};
  };
  std::string driver = driver_version(text_of("/proc/driver/nvidia/version"));
  if (driver.empty()) driver = version_of("CUDA driver").empty() ? "" : "CUDA " + version_of("CUDA driver");
  return {.date = today(),
          .commit = commit.empty() ? commit_of_folder() : commit,
          .ingot = info.ingot_version,
          .device = info.device_name,
          .target = print(info.target),
          .driver = driver,
          .nvrtc = version_of("NVRTC"),
          .cublaslt = version_of("cuBLASLt"),
          .processor =
              std::to_string(std::thread::hardware_concurrency()) + " x " + processor_name(text_of("/proc/cpuinfo"))};
}

}  // namespace ingot::bench
