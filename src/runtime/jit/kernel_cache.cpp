#include "ingot/runtime/jit/kernel_cache.h"
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/jit/kernel.h"
#include "ingot/runtime/jit/kernel_identity.h"
#include "ingot/runtime/jit/kernel_listing.h"
#include "ingot/runtime/jit/recorder.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

using Clock = std::chrono::steady_clock;

std::chrono::microseconds since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
}

}  // namespace

KernelCache::KernelCache(KernelOrigins origins, KernelStore& store, Target target, const Driver* driver,
                         int device_index)
    : origins_(std::move(origins)),
      store_(&store),
      target_(target),
      driver_(driver),
      device_index_(device_index),
      from_tiers_(origins_.tiers.size()) {}

KernelCache::KernelCache(const Compiler* compiler, KernelStore& store, Target target, const Driver* driver,
                         int device_index)
    : KernelCache({.compiler = compiler, .identity = compiler != nullptr ? compiler->identity() : ""}, store, target,
                  driver, device_index) {}

KernelCache::~KernelCache() = default;

const Kernel& KernelCache::load(const KernelSpec& spec, Pass pass) {
  if (recorder_ != nullptr) recorder_->note(spec);
  return *table_.insert(spec, pass, &get(generate(spec, pass)));
}

const Kernel& KernelCache::get(const Source& source) {
  if (driver_ == nullptr) {
    throw Error(ErrorCode::not_found, source.name,
                "this kernel cannot be loaded without a CUDA driver and a GPU; `ingot info` says what is missing");
  }
  const KernelKey key = key_of(source, target_);
  return *loaded_kernels_.get(key, [&] {
    const auto code = compiled(source, target_, key);
    const CurrentContext current(*driver_, device_index_);
    return std::make_shared<const Kernel>(*driver_, *code);
  });
}

std::shared_ptr<const CompiledKernel> KernelCache::compiled(const Source& source, Target target) {
  return compiled(source, target, key_of(source, target));
}

std::optional<CompiledKernel> KernelCache::ready(const Source& source, Target target) {
  const KernelKey key = key_of(source, target);
  const KernelWanted wanted{source, target};
  if (auto found = find_in_store(key, wanted)) return found;
  return find_in_tiers(key, wanted);
}

bool KernelCache::can_get(const KernelSpec& spec, Pass pass) {
  if (origins_.compiler != nullptr && origins_.mode != CacheMode::strict) return true;
  return origins_.mode != CacheMode::memory && is_ready(generate(spec, pass), target_);
}

KernelCache::Stats KernelCache::stats() const {
  Stats stats{.compiled = compiled_,
              .loaded = loaded_,
              .differing = differing_,
              .compile_microseconds = compile_microseconds_,
              .by_tier = {from_tiers_.begin(), from_tiers_.end()}};
  for (const std::int64_t count : stats.by_tier) stats.from_tiers += count;
  return stats;
}

KernelKey KernelCache::key_of(const Source& source, Target target) const {
  return kernel_key(source, target, origins_.identity);
}

std::shared_ptr<const CompiledKernel> KernelCache::compiled(const Source& source, Target target, const KernelKey& key) {
  return compiled_kernels_.get(
      key, [&] { return std::make_shared<const CompiledKernel>(find_or_compile(source, target, key)); });
}

CompiledKernel KernelCache::find_or_compile(const Source& source, Target target, const KernelKey& key) {
  if (origins_.mode == CacheMode::memory) {
    if (origins_.compiler == nullptr) refuse_to_compile(source, target);
    return compile(source, target, key);
  }
  if (auto found = find_on_disk(source, target, key)) return verified(*std::move(found), source, target, key);
  if (origins_.compiler == nullptr || origins_.mode == CacheMode::strict) refuse_to_compile(source, target);
  const auto start = Clock::now();
  const FileLock lock = store_->lock(key, origins_.lock_wait);
  if (auto found = find_in_store(key, {source, target})) {  // another process was compiling it
    log({.kind = KernelEvent::Kind::from_store,
         .name = source.name,
         .target = target,
         .key = key,
         .time = since(start)});
    return *std::move(found);
  }
  return compile(source, target, key);
}

std::optional<CompiledKernel> KernelCache::find_on_disk(const Source& source, Target target, const KernelKey& key) {
  const auto start = Clock::now();
  KernelEvent event{.kind = KernelEvent::Kind::from_store, .name = source.name, .target = target, .key = key};
  const KernelWanted wanted{source, target};
  auto found = find_in_store(key, wanted);
  if (!found) {
    event.kind = KernelEvent::Kind::from_tier;
    found = find_in_tiers(key, wanted, &event.tier);
  }
  if (!found) return std::nullopt;
  event.time = since(start);
  log(event);
  return found;
}

// The store is private: it may hold kernels of another NVRTC, from before an update or where there was none, which are
// replaced.
std::optional<CompiledKernel> KernelCache::find_in_store(const KernelKey& key, const KernelWanted& wanted) {
  auto found = store_->find(key, &wanted);
  if (!found || !trusts(Trust::same_build, found->toolchain, toolchain())) return std::nullopt;
  ++loaded_;
  return found;
}

std::optional<CompiledKernel> KernelCache::find_in_tiers(const KernelKey& key, const KernelWanted& wanted,
                                                         std::string* tier) {
  for (std::size_t i = 0; i < origins_.tiers.size(); ++i) {
    auto found = origins_.tiers[i]->find(key, &wanted);
    if (!found || !trusts(Trust::same_major, found->toolchain, toolchain())) continue;
    ++from_tiers_[i];
    if (tier != nullptr) *tier = origins_.tiers[i]->name();
    return found;
  }
  return std::nullopt;
}

CompiledKernel KernelCache::compile(const Source& source, Target target, const KernelKey& key) {
  const auto start = Clock::now();
  CompiledKernel kernel = origins_.compiler->compile(source, target);
  const std::chrono::microseconds time = since(start);
  compile_microseconds_ += time.count();
  ++compiled_;
  log({.kind = KernelEvent::Kind::compiled, .name = source.name, .target = target, .key = key, .time = time});
  if (origins_.mode != CacheMode::memory) store_->put(key, source, target, kernel);
  return kernel;
}

// Only the same compiler is bound to make the same machine code.
CompiledKernel KernelCache::verified(CompiledKernel found, const Source& source, Target target, const KernelKey& key) {
  if (origins_.mode != CacheMode::verify || origins_.compiler == nullptr || found.toolchain != toolchain())
    return found;
  const auto start = Clock::now();
  CompiledKernel made = compile(source, target, key);
  if (made.cubin != found.cubin || made.lowered_name != found.lowered_name) {
    ++differing_;
    log({.kind = KernelEvent::Kind::differing,
         .name = source.name,
         .target = target,
         .key = key,
         .time = since(start)});
  }
  return made;
}

void KernelCache::log(const KernelEvent& event) const {
  if (origins_.log) origins_.log(event);
}

void KernelCache::refuse_to_compile(const Source& source, Target target) const {
  const std::string missing = fmt::format(
      "this kernel for {} is neither in the store nor in a bundle or store of INGOT_CACHE_TIERS, and ", print(target));
  if (origins_.mode != CacheMode::strict) {
    throw Error(ErrorCode::not_found, source.name,
                missing +
                    "it cannot be compiled without NVRTC; `ingot info` says where it was looked for and how to "
                    "get it");
  }
  const std::string line = line_of_recording(source);
  throw Error(ErrorCode::not_found, source.name,
              missing + "the mode strict forbids compiling it; " +
                  (line.empty() ? "it is the program's own, which no recording has: run the program once with "
                                  "INGOT_CACHE_MODE=auto, write that store to a bundle with `ingot cache export`, and "
                                  "name the bundle, or the store, in INGOT_CACHE_TIERS"
                                : "`ingot warm` makes it from a recording with this line: " + line));
}

namespace {

std::string text(const KernelEvent& event) {
  switch (event.kind) {
    case KernelEvent::Kind::compiled: return "compiled";
    case KernelEvent::Kind::from_store: return "read from the store";
    case KernelEvent::Kind::from_tier: return "read from " + event.tier;
    case KernelEvent::Kind::differing: return "not as the compiler makes it; compiled";
  }
  return {};
}

}  // namespace

std::string print(const KernelEvent& event) {
  return fmt::format("{} in {:.1f} ms for {}: {}", text(event), static_cast<double>(event.time.count()) / 1e3,
                     print(event.target), event.name);
}

}  // namespace ingot
