// Finds the kernel of a spec, ready to launch: in memory, then in the store, then in the tiers that are only read, or
// else by compiling it. Each key is compiled once among the threads of a process and, through the store's lock, among
// processes; no mutex is held while compiling, loading or reading.
#pragma once

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>
#include "ingot/api.h"
#include "ingot/codegen/generate.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/jit/compiler.h"
#include "ingot/runtime/jit/kernel_file.h"
#include "ingot/runtime/jit/kernel_store.h"
#include "ingot/runtime/jit/kernel_tier.h"
#include "ingot/runtime/util/grow_only_table.h"
#include "ingot/runtime/util/single_flight.h"

namespace ingot {

// The progress of Context::prepare().
struct PrepareProgress {
  std::size_t done = 0;   // kernels that are ready, or failed
  std::size_t total = 0;  // of all
  std::string kernel{};   // the spec of the last one
};

// What a cache reports to a log: where each kernel came from, once per kernel and process, never on the way to a
// launch.
struct KernelEvent {
  // differing: found on disk, but the compiler makes other machine code of it (CacheMode::verify).
  enum class Kind : std::uint8_t { compiled, from_store, from_tier, differing };

  Kind kind = Kind::compiled;
  std::string name{};  // Source::name: a spec's line
  Target target{};
  KernelKey key{};
  std::string tier{};                // of from_tier: its path
  std::chrono::microseconds time{};  // to find or to compile it
};

// "compiled in 412.3 ms for sm_90a: cast bf16->e4m3fn scale=row out=codes"
INGOT_API std::string print(const KernelEvent& event);

// The loaded kernels of a cache by spec and pass, read without a lock. A lookup takes the spec as its caller has it: a
// KernelSpec that is made for it would copy the spec, and with it count one more owner of a shared expression.

// A KernelSpec, or one of its alternatives by itself.
template <class Spec>
concept AnyKernelSpec = std::same_as<Spec, KernelSpec> || contains<Spec>(KernelSpecs{});

template <class Value>
class KernelTable {
 public:
  // Null if there is none.
  template <AnyKernelSpec Spec>
  Value* find(const Spec& spec, Pass pass) const noexcept {
    const Entry* entry = table_.find(hash(spec, pass), Matches<Spec>{spec, pass});
    return entry == nullptr ? nullptr : entry->value;
  }

  // Inserts the value unless the key has one already; returns the value in the table.
  template <AnyKernelSpec Spec>
  Value* insert(const Spec& spec, Pass pass, Value* value) {
    return table_
        .insert({.hash = hash(spec, pass), .spec = spec, .pass = pass, .value = value}, Matches<Spec>{spec, pass})
        .value;
  }

  std::size_t size() const { return table_.size(); }

 private:
  struct Entry {
    std::size_t hash;
    KernelSpec spec;
    Pass pass;
    Value* value;
  };
  template <class Spec>
  struct Matches {
    const Spec& spec;
    Pass pass;
    bool operator()(const Entry& entry) const noexcept { return entry.pass == pass && is_same(entry.spec); }

   private:
    bool is_same(const KernelSpec& other) const noexcept {
      if constexpr (std::same_as<Spec, KernelSpec>) {
        return other == spec;
      } else {
        const Spec* const alternative = std::get_if<Spec>(&other);
        return alternative != nullptr && *alternative == spec;
      }
    }
  };

  template <class Spec>
  static std::size_t hash(const Spec& spec, Pass pass) noexcept {
    return hash_value(spec) + pass.number();
  }

  GrowOnlyTable<Entry> table_;
};

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
  // How many kernels came from where, since the cache was made.
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
