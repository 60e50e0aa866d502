// bench_grouped_gemm: the GEMMs of a mixture of experts in one launch (Backend::grouped_gemm), and one after the other
// as gemm() runs them. Both results are compared before they are timed, and the ways take turns.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "contenders.h"
#include "harness.h"
#include "ingot/runtime/measure/gemm_operands.h"
#include "ingot/runtime/util/error.h"
#include "machine.h"
#include "numerics.cuh"
#include "program.h"

namespace ingot::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  bool list = false;
  bool quick = false;
  bool tilings = false;
  std::vector<std::string> filters;
  std::string json;
  std::string commit;
};

// Of one expert; rows: of all experts.
struct Layer {
  const char* name;
  std::int64_t rows, n, k, experts;
};

// Mixtral 8x7B; DeepSeek-V3's routed experts on one of eight GPUs, in training and with few tokens.
constexpr Layer kLayers[] = {{"Mixtral up", 32768, 14336, 4096, 8},     {"Mixtral down", 32768, 4096, 14336, 8},
                             {"DeepSeek-V3 up", 32768, 2048, 7168, 32}, {"DeepSeek-V3 down", 32768, 7168, 2048, 32},
                             {"DeepSeek-V3 up", 4096, 2048, 7168, 32},  {"DeepSeek-V3 down", 4096, 7168, 2048, 32},
                             {"DeepSeek-V3 up", 256, 2048, 7168, 32}};

enum class Routing : std::uint8_t { balanced, zipf };

struct Kind {
  const char* name;
  const char* line;
};

constexpr Kind kKinds[] = {{"row fast", "e4m3fn*e4m3fn->bf16 nt scale=row,row fast"},
                           {"row", "e4m3fn*e4m3fn->bf16 nt scale=row,row"},
                           {"tensor fast", "e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor fast"},
                           {"blocks", "e4m3fn*e4m3fn->bf16 nt scale=1x128,128x128"},
                           {"bf16", "bf16*bf16->bf16 nt"}};

struct Case {
  std::string name;
  Layer layer;
  Routing routing;
  GroupedGemmSpec spec;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Layer& layer : kLayers) {
    for (const Routing routing : {Routing::balanced, Routing::zipf}) {
      for (const Kind& kind : kKinds) {
        cases.push_back({.name = fmt::format("{} {} x {}x{}x{}, {}, {}", layer.name, layer.experts, layer.rows, layer.n,
                                             layer.k, routing == Routing::zipf ? "zipf" : "balanced", kind.name),
                         .layer = layer,
                         .routing = routing,
                         .spec = std::get<GroupedGemmSpec>(parse(fmt::format("grouped_gemm {}", kind.line)))});
      }
    }
  }
  return cases;
}

// By Zipf's law the first expert has most rows; ends are multiples of nothing.
std::vector<std::int32_t> ends_of(const Layer& layer, Routing routing) {
  double all = 0;
  for (std::int64_t e = 1; e <= layer.experts; ++e) all += 1.0 / static_cast<double>(e);
  std::vector<std::int32_t> ends;
  double share = 0;
  for (std::int64_t e = 1; e <= layer.experts; ++e) {
    share += routing == Routing::zipf ? 1.0 / static_cast<double>(e) / all : 1.0 / static_cast<double>(layer.experts);
    ends.push_back(static_cast<std::int32_t>(std::llround(share * static_cast<double>(layer.rows))));
  }
  return ends;
}

// The operands in device memory, two outputs, and the tensors of each expert's GEMM. (All weights together are larger
// than the L2.)
class Buffers {
 public:
  Buffers(MeasuredGpu& gpu, RandomData& random, const Case& c)
      : gpu_(&gpu), spec_(c.spec), layer_(c.layer), ends_(ends_of(c.layer, c.routing)) {
    constexpr std::int64_t kFew = 16;  // of the operand that is not used
    const Layer& l = c.layer;
    a_ = make_gemm_data(random, {spec_.gemm, {.m = l.rows, .n = kFew, .k = l.k}}, 1);
    b_ = make_gemm_data(random, {spec_.gemm, {.m = kFew, .n = l.experts * l.n, .k = l.k}}, 1000);
    grouped_ = Buffer(gpu.backend(), static_cast<std::size_t>(l.rows * l.n * 2));
    apart_ = Buffer(gpu.backend(), grouped_.bytes());
    ends_on_gpu_ = Buffer(gpu.backend(), ends_.size() * sizeof(ends_[0]));
    gpu.device_api().copy_from_host(ends_on_gpu_.data(), ends_.data(), ends_on_gpu_.bytes(), gpu.stream());
    place_scale_inv_b();
  }

  GroupedGemmTensors grouped() const {
    return {.a = a_.tensors.a,
            .b = b_.tensors.b,
            .ends = {.data = static_cast<const std::int32_t*>(ends_on_gpu_.data()),
                     .experts = layer_.experts,
                     .device = gpu_->backend().device()},
            .scale_inv_a = a_.tensors.scale_inv_a,
            .scale_inv_b = scale_inv_b_,
            .out = out_of(grouped_)};
  }

  // Of the experts that have rows.
  std::vector<GemmTensors> apart() const {
    std::vector<GemmTensors> all;
    std::int64_t begin = 0;
    const GemmSpec& gemm = spec_.gemm;
    for (std::int64_t e = 0; e < layer_.experts; ++e) {
      const std::int64_t end = ends_[static_cast<std::size_t>(e)];
      GemmTensors t{.a = rows_of(a_.tensors.a, begin, end),
                    .b = rows_of(b_.tensors.b, e * layer_.n, (e + 1) * layer_.n),
                    .out = rows_of(out_of(apart_), begin, end)};
      if (is_fp8(gemm.a)) {
        const bool each = gemm.scale_a != kTensorwise;  // those of groups are a matrix with a column for each row
        t.scale_inv_a = each ? elements_of(a_.tensors.scale_inv_a, begin, end) : a_.tensors.scale_inv_a;
        const std::int64_t of_expert = scale_inv_b_.cols / layer_.experts;
        t.scale_inv_b = elements_of(scale_inv_b_, e * of_expert, (e + 1) * of_expert);
      }
      if (begin != end) all.push_back(t);
      begin = end;
    }
    return all;
  }

  void poison() const {
    for (const Buffer* const out : {&grouped_, &apart_}) gpu_->fill(out->data(), 0xff, out->bytes());
  }

  // Why the two outputs differ by more than their rounding; empty if they do not. Rows from all parts of them.
  std::string fault() const {
    constexpr std::int64_t kChecked = 64;
    double error = 0;
    double norm = 0;
    for (std::int64_t i = 0; i < kChecked; ++i) {
      const std::int64_t r = i == 0 ? layer_.rows - 1 : i * 7919 % layer_.rows;
      const std::vector<double> x = row(grouped_, r);
      const std::vector<double> y = row(apart_, r);
      for (std::size_t n = 0; n < x.size(); ++n) {
        error += (x[n] - y[n]) * (x[n] - y[n]);
        norm += y[n] * y[n];
      }
    }
    const double relative = std::sqrt(error / norm);
    return relative <= 0x1p-8 ? "" : fmt::format("relative difference {:.3g} of {} rows", relative, kChecked);
  }

 private:
  static Tensor rows_of(Tensor part, std::int64_t begin, std::int64_t end) {
    part.data = static_cast<std::byte*>(part.data) + begin * part.row_stride * size_of(part.dtype);
    part.rows = end - begin;
    return part;
  }
  static Tensor elements_of(Tensor part, std::int64_t begin, std::int64_t end) {
    part.data = static_cast<std::byte*>(part.data) + begin * size_of(part.dtype);
    part.cols = end - begin;
    return part;
  }

  Tensor out_of(const Buffer& memory) const {
    return matrix(memory.data(), Dtype::bf16, layer_.rows, layer_.n, gpu_->backend().device());
  }

  std::vector<double> row(const Buffer& memory, std::int64_t r) const {
    std::vector<u16> bits(static_cast<std::size_t>(layer_.n));
    gpu_->device_api().copy_to_host(bits.data(), static_cast<const std::byte*>(memory.data()) + r * layer_.n * 2,
                                    bits.size() * 2, gpu_->stream());
    std::vector<double> values;
    for (const u16 word : bits) values.push_back(static_cast<double>(to_float(bf16{word})));
    return values;
  }

  // One scale_inv of all experts' b is that of each.
  void place_scale_inv_b() {
    scale_inv_b_ = b_.tensors.scale_inv_b;
    if (!is_fp8(spec_.gemm.b) || spec_.gemm.scale_b != kTensorwise) return;
    scale_inv_of_experts_ = Buffer(gpu_->backend(), static_cast<std::size_t>(layer_.experts) * sizeof(float));
    for (std::int64_t e = 0; e < layer_.experts; ++e) {
      gpu_->copy(static_cast<float*>(scale_inv_of_experts_.data()) + e, scale_inv_b_.data, sizeof(float));
    }
    scale_inv_b_ = vector(scale_inv_of_experts_.data(), Dtype::f32, layer_.experts, gpu_->backend().device());
  }

  MeasuredGpu* gpu_;
  GroupedGemmSpec spec_;
  Layer layer_;
  std::vector<std::int32_t> ends_;
  GemmData a_, b_;
  Buffer grouped_, apart_, ends_on_gpu_, scale_inv_of_experts_;
  Tensor scale_inv_b_;
};

struct Contender {
  std::string label;
  std::function<void()> enqueue;
  Timing timing{};
  std::string fault{};
};

class Bench {
 public:
  Bench(Context& context, const Options& options)
      : gpu_(context),
        random_(gpu_.backend(), gpu_.stream(),
                [this](void* to, const void* from, std::size_t bytes) { gpu_.copy(to, from, bytes); }),
        multiprocessors_(context.tuning_machine().multiprocessors),
        options_(options) {}

  // The GEMMs one after the other come first.
  std::vector<Contender> run(const Case& c) {
    const Buffers buffers(gpu_, random_, c);
    const GroupedGemmTensors grouped = buffers.grouped();
    const std::vector<GemmTensors> apart = buffers.apart();
    std::vector<Contender> all{{.label = "apart", .enqueue = [&] {
                                  for (const GemmTensors& t : apart) {
                                    gpu_.backend().gemm(c.spec.gemm, t, gpu_.stream());
                                  }
                                }}};
    const MatmulSize size{.m = c.layer.rows, .n = c.layer.n, .k = c.layer.k};
    const GroupedGemmSpec chosen = with_grouped_tiling(c.spec, size, c.layer.experts, multiprocessors_);
    const auto add = [&](const GroupedGemmSpec& spec, const char* mark) {
      all.push_back({.label = print(*spec.gemm.tiling) + mark,
                     .enqueue = [this, spec, &grouped] { gpu_.backend().grouped_gemm(spec, grouped, gpu_.stream()); }});
    };
    add(chosen, " *");
    for (const GemmTiling& tiling : options_.tilings ? grouped_tilings(c.spec) : std::vector<GemmTiling>{}) {
      GroupedGemmSpec spec = chosen;
      spec.gemm.tiling = tiling;
      if (spec != chosen) add(spec, "");
    }
    measure_all(buffers, all);
    return all;
  }

 private:
  void measure_all(const Buffers& buffers, std::vector<Contender>& contenders) {
    const MeasureOptions options =
        options_.quick ? MeasureOptions{.rounds = 3, .graph_us = 1000} : MeasureOptions{.rounds = 7, .graph_us = 4000};
    std::vector<std::unique_ptr<Replay>> replays;
    std::vector<Contender*> timed;
    buffers.poison();
    for (Contender& contender : contenders) {
      auto replay = std::make_unique<Replay>(
          gpu_, RotatedCall{.copies = 1, .enqueue = [&](int) { contender.enqueue(); }}, options);
      if (&contender != contenders.data()) {
        contender.fault = buffers.fault();
        buffers.poison();
        replays.front()->launch();
      }
      if (!contender.fault.empty()) continue;
      timed.push_back(&contender);
      replays.push_back(std::move(replay));
    }
    time_in_turns(timed, replays, options, 5);
  }

  MeasuredGpu gpu_;
  RandomData random_;
  int multiprocessors_;
  Options options_;
};

double teraflops(const Case& c, double us) {
  return 2e-6 * static_cast<double>(c.layer.rows) * static_cast<double>(c.layer.n) * static_cast<double>(c.layer.k) /
         us;
}

std::string to_text(const Case& c, const std::vector<Contender>& contenders) {
  std::string text;
  for (const Contender& contender : contenders) {
    const double us = contender.timing.median_us;
    text += contender.fault.empty() ? fmt::format("{:<58}{:<30}{:>9.1f}{:>9.0f}{:>8.3f}\n", c.name, contender.label, us,
                                                  teraflops(c, us), contenders.front().timing.median_us / us)
                                    : fmt::format("{:<58}{:<30} WRONG  {}\n", c.name, contender.label, contender.fault);
  }
  return text;
}

Json to_json(const Case& c, const std::vector<Contender>& contenders) {
  Json json{{"case", c.name}, {"spec", print(c.spec)}, {"ways", Json::array()}};
  for (const Contender& contender : contenders) {
    Json way{{"way", contender.label}};
    if (contender.fault.empty()) {
      way["us"] = timing_json(contender.timing);
      way["tflops"] = teraflops(c, contender.timing.median_us);
    } else {
      way["wrong"] = contender.fault;
    }
    json["ways"].push_back(way);
  }
  return json;
}

int run(const Options& options) {
  std::vector<Case> cases = all_cases();
  std::erase_if(cases, [&](const Case& c) { return !is_chosen(c.name, options.filters); });
  if (cases.empty()) throw Error(ErrorCode::invalid_argument, "--filter", "no case has this text in its name: --list");
  if (options.list) {
    for (const Case& c : cases) fmt::print("{:<58}{}\n", c.name, print(c.spec));
    return 0;
  }
  const std::optional<ContextOptions> on_cuda = cuda_options();
  if (!on_cuda) return kSkipped;
  Context context(*on_cuda);
  if (context.cache().target() != target_for(9, 0)) {
    fmt::print("skipped: grouped GEMMs run on Hopper only, and this is {}\n", print(context.cache().target()));
    return kSkipped;
  }
  const Machine machine = machine_of(context, options.commit);
  Bench bench(context, options);
  fmt::print("Ingot {} ({}), {}, driver {}, {}; rows of all experts x N x K; *: the library's choice\n\n",
             machine.ingot, machine.commit, machine.device, machine.driver, machine.date);
  fmt::print("{:<58}{:<30}{:>9}{:>9}{:>8}\n", "case", "launches", "us", "TFLOP/s", "ratio");
  Json json = header("grouped_gemm", machine);
  json["cases"] = Json::array();
  bool failed = false;
  for (const Case& c : cases) {
    const std::vector<Contender> contenders = bench.run(c);
    fmt::print("{}", to_text(c, contenders));
    std::fflush(stdout);
    failed |= std::ranges::any_of(contenders, [](const Contender& each) { return !each.fault.empty(); });
    json["cases"].push_back(to_json(c, contenders));
    if (!options.json.empty()) write_json(options.json, json);  // so that a killed run leaves its results so far
  }
  return failed ? kFailed : 0;
}

}  // namespace
}  // namespace ingot::bench

int main(int argc, char** argv) {
  CLI::App app{"Times the GEMMs of a mixture of experts in one launch and one after the other.", "bench_grouped_gemm"};
  ingot::bench::Options options;
  app.add_flag("--list", options.list, "Print the cases and exit; needs no GPU");
  app.add_option("--filter", options.filters, "Only cases with this text in their name; any of several")
      ->allow_extra_args(false);
  app.add_flag("--quick", options.quick, "Fewer and shorter rounds: does it run, not how fast");
  app.add_flag("--tilings", options.tilings, "Try all tilings");
  app.add_option("--json", options.json, "Write all figures to this file");
  app.add_option("--commit", options.commit, "The commit that was measured (default: git's for the current folder)");
  return ingot::bench::run_program(app, argc, argv, [&] { return ingot::bench::run(options); });
}
