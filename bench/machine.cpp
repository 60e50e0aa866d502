#include "machine.h"

#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <regex>

#include "ingot/runtime/date.h"

namespace ingot::bench {
namespace {

// "b213646" or, with changes that are not committed, "b213646-dirty".
std::string commit_of_folder() {
  const auto close = [](std::FILE* pipe) { pclose(pipe); };
  const std::unique_ptr<std::FILE, decltype(close)> pipe(popen("git describe --always --dirty 2>/dev/null", "r"),
                                                         close);
  std::array<char, 128> line{};
  if (pipe == nullptr || std::fgets(line.data(), line.size(), pipe.get()) == nullptr) return "unknown";
  const std::string text = line.data();
  return text.substr(0, text.find('\n'));
}

}  // namespace

std::string driver_version(const std::string& proc_text) {
  std::smatch found;
  return std::regex_search(proc_text, found, std::regex(R"(\b\d{3,}\.\d+(\.\d+)?\b)")) ? found.str() : std::string{};
}

Machine machine_of(const Context& context, const std::string& commit) {
  const ContextInfo info = context.info();
  const auto version_of = [&](const std::string& name) {
    for (const LibraryInfo& library : info.libraries) {
      if (library.name == name) return library.version;
    }
    return std::string{};
  };
  std::ifstream file("/proc/driver/nvidia/version");
  const std::string proc_text{std::istreambuf_iterator<char>(file), {}};
  std::string driver = driver_version(proc_text);
  if (driver.empty()) driver = "CUDA " + version_of("CUDA driver");
  return {.date = today(),
          .commit = commit.empty() ? commit_of_folder() : commit,
          .ingot = info.ingot_version,
          .device = info.device_name,
          .target = print(info.target),
          .driver = driver,
          .nvrtc = version_of("NVRTC"),
          .cublaslt = version_of("cuBLASLt")};
}

}  // namespace ingot::bench
