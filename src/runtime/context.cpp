#include "ingot/runtime/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string_view>
#include <utility>

#include "ingot/codegen/template_files.h"
#include "ingot/runtime/cpu_backend.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/cuda_backend.h"
#include "ingot/runtime/error.h"
#include "ingot/runtime/gemm/cublaslt.h"
#include "ingot/runtime/jit/kernel_bundle.h"
#include "ingot/runtime/jit/kernel_identity.h"
#include "ingot/runtime/jit/nvrtc_compiler.h"
#include "ingot/runtime/jit/read_only_store.h"
#include "ingot/runtime/jit/recorder.h"
#include "ingot/runtime/measure/nvtx.h"
#include "ingot/runtime/tuning/matmul_manifest.h"
#include "ingot/runtime/util/environment.h"
#include "ingot/runtime/util/library.h"

namespace ingot {
namespace {

namespace fs = std::filesystem;
using Where = ContextOptions::Where;

[[noreturn]] void refuse(const char* variable, const std::string& value, const std::string& allowed) {
  throw Error(ErrorCode::invalid_argument, variable, fmt::format("is \"{}\", but must be {}", value, allowed));
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
  if (!fs::is_directory(value, error)) refuse(variable, value, fmt::format("{}; there is no such folder", what));
  return value;
}

std::vector<fs::path> split_paths(std::string_view value) {
  std::vector<fs::path> paths;
  while (!value.empty()) {
    const std::string_view path = value.substr(0, value.find(':'));
    if (!path.empty()) paths.emplace_back(path);
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

void warn_on_stderr(const std::string& message) {
  const std::string line = fmt::format("ingot: warning: {}\n", message);
  std::fputs(line.c_str(), stderr);
}

// cuBLASLt's version ("13.1.0") for info(), when no context has opened the library.
LibraryInfo find_cublaslt(const std::string& cuda_root) {
  LibraryInfo info{.name = "cuBLASLt", .version = {}, .path = {}, .problem = {}};
  const Library library = Library::open_cuda({"libcublasLt.so.13", "libcublasLt.so.12"}, cuda_root, info.problem);
  if (!library) return info;
  info.path = library.path();
  using GetVersion = std::size_t (*)();
  const auto get_version = reinterpret_cast<GetVersion>(library.symbol("cublasLtGetVersion"));
  if (get_version == nullptr) {
    info.problem = fmt::format("{} is not cuBLASLt: it lacks cublasLtGetVersion", library.path());
    return info;
  }
  const std::size_t number = get_version();  // 130100
  info.version = fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
  return info;
}

template <class Found>
LibraryInfo library_info(const char* name, const Found* found, const std::string& problem) {
  if (found == nullptr) return {.name = name, .version = {}, .path = {}, .problem = problem};
  return {.name = name, .version = found->version(), .path = found->path(), .problem = {}};
}

// NVTX is opened only when ranges are first asked for.
LibraryInfo find_nvtx(const std::string& cuda_root) {
  std::string problem;
  const std::unique_ptr<Nvtx> nvtx = Nvtx::open(cuda_root, problem);
  return library_info("NVTX", nvtx.get(), problem);
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
  if (const auto tiers = environment("INGOT_CACHE_TIERS")) options.tiers = split_paths(*tiers);
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
  if (const auto file = environment("INGOT_TUNING_FILE")) {
    std::error_code error;
    if (!fs::is_regular_file(*file, error)) {
      refuse("INGOT_TUNING_FILE", *file, "a file that `ingot tune --export` wrote; there is none of this name");
    }
    options.tuning_file = *file;
  }
  if (const auto manifest = environment("INGOT_GEMM_MANIFEST")) options.gemm_manifest = *manifest;
  if (const auto record = environment("INGOT_RECORD")) options.record = *record;
  return options;
}

// Members are constructed in this order, and each uses those above it.
struct Context::Parts {
  // A tier that cannot be used has a problem in place of kernels.
  struct Tier {
    TierInfo info;
    std::unique_ptr<KernelTier> kernels;
  };

  explicit Parts(ContextOptions given);

  ContextOptions options;
  std::string driver_problem;  // why there is no driver, or empty
  std::unique_ptr<Driver> driver;
  std::string compiler_problem;
  TemplateFiles templates;
  std::unique_ptr<NvrtcCompiler> compiler;
  std::vector<Tier> tiers;
  KernelStore store;
  KernelCache cache;
  std::string cublaslt_problem;
  std::unique_ptr<CublasLt> cublaslt;
  TuningStore tuning_store;
  TuningMachine machine;
  MatmulChoices choices;
  std::unique_ptr<MatmulManifest> manifest;  // null where none is recorded
  Recorder recorder;
  std::unique_ptr<Backend> backend;

 private:
  static ContextOptions with_warn(ContextOptions options);
  static Tier open_tier(const fs::path& path);
  std::vector<Tier> open_tiers() const;
  KernelOrigins origins() const;
  std::unique_ptr<Driver> open_driver();
  std::unique_ptr<NvrtcCompiler> open_compiler();
  std::unique_ptr<CublasLt> open_cublaslt();
  TuningMachine describe_machine() const;
  Target target() const { return driver ? driver->device_target(options.device_index) : options.offline_target; }
};

Context::Parts::Parts(ContextOptions given)
    : options(with_warn(std::move(given))),
      driver(open_driver()),
      templates(options.templates.empty() ? embedded_templates() : read_templates(options.templates)),
      compiler(open_compiler()),
      tiers(open_tiers()),
      store(options.cache_mode == CacheMode::memory ? fs::path() : options.store_root, options.warn),
      cache(origins(), store, target(), driver.get(), driver ? options.device_index : 0),
      cublaslt(open_cublaslt()),
      tuning_store(options.store_root, options.warn),
      machine(describe_machine()),
      choices(options.tuning, tuning_store, options.tuning_file, machine, options.warn),
      manifest(options.gemm_manifest.empty() ? nullptr
                                             : std::make_unique<MatmulManifest>(options.gemm_manifest, options.warn)),
      recorder(options.record, options.warn),
      backend(driver ? make_cuda_backend(*driver, options.device_index, cache,
                                         {.cublaslt = cublaslt.get(),
                                          .choices = &choices,
                                          .manifest = manifest.get(),
                                          .recorder = &recorder,
                                          .compiles = compiler != nullptr})
                     : make_cpu_backend(options.cpu_threads, manifest.get(), &recorder)) {
  cache.record_with(&recorder);
}

ContextOptions Context::Parts::with_warn(ContextOptions options) {
  if (!options.warn) options.warn = warn_on_stderr;
  return options;
}

// Null, with the reason in driver_problem, if the context runs on the CPU.
std::unique_ptr<Driver> Context::Parts::open_driver() {
  if (options.where == Where::cpu) {
    driver_problem = "not looked for: the CPU was asked for";
    return nullptr;
  }
  std::unique_ptr<Driver> opened = Driver::open(driver_problem);
  if (opened != nullptr) {
    const Target found = opened->device_target(options.device_index);
    if (found.major >= kSupportedTargets.front().major) return opened;
    driver_problem =
        fmt::format("{} is {}, and Ingot's kernels need {} or newer", opened->device_name(options.device_index),
                    print(found), print(kSupportedTargets.front()));
  }
  if (options.where == Where::cuda) {
    throw Error(ErrorCode::not_found, fmt::format("cuda:{}", options.device_index),
                driver_problem + "; INGOT_DEVICE=cpu (or ContextOptions::where) chooses the CPU");
  }
  return nullptr;
}

std::unique_ptr<NvrtcCompiler> Context::Parts::open_compiler() {
  auto opened = NvrtcCompiler::open(options.cuda_root.string(), templates, compiler_problem);
  if (opened == nullptr && driver != nullptr) {
    options.warn("no NVRTC: only kernels that the store or a bundle has already can run. " + compiler_problem);
  }
  return opened;
}

Context::Parts::Tier Context::Parts::open_tier(const fs::path& path) {
  Tier tier{.info = {.path = path.string(), .kernels = 0, .problem = {}}, .kernels = nullptr};
  std::error_code error;
  if (fs::is_directory(path, error)) {
    tier.kernels = ReadOnlyStore::open(path, tier.info.problem);
  } else if (auto bundle = KernelBundle::open(path, tier.info.problem)) {
    tier.info.kernels = static_cast<std::int64_t>(bundle->entries().size());
    tier.kernels = std::move(bundle);
  }
  return tier;
}

std::vector<Context::Parts::Tier> Context::Parts::open_tiers() const {
  std::vector<Tier> opened;
  if (options.cache_mode == CacheMode::memory) return opened;
  for (const fs::path& path : options.tiers) {
    opened.push_back(open_tier(path));
    const TierInfo& info = opened.back().info;
    if (!info.problem.empty())
      options.warn(fmt::format("the kernels of {} are not used: it {}", info.path, info.problem));
  }
  return opened;
}

KernelOrigins Context::Parts::origins() const {
  KernelOrigins origins{.compiler = compiler.get(),
                        .identity = compiler ? compiler->identity() : kernel_identity(templates),
                        .mode = options.cache_mode};
  for (const Tier& tier : tiers) {
    if (tier.kernels != nullptr) origins.tiers.push_back(tier.kernels.get());
  }
  return origins;
}

std::unique_ptr<CublasLt> Context::Parts::open_cublaslt() {
  if (driver == nullptr) return nullptr;
  auto opened = CublasLt::open(options.cuda_root.string(), *driver, cublaslt_problem);
  if (opened == nullptr) options.warn("no cuBLASLt: all GEMMs run on kernels of Ingot's own. " + cublaslt_problem);
  return opened;
}

TuningMachine Context::Parts::describe_machine() const {
  return {.device = driver ? driver->device_name(options.device_index) : "CPU reference",
          .target = print(target()),
          .multiprocessors = driver ? driver->multiprocessors(options.device_index) : 0,
          .driver = driver ? driver->version() : "",
          .compiler = cache.identity(),
          .cublaslt = cublaslt ? cublaslt->version() : ""};
}

Context::Context(ContextOptions options) : parts_(std::make_unique<Parts>(std::move(options))) {}
Context::~Context() = default;

Device Context::device() const { return parts_->backend->device(); }
Backend& Context::backend() { return *parts_->backend; }
KernelCache& Context::cache() { return parts_->cache; }
KernelStore& Context::store() { return parts_->store; }
TuningStore& Context::tuning_store() { return parts_->tuning_store; }
const TuningMachine& Context::tuning_machine() const { return parts_->machine; }
Tuning Context::tuning() const { return parts_->options.tuning; }
const Compiler* Context::compiler() const { return parts_->compiler.get(); }

ContextInfo Context::info() const {
  const Parts& parts = *parts_;
  const Driver* driver = parts.driver.get();
  ContextInfo info;
  info.ingot_version = version();
  info.device = device();
  info.device_name = driver != nullptr ? driver->device_name(parts.options.device_index) : "CPU reference";
  info.reason = parts.driver_problem;
  info.target = parts.cache.target();
  info.libraries = {library_info("CUDA driver", driver, parts.driver_problem),
                    library_info("NVRTC", parts.compiler.get(), parts.compiler_problem),
                    driver != nullptr ? library_info("cuBLASLt", parts.cublaslt.get(), parts.cublaslt_problem)
                                      : find_cublaslt(parts.options.cuda_root.string()),
                    find_nvtx(parts.options.cuda_root.string())};
  info.store_root = parts.store.root();
  info.store_usage = parts.store.usage();
  info.store_problem = parts.store.disabled_reason();
  for (const Parts::Tier& tier : parts.tiers) info.tiers.push_back(tier.info);
  info.cache_mode = parts.options.cache_mode;
  return info;
}

Recording Context::recording() const { return parts_->recorder.recording(); }

std::string version() { return INGOT_VERSION; }

}  // namespace ingot
