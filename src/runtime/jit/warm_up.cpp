#include "ingot/runtime/jit/warm_up.h"
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include "ingot/codegen/generate.h"
#include "ingot/codegen/recording.h"
#include "ingot/runtime/jit/kernel_cache.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

struct Job {
  KernelPass kernel;
  std::size_t index;  // in the list
};

// The longest first; those of one length in an order that differs from process to process.
std::vector<Job> in_order(std::vector<KernelPass> kernels) {
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
  std::vector<Job> ordered;
  ordered.reserve(ranks.size());
  for (const Ranked& rank : ranks) ordered.push_back({std::move(kernels[rank.index]), rank.index});
  return ordered;
}

std::size_t threads_for(std::optional<int> wanted) {
  if (wanted) return static_cast<std::size_t>(std::max(*wanted, 0));
  return std::max(2U, std::thread::hardware_concurrency()) - 1;
}

WarmUpOptions at_most(std::size_t threads, WarmUpOptions options) {
  options.threads = static_cast<int>(std::min(threads_for(options.threads), threads));
  return options;
}

// A spec that cannot exist has no passes to tell of: generate() says what is wrong with it.
std::span<const Pass> passes_of(const KernelSpec& spec) {
  static constexpr std::array kMain{Pass::main};
  try {
    validate(spec);
  } catch (const Error&) {
    return kMain;
  }
  return passes(spec);
}

}  // namespace

struct WarmUp::Work {
  KernelCache* cache;
  Target target;
  List list;
  std::function<void(const std::string&)> warn{};
  std::vector<std::thread> threads{};
  std::atomic<bool> stop{false};
  std::atomic<std::size_t> running{0};  // threads
  std::once_flag listed{};
  std::vector<Job> jobs{};  // made by the first thread; the others wait for it
  std::atomic<std::size_t> next{0};

  std::mutex mutex{};  // guards the rest: of the failures, the first in the list
  std::exception_ptr failure{};
  std::size_t failed = 0;

  void run() {
    std::call_once(listed, [this] { make_list(); });
    for (std::size_t i = next++; i < jobs.size() && !stop; i = next++) {
      try {
        static_cast<void>(cache->compiled(generate(jobs[i].kernel.spec, jobs[i].kernel.pass), target));
      } catch (...) {  // the launch that needs it tries again, and gets the error
        note_failure(jobs[i].index);
      }
    }
  }

 private:
  void make_list() {
    try {
      jobs = in_order(list([this] { return stop.load(); }));
    } catch (const std::exception& error) {
      note_failure(0);
      if (warn) warn(error.what());
    }
    list = nullptr;
  }

  // Call this within a handler: notes the current exception.
  void note_failure(std::size_t index) {
    const std::lock_guard lock(mutex);
    if (failure && failed <= index) return;
    failure = std::current_exception();
    failed = index;
  }
};

WarmUp::WarmUp(KernelCache& cache, List list, const WarmUpOptions& options)
    : work_(new Work{.cache = &cache,
                     .target = options.target.value_or(cache.target()),
                     .list = std::move(list),
                     .warn = options.warn}),
      process_(::getpid()) {
  const std::size_t count = threads_for(options.threads);
  work_->threads.reserve(count);
  try {
    for (std::size_t i = 0; i < count; ++i) {
      ++work_->running;
      work_->threads.emplace_back([work = work_.get()] {
        work->run();
        --work->running;
      });
    }
  } catch (const std::exception&) {  // no more threads are to be had: fewer do the work, or the launches alone
    --work_->running;
  }
}

WarmUp::WarmUp(KernelCache& cache, std::vector<KernelPass> kernels, const WarmUpOptions& options)
    : WarmUp(cache, List([kernels](const auto&) { return kernels; }), at_most(kernels.size(), options)) {}

// In a child made by fork(), what the parent's threads hold cannot be released: those threads do not exist there.
WarmUp::~WarmUp() {
  if (process_ != ::getpid()) {
    static_cast<void>(work_.release());
    return;
  }
  stop();
  wait();
}

void WarmUp::stop() { work_->stop = true; }
bool WarmUp::has_ended() const { return work_->running == 0; }

void WarmUp::wait() {
  if (process_ != ::getpid()) return;
  for (std::thread& thread : work_->threads) {
    if (thread.joinable()) thread.join();
  }
}

void WarmUp::finish() {
  if (process_ != ::getpid()) return;
  work_->run();
  wait();
  if (work_->failure) std::rethrow_exception(work_->failure);
}

double compile_cost(const KernelSpec& spec) {
  if (const auto* gemm = std::get_if<GemmSpec>(&spec)) return gemm->kernel == GemmKernel::simt ? 1.5 : 3;
  if (const auto* pair = std::get_if<GemmPairSpec>(&spec)) return pair->first == pair->second ? 3 : 6;
  if (std::holds_alternative<GroupedGemmSpec>(spec)) return 3;
  if (std::holds_alternative<DequantMatmulSpec>(spec)) return 4;
  if (std::holds_alternative<NormSpec>(spec) || std::holds_alternative<CastSpec>(spec)) return 2;
  return 1;
}

void warm(KernelCache& cache, std::span<const KernelSpec> specs, Target target, int threads) {
  std::vector<KernelPass> kernels;
  for (const KernelSpec& spec : specs) {
    for (const Pass pass : passes_of(spec)) kernels.push_back({.spec = spec, .pass = pass});
  }
  const int all = threads > 0 ? threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  WarmUp(cache, std::move(kernels), {.target = target, .threads = all - 1}).finish();
}

namespace {

// Calls each(kernel) for all of them, in parallel with the warm-up's threads.
template <class Each>
void in_turn(const std::vector<KernelPass>& kernels, const std::function<void(const PrepareProgress&)>& progress,
             const Each& each) {
  std::exception_ptr failure;
  std::size_t done = 0;
  for (const KernelPass& kernel : kernels) {
    try {
      each(kernel);
    } catch (const Error&) {
      if (failure == nullptr) failure = std::current_exception();
    }
    ++done;
    if (progress) progress({.done = done, .total = kernels.size(), .kernel = print(kernel.spec)});
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace

void prepare_kernels(KernelCache& cache, const std::vector<KernelPass>& kernels,
                     const std::function<void(const PrepareProgress&)>& progress) {
  const WarmUp beside(cache, kernels);
  in_turn(kernels, progress, [&](const KernelPass& kernel) { static_cast<void>(cache.get(kernel.spec, kernel.pass)); });
}

void compile_kernels(KernelCache& cache, const std::vector<KernelPass>& kernels, Target target,
                     const std::function<void(const PrepareProgress&)>& progress) {
  const WarmUp beside(cache, kernels, {.target = target});
  in_turn(kernels, progress, [&](const KernelPass& kernel) {
    static_cast<void>(cache.compiled(generate(kernel.spec, kernel.pass), target));
  });
}

}  // namespace ingot
