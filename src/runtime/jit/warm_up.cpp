#include "ingot/runtime/jit/warm_up.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <thread>
#include <utility>

#include "ingot/codegen/compile_cost.h"
#include "ingot/codegen/generate.h"
#include "ingot/runtime/jit/kernel_cache.h"

namespace ingot {
namespace {

// Ascending by what is longest, and among equals by a number that differs from process to process.
std::vector<KernelPass> in_order(std::vector<KernelPass> kernels) {
  struct Ranked {
    double cost;
    std::uint64_t turn;
    std::size_t index;
  };
  const auto process = static_cast<std::uint64_t>(getpid());
  std::vector<Ranked> ranks;
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio: consecutive numbers end up far apart
    ranks.push_back({.cost = compile_cost(kernels[i].spec), .turn = (process * 7919 + i) * kOdd, .index = i});
  }
  std::ranges::sort(
      ranks, [](const Ranked& x, const Ranked& y) { return x.cost != y.cost ? x.cost > y.cost : x.turn < y.turn; });
  std::vector<KernelPass> ordered;
  for (const Ranked& rank : ranks) ordered.push_back(std::move(kernels[rank.index]));
  return ordered;
}

std::size_t threads_for(int wanted) {
  if (wanted > 0) return static_cast<std::size_t>(wanted);
  return std::max(2U, std::thread::hardware_concurrency()) - 1;
}

}  // namespace

struct WarmUp::Work {
  KernelCache* cache;
  std::vector<KernelPass> kernels;
  std::vector<std::thread> threads{};
  std::atomic<std::size_t> next{0};
  std::atomic<bool> stop{false};

  void run() {
    for (std::size_t i = next++; i < kernels.size() && !stop; i = next++) {
      try {
        static_cast<void>(cache->compiled(generate(kernels[i].spec, kernels[i].pass), cache->target()));
      } catch (const std::exception&) {  // the launch that needs it tries again, and gets the error
      }
    }
  }
};

WarmUp::WarmUp(KernelCache& cache, std::vector<KernelPass> kernels, int threads)
    : work_(new Work{.cache = &cache, .kernels = in_order(std::move(kernels))}), process_(::getpid()) {
  const std::size_t count = std::min(threads_for(threads), work_->kernels.size());
  work_->threads.reserve(count);
  try {
    for (std::size_t i = 0; i < count; ++i) work_->threads.emplace_back([work = work_.get()] { work->run(); });
  } catch (const std::exception&) {  // no more threads are to be had: fewer do the work, or the launches alone
  }
}

// What the parent's threads hold cannot be given back in a child, which has none of them.
WarmUp::~WarmUp() {
  if (process_ != ::getpid()) {
    static_cast<void>(work_.release());
    return;
  }
  work_->stop = true;
  wait();
}

void WarmUp::wait() {
  if (process_ != ::getpid()) return;
  for (std::thread& thread : work_->threads) {
    if (thread.joinable()) thread.join();
  }
}

}  // namespace ingot
