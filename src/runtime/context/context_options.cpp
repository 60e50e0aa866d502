// Reads the environment's variables (docs/environment.md).
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string_view>

#include "ingot/runtime/context/context.h"
#include "ingot/runtime/util/environment.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/library.h"
#include "ingot/runtime/util/text.h"

namespace ingot {
namespace {

namespace fs = std::filesystem;
using Where = ContextOptions::Where;

[[noreturn]] void refuse(const char* variable, const std::string& value, const std::string& allowed) {
  throw Error(ErrorCode::invalid_argument, variable,
              fmt::format("is \"{}\", but must be {}", printable(value), allowed));
}

std::optional<int> parse_int(std::string_view text, int min, int max) {
  int value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || stop != text.data() + text.size() || value < min || value > max) return std::nullopt;
  return value;
}

void read_device(const std::string& value, ContextOptions& options) {
  constexpr std::string_view kCudaPrefix = "cuda:";
  if (value == "cpu") {
    options.where = Where::cpu;
    return;
  }
  if (value == "cuda") {
    options.where = Where::cuda;
    return;
  }
  const std::optional<int> index = value.starts_with(kCudaPrefix)
                                       ? parse_int(std::string_view(value).substr(kCudaPrefix.size()), 0, 1023)
                                       : std::nullopt;
  if (!index) refuse("INGOT_DEVICE", value, "cpu, cuda or cuda:<number>; unset, it is CUDA where there is a GPU");
  options.where = Where::cuda;
  options.device_index = *index;
}

fs::path read_folder(const char* variable, const std::string& value, const char* what) {
  std::error_code error;
  fs::path folder = expand_home(variable, value);
  if (!fs::is_directory(folder, error)) refuse(variable, value, fmt::format("{}; there is no such folder", what));
  return folder;
}

std::vector<fs::path> split_paths(const char* variable, std::string_view value) {
  std::vector<fs::path> paths;
  while (!value.empty()) {
    const std::string_view path = value.substr(0, value.find(':'));
    if (!path.empty()) paths.push_back(expand_home(variable, std::string(path)));
    value.remove_prefix(std::min(value.size(), path.size() + 1));
  }
  return paths;
}

CacheMode read_cache_mode(const std::string& value) {
  if (value == "auto") return CacheMode::automatic;
  if (value == "strict") return CacheMode::strict;
  if (value == "memory") return CacheMode::memory;
  if (value == "verify") return CacheMode::verify;
  refuse("INGOT_CACHE_MODE", value,
         "auto, strict (nothing is compiled), memory (nothing on disk is read or written) or verify (what is found on "
         "disk is compiled again and compared)");
}

std::int64_t read_max_bytes(const std::string& value) {
  std::int64_t bytes = 0;
  const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), bytes);
  if (error != std::errc{} || stop != value.data() + value.size() || bytes <= 0) {
    refuse("INGOT_CACHE_MAX_BYTES", value, "a number of bytes from 1, such as 2147483648");
  }
  return bytes;
}

void log_on_stderr(const KernelEvent& event) {
  const std::string line = fmt::format("ingot: {}\n", print(event));
  std::fputs(line.c_str(), stderr);
}

bool read_flag(const char* variable) {
  const auto value = environment(variable);
  if (!value || *value == "0") return false;
  if (*value != "1") refuse(variable, *value, "0 or 1");
  return true;
}

}  // namespace

ContextOptions ContextOptions::from_environment() {
  ContextOptions options;
  if (const auto device = environment("INGOT_DEVICE")) read_device(*device, options);
  if (const auto root = environment("INGOT_CUDA_ROOT")) {
    options.cuda_root = *root == Library::kNowhere
                            ? fs::path(*root)
                            : read_folder("INGOT_CUDA_ROOT", *root, "the folder of a CUDA toolkit, or none");
  }
  if (const auto tiers = environment("INGOT_CACHE_TIERS")) options.tiers = split_paths("INGOT_CACHE_TIERS", *tiers);
  if (const auto bytes = environment("INGOT_CACHE_MAX_BYTES")) options.store_max_bytes = read_max_bytes(*bytes);
  if (const auto mode = environment("INGOT_CACHE_MODE")) options.cache_mode = read_cache_mode(*mode);
  if (const auto templates = environment("INGOT_TEMPLATES")) {
    options.templates = read_folder("INGOT_TEMPLATES", *templates, "the folder templates of Ingot's source tree");
  }
  if (const auto threads = environment("INGOT_CPU_THREADS")) {
    constexpr int kMaxThreads = 4096;
    const std::optional<int> count = parse_int(*threads, 0, kMaxThreads);
    if (!count) refuse("INGOT_CPU_THREADS", *threads, fmt::format("a number from 0 (all cores) to {}", kMaxThreads));
    options.cpu_threads = *count;
  }
  if (const auto tuning = environment("INGOT_TUNING")) {
    if (*tuning != "on" && *tuning != "off" && *tuning != "frozen") {
      refuse("INGOT_TUNING", *tuning, "on, off (tuning records are not looked at) or frozen (nothing writes them)");
    }
    options.tuning = *tuning == "on" ? Tuning::on : *tuning == "off" ? Tuning::off : Tuning::frozen;
  }
  if (const auto file = environment_path("INGOT_TUNING_FILE")) {
    std::error_code error;
    if (!fs::is_regular_file(*file, error)) {
      refuse("INGOT_TUNING_FILE", file->string(),
             "a file that `ingot tune --export` wrote; there is none of this name");
    }
    options.tuning_file = *file;
  }
  if (const auto manifest = environment("INGOT_GEMM_MANIFEST")) {
    refuse("INGOT_GEMM_MANIFEST", *manifest, "unset; set INGOT_RECORD, whose file `ingot tune --recording` reads");
  }
  if (const auto record = environment_path("INGOT_RECORD")) options.record = *record;
  if (const auto warm = environment_path("INGOT_WARM")) options.warm = *warm;
  options.check_memory = read_flag("INGOT_CHECK_MEMORY");
  options.check_experts = read_flag("INGOT_CHECK_EXPERTS");
  options.report = read_flag("INGOT_STATS");
  if (read_flag("INGOT_LOG")) options.log = log_on_stderr;
  return options;
}

}  // namespace ingot
