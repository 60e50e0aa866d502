#include "ingot/runtime/context/context.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <system_error>
#include <utility>

#include "ingot/codegen/dequant/dequant_candidates.h"
#include "ingot/codegen/gemm/gemm_candidates.h"
#include "ingot/codegen/generate.h"
#include "ingot/codegen/recording.h"
#include "ingot/codegen/template_files.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/context/cuda_backend.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/cuda/nvtx.h"
#include "ingot/runtime/dist/nccl_library.h"
#include "ingot/runtime/gemm/cublaslt.h"
#include "ingot/runtime/jit/kernel_bundle.h"
#include "ingot/runtime/jit/kernel_identity.h"
#include "ingot/runtime/jit/nvrtc_compiler.h"
#include "ingot/runtime/jit/read_only_store.h"
#include "ingot/runtime/jit/recorder.h"
#include "ingot/runtime/jit/warm_up.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/fork_mutex.h"
#include "ingot/runtime/util/library.h"
#include "ingot/runtime/util/text.h"
#include "ingot/version.h"

namespace ingot {
namespace {

namespace fs = std::filesystem;
using Where = ContextOptions::Where;

void warn_on_stderr(const std::string& message) {
  const std::string line = fmt::format("ingot: warning: {}\n", without_controls(message));
  std::fputs(line.c_str(), stderr);
}

// cuBLASLt's version ("13.1.0") for info(), when no context has opened the library.
LibraryInfo find_cublaslt(const std::string& cuda_root) {
  LibraryInfo info{.name = "cuBLASLt", .version = {}, .path = {}, .problem = {}};
  const Library library = Library::open_cuda("libcublasLt.so", 0, cuda_root, info.problem);
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

// KernelStore::disabled_reason(), which makes the folder to find out; this makes nothing.
std::string why_nothing_is_kept(const KernelStore& store) {
  std::error_code error;
  if (store.root().empty() || fs::exists(store.root(), error)) return store.disabled_reason();
  if (std::string problem = store.directory().distrusted(); !problem.empty()) return problem;
  fs::path parent = store.root().parent_path();
  while (parent.has_relative_path() && !fs::exists(parent, error)) parent = parent.parent_path();
  if (faccessat(AT_FDCWD, parent.c_str(), W_OK | X_OK, AT_EACCESS) == 0) return {};
  return fmt::format("store directory {} cannot be made: {}", store.root().string(),
                     std::system_category().message(errno));
}

// NVTX is opened only when ranges are first asked for.
LibraryInfo find_nvtx(const std::string& cuda_root) {
  std::string problem;
  const std::unique_ptr<Nvtx> nvtx = Nvtx::open(cuda_root, problem);
  return library_info("NVTX", nvtx.get(), problem);
}

// Who makes a Comm opens NCCL.
LibraryInfo find_nccl(const std::string& cuda_root) {
  std::string problem;
  const std::unique_ptr<NcclLibrary> nccl = NcclLibrary::open("", cuda_root, problem);
  return library_info("NCCL", nccl.get(), problem);
}

// Null, with the reason in `problem`, if a context with these options runs on the CPU. Sets options.device_index to
// that of the options' own CUDA context.
std::unique_ptr<Driver> open_driver(ContextOptions& options, std::string& problem) {
  if (options.where == Where::cpu) {
    if (options.cuda_context != nullptr) {
      throw Error(ErrorCode::invalid_argument, "ContextOptions::cuda_context",
                  "is of a GPU, but the CPU was asked for; leave it null, or set `where` to automatic or cuda");
    }
    problem = "not looked for: the CPU was asked for";
    return nullptr;
  }
  std::unique_ptr<Driver> opened = Driver::open(problem);
  if (opened != nullptr) {
    if (options.cuda_context != nullptr) options.device_index = opened->use_context(options.cuda_context);
    const Target found = opened->device_target(options.device_index);
    if (found.major >= kSupportedTargets.front().major) return opened;
    problem = fmt::format("{} is {}, and Ingot's kernels need {} or newer", opened->device_name(options.device_index),
                          print(found), print(kSupportedTargets.front()));
  }
  if (options.where == Where::cuda || options.cuda_context != nullptr) {
    throw Error(ErrorCode::not_found, fmt::format("cuda:{}", options.device_index),
                problem + "; INGOT_DEVICE=cpu (or ContextOptions::where) chooses the CPU");
  }
  return nullptr;
}

}  // namespace

ChosenDevice choose_device(ContextOptions options) {
  ChosenDevice chosen;
  if (open_driver(options, chosen.reason) != nullptr) chosen.device = {DeviceType::cuda, options.device_index};
  return chosen;
}

// Members are constructed in this order, and each uses those above it.
struct __attribute__((visibility("hidden"))) Context::Parts {
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
  std::string identity;  // kernel_identity() of the templates
  std::vector<Tier> tiers;
  KernelStore store;
  KernelCache cache;
  std::string cublaslt_problem;
  std::unique_ptr<CublasLt> cublaslt;
  TuningStore tuning_store;
  TuningMachine machine;
  MatmulChoices choices;
  Recorder recorder;
  std::unique_ptr<Backend> backend;
  ForkMutex warm_mutex{};  // guards warm_ups
  std::vector<std::unique_ptr<WarmUp>> warm_ups{};

  void warm(const Recording& recording);
  void prepare(const Recording& recording, const std::function<void(const PrepareProgress&)>& progress);
  std::vector<MatmulSpec> matmul_order(const MatmulCall& call);
  // Stops all, and only then waits for each: none begins a compile while another is waited for.
  void end_warm_ups();
  void finish();
  ContextStats stats() const;

 private:
  static ContextOptions with_warn(ContextOptions options);
  Tier open_tier(const fs::path& path) const;
  std::optional<fs::path> store_root() const;
  std::vector<Tier> open_tiers() const;
  KernelOrigins origins() const;
  std::vector<const KernelTier*> usable_tiers() const;
  std::unique_ptr<NvrtcCompiler> open_compiler();
  std::unique_ptr<CublasLt> open_cublaslt();
  TuningMachine describe_machine() const;
  std::vector<TunedMatmul> tuned_of(const Recording& recording);
  // The GPU, as the choice of kernels sees it.
  MatmulDevice matmul_device() const;
  Target target() const { return driver ? driver->device_target(options.device_index) : options.offline_target; }
};

Context::Parts::Parts(ContextOptions given)
    : options(with_warn(std::move(given))),
      driver(open_driver(options, driver_problem)),
      templates(options.templates.empty() ? embedded_templates() : read_templates(options.templates)),
      compiler(open_compiler()),
      identity(compiler ? compiler->identity() : kernel_identity(templates)),
      tiers(open_tiers()),
      store(store_root(), options.warn, options.store_max_bytes),
      cache(origins(), store, target(), driver.get(), driver ? options.device_index : 0),
      cublaslt(open_cublaslt()),
      tuning_store(store_root(), options.warn),
      machine(describe_machine()),
      choices(options.tuning, {.store = &tuning_store, .file = options.tuning_file, .tiers = usable_tiers()}, machine,
              options.warn),
      recorder(options.record, options.warn),
      backend(driver ? make_cuda_backend(*driver, options.device_index, cache,
                                         {.cublaslt = cublaslt.get(),
                                          .choices = &choices,
                                          .recorder = &recorder,
                                          .compiles = compiler != nullptr})
                     : make_cpu_backend(options.cpu_threads, &recorder)) {
  cache.record_with(&recorder);
  backend->device_api().set_checks_memory(options.check_memory);
  backend->device_api().set_checks_experts(options.check_experts);
  if (options.warm.empty()) return;
  try {
    const RecordingFile read = read_recording(options.warm);
    if (!read.problem.empty()) options.warn(read.problem);
    warm(read.recording);
  } catch (const Error& error) {  // a run without it only begins more slowly
    options.warn(fmt::format("nothing is compiled ahead: {}", error.what()));
  }
}

// Tuning records are read here, on the caller's thread: if a warm-up's thread read them, a child that is forked at that
// moment could find half of them, or their mutex locked. Which kernels follow from the recording is left to the
// warm-up's threads, because it takes longer.
void Context::Parts::warm(const Recording& recording) {
  if (driver == nullptr || recording.empty()) return;
  const auto list = [recording, device = matmul_device(),
                     tuned = tuned_of(recording)](const std::function<bool()>& stop) {
    return kernels_of(recording, device, {.tuned = TunedKernels(tuned), .stop = stop});
  };
  const auto warn = [warn = options.warn](const std::string& why) {
    warn(fmt::format("nothing is compiled ahead: {}", why));
  };
  auto begun = std::make_unique<WarmUp>(cache, list, WarmUpOptions{.warn = warn});
  std::vector<std::unique_ptr<WarmUp>> before;  // what has ended is destroyed after the lock
  const std::lock_guard lock(warm_mutex);
  before.swap(warm_ups);
  for (auto& warm_up : before) {
    if (!warm_up->has_ended()) warm_ups.push_back(std::move(warm_up));
  }
  warm_ups.push_back(std::move(begun));
}

std::vector<TunedMatmul> Context::Parts::tuned_of(const Recording& recording) {
  std::vector<TunedMatmul> tuned;
  for (const MatmulCall& call : recording.matmuls()) {
    if (const MatmulSpec* chosen = choices.find(call)) tuned.push_back({.call = call, .chosen = *chosen});
  }
  return tuned;
}

MatmulDevice Context::Parts::matmul_device() const {
  return {.target = target(),
          .multiprocessors = driver->multiprocessors(options.device_index),
          .compiles = compiler != nullptr};
}

void Context::Parts::prepare(const Recording& recording, const std::function<void(const PrepareProgress&)>& progress) {
  if (driver == nullptr) return;
  const std::vector<TunedMatmul> tuned = tuned_of(recording);
  prepare_kernels(cache, kernels_of(recording, matmul_device(), {.tuned = TunedKernels(tuned)}), progress);
}

std::vector<MatmulSpec> Context::Parts::matmul_order(const MatmulCall& call) {
  validate(kernel_spec(call.spec));
  if (driver == nullptr) return {call.spec};
  std::vector<MatmulSpec> order;
  if (const MatmulSpec* const chosen = names_kernel(call.spec) ? nullptr : choices.find(call)) order.push_back(*chosen);
  const MatmulDevice device = matmul_device();
  if (const auto* const gemm = std::get_if<GemmSpec>(&call.spec)) {
    for (const GemmSpec& each : gemm_order({.spec = *gemm, .size = call.size}, device)) order.emplace_back(each);
  } else {
    const auto& dequant = std::get<DequantMatmulSpec>(call.spec);
    for (const DequantMatmulSpec& each : dequant_order(dequant, call.size, device)) order.emplace_back(each);
  }
  return order;
}

void Context::Parts::end_warm_ups() {
  std::vector<std::unique_ptr<WarmUp>> ended;
  {
    const std::lock_guard lock(warm_mutex);
    ended.swap(warm_ups);
  }
  for (const auto& warm_up : ended) warm_up->stop();
}

void Context::Parts::finish() {
  end_warm_ups();
  if (!std::exchange(options.report, false)) return;
  const std::string line = fmt::format("ingot: {}\n", print(stats()));
  std::fputs(line.c_str(), stderr);
}

ContextStats Context::Parts::stats() const {
  ContextStats stats{
      .kernels = cache.stats(), .removed = store.removed(), .launches = backend->device_api().launches()};
  for (const Tier& tier : tiers) {
    if (tier.kernels != nullptr) stats.tiers.push_back(tier.info.path);
  }
  return stats;
}

ContextOptions Context::Parts::with_warn(ContextOptions options) {
  if (!options.warn) options.warn = warn_on_stderr;
  return options;
}

std::unique_ptr<NvrtcCompiler> Context::Parts::open_compiler() {
  auto opened = NvrtcCompiler::open(options.cuda_root.string(), templates, compiler_problem,
                                    driver != nullptr ? driver->cuda_version() : 0);
  if (opened == nullptr && driver != nullptr) {
    options.warn("no NVRTC: only kernels that the store or a bundle has already can run. " + compiler_problem);
  }
  return opened;
}

// In the mode memory, nothing on disk is read or written.
std::optional<fs::path> Context::Parts::store_root() const {
  return options.cache_mode == CacheMode::memory ? fs::path() : options.store_root;
}

Context::Parts::Tier Context::Parts::open_tier(const fs::path& path) const {
  Tier tier{.info = {.path = path.string(), .problem = {}}, .kernels = nullptr};
  std::error_code error;
  if (fs::is_directory(path, error)) {
    tier.kernels = ReadOnlyStore::open(path, tier.info.problem);
  } else if (auto bundle = KernelBundle::open(path, tier.info.problem)) {
    tier.info.kernels = static_cast<std::int64_t>(bundle->entries().size());
    if (bundle->identity() == identity) {
      tier.kernels = std::move(bundle);
    } else {
      tier.info.problem = "was made by another version of Ingot, or from other templates";
    }
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
  return {.compiler = compiler.get(),
          .identity = identity,
          .tiers = usable_tiers(),
          .mode = options.cache_mode,
          .log = options.log};
}

std::vector<const KernelTier*> Context::Parts::usable_tiers() const {
  std::vector<const KernelTier*> usable;
  for (const Tier& tier : tiers) {
    if (tier.kernels != nullptr) usable.push_back(tier.kernels.get());
  }
  return usable;
}

std::unique_ptr<CublasLt> Context::Parts::open_cublaslt() {
  if (driver == nullptr) return nullptr;
  auto opened = CublasLt::open(options.cuda_root.string(), *driver, cublaslt_problem);
  if (opened == nullptr) options.warn("no cuBLASLt: all GEMMs run on Ingot's own kernels. " + cublaslt_problem);
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
Context::~Context() { finish(); }

Device Context::device() const { return parts_->backend->device(); }
Backend& Context::backend() { return *parts_->backend; }
DeviceApi& Context::device_api() { return parts_->backend->device_api(); }
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
                    find_nvtx(parts.options.cuda_root.string()), find_nccl(parts.options.cuda_root.string())};
  info.store_root = parts.store.root();
  info.store_usage = parts.store.usage();
  info.store_problem = why_nothing_is_kept(parts.store);
  for (const Parts::Tier& tier : parts.tiers) {
    info.tiers.push_back(tier.info);
    if (tier.kernels != nullptr) info.tiers.back().tuning_records = tier.kernels->count_tuning();
  }
  info.cache_mode = parts.options.cache_mode;
  return info;
}

Recording Context::recording() const { return parts_->recorder.recording(); }
ContextStats Context::stats() const { return parts_->stats(); }
void Context::warm(const Recording& recording) { parts_->warm(recording); }
void Context::prepare(const Recording& recording, const std::function<void(const PrepareProgress&)>& progress) {
  parts_->prepare(recording, progress);
}
void Context::prepare_for(const MatmulDevice& device, const Recording& recording,
                          const std::function<void(const PrepareProgress&)>& progress) {
  compile_kernels(parts_->cache, kernels_of(recording, device), device.target, progress);
}
void Context::finish() { parts_->finish(); }
std::vector<MatmulSpec> Context::matmul_order(const MatmulCall& call) { return parts_->matmul_order(call); }

std::string print(const ContextStats& stats) {
  const auto counted = [](std::int64_t count, const char* one, const char* many) {
    return fmt::format("{} {}", count, count == 1 ? one : many);
  };
  std::string text =
      fmt::format("{} compiled in {:.2f} s, {} from the store", counted(stats.kernels.compiled, "kernel", "kernels"),
                  static_cast<double>(stats.kernels.compile_microseconds) / 1e6, stats.kernels.loaded);
  for (std::size_t i = 0; i < stats.tiers.size(); ++i) {
    text += fmt::format(", {} from {}", stats.kernels.by_tier[i], stats.tiers[i]);
  }
  return text + fmt::format("; {} moved aside; {} removed for room; {}",
                            counted(stats.removed.quarantined, "damaged file", "damaged files"), stats.removed.evicted,
                            counted(stats.launches, "launch", "launches"));
}

std::string version() { return version_string(); }

}  // namespace ingot
