// bench_weight_only_experts: matmuls of a mixture of experts that decode their weights on the fly (dequant_matmul with
// experts), with 1 to 64 rows of each expert: in one launch, one expert after the other, and next to a kernel that only
// reads the weights' bytes. Results are compared before they are timed, and the ways take turns.
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
#include <utility>
#include <vector>

#include "contenders.h"
#include "ingot/codegen/dequant/dequant_candidates.h"
#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/runtime/measure/dequant_operands.h"
#include "ingot/runtime/util/error.h"
#include "machine.h"
#include "numerics.cuh"
#include "program.h"
#include "read_ceiling.h"

namespace ingot::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Options : CaseOptions {
  bool tilings = false;
};

// Of one expert.
struct Layer {
  const char* name;
  std::int64_t n, k, experts;
};
constexpr Layer kLayers[] = {{"gpt-oss-120b gate_up", 5760, 2880, 128},
                             {"gpt-oss-120b down", 2880, 2880, 128},
                             {"DeepSeek-V3 up", 2048, 7168, 32},
                             {"Mixtral down", 4096, 14336, 8},
                             {"Qwen3-30B gate_up", 1536, 2048, 128}};

// all: the same number of rows of each expert. few: one row each of a few experts, as of one token. zipf: by Zipf's
// law, with so many rows on average. masked: as `all`, in a room for twice as many.
enum class Routing : std::uint8_t { all, few, zipf, masked };
constexpr const char* kRoutingNames[] = {"all", "few", "zipf", "masked"};

struct Case {
  Layer layer;
  std::int64_t rows;  // of an expert
  Routing routing;
  DequantMatmulSpec spec;
  std::string name;

  std::int64_t capacity() const { return routing == Routing::masked ? 2 * rows : 0; }
};

constexpr std::pair<const char*, const char*> kKinds[] = {
    {"fp8", "bf16*e4m3fn->bf16 packed scale=row"}, {"mxfp4", "bf16*e2m1fn->bf16 packed scale=1x32 factors=e8m0fnu"}};
constexpr std::int64_t kFewExperts = 4;

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const auto add = [&](const Layer& layer, std::int64_t rows, Routing routing) {
    for (const auto& [kind, line] : kKinds) {
      cases.push_back({.layer = layer,
                       .rows = rows,
                       .routing = routing,
                       .spec = std::get<DequantMatmulSpec>(parse(fmt::format("dequant_matmul {} experts", line))),
                       .name = fmt::format("{} {} x {}x{}, {} rows {}, {}", layer.name, layer.experts, layer.n, layer.k,
                                           rows, kRoutingNames[static_cast<std::size_t>(routing)], kind)});
    }
  };
  for (const Layer& layer : kLayers) {
    add(layer, 1, Routing::few);
    for (const std::int64_t rows : {1, 4, 16, 64}) add(layer, rows, Routing::all);
    add(layer, 4, Routing::zipf);
    add(layer, 4, Routing::masked);
  }
  return cases;
}

// Calls of few experts take others each time, so that their weights are not in the L2.
std::int64_t shifts_of(const Case& c) { return c.routing == Routing::few ? c.layer.experts / kFewExperts : 1; }

// How many rows each expert has in a call.
std::vector<std::int64_t> counts_of(const Case& c, std::int64_t shift) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(c.layer.experts), c.rows);
  if (c.routing == Routing::few) {
    for (std::size_t e = 0; e < counts.size(); ++e) {
      counts[e] = static_cast<std::int64_t>(e) / kFewExperts == shift ? 1 : 0;
    }
  } else if (c.routing == Routing::zipf) {
    double all = 0;
    for (std::int64_t e = 1; e <= c.layer.experts; ++e) all += 1.0 / static_cast<double>(e);
    for (std::size_t e = 0; e < counts.size(); ++e) {
      const double share = 1.0 / static_cast<double>(e + 1) / all;
      counts[e] = std::llround(share * static_cast<double>(c.rows * c.layer.experts));
    }
  }
  return counts;
}

// Operands of all experts in device memory. Each expert's weight has its own memory, with the values of one of a few
// weights; all together are larger than the L2.
class Buffers {
 public:
  Buffers(MeasuredGpu& gpu, RandomData& random, const Case& c) : gpu_(&gpu), case_(c) {
    const Layer& l = c.layer;
    for (std::int64_t shift = 0; shift < shifts_of(c); ++shift) counts_.push_back(counts_of(c, shift));
    DequantMatmulSpec of_one = c.spec;
    of_one.experts = false;
    rows_ = c.capacity() * l.experts;
    for (const std::int64_t count : counts_.front()) rows_ += c.capacity() != 0 ? 0 : count;
    const DequantOperands made(random,
                               [&](void* to, unsigned char byte, std::size_t bytes) { gpu.fill(to, byte, bytes); },
                               of_one, {.m = rows_, .n = l.n, .k = l.k});
    const DequantMatmulTensors& first = made.tensors(0);
    const auto experts = static_cast<std::size_t>(l.experts);
    x_ = Buffer(gpu.backend(), byte_span(first.x, "x"));
    gpu.copy(x_.data(), first.x.data, x_.bytes());
    weights_ = Buffer(gpu.backend(), experts * byte_span(first.weight, "weight"));
    scale_inv_ = Buffer(gpu.backend(), experts * byte_span(first.scale_inv, "scale_inv"));
    for (std::size_t e = 0; e < experts; ++e) {
      const DequantMatmulTensors& from = made.tensors(static_cast<int>(e) % made.copies());
      copy_part(weights_, e, experts, from.weight.data);
      copy_part(scale_inv_, e, experts, from.scale_inv.data);
    }
    out_ = Buffer(gpu.backend(), byte_span(first.out, "out"));
    apart_ = Buffer(gpu.backend(), out_.bytes());
    place_ends();
    gpu.device_api().synchronize(gpu.stream());  // before what was copied is released
    tensors_ = {
        .x = moved(first.x, x_),
        .weight = vector(weights_.data(), Dtype::u8, first.weight.cols * l.experts, device()),
        .scale_inv = vector(scale_inv_.data(), first.scale_inv.dtype, first.scale_inv.cols * l.experts, device()),
        .out = moved(first.out, out_),
        .ends = {.data = static_cast<const std::int32_t*>(ends_.data()),
                 .experts = l.experts,
                 .device = device(),
                 .capacity = c.capacity() == 0 ? std::nullopt : std::optional(c.capacity())},
        .constant_weight = true};
  }

  int copies() const { return static_cast<int>(counts_.size()); }

  DequantMatmulTensors tensors(int copy) const {
    DequantMatmulTensors tensors = tensors_;
    tensors.ends.data += copy * case_.layer.experts;
    return tensors;
  }

  // A matmul for each expert that has rows.
  std::vector<DequantMatmulTensors> apart(int copy) const {
    std::vector<DequantMatmulTensors> all;
    std::int64_t begin = 0;
    for (std::int64_t e = 0; e < case_.layer.experts; ++e) {
      const std::int64_t count = counts(copy)[static_cast<std::size_t>(e)];
      if (case_.capacity() != 0) begin = e * case_.capacity();
      if (count != 0) {
        Tensor out = tensors_.out;
        out.data = apart_.data();
        all.push_back({.x = rows_of(tensors_.x, begin, count),
                       .weight = part_of(tensors_.weight, e),
                       .scale_inv = part_of(tensors_.scale_inv, e),
                       .out = rows_of(out, begin, count),
                       .constant_weight = true});
      }
      begin += count;
    }
    return all;
  }

  // Of experts that have rows in a call, and where the first one's begin.
  std::size_t bytes_read() const {
    std::size_t experts = 0;
    for (const std::int64_t count : counts(0)) experts += count != 0 ? 1 : 0;
    return experts * weights_.bytes() / static_cast<std::size_t>(case_.layer.experts);
  }

  const void* begin_of_read(int copy) const {
    return static_cast<const std::byte*>(weights_.data()) + static_cast<std::size_t>(copy) * bytes_of_weights();
  }

  void poison() const {
    for (const Buffer* const out : {&out_, &apart_}) gpu_->fill(out->data(), 0xff, out->bytes());
  }

  // Why the last copy's two outputs differ by more than their rounding; empty if they do not.
  std::string fault() const {
    const std::vector<std::int64_t>& counts = counts_.back();
    std::int64_t begin = 0;
    double error = 0;
    double norm = 0;
    for (std::size_t e = 0; e < counts.size(); ++e) {
      if (case_.capacity() != 0) begin = static_cast<std::int64_t>(e) * case_.capacity();
      for (const std::int64_t row : {begin, begin + counts[e] - 1}) {
        if (counts[e] == 0) continue;
        const std::vector<double> x = values(out_, row);
        const std::vector<double> y = values(apart_, row);
        for (std::size_t n = 0; n < x.size(); ++n) {
          error += (x[n] - y[n]) * (x[n] - y[n]);
          norm += y[n] * y[n];
        }
      }
      begin += counts[e];
    }
    const double relative = std::sqrt(error / norm);
    return relative <= 0x1p-8 ? "" : fmt::format("relative difference {:.3g}", relative);
  }

 private:
  const std::vector<std::int64_t>& counts(int copy) const { return counts_[static_cast<std::size_t>(copy)]; }
  std::size_t bytes_of_weights() const {
    return copies() == 1 ? 0 : weights_.bytes() / static_cast<std::size_t>(copies());
  }
  Device device() const { return gpu_->backend().device(); }

  void copy_part(const Buffer& to, std::size_t expert, std::size_t experts, const void* from) const {
    const std::size_t bytes = to.bytes() / experts;
    gpu_->copy(static_cast<std::byte*>(to.data()) + expert * bytes, from, bytes);
  }

  void place_ends() {
    std::vector<std::int32_t> ends;
    for (const std::vector<std::int64_t>& of_call : counts_) {
      std::int64_t end = 0;
      for (const std::int64_t count : of_call) {
        end += count;
        ends.push_back(static_cast<std::int32_t>(case_.capacity() != 0 ? count : end));
      }
    }
    ends_ = Buffer(gpu_->backend(), ends.size() * sizeof(ends[0]));
    gpu_->device_api().copy_from_host(ends_.data(), ends.data(), ends_.bytes(), gpu_->stream());
  }

  static Tensor moved(Tensor tensor, const Buffer& to) {
    tensor.data = to.data();
    return tensor;
  }
  static Tensor rows_of(Tensor part, std::int64_t begin, std::int64_t count) {
    part.data = static_cast<std::byte*>(part.data) + begin * part.row_stride * size_of(part.dtype);
    part.rows = count;
    return part;
  }
  Tensor part_of(Tensor all, std::int64_t expert) const {
    all.cols /= case_.layer.experts;
    all.row_stride = all.cols;
    all.data = static_cast<std::byte*>(all.data) + expert * all.cols * size_of(all.dtype);
    return all;
  }

  std::vector<double> values(const Buffer& memory, std::int64_t row) const {
    const Tensor of = rows_of(moved(tensors_.out, memory), row, 1);
    std::vector<u16> bits(static_cast<std::size_t>(of.cols));
    gpu_->device_api().copy_to_host(bits.data(), of.data, bits.size() * sizeof(u16), gpu_->stream());
    std::vector<double> found;
    for (const u16 each : bits) found.push_back(static_cast<double>(to_float(bf16{each})));
    return found;
  }

  MeasuredGpu* gpu_;
  Case case_;
  std::vector<std::vector<std::int64_t>> counts_{};  // of each call
  std::int64_t rows_ = 0;
  Buffer x_, weights_, scale_inv_, out_, apart_, ends_;
  DequantMatmulTensors tensors_{};
};

struct Contender {
  std::string label;
  std::function<void(int copy)> enqueue;
  Timing timing{};
  std::string fault{};
};

struct Result {
  std::vector<Contender> contenders{};  // the matmuls one after the other come first, then the library's choice
  double read_us = 0;
};

class Bench {
 public:
  Bench(Context& context, const Options& options)
      : gpu_(context),
        random_(gpu_.backend(), gpu_.stream(),
                [this](void* to, const void* from, std::size_t bytes) { gpu_.copy(to, from, bytes); }),
        device_{.target = context.cache().target(), .multiprocessors = context.tuning_machine().multiprocessors},
        options_(options) {}

  Result run(const Case& c) {
    const Buffers buffers(gpu_, random_, c);
    const DequantMatmulTensors tensors = buffers.tensors(0);
    DequantMatmulSpec of_one = c.spec;
    of_one.experts = false;
    std::vector<Contender> all{{.label = "apart", .enqueue = [&](int copy) {
                                  for (const DequantMatmulTensors& each : buffers.apart(copy)) {
                                    gpu_.backend().dequant_matmul(of_one, each, gpu_.stream());
                                  }
                                }}};
    const MatmulSize size =
        size_of_experts({.m = tensors.x.rows, .n = c.layer.n, .k = c.layer.k}, c.layer.experts, tensors.ends.capacity);
    const DequantMatmulSpec chosen = dequant_order(c.spec, size, device_).front();
    const auto add = [&](const DequantMatmulSpec& spec, const char* mark) {
      all.push_back({.label = fmt::format("{}:{}{}", name(spec.kernel), print(spec.kernel, *spec.tiling), mark),
                     .enqueue = [this, spec, &buffers](int copy) {
                       gpu_.backend().dequant_matmul(spec, buffers.tensors(copy), gpu_.stream());
                     }});
    };
    add(chosen, " *");
    if (options_.tilings) {
      for (DequantMatmulSpec named : dequant_kernels(c.spec, device_)) {
        for (const DequantTiling& tiling : dequant_tilings(named, size, device_)) {
          named.tiling = tiling;
          if (named != chosen) add(named, "");
        }
      }
    }
    measure_all(buffers, all);
    const double read_us = ceiling_.median_us(
        buffers.copies(), [&](int copy) { return buffers.begin_of_read(copy); }, buffers.bytes_read(), measuring());
    return {.contenders = std::move(all), .read_us = read_us};
  }

 private:
  MeasureOptions measuring() const {
    return options_.quick ? MeasureOptions{.rounds = 3, .graph_us = 1000}
                          : MeasureOptions{.rounds = 7, .graph_us = 4000};
  }

  void measure_all(const Buffers& buffers, std::vector<Contender>& contenders) {
    const MeasureOptions options = measuring();
    std::vector<std::unique_ptr<Replay>> replays;
    std::vector<Contender*> timed;
    buffers.poison();
    for (Contender& contender : contenders) {
      auto replay = std::make_unique<Replay>(
          gpu_, RotatedCall{.copies = buffers.copies(), .enqueue = contender.enqueue}, options);
      if (&contender != contenders.data()) {
        contender.fault = buffers.fault();
        buffers.poison();
        contenders.front().enqueue(buffers.copies() - 1);
      }
      if (!contender.fault.empty()) continue;
      timed.push_back(&contender);
      replays.push_back(std::move(replay));
    }
    time_in_turns(timed, replays, options, 5);
  }

  MeasuredGpu gpu_;
  RandomData random_;
  ReadCeiling ceiling_{gpu_};
  MatmulDevice device_;
  Options options_;
};

std::string to_text(const Case& c, const Result& result) {
  std::string text;
  for (const Contender& contender : result.contenders) {
    const double us = contender.timing.median_us;
    if (!contender.fault.empty()) {
      text += fmt::format("{:<58}{:<44} WRONG  {}\n", c.name, contender.label, contender.fault);
      continue;
    }
    text += fmt::format("{:<58}{:<44}{:>9.1f}{:>8.2f}{:>9.3f}\n", c.name, contender.label, us,
                        result.contenders.front().timing.median_us / us, result.read_us / us);
  }
  return text;
}

Json to_json(const Case& c, const Result& result) {
  Json json{{"case", c.name}, {"spec", print(c.spec)}, {"read_us", result.read_us}, {"ways", Json::array()}};
  for (const Contender& contender : result.contenders) {
    Json way{{"way", contender.label}};
    if (contender.fault.empty()) {
      way["us"] = timing_json(contender.timing);
    } else {
      way["wrong"] = contender.fault;
    }
    json["ways"].push_back(way);
  }
  return json;
}

int run(const Options& options) {
  std::vector<Case> cases = all_cases();
  keep_chosen(cases, options.filters, [](const Case& c) { return c.name; });
  if (options.list) {
    for (const Case& c : cases) fmt::print("{:<58}{}\n", c.name, print(c.spec));
    return 0;
  }
  const std::optional<ContextOptions> on_cuda = cuda_options();
  if (!on_cuda) return kSkipped;
  Context context(*on_cuda);
  const Machine machine = machine_of(context, options.commit);
  Bench bench(context, options);
  fmt::print("Ingot {} ({}), {}, driver {}, {}; experts x N x K; *: the library's choice\n\n", machine.ingot,
             machine.commit, machine.device, machine.driver, machine.date);
  fmt::print("{:<58}{:<44}{:>9}{:>8}{:>9}\n", "case", "launches", "us", "ratio", "reading");
  Json json = header("weight_only_experts", machine);
  json["cases"] = Json::array();
  bool failed = false;
  for (const Case& c : cases) {
    const Result result = bench.run(c);
    fmt::print("{}", to_text(c, result));
    std::fflush(stdout);
    failed |= std::ranges::any_of(result.contenders, [](const Contender& each) { return !each.fault.empty(); });
    json["cases"].push_back(to_json(c, result));
    if (!options.json.empty()) write_json(options.json, json);  // so that a killed run leaves its results so far
  }
  return failed ? kFailed : 0;
}

}  // namespace
}  // namespace ingot::bench

int main(int argc, char** argv) {
  CLI::App app{"Times matmuls of a mixture of experts by weights in 8 or 4 bits, in one launch.",
               "bench_weight_only_experts"};
  ingot::bench::Options options;
  add_options(app, options);
  app.add_flag("--tilings", options.tilings, "Try all tilings");
  return ingot::bench::run_program(app, argc, argv, [&] { return ingot::bench::run(options); });
}
