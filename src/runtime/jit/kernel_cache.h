// Finds the kernel of a spec, ready to launch: in memory, then in the store, or else by compiling it. Each key is
// compiled once among the threads of a process and, through the store's lock, among processes; no mutex is held while
// compiling, loading or reading.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "ingot/codegen/generate.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/jit/compiler.h"
#include "ingot/runtime/jit/kernel_store.h"
#include "ingot/runtime/jit/kernel_table.h"
#include "ingot/runtime/util/single_flight.h"

namespace ingot {

class Kernel;
class Driver;
class Recorder;  // runtime/jit/recorder.h

class KernelCache {
 public:
  struct Stats {
    std::int64_t compiled = 0;  // by the compiler
    std::int64_t loaded = 0;    // from the store
  };

  // The compiler may be null (no NVRTC): every kernel is then Error{not_found}, as its key depends on the compiler. The
  // driver may be null (no GPU): compiled() works, get() is Error{not_found}. All three outlive the cache.
  KernelCache(const Compiler* compiler, KernelStore& store, Target target, const Driver* driver, int device_index = 0);
  ~KernelCache();
  KernelCache(const KernelCache&) = delete;
  KernelCache& operator=(const KernelCache&) = delete;

  // The hot path: once the kernel is loaded, no lock, no allocation and no string. The reference lives as long as the
  // cache. A source that does not compile gives the same error again immediately; after other failures the next call
  // tries again.
  const Kernel& get(const KernelSpec& spec, Pass pass = Pass::main);
  // For a user's own source. Hashes the text: keep the reference rather than calling it per launch.
  const Kernel& get(const Source& source);

  // The kernel if it is loaded already, else null. For streams that are capturing, when nothing may be loaded.
  const Kernel* find(const KernelSpec& spec, Pass pass = Pass::main) const noexcept { return table_.find(spec, pass); }

  // Machine code for any target, without loading it, for warm-up and `ingot show`. It stays in memory.
  std::shared_ptr<const CompiledKernel> compiled(const Source& source, Target target);

  // Compiles all passes of every spec that the store lacks, on `threads` threads (0: one per core). When all have
  // ended, throws the error of the first spec that failed.
  void warm(std::span<const KernelSpec> specs, Target target, int threads);

  // Tells it of every spec that is asked for the first time. Call this before any thread uses the cache.
  void record_with(Recorder* recorder) { recorder_ = recorder; }

  Stats stats() const;
  Target target() const { return target_; }

 private:
  std::shared_ptr<const CompiledKernel> compiled(const Source& source, Target target, const KernelKey& key);
  CompiledKernel find_or_compile(const Source& source, Target target, const KernelKey& key);
  KernelKey key_of(const Source& source, Target target) const;

  const Compiler* compiler_;
  KernelStore* store_;
  Target target_;
  const Driver* driver_;
  int device_index_;

  KernelTable<const Kernel> table_;
  SingleFlight<KernelKey, std::shared_ptr<const CompiledKernel>> compiled_kernels_;
  SingleFlight<KernelKey, std::shared_ptr<const Kernel>> loaded_kernels_;
  std::atomic<std::int64_t> compiled_{0};
  std::atomic<std::int64_t> loaded_{0};
  Recorder* recorder_ = nullptr;
};

}  // namespace ingot
