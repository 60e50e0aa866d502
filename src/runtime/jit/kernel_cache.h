// Finds the kernel of a spec, ready to launch: in memory, then in the store, then in the tiers that are only read, or
// else by compiling it. Each key is compiled once among the threads of a process and, through the store's lock, among
// processes; no mutex is held while compiling, loading or reading.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/generate.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/jit/compiler.h"
#include "ingot/runtime/jit/kernel_event.h"
#include "ingot/runtime/jit/kernel_store.h"
#include "ingot/runtime/jit/kernel_table.h"
#include "ingot/runtime/jit/kernel_tier.h"
#include "ingot/runtime/util/single_flight.h"

namespace ingot {

class Kernel;
class Driver;
class Recorder;  // runtime/jit/recorder.h

// Where a cache may find kernels. automatic: memory, store, tiers, compiler. strict: the same without the compiler, so
// that a missing kernel is an error rather than a delay. memory: nothing on disk is read or written. verify: what is
// found on disk is compiled again and compared, if the same compiler made it.
enum class CacheMode : std::uint8_t { automatic, strict, memory, verify };

// Where a cache's kernels come from, in addition to the store. What is pointed to outlives the cache.
struct KernelOrigins {
  const Compiler* compiler = nullptr;  // null: no NVRTC
  std::string identity{};              // kernel_identity() of the templates; the compiler's own, if there is one
  std::vector<const KernelTier*> tiers{};
  CacheMode mode = CacheMode::automatic;
  // Called from any thread, once for each kernel that is found or compiled. Must not throw.
  std::function<void(const KernelEvent&)> log{};
  // How long to wait for another process that compiles the same kernel; then it is compiled here as well.
  std::chrono::milliseconds lock_wait = KernelStore::kLockWait;
};

class INGOT_API KernelCache {
 public:
  struct Stats {
    std::int64_t compiled = 0;              // by the compiler
    std::int64_t loaded = 0;                // from the store
    std::int64_t from_tiers = 0;            // from all bundles and other read-only tiers together
    std::int64_t differing = 0;             // found on disk, but not as the compiler makes it (CacheMode::verify)
    std::int64_t compile_microseconds = 0;  // of all threads
    std::vector<std::int64_t> by_tier{};    // from each tier, in their order
  };

  // Without a compiler, a kernel that is neither in the store nor in a tier is Error{not_found}. The driver may be null
  // (no GPU): compiled() works, get() is Error{not_found}. Store and driver outlive the cache.
  KernelCache(KernelOrigins origins, KernelStore& store, Target target, const Driver* driver, int device_index = 0);
  // Uses the store and the compiler alone.
  KernelCache(const Compiler* compiler, KernelStore& store, Target target, const Driver* driver, int device_index = 0);
  ~KernelCache();
  KernelCache(const KernelCache&) = delete;
  KernelCache& operator=(const KernelCache&) = delete;

  // The hot path: once the kernel is loaded, no lock, no allocation, no string and no copy of the spec. The reference
  // lives as long as the cache. A source that does not compile gives the same error again immediately; after other
  // failures the next call tries again.
  template <AnyKernelSpec Spec>
  const Kernel& get(const Spec& spec, Pass pass = Pass::main) {
    if (const Kernel* const kernel = table_.find(spec, pass)) return *kernel;
    return load(spec, pass);
  }
  // For a user's own source. Hashes the text: keep the reference rather than calling it per launch.
  const Kernel& get(const Source& source);

  // The kernel if it is loaded already, else null. For streams that are capturing, when nothing may be loaded.
  template <AnyKernelSpec Spec>
  const Kernel* find(const Spec& spec, Pass pass = Pass::main) const noexcept {
    return table_.find(spec, pass);
  }

  // Machine code for any target, without loading it, for warm-up and `ingot show`. It stays in memory.
  std::shared_ptr<const CompiledKernel> compiled(const Source& source, Target target);

  // The kernel if the store or a tier has it already; never compiles, and keeps nothing in memory.
  std::optional<CompiledKernel> ready(const Source& source, Target target);
  bool is_ready(const Source& source, Target target) { return ready(source, target).has_value(); }

  // Would get() find the kernel or compile it? False where compiling is impossible or forbidden and nothing has it yet.
  bool can_get(const KernelSpec& spec, Pass pass = Pass::main);

  // Tells it of every spec that is asked for the first time. Call this before any thread uses the cache.
  void record_with(Recorder* recorder) { recorder_ = recorder; }

  Stats stats() const;
  Target target() const { return target_; }
  // kernel_identity() of the templates.
  const std::string& identity() const { return origins_.identity; }
  // The key of a kernel in the store and in bundles.
  KernelKey key_of(const Source& source, Target target) const;

 private:
  const Kernel& load(const KernelSpec& spec, Pass pass);
  std::shared_ptr<const CompiledKernel> compiled(const Source& source, Target target, const KernelKey& key);
  CompiledKernel find_or_compile(const Source& source, Target target, const KernelKey& key);
  std::optional<CompiledKernel> find_in_store(const KernelKey& key, const KernelWanted& wanted);
  // `tier` gets the path of the tier that has it.
  std::optional<CompiledKernel> find_in_tiers(const KernelKey& key, const KernelWanted& wanted,
                                              std::string* tier = nullptr);
  CompiledKernel compile(const Source& source, Target target, const KernelKey& key);
  std::optional<CompiledKernel> find_on_disk(const Source& source, Target target, const KernelKey& key);
  CompiledKernel verified(CompiledKernel found, const Source& source, Target target, const KernelKey& key);
  void log(const KernelEvent& event) const;
  [[noreturn]] void refuse_to_compile(const Source& source, Target target) const;
  std::string toolchain() const { return origins_.compiler != nullptr ? origins_.compiler->toolchain() : ""; }

  KernelOrigins origins_;
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
  std::vector<std::atomic<std::int64_t>> from_tiers_;
  std::atomic<std::int64_t> differing_{0};
  std::atomic<std::int64_t> compile_microseconds_{0};
};

}  // namespace ingot
