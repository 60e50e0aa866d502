// Everything that one device needs, in one object: libraries, compiler, store, cache, backend. The library has no other
// state, so two contexts share nothing but the disk.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/matmul.h"
#include "ingot/codegen/recording.h"
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/jit/kernel_cache.h"
#include "ingot/runtime/jit/kernel_store.h"
#include "ingot/runtime/tuning/matmul_choices.h"
#include "ingot/runtime/tuning/tuning_record.h"
#include "ingot/runtime/tuning/tuning_store.h"

struct CUctx_st;  // the driver API's CUcontext is a pointer to this

namespace ingot {

// Options of a context, read once when it is made. Code may set any of them instead of the environment.
struct INGOT_API ContextOptions {
  enum class Where : std::uint8_t { automatic, cpu, cuda };  // automatic: CUDA if there is a device, else the CPU
  Where where = Where::automatic;                            // INGOT_DEVICE=cpu|cuda|cuda:1
  int device_index = 0;
  // The caller's own CUDA context, of cuCtxCreate or (a part of a GPU's multiprocessors) cuCtxFromGreenCtx, in place of
  // the device's primary one. It must outlive this context. device_index is then that of its device, whatever is set.
  CUctx_st* cuda_context = nullptr;
  // nullopt: default_store_root(), which is INGOT_CACHE_DIR or ~/.cache/ingot; empty: keep nothing on disk.
  std::optional<std::filesystem::path> store_root{};
  // INGOT_CACHE_MAX_BYTES: when the store outgrows this, the least recently used kernels are removed.
  std::int64_t store_max_bytes = KernelStore::kDefaultMaxBytes;
  // Bundles and other users' stores, which are only read, in the order in which they are looked in.
  std::vector<std::filesystem::path> tiers{};   // INGOT_CACHE_TIERS: paths with colons between them
  CacheMode cache_mode = CacheMode::automatic;  // INGOT_CACHE_MODE=auto|strict|memory|verify
  std::filesystem::path cuda_root{};    // INGOT_CUDA_ROOT: looked in first; "none": no NVRTC, cuBLASLt, NVTX, NCCL
  std::filesystem::path templates{};    // INGOT_TEMPLATES: read templates from here, not the embedded ones
  Target offline_target{};              // what a context without a GPU compiles for
  int cpu_threads = 0;                  // INGOT_CPU_THREADS; 0 = all cores
  Tuning tuning = Tuning::on;           // INGOT_TUNING=on|off|frozen
  std::filesystem::path tuning_file{};  // INGOT_TUNING_FILE: records from this exported file, not from the store
  std::filesystem::path record{};       // INGOT_RECORD: what is asked for is noted in this file (jit/recorder.h)
  std::filesystem::path warm{};         // INGOT_WARM: what this recording names is compiled ahead (Context::warm)
  // INGOT_CHECK_MEMORY=1: layers look, at a high price, for memory that changed between forward and backward or was
  // freed (docs/stateless_layers.md).
  bool check_memory = false;
  // INGOT_CHECK_EXPERTS=1: which rows experts have, and which rows are gathered and summed, is read from the device
  // before each call and refused where it is out of bounds (docs/gemm.md). Each such call waits for its stream.
  bool check_experts = false;
  bool report = false;  // INGOT_STATS=1: a line on stderr when the context ends (print(ContextStats))
  std::function<void(const std::string&)> warn{};  // default: one line on stderr; called from any thread
  // Where each kernel comes from; called from any thread, and must not throw. INGOT_LOG=1: a line on stderr.
  std::function<void(const KernelEvent&)> log{};

  // The defaults, overridden by the environment. Throws Error{invalid_argument} for a value that is not allowed.
  static ContextOptions from_environment();
};

// One of the libraries opened at run time: its version and path, or why it is missing.
struct LibraryInfo {
  std::string name;     // "CUDA driver", "NVRTC", "cuBLASLt", "NVTX", "NCCL"
  std::string version;  // "13.0.88"; empty if missing
  std::string path;     // empty if missing
  std::string problem;  // what is missing and how to get it; empty if found
};

// A bundle or another user's store that is only read.
struct TierInfo {
  std::string path;
  std::int64_t kernels = 0;         // of a bundle; of a store they are not counted
  std::int64_t tuning_records = 0;  // of all machines
  std::string problem;              // why it is not used; empty if it is
};

struct ContextInfo {
  std::string ingot_version;
  Device device;
  std::string device_name;  // "NVIDIA H200" or "CPU reference"
  std::string reason;       // why this is the CPU, where it is: "no CUDA driver: libcuda.so.1 not found"
  Target target;
  std::vector<LibraryInfo> libraries;
  std::filesystem::path store_root;
  KernelStore::Usage store_usage;
  std::string store_problem;  // why the store keeps nothing; empty if it works
  std::vector<TierInfo> tiers;
  CacheMode cache_mode = CacheMode::automatic;
};

// Counts of a context's work so far.
struct ContextStats {
  KernelCache::Stats kernels{};
  KernelStore::Removed removed{};
  std::int64_t launches = 0;
  std::vector<std::string> tiers{};  // paths of kernels.by_tier
};

// "3 kernels compiled in 1.24 s, 12 from the store, 4 from /opt/llama.bundle; 1 damaged file moved aside; 0 removed for
// room; 5321 launches"
INGOT_API std::string print(const ContextStats& stats);

// The device that a context with these options is on, and why it is the CPU, where it is. Makes nothing. Throws
// Error{not_found, invalid_argument} as Context does.
struct ChosenDevice {
  Device device{};
  std::string reason{};
};
INGOT_API ChosenDevice choose_device(ContextOptions options);

// Threads: any number of them may use one context, its backend, cache, stores and recorder, from its constructor's end
// until its destructor begins; the functions below may be called at any time. What is made for one order of work (a
// Stream, a layer with its forward and backward, a CastList, a Graph) is for one thread at a time. `warn` and `log` are
// called from the thread that has something to report, also from several at once. Nothing is shared between two
// contexts, so each thread may also have its own; contexts on the same store wait for each other's compiles by a lock
// on a file, as processes do.
// A child made by fork() may use its parent's context, on the CPU, while the parent's other threads were in it: what
// they were doing is lost there. CUDA cannot be used in a child: its calls fail with an error that says so.
class INGOT_API Context {
 public:
  // Throws Error{not_found} if CUDA was requested explicitly and there is none.
  explicit Context(ContextOptions options = ContextOptions::from_environment());
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Device device() const;
  Backend& backend();
  DeviceApi& device_api();
  KernelCache& cache();
  KernelStore& store();
  TuningStore& tuning_store();
  // The machine that this context's tuning records are for.
  const TuningMachine& tuning_machine() const;
  Tuning tuning() const;
  // Null if NVRTC is missing.
  const Compiler* compiler() const;
  ContextInfo info() const;
  // A recording of what has been asked for so far: every kernel and every matmul, with ContextOptions::record or
  // without; of more than kMostRecorded (jit/recorder.h), the first.
  Recording recording() const;
  ContextStats stats() const;
  // Compiles the kernels of a recording for this GPU in the background, the longest first, and returns at once: those
  // that launches ask for come first. Kernels that the store has are read. Only tuning records are read before it
  // returns. What goes wrong is a warning. Does nothing without a GPU. Thread-safe. The context's destructor waits for
  // compiles that have begun.
  void warm(const Recording& recording);
  // The same on the calling thread and others: returns when every kernel has been compiled and loaded. `progress` is
  // called on the calling thread after each kernel. Does nothing without a GPU. Throws Error{compile_failed, not_found,
  // cuda_failed} of the first kernel that failed, when all have been tried. prepare() in nn/planning/layer_runs.h makes
  // the recording, of layers that have not run yet.
  void prepare(const Recording& recording, const std::function<void(const PrepareProgress&)>& progress = {});
  // The same for another GPU, and without one: compiles into the store, and loads nothing. `device` is
  // matmul_device(gpu_named("h200")), say. Tuning records, which belong to one machine, are not asked.
  void prepare_for(const MatmulDevice& device, const Recording& recording,
                   const std::function<void(const PrepareProgress&)>& progress = {});
  // Ends what runs in the background, and writes the report (ContextOptions::report), which the destructor does
  // otherwise: for a program that keeps the context until its very end. The context can still be used, and other
  // threads may be using it.
  void finish();
  // Which kernels would be tried for a matmul of this spec and size, in order: what tuning has found, then the
  // library's own order. Each names its kernel, and its tiling if it has any; the first that takes the tensors'
  // addresses and strides is run. On the CPU, which has one: the call's own spec. Throws Error{invalid_spec}.
  std::vector<MatmulSpec> matmul_order(const MatmulCall& call);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

INGOT_API std::string version();  // "0.1.0"

}  // namespace ingot
