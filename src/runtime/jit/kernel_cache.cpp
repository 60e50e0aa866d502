#include "ingot/runtime/jit/kernel_cache.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <system_error>
#include <thread>
#include <vector>

#include "ingot/runtime/cuda/current_context.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/error.h"
#include "ingot/runtime/jit/kernel.h"
#include "ingot/runtime/jit/recorder.h"

namespace ingot {

KernelCache::KernelCache(const Compiler* compiler, KernelStore& store, Target target, const Driver* driver,
                         int device_index)
    : compiler_(compiler), store_(&store), target_(target), driver_(driver), device_index_(device_index) {}

KernelCache::~KernelCache() = default;

const Kernel& KernelCache::get(const KernelSpec& spec, Pass pass) {
  if (const Kernel* kernel = table_.find(spec, pass)) return *kernel;
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

// Every process starts at another spec, so that ranks of one machine that warm the same specs share the work through
// the store instead of waiting for each other at every kernel.
void KernelCache::warm(std::span<const KernelSpec> specs, Target target, int threads) {
  std::vector<std::exception_ptr> errors(specs.size());
  std::atomic<std::size_t> next{0};
  const std::size_t start = std::hash<pid_t>()(getpid()) * 7919;  // a prime: neighbouring processes start far apart
  const auto work = [&] {
    for (std::size_t taken = next++; taken < specs.size(); taken = next++) {
      const std::size_t i = (start + taken) % specs.size();
      try {
        validate(specs[i]);
        for (const Pass pass : passes(specs[i])) compiled(generate(specs[i], pass), target);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  {
    const auto wanted = threads > 0 ? static_cast<std::size_t>(threads) : std::thread::hardware_concurrency();
    std::vector<std::jthread> others;
    try {
      for (std::size_t i = 1; i < std::min(wanted, specs.size()); ++i) others.emplace_back(work);
    } catch (const std::system_error&) {  // no more threads are available: those that started do the work
    }
    work();
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

KernelCache::Stats KernelCache::stats() const { return {.compiled = compiled_, .loaded = loaded_}; }

std::shared_ptr<const CompiledKernel> KernelCache::compiled(const Source& source, Target target, const KernelKey& key) {
  return compiled_kernels_.get(
      key, [&] { return std::make_shared<const CompiledKernel>(find_or_compile(source, target, key)); });
}

CompiledKernel KernelCache::find_or_compile(const Source& source, Target target, const KernelKey& key) {
  const auto find = [&] {
    auto found = store_->find(key);
    if (found) ++loaded_;
    return found;
  };
  if (auto found = find()) return *std::move(found);
  const FileLock lock = store_->lock(key);
  if (auto found = find()) return *std::move(found);  // another process was compiling it
  CompiledKernel kernel = compiler_->compile(source, target);
  ++compiled_;
  store_->put(key, source, target, kernel);
  return kernel;
}

KernelKey KernelCache::key_of(const Source& source, Target target) const {
  if (compiler_ == nullptr) {
    throw Error(
        ErrorCode::not_found, source.name,
        "this kernel cannot be compiled without NVRTC; `ingot info` says where it was looked for and how to get it");
  }
  return kernel_key(source, target, *compiler_);
}

}  // namespace ingot
