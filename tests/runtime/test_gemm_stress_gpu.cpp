// Ten thousand mixed GEMMs of all kernels, shapes and epilogues: two threads with a stream each, in bursts of launches
// and of graph replays. Every output must have the same bits as when its GEMM ran by itself, and nothing around it may
// be written. Neither thread may hang: a burst that takes 20 s ends the program and prints what was running.
#include "support/gpu_test.h"

#include <array>
#include <chrono>
#include <exception>
#include <latch>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cases.h"
#include "ingot/codegen/gemm/gemm_estimate.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/cuda/graph.h"
#include "ingot/runtime/jit/warm_up.h"
#include "ingot/runtime/util/error.h"
#include "support/compare.h"
#include "support/random.h"
#include "support/run_case.h"
#include "support/watchdog.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_gemm_stress_gpu)

namespace {

constexpr std::size_t kLaunches = 10000;
constexpr std::size_t kThreads = 2;
constexpr std::size_t kBurst = 25;
constexpr std::size_t kGraphs = 6;
constexpr std::size_t kCallsOfGraph = 12;
constexpr std::size_t kReplaysOfBurst = 3;
constexpr std::chrono::seconds kPatience{20};

Context& context() {
  static Context one(cuda_options());
  return one;
}

bool on_hopper() { return context().cache().target() == target_for(9, 0); }

// Pairs each spec with the next of the shapes.
void add(std::vector<Case>& all, const std::vector<GemmSpec>& specs, const std::vector<Shape>& shapes) {
  for (const GemmSpec& spec : specs) all.push_back({.spec = spec, .shape = shapes[all.size() % shapes.size()]});
}

// Every tiling, alternating one scale_inv and one per row, bf16 and f32, with and without a bias.
std::vector<GemmSpec> sm90_specs() {
  std::vector<GemmSpec> specs;
  const auto add_tilings = [&](const GemmSpec& kind) {
    std::vector<GemmTiling> tilings(gemm_tilings(kind).begin(), gemm_tilings(kind).end());
    if (kind.fast_accumulation) tilings.push_back({128, 128, 1, 2, 6, true});
    for (const GemmTiling& tiling : tilings) {
      GemmSpec spec = kind;
      const std::size_t turn = specs.size();
      if (!has_group_scale_inv(spec)) spec.scale_a = spec.scale_b = turn % 2 == 0 ? kTensorwise : kRowwise;
      spec.out = turn % 4 == 3 && tiling.n % 64 == 0 ? Dtype::f32 : Dtype::bf16;
      spec.bias = turn % 3 == 1;
      spec.kernel = GemmKernel::sm90;
      spec.tiling = tiling;
      specs.push_back(spec);
    }
  };
  add_tilings({.fast_accumulation = true});
  add_tilings({});
  add_tilings({.scale_a = kRowGroups, .scale_b = kBlocks});
  std::size_t turn = 0;
  for (GemmSpec spec : epilogue_specs()) {
    const auto ocp = [](Dtype dtype) { return dtype == Dtype::e4m3fn || dtype == Dtype::e5m2; };
    if (!ocp(spec.a) || !ocp(spec.b)) continue;
    spec.kernel = GemmKernel::sm90;
    spec.tiling = gemm_tilings(spec)[turn++ % gemm_tilings(spec).size()];
    specs.push_back(spec);
  }
  return specs;
}

std::vector<GemmSpec> mma_specs() {
  std::vector<GemmSpec> specs{
      {.a = Dtype::e4m3fn, .b = Dtype::e5m2, .scale_a = kRowwise, .scale_b = kRowwise, .bias = true},
      {.a = Dtype::e4m3fnuz, .b = Dtype::e5m2fnuz, .out = Dtype::f32, .scale_b = kRowwise},
      {.a = Dtype::bf16, .b = Dtype::bf16, .bias = true},
      {.scale_a = kRowGroups, .scale_b = kBlocks}};
  for (GemmSpec spec : epilogue_specs()) {
    if (spec.a != Dtype::f32) specs.push_back(spec);
  }
  std::size_t turn = 0;
  for (GemmSpec& spec : specs) {
    spec.kernel = GemmKernel::mma;
    spec.tiling = kMmaTilings[turn++ % kMmaTilings.size()];
  }
  return specs;
}

std::vector<GemmSpec> specs_of(const std::vector<std::string>& lines) {
  std::vector<GemmSpec> specs;
  for (const std::string& line : lines) specs.push_back(std::get<GemmSpec>(parse(line)));
  return specs;
}

std::vector<Case> stress_cases() {
  const std::vector<Shape> whole{{300, 392, 1040}, {512, 768, 512},  {129, 264, 272}, {1536, 2048, 640},
                                 {64, 1000, 2064}, {1000, 136, 144}, {16, 4096, 128}};
  std::vector<Shape> odd = whole;
  odd.insert(odd.end(), {{300, 391, 1040}, {1, 77, 4096}});
  std::vector<Case> all;
  if (on_hopper()) {
    add(all, sm90_specs(), odd);
    add(all,
        specs_of({"gemm e4m3fn*e4m3fn->bf16 fast kernel=cublaslt", "gemm e4m3fn*e5m2->bf16 kernel=cublaslt",
                  "gemm e4m3fn*e4m3fn->bf16 scale=row,row fast bias kernel=cublaslt",
                  "gemm e4m3fn*e4m3fn->f32 scale=row,row kernel=cublaslt",
                  "gemm e5m2*e4m3fn->f32 scale=tensor,tensor c=f32 kernel=cublaslt"}),
        whole);
    // Each of them copies scale_inv before it multiplies.
    add(all,
        specs_of({"gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 kernel=cublaslt",
                  "gemm e4m3fn*e4m3fn->bf16 scale=1x128,1x128 kernel=cublaslt"}),
        {{300, 392, 1040}, {512, 768, 512}, {1536, 2048, 640}, {16, 4096, 128}});
    // Several tiles per block.
    all.push_back({.spec = parse("gemm e4m3fn*e4m3fn->bf16 fast kernel=sm90:128x128:1x1:6:pingpong"),
                   .shape = {3000, 2104, 144}});
    all.push_back(
        {.spec = parse("gemm e4m3fn*e4m3fn->bf16 kernel=sm90:256x128:1x1:4:cooperative"), .shape = {3000, 2104, 144}});
  }
  add(all, specs_of({"gemm bf16*bf16->bf16 kernel=cublaslt", "gemm bf16*bf16->f32 tn kernel=cublaslt"}), whole);
  add(all, mma_specs(), {{300, 392, 1040}, {37, 131, 67}, {512, 768, 512}, {129, 264, 163}, {1000, 136, 144}});
  add(all, specs_of({"gemm e4m3fn*e4m3fn->bf16 kernel=simt", "gemm f32*f32->f32 nn", "gemm e5m2*e5m2fnuz->f32 bias"}),
      {{64, 48, 32}, {37, 131, 67}});
  return all;
}

// A case, its inputs, and the output of its run by itself.
struct Known {
  Case gemm;
  SharedMatrices inputs;
  Matrices alone;
};

std::string fault_of(const Known& known, const Matrices& outputs) {
  for (const auto& [what, matrix] : known.alone) {
    const GuardedMatrix& actual = outputs.at(what);
    if (actual.bytes() == matrix.bytes()) continue;
    std::string fault = actual.damage();
    if (fault.empty()) fault = bit_difference(what, matrix, actual);
    if (fault.empty()) fault = what + ": a NaN of other bits";
    return name(known.gemm) + ": " + fault;
  }
  return {};
}

// A graph of these calls.
struct CapturedCalls {
  CapturedCalls(Stream& stream, std::vector<std::size_t> captured,
                const std::vector<std::unique_ptr<PlacedCase>>& placed)
      : calls(std::move(captured)), graph(stream, [&] {
          for (const std::size_t i : calls) placed[i]->enqueue(stream);
        }) {}

  std::vector<std::size_t> calls;
  Graph graph;
};

// One thread's part: its own operands, outputs, graphs and stream.
class Worker {
 public:
  Worker(std::size_t index, const Driver& driver, const std::vector<Known>& known)
      : index_(index), driver_(&driver), known_(&known) {}

  std::string fault;
  std::size_t launched = 0;

  void run(std::latch& start) noexcept {
    bool arrived = false;
    try {
      dog_.emplace("thread " + std::to_string(index_), kPatience);
      const CurrentContext current(*driver_, context().device().index);
      prepare();
      dog_->alive("waiting for the other thread");
      arrived = true;
      start.arrive_and_wait();
      while (launched < kLaunches / kThreads && fault.empty()) burst();
    } catch (const std::exception& error) {
      fault = error.what();
    }
    if (!arrived) start.count_down();
    dog_.reset();
  }

 private:
  void prepare() {
    for (const Known& known : *known_) {
      dog_->alive("placing " + name(known.gemm));
      placed_.push_back(std::make_unique<PlacedCase>(known.gemm, known.inputs, context().backend(), stream_));
      placed_.back()->enqueue(stream_);  // creates the stream's memory and cuBLASLt's plans before any capture
      placed_.back()->poison(stream_);
    }
    for (std::size_t i = 0; i < kGraphs; ++i) {
      dog_->alive("capturing graph " + std::to_string(i));
      graphs_.push_back(std::make_unique<CapturedCalls>(stream_, some(kCallsOfGraph), placed_));
    }
  }

  void burst() {
    const std::size_t turn = bursts_++;
    CapturedCalls& captured = *graphs_[turn % kGraphs];
    const bool replayed = turn % 4 == 3;
    const std::vector<std::size_t> calls = replayed ? captured.calls : some(kBurst);
    std::string doing = replayed ? "a graph of" : "launches of";
    for (const std::size_t i : calls) doing += "\n  " + name((*known_)[i].gemm);
    dog_->alive(std::move(doing));
    if (replayed) {
      for (std::size_t i = 0; i < kReplaysOfBurst; ++i) captured.graph.replay(stream_);
      launched += kReplaysOfBurst * calls.size();
    } else {
      for (const std::size_t i : calls) placed_[i]->enqueue(stream_);
      launched += calls.size();
    }
    for (const std::size_t i : std::set<std::size_t>(calls.begin(), calls.end())) {
      fault = fault_of((*known_)[i], placed_[i]->outputs(stream_));
      if (!fault.empty()) return;
      placed_[i]->poison(stream_);
    }
  }

  std::vector<std::size_t> some(std::size_t count) {
    std::vector<std::size_t> calls;
    for (std::size_t i = 0; i < count; ++i) calls.push_back(random_bits(index_ + 1, drawn_++) % known_->size());
    return calls;
  }

  std::size_t index_;
  const Driver* driver_;
  const std::vector<Known>* known_;
  std::optional<Watchdog> dog_;
  Stream stream_{context().backend()};
  std::vector<std::unique_ptr<PlacedCase>> placed_;
  std::vector<std::unique_ptr<CapturedCalls>> graphs_;
  std::size_t bursts_ = 0;
  std::uint64_t drawn_ = 0;
};

std::vector<Known> run_alone(const std::vector<Case>& cases) {
  std::vector<KernelSpec> specs;
  for (const Case& c : cases) {
    const auto& gemm = std::get<GemmSpec>(c.spec);
    if (gemm.kernel != GemmKernel::automatic && gemm.kernel != GemmKernel::cublaslt) specs.push_back(c.spec);
  }
  warm(context().cache(), specs, context().cache().target(), 0);
  InputMaker maker;
  Stream stream(context().backend());
  std::vector<Known> known;
  Watchdog dog("the first run", kPatience);
  for (const Case& c : cases) {
    dog.alive(name(c));
    SharedMatrices inputs = maker.inputs(c);
    Matrices outputs = run(c, inputs, context().backend(), stream);
    BOOST_REQUIRE_MESSAGE(damage(outputs).empty(), name(c) << ": " << damage(outputs));
    BOOST_REQUIRE_MESSAGE(!bit_difference("out", poisoned_outputs(c).at("out"), outputs.at("out")).empty(),
                          name(c) << ": nothing was written");
    known.push_back({.gemm = c, .inputs = std::move(inputs), .alone = std::move(outputs)});
  }
  return known;
}

}  // namespace

BOOST_AUTO_TEST_CASE(two_threads_give_the_bits_of_one) {
  std::string problem;
  const std::unique_ptr<Driver> driver = Driver::open(problem);
  BOOST_REQUIRE_MESSAGE(driver != nullptr, problem);
  const std::vector<Known> known = run_alone(stress_cases());
  std::array<std::unique_ptr<Worker>, kThreads> workers;
  for (std::size_t i = 0; i < kThreads; ++i) workers[i] = std::make_unique<Worker>(i, *driver, known);
  {
    std::latch start(kThreads);
    std::vector<std::jthread> threads;
    for (const auto& worker : workers) threads.emplace_back([&] { worker->run(start); });
  }
  std::size_t launched = 0;
  for (const auto& worker : workers) {
    BOOST_TEST(worker->fault == "");
    launched += worker->launched;
  }
  std::cout << launched << " launches of " << known.size() << " GEMMs\n";
  BOOST_TEST(launched >= kLaunches);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
