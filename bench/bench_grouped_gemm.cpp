// bench_grouped_gemm: the GEMMs of a mixture of experts in one launch (Backend::grouped_gemm), and one after the other
// as gemm() runs them: of rows, and along K, the gradients of the experts' weights. Both results are compared before
// they are timed, and the ways take turns. With few tokens, as in decoding, what bounds them is a read of the weights.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "contenders.h"
#include "expert_slots.cuh"
#include "harness.h"
#include "ingot/runtime/measure/gemm_operands.h"
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

// Of one expert; rows: of all experts.
struct Layer {
  const char* name;
  std::int64_t rows, n, k, experts;
};

// Mixtral 8x7B; DeepSeek-V3's routed experts on one of eight GPUs, in training and with 1 to 64 tokens an expert; and,
// with few tokens, Qwen3-235B's and experts of widths that nothing was tuned at.
constexpr Layer kLayers[] = {{"Mixtral up", 32768, 14336, 4096, 8},     {"Mixtral down", 32768, 4096, 14336, 8},
                             {"DeepSeek-V3 up", 32768, 2048, 7168, 32}, {"DeepSeek-V3 down", 32768, 7168, 2048, 32},
                             {"DeepSeek-V3 up", 4096, 2048, 7168, 32},  {"DeepSeek-V3 down", 4096, 7168, 2048, 32},
                             {"DeepSeek-V3 up", 32, 2048, 7168, 32},    {"DeepSeek-V3 up", 256, 2048, 7168, 32},
                             {"DeepSeek-V3 up", 1024, 2048, 7168, 32},  {"DeepSeek-V3 up", 2048, 2048, 7168, 32},
                             {"DeepSeek-V3 down", 256, 7168, 2048, 32}, {"Qwen3-235B up", 1024, 3072, 4096, 128},
                             {"unlisted", 600, 3584, 2816, 50}};

// one_hot: one expert has half of all rows; some_empty: every other one has rows; masked: each has room for twice the
// mean, and the first has fewest of it in use.
enum class Routing : std::uint8_t { balanced, zipf, one_hot, some_empty, masked };
constexpr const char* kRoutings[] = {"balanced", "zipf", "one hot", "some empty", "masked"};

// As the share of expert e of all rows.
double weight_of(Routing routing, std::int64_t e, std::int64_t experts) {
  switch (routing) {
    case Routing::zipf: return 1.0 / static_cast<double>(e + 1);
    case Routing::one_hot: return e == experts / 2 ? static_cast<double>(experts - 1) : 1.0;
    case Routing::some_empty: return e % 2 == 0 ? 1.0 : 0.0;
    case Routing::masked: return static_cast<double>(2 * e + 1);
    default: return 1.0;
  }
}

struct Kind {
  const char* name;
  const char* line;
};

constexpr Kind kKinds[] = {{"row fast", "e4m3fn*e4m3fn->bf16 nt scale=row,row fast"},
                           {"row", "e4m3fn*e4m3fn->bf16 nt scale=row,row"},
                           {"tensor fast", "e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor fast"},
                           {"blocks", "e4m3fn*e4m3fn->bf16 nt scale=1x128,128x128"},
                           {"bf16", "bf16*bf16->bf16 nt"}};

// Gradients of the weights. c: what they are added to has its own memory here, so that a call can be repeated.
constexpr Kind kKindsAlongK[] = {{"groups", "e4m3fn*e4m3fn->bf16 nt scale=1x128,1x128 along=k"},
                                 {"row fast", "e4m3fn*e4m3fn->bf16 nt scale=row,row fast along=k"},
                                 {"row", "e4m3fn*e4m3fn->bf16 nt scale=row,row along=k"},
                                 {"tensor fast", "e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor fast along=k"},
                                 {"row fast f32", "e4m3fn*e4m3fn->f32 nt scale=row,row fast along=k"},
                                 {"row fast + c", "e4m3fn*e4m3fn->f32 nt scale=row,row fast c=f32 along=k"},
                                 {"bf16", "bf16*bf16->bf16 nt along=k"},
                                 {"bf16 + c", "bf16*bf16->f32 nt c=f32 along=k"}};
constexpr std::int64_t kFewestTokens = 4096;  // of a step of training
constexpr std::int64_t kMostDecoded = 64;     // tokens an expert

struct Case {
  std::string name;
  Layer layer;
  Routing routing;
  GroupedGemmSpec spec;
};

bool is_masked(const Case& c) { return c.routing == Routing::masked; }
bool in_slots(const Case& c) { return c.spec.along_k && c.spec.gemm.scale_a == kRowGroups; }
std::int64_t capacity_of(const Layer& layer) { return 2 * divided_up(layer.rows, layer.experts); }
// Of a in memory, and of the output.
std::int64_t rows_in_memory(const Case& c) {
  return is_masked(c) ? c.layer.experts * capacity_of(c.layer) : c.layer.rows;
}
std::int64_t columns_in_memory(const Case& c) {
  return in_slots(c) ? ExpertSlots::kRows * expert_slots(c.layer.rows, c.layer.experts) : c.layer.rows;
}
bool decodes(const Case& c) { return !c.spec.along_k && c.layer.rows <= kMostDecoded * c.layer.experts; }

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const auto add = [&](const Layer& layer, Routing routing, const Kind& kind) {
    const auto spec = std::get<GroupedGemmSpec>(parse(fmt::format("grouped_gemm {}", kind.line)));
    const auto [m, n, k] =
        spec.along_k ? std::tuple{layer.n, layer.k, layer.rows} : std::tuple{layer.rows, layer.n, layer.k};
    cases.push_back({.name = fmt::format("{}{} {} x {}x{}x{}, {}, {}", spec.along_k ? "grad " : "", layer.name,
                                         layer.experts, m, n, k, kRoutings[static_cast<int>(routing)], kind.name),
                     .layer = layer,
                     .routing = routing,
                     .spec = spec});
  };
  for (const Layer& layer : kLayers) {
    const bool trains = layer.rows >= kFewestTokens;
    for (const Routing routing : {Routing::balanced, Routing::zipf}) {
      for (const Kind& kind : kKinds) add(layer, routing, kind);
      if (!trains) continue;
      for (const Kind& kind : kKindsAlongK) add(layer, routing, kind);
    }
    for (const Routing routing : {Routing::one_hot, Routing::some_empty, Routing::masked}) {
      if ((routing == Routing::masked) == (layer.rows > kFewestTokens)) continue;
      for (const Kind& kind : kKinds) add(layer, routing, kind);
    }
  }
  return cases;
}

// Ends are multiples of nothing; those of columns, of 16, because GEMMs one after the other read only such columns
// where they are stored; those of slots are of the rows that slots are made of. Of masked experts: how many rows each
// has.
std::vector<std::int32_t> ends_of(const Case& c) {
  const std::int64_t experts = c.layer.experts;
  const double multiple = c.spec.along_k && !in_slots(c) ? 16 : 1;
  double all = 0;
  for (std::int64_t e = 0; e < experts; ++e) all += weight_of(c.routing, e, experts);
  std::vector<std::int32_t> ends;
  double weight = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    weight += weight_of(c.routing, e, experts);
    ends.push_back(static_cast<std::int32_t>(
        multiple * static_cast<double>(std::llround(weight / all * static_cast<double>(c.layer.rows) / multiple))));
  }
  if (is_masked(c)) std::adjacent_difference(ends.begin(), ends.end(), ends.begin());
  return ends;
}

Tensor rows_of(Tensor part, std::int64_t begin, std::int64_t end) {
  part.data = static_cast<std::byte*>(part.data) + begin * part.row_stride * size_of(part.dtype);
  part.rows = end - begin;
  return part;
}
Tensor columns_of(Tensor part, std::int64_t begin, std::int64_t end) {
  part.data = static_cast<std::byte*>(part.data) + begin * size_of(part.dtype);
  part.cols = end - begin;
  return part;
}

constexpr std::int64_t kFew = 16;  // of an operand that is not used, or of its K

// Two outputs in device memory, and which rows experts have. (All weights together are larger than the L2.)
class Buffers {
 public:
  Buffers(MeasuredGpu& gpu, const Case& c) : gpu_(&gpu), case_(c), ends_(ends_of(c)) {
    const auto elements = static_cast<std::size_t>(out_rows() * out_cols());
    grouped_ = Buffer(gpu.backend(), elements * static_cast<std::size_t>(size_of(gemm().out)));
    apart_ = Buffer(gpu.backend(), grouped_.bytes());
    ends_on_gpu_ = Buffer(gpu.backend(), ends_.size() * sizeof(ends_[0]));
    gpu.device_api().copy_from_host(ends_on_gpu_.data(), ends_.data(), ends_on_gpu_.bytes(), gpu.stream());
  }
  virtual ~Buffers() = default;
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  virtual GroupedGemmTensors grouped() const = 0;
  // Of the experts that have rows or columns.
  virtual std::vector<GemmTensors> apart() const = 0;
  // The bytes of the weights of experts that have rows.
  std::size_t weight_bytes() const {
    std::int64_t elements = 0;
    each_expert([&](std::int64_t, std::int64_t, std::int64_t) { elements += layer().n * layer().k; });
    return static_cast<std::size_t>(elements * size_of(gemm().b));
  }

  void poison() const {
    for (const Buffer* const out : {&grouped_, &apart_}) gpu_->fill(out->data(), 0xff, out->bytes());
  }

  // Why the two outputs differ by more than their rounding; empty if they do not. Rows from all parts of them, that
  // experts have.
  std::string fault() const {
    constexpr std::int64_t kChecked = 64;
    const std::vector<std::int64_t> rows = written_rows();
    double error = 0;
    double norm = 0;
    for (std::int64_t i = 0; i < kChecked; ++i) {
      const auto at = static_cast<std::size_t>(i) * 7919 % rows.size();
      const std::int64_t r = i == 0 ? rows.back() : rows[at];
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

 protected:
  const MeasuredGpu& gpu() const { return *gpu_; }
  const GemmSpec& gemm() const { return case_.spec.gemm; }
  const Layer& layer() const { return case_.layer; }
  const Case& of() const { return case_; }
  Device device() const { return gpu_->backend().device(); }
  Tensor grouped_out() const { return out_of(grouped_); }
  Tensor apart_out() const { return out_of(apart_); }
  ExpertEnds ends() const {
    return {.data = static_cast<const std::int32_t*>(ends_on_gpu_.data()),
            .experts = layer().experts,
            .device = device(),
            .capacity = is_masked(case_) ? std::optional(capacity_of(layer())) : std::nullopt};
  }
  // Calls use(expert, begin, end) of those that have rows.
  template <class Use>
  void each_expert(const Use& use) const {
    std::int64_t begin = 0;
    for (std::int64_t e = 0; e < layer().experts; ++e) {
      if (is_masked(case_)) begin = e * capacity_of(layer());
      const std::int64_t end = ends_[static_cast<std::size_t>(e)] + (is_masked(case_) ? begin : 0);
      if (begin != end) use(e, begin, end);
      begin = end;
    }
  }

 private:
  std::int64_t out_rows() const { return case_.spec.along_k ? layer().experts * layer().n : rows_in_memory(case_); }
  std::int64_t out_cols() const { return case_.spec.along_k ? layer().k : layer().n; }
  Tensor out_of(const Buffer& memory) const {
    return matrix(memory.data(), gemm().out, out_rows(), out_cols(), device());
  }

  std::vector<std::int64_t> written_rows() const {
    std::vector<std::int64_t> rows;
    each_expert([&](std::int64_t e, std::int64_t begin, std::int64_t end) {
      if (case_.spec.along_k) std::tie(begin, end) = std::pair{e * layer().n, (e + 1) * layer().n};
      for (std::int64_t r = begin; r < end; ++r) rows.push_back(r);
    });
    return rows;
  }

  std::vector<double> row(const Buffer& memory, std::int64_t r) const {
    const Tensor of = rows_of(out_of(memory), r, r + 1);
    std::vector<std::byte> bytes(static_cast<std::size_t>(of.cols * size_of(of.dtype)));
    gpu_->device_api().copy_to_host(bytes.data(), of.data, bytes.size(), gpu_->stream());
    std::vector<double> values(static_cast<std::size_t>(of.cols));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (of.dtype == Dtype::f32) {
        values[i] = static_cast<double>(element<float>(bytes, i));
      } else {
        values[i] = static_cast<double>(to_float(bf16{element<u16>(bytes, i)}));
      }
    }
    return values;
  }
  template <class T>
  static T element(const std::vector<std::byte>& bytes, std::size_t i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    return value;
  }

  MeasuredGpu* gpu_;
  Case case_;
  std::vector<std::int32_t> ends_;
  Buffer grouped_, apart_, ends_on_gpu_;
};

// The operands, and the tensors of each expert's GEMM.
class RowBuffers : public Buffers {
 public:
  RowBuffers(MeasuredGpu& gpu, RandomData& random, const Case& c) : Buffers(gpu, c) {
    const Layer& l = layer();
    a_ = make_gemm_data(random, {gemm(), {.m = rows_in_memory(c), .n = kFew, .k = l.k}}, 1);
    b_ = make_gemm_data(random, {gemm(), {.m = kFew, .n = l.experts * l.n, .k = l.k}}, 1000);
    place_scale_inv_b(gpu);
  }

  GroupedGemmTensors grouped() const override {
    return {.a = a_.tensors.a,
            .b = b_.tensors.b,
            .ends = ends(),
            .scale_inv_a = a_.tensors.scale_inv_a,
            .scale_inv_b = scale_inv_b_,
            .out = grouped_out()};
  }

  std::vector<GemmTensors> apart() const override {
    std::vector<GemmTensors> all;
    each_expert([&](std::int64_t e, std::int64_t begin, std::int64_t end) {
      GemmTensors t{.a = rows_of(a_.tensors.a, begin, end),
                    .b = rows_of(b_.tensors.b, e * layer().n, (e + 1) * layer().n),
                    .out = rows_of(apart_out(), begin, end)};
      if (is_fp8(gemm().a)) {
        const bool each = gemm().scale_a != kTensorwise;  // those of groups are a matrix with a column for each row
        t.scale_inv_a = each ? columns_of(a_.tensors.scale_inv_a, begin, end) : a_.tensors.scale_inv_a;
        const std::int64_t of_expert = scale_inv_b_.cols / layer().experts;
        t.scale_inv_b = columns_of(scale_inv_b_, e * of_expert, (e + 1) * of_expert);
      }
      all.push_back(t);
    });
    return all;
  }

 private:
  // One scale_inv of all experts' b is that of each.
  void place_scale_inv_b(MeasuredGpu& gpu) {
    scale_inv_b_ = b_.tensors.scale_inv_b;
    if (!is_fp8(gemm().b) || gemm().scale_b != kTensorwise) return;
    scale_inv_of_experts_ = Buffer(gpu.backend(), static_cast<std::size_t>(layer().experts) * sizeof(float));
    for (std::int64_t e = 0; e < layer().experts; ++e) {
      gpu.copy(static_cast<float*>(scale_inv_of_experts_.data()) + e, scale_inv_b_.data, sizeof(float));
    }
    scale_inv_b_ = vector(scale_inv_of_experts_.data(), Dtype::f32, layer().experts, device());
  }

  GemmData a_, b_;
  Buffer scale_inv_of_experts_;
  Tensor scale_inv_b_;
};

// a: grad_output's transpose; b: the input's. What is added is zeros. Slots are filled beyond their experts' rows too,
// where a cast writes zeros: the GEMMs one after the other read the same.
class ColumnBuffers : public Buffers {
 public:
  ColumnBuffers(MeasuredGpu& gpu, RandomData& random, const Case& c) : Buffers(gpu, c) {
    const Layer& l = layer();
    const std::int64_t k = columns_in_memory(c);
    a_ = make_gemm_data(random, {gemm(), {.m = l.n, .n = kFew, .k = k}}, 1);
    b_ = make_gemm_data(random, {gemm(), {.m = kFew, .n = l.k, .k = k}}, 1000);
    if (in_slots(c)) return;
    scale_a_ = make_gemm_data(random, {gemm(), {.m = l.experts * l.n, .n = kFew, .k = kFew}}, 2000);
    scale_b_ = make_gemm_data(random, {gemm(), {.m = kFew, .n = l.experts * l.k, .k = kFew}}, 3000);
    if (!gemm().epilogue.c) return;
    const Tensor out = grouped_out();
    c_ = Buffer(gpu.backend(), static_cast<std::size_t>(out.rows * out.cols * size_of(out.dtype)));
    gpu.fill(c_.data(), 0, c_.bytes());
  }

  GroupedGemmTensors grouped() const override {
    return {.a = a_.tensors.a,
            .b = b_.tensors.b,
            .ends = ends(),
            .scale_inv_a = scale_inv(a_, scale_a_),
            .scale_inv_b = scale_inv(b_, scale_b_),
            .out = grouped_out(),
            .c = added()};
  }

  std::vector<GemmTensors> apart() const override {
    std::vector<GemmTensors> all;
    each_expert([&](std::int64_t e, std::int64_t begin, std::int64_t end) {
      const auto [m, n] = std::pair{layer().n, layer().k};
      const std::int64_t slot = ExpertSlots::first(begin, e);
      const std::int64_t last = slot + ExpertSlots::of_rows(end - begin);
      if (in_slots(of())) std::tie(begin, end) = std::pair{slot * ExpertSlots::kRows, last * ExpertSlots::kRows};
      GemmTensors t{.a = columns_of(a_.tensors.a, begin, end),
                    .b = columns_of(b_.tensors.b, begin, end),
                    .scale_inv_a = scale_inv(a_, scale_a_),
                    .scale_inv_b = scale_inv(b_, scale_b_),
                    .out = rows_of(apart_out(), e * m, (e + 1) * m)};
      if (in_slots(of())) {
        t.scale_inv_a = rows_of(t.scale_inv_a, slot, last);
        t.scale_inv_b = rows_of(t.scale_inv_b, slot, last);
      }
      if (gemm().scale_a == kRowwise) t.scale_inv_a = columns_of(t.scale_inv_a, e * m, (e + 1) * m);
      if (gemm().scale_b == kRowwise) t.scale_inv_b = columns_of(t.scale_inv_b, e * n, (e + 1) * n);
      if (gemm().epilogue.c) t.c = rows_of(added(), e * m, (e + 1) * m);
      all.push_back(t);
    });
    return all;
  }

 private:
  const Tensor& scale_inv(const GemmData& codes, const GemmData& of_experts) const {
    const GemmTensors& from = (in_slots(of()) ? codes : of_experts).tensors;
    return &codes == &a_ ? from.scale_inv_a : from.scale_inv_b;
  }

  Tensor added() const {
    if (!gemm().epilogue.c) return {};
    const Tensor out = grouped_out();
    return matrix(c_.data(), *gemm().epilogue.c, out.rows, out.cols, device());
  }

  GemmData a_, b_, scale_a_, scale_b_;
  Buffer c_;
};

std::unique_ptr<Buffers> make_buffers(MeasuredGpu& gpu, RandomData& random, const Case& c) {
  if (c.spec.along_k) return std::make_unique<ColumnBuffers>(gpu, random, c);
  return std::make_unique<RowBuffers>(gpu, random, c);
}

// Of one expert, with the lines of all experts.
MatmulSize size_of_gemm(const Case& c) {
  const Layer& l = c.layer;
  if (c.spec.along_k) return {.m = l.n, .n = l.k, .k = columns_in_memory(c)};
  return {.m = rows_in_memory(c), .n = l.n, .k = l.k};
}

struct Contender {
  std::string label;
  std::function<void()> enqueue;
  Timing timing{};
  std::string fault{};
};

struct Result {
  std::vector<Contender> contenders{};  // the GEMMs one after the other come first
  double read_us = 0;                   // of the weights, if decodes()
};

class Bench {
 public:
  Bench(Context& context, const Options& options)
      : gpu_(context),
        random_(gpu_.backend(), gpu_.stream(),
                [this](void* to, const void* from, std::size_t bytes) { gpu_.copy(to, from, bytes); }),
        multiprocessors_(context.tuning_machine().multiprocessors),
        options_(options) {}

  Result run(const Case& c) {
    const std::unique_ptr<const Buffers> buffers = make_buffers(gpu_, random_, c);
    const GroupedGemmTensors grouped = buffers->grouped();
    const std::vector<GemmTensors> apart = buffers->apart();
    std::vector<Contender> all{{.label = "apart", .enqueue = [&] {
                                  for (const GemmTensors& t : apart) {
                                    gpu_.backend().gemm(c.spec.gemm, t, gpu_.stream());
                                  }
                                }}};
    const GroupedGemmSpec chosen = with_grouped_tiling(c.spec, size_of_gemm(c), c.layer.experts, multiprocessors_);
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
    measure_all(*buffers, all);
    return {.contenders = std::move(all),
            .read_us = decodes(c) ? ceiling_.median_us(
                                        1, [&](int) { return grouped.b.data; }, buffers->weight_bytes(), measuring())
                                  : 0};
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
  ReadCeiling ceiling_{gpu_};
  int multiprocessors_;
  Options options_;
};

double teraflops(const Case& c, double us) {
  return 2e-6 * static_cast<double>(c.layer.rows) * static_cast<double>(c.layer.n) * static_cast<double>(c.layer.k) /
         us;
}

std::string to_text(const Case& c, const Result& result) {
  std::string text;
  for (const Contender& contender : result.contenders) {
    const double us = contender.timing.median_us;
    if (!contender.fault.empty()) {
      text += fmt::format("{:<66}{:<30} WRONG  {}\n", c.name, contender.label, contender.fault);
      continue;
    }
    text += fmt::format("{:<66}{:<30}{:>9.1f}{:>9.0f}{:>8.3f}{:>9}\n", c.name, contender.label, us, teraflops(c, us),
                        result.contenders.front().timing.median_us / us,
                        result.read_us == 0 ? "" : fmt::format("{:.3f}", result.read_us / us));
  }
  return text;
}

Json to_json(const Case& c, const Result& result) {
  Json json{{"case", c.name}, {"spec", print(c.spec)}};
  if (result.read_us != 0) json["read_us"] = result.read_us;
  json["ways"] = Json::array();
  for (const Contender& contender : result.contenders) {
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
  keep_chosen(cases, options.filters, [](const Case& c) { return c.name; });
  if (options.list) {
    for (const Case& c : cases) fmt::print("{:<66}{}\n", c.name, print(c.spec));
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
  fmt::print("{:<66}{:<30}{:>9}{:>9}{:>8}{:>9}\n", "case", "launches", "us", "TFLOP/s", "ratio", "reading");
  Json json = header("grouped_gemm", machine);
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
  CLI::App app{"Times the GEMMs of a mixture of experts in one launch and one after the other.", "bench_grouped_gemm"};
  ingot::bench::Options options;
  add_options(app, options);
  app.add_flag("--tilings", options.tilings, "Try all tilings");
  return ingot::bench::run_program(app, argc, argv, [&] { return ingot::bench::run(options); });
}
