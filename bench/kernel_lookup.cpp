#include "kernel_lookup.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>

#include "ingot/codegen/types/target.h"
#include "ingot/nn/planning/layer_runs.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/cuda_backend.h"
#include "ingot/runtime/context/dry_run.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/gemm/gemm_plans.h"
#include "ingot/runtime/jit/launcher.h"

namespace ingot::bench {
namespace {

constexpr std::array kThreads{1, 4, 8};
constexpr std::size_t kLookupsPerBatch = 2000;  // tens of microseconds: far less than a time slice
constexpr std::size_t kBatches = 300;           // of a thread in a round: several time slices, so that threads overlap

const Gpu& gpu() { return gpu_named("h200"); }

// A kernel for the dry driver, which loads anything.
class NoCompiler final : public Compiler {
 public:
  std::string identity() const override { return "bench"; }
  std::string toolchain() const override { return "bench"; }
  CompiledKernel compile(const Source& source, Target) const override {
    return {
        .lowered_name = source.name, .cubin = std::vector<std::byte>(1), .resources = {}, .log = {}, .toolchain = {}};
  }
};

// The hash of the cache's table, so that the map is compared with the same one.
struct KernelHash {
  std::size_t operator()(const KernelPass& kernel) const noexcept {
    return hash_value(kernel.spec) + kernel.pass.number();
  }
};

class MapWithMutex {
 public:
  void insert(const KernelPass& key, const Kernel* kernel) { kernels_.emplace(key, kernel); }
  const Kernel* find(const KernelPass& key) {
    const std::lock_guard lock(mutex_);
    const auto found = kernels_.find(key);
    return found == kernels_.end() ? nullptr : found->second;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<KernelPass, const Kernel*, KernelHash> kernels_;
};

struct Gemm {
  GemmSpec spec;
  MatmulSize size;
};

// cuBLASLt's kernels are its own.
const GemmSpec& first_of_ours(const KernelOrder<GemmSpec>& order) {
  const auto found = std::ranges::find_if(order, [](const GemmSpec& s) { return s.kernel != GemmKernel::cublaslt; });
  return found == order.end() ? order[0] : *found;
}

std::vector<Gemm> gemms_of(const Recording& recording) {
  std::vector<Gemm> gemms;
  for (const MatmulCall& call : recording.matmuls()) {
    if (const auto* const spec = std::get_if<GemmSpec>(&call.spec)) gemms.push_back({.spec = *spec, .size = call.size});
  }
  return gemms;
}

// Everything that a launch passes on its way to a kernel, with all kernels loaded. Members are constructed in this
// order, and each uses those above it.
struct Loaded {
  explicit Loaded(const Recording& recording) : keys(kernels_to_find(recording)), gemms(gemms_of(recording)) {
    for (const KernelPass& key : keys) map.insert(key, &cache.get(key.spec, key.pass));
    for (const Gemm& gemm : gemms) cache.get(first_of_ours(plans.find(gemm.spec, gemm.size)));
  }

  std::unique_ptr<Driver> driver = make_dry_driver(gpu());
  NoCompiler compiler;
  KernelStore store{std::filesystem::path()};
  KernelCache cache{&compiler, store, gpu().target, driver.get()};
  std::unique_ptr<Backend> backend = make_cuda_backend(*driver, 0, cache, {});
  CudaDevice device{*driver, 0};
  Launcher launcher{device, cache};
  GemmPlans plans{{}, gpu().target, gpu().multiprocessors};
  std::vector<KernelPass> keys;
  std::vector<Gemm> gemms;
  MapWithMutex map;
};

// One way to look up: find(i) gives the kernel of the i-th of `count` keys.
template <class Find>
struct Way {
  std::size_t count;
  Find find;
};
template <class Find>
Way(std::size_t, Find) -> Way<Find>;

// The sum of what was found, so that no lookup can be left out and a wrong kernel shows.
template <class Find>
std::uintptr_t look_up(const Way<Find>& way, std::size_t lookups) {
  std::uintptr_t sum = 0;
  for (std::size_t i = 0, at = 0; i < lookups; ++i, at = at + 1 == way.count ? 0 : at + 1) {
    sum += reinterpret_cast<std::uintptr_t>(way.find(at));
  }
  return sum;
}

// All threads at once. `expected`: the sum of one pass over all keys.
template <class Find>
void sample(const Way<Find>& way, std::uintptr_t expected, LookupCost& cost, std::vector<double>& samples) {
  using Clock = std::chrono::steady_clock;
  const std::size_t turns = std::max<std::size_t>(1, kLookupsPerBatch / way.count);
  const std::size_t lookups = turns * way.count;
  const auto threads = static_cast<std::size_t>(cost.threads);
  std::vector<std::vector<double>> of_thread(threads);
  std::atomic<bool> wrong{false};
  std::latch started(cost.threads);
  const auto work = [&](std::vector<double>& times) {
    times.reserve(kBatches);
    started.arrive_and_wait();
    for (std::size_t batch = 0; batch < kBatches; ++batch) {
      const auto begin = Clock::now();
      const std::uintptr_t sum = look_up(way, lookups);
      const std::chrono::duration<double, std::nano> taken = Clock::now() - begin;
      times.push_back(taken.count() / static_cast<double>(lookups));
      if (sum != turns * expected) wrong = true;
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t i = 1; i < threads; ++i) others.emplace_back([&, i] { work(of_thread[i]); });
    work(of_thread[0]);
  }
  if (wrong) cost.fault = "found another kernel than the one that was asked for";
  for (const std::vector<double>& times : of_thread) samples.insert(samples.end(), times.begin(), times.end());
}

// The rows of one way, one for each number of threads.
class Rows {
 public:
  template <class Find>
  Rows(const std::string& lookup, std::optional<double> limit_ns, std::size_t count, Find find,
       const std::function<const Kernel*(std::size_t)>& right) {
    for (const int threads : kThreads) costs_.push_back({.lookup = lookup, .threads = threads, .limit_ns = limit_ns});
    samples_.resize(costs_.size());
    std::uintptr_t expected = 0;
    for (std::size_t i = 0; i < count; ++i) expected += reinterpret_cast<std::uintptr_t>(right(i));
    sample_ = [way = Way{count, find}, expected](LookupCost& cost, std::vector<double>& samples) {
      sample(way, expected, cost, samples);
    };
  }

  void round() {
    for (std::size_t i = 0; i < costs_.size(); ++i) sample_(costs_[i], samples_[i]);
  }
  std::vector<LookupCost> costs() {
    for (std::size_t i = 0; i < costs_.size(); ++i) costs_[i].ns = spread_of(samples_[i]);
    return costs_;
  }

 private:
  std::vector<LookupCost> costs_;
  std::vector<std::vector<double>> samples_;
  std::function<void(LookupCost&, std::vector<double>&)> sample_;
};

// A hit touches no stream.
std::vector<Rows> ways_to_look_up(Loaded& loaded, const Stream& stream) {
  std::vector<Rows> ways;
  const auto right = [&loaded](std::size_t i) { return &loaded.cache.get(loaded.keys[i].spec, loaded.keys[i].pass); };
  const std::size_t count = loaded.keys.size();
  ways.emplace_back(
      "Launcher::kernel, as an operation calls it", kLookupLimitNs, count,
      [&loaded, &stream](std::size_t i) {
        const KernelPass& key = loaded.keys[i];
        return std::visit([&](const auto& spec) { return &loaded.launcher.kernel(spec, key.pass, stream); }, key.spec);
      },
      right);
  ways.emplace_back(
      "KernelCache::get", kLookupLimitNs, count,
      [&loaded](std::size_t i) { return &loaded.cache.get(loaded.keys[i].spec, loaded.keys[i].pass); }, right);
  ways.emplace_back(
      "std::unordered_map and std::mutex", std::nullopt, count,
      [&loaded](std::size_t i) { return loaded.map.find(loaded.keys[i]); }, right);
  const auto kernel_of_gemm = [&loaded, &stream](std::size_t i) {
    const Gemm& gemm = loaded.gemms[i];
    return &loaded.launcher.kernel(first_of_ours(loaded.plans.find(gemm.spec, gemm.size)), Pass::main, stream);
  };
  ways.emplace_back("a GEMM's plan and then its kernel", std::nullopt, loaded.gemms.size(), kernel_of_gemm,
                    kernel_of_gemm);
  return ways;
}

}  // namespace

Recording trained_model() {
  TrainingRun run{.layers = training_layers(known_model("llama3-8b")), .tokens = {8192}};
  for (const Recipe& recipe : recipes()) run.recipes.push_back(recipe.config);
  DryRun dry(gpu());
  run_training(dry.backend(), run);
  return dry.recording();
}

std::vector<KernelPass> kernels_to_find(const Recording& recording) {
  std::vector<KernelPass> kernels;
  for (const KernelSpec& spec : recording.kernels()) {
    for (const Pass pass : passes(spec)) kernels.push_back({.spec = spec, .pass = pass});
  }
  return kernels;
}

LookupReport measure_lookups(int rounds) {
  Loaded loaded(trained_model());
  const Stream stream(*loaded.backend);
  std::vector<Rows> ways = ways_to_look_up(loaded, stream);
  for (int round = 0; round < rounds; ++round) {
    for (Rows& way : ways) way.round();
  }
  LookupReport report{.kernels = loaded.keys.size(), .gemms = loaded.gemms.size()};
  for (Rows& way : ways) {
    for (LookupCost& cost : way.costs()) report.costs.push_back(std::move(cost));
  }
  return report;
}

std::string to_text(const LookupReport& report) {
  std::string text = fmt::format("{:<44}{:>9}{:>10}{:>10}{:>8}\n", "lookup of a ready kernel, ns", "threads", "median",
                                 "p99", "limit");
  for (const LookupCost& cost : report.costs) {
    text += fmt::format("{:<44}{:>9}", cost.lookup, cost.threads);
    if (!cost.fault.empty()) {
      text += "  wrong: " + cost.fault + "\n";
      continue;
    }
    text += fmt::format("{:>10.1f}{:>10.1f}{}\n", cost.ns.median, cost.ns.p99,
                        limit_columns(cost.ns.median, cost.limit_ns));
  }
  return text + fmt::format(
                    "in turn the {} kernels or {} GEMMs of Llama-3-8B, trained with every recipe; a sample is the "
                    "mean of about {} lookups\n",
                    report.kernels, report.gemms, kLookupsPerBatch);
}

nlohmann::ordered_json to_json(const LookupReport& report) {
  nlohmann::ordered_json costs = nlohmann::ordered_json::array();
  for (const LookupCost& cost : report.costs) {
    nlohmann::ordered_json json{{"lookup", cost.lookup}, {"threads", cost.threads}};
    json["ns"] = cost.fault.empty() ? to_json(cost.ns) : nlohmann::ordered_json();
    json["limit_ns"] = limit_json(cost.limit_ns);
    if (!cost.fault.empty()) json["fault"] = cost.fault;
    costs.push_back(std::move(json));
  }
  return {{"kernels", report.kernels},
          {"gemms", report.gemms},
          {"lookups_in_a_sample", kLookupsPerBatch},
          {"costs", std::move(costs)}};
}

}  // namespace ingot::bench
