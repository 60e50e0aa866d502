#include "support/gemm_cross_run.h"

#include <boost/test/unit_test.hpp>

namespace ingot::test {

Tensor CrossInputs::matrix(Dtype dtype, Input input, Role role, std::int64_t rows, std::int64_t cols,
                           Placement placement) {
  auto* const data = static_cast<std::byte*>(stretch(dtype, input).data());
  const auto offset = static_cast<std::int64_t>(role) * kApart + placement.offset;
  return {.data = data + offset * size_of(dtype),
          .dtype = dtype,
          .rows = rows,
          .cols = cols,
          .row_stride = cols + placement.padding,
          .device = gpu_->backend().device()};
}

Tensor CrossInputs::vector(Dtype dtype, Input input, Role role, std::int64_t count) {
  return matrix(dtype, input, role, 1, count, {});
}

Tensor CrossInputs::scale_inv(Input input, Role role, std::int64_t count) {
  Buffer& buffer = scale_inv_[input];
  if (buffer.data() == nullptr) {
    std::vector<float> values(2 * kFactors);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = input == Input::integers ? (random_bits(17, i) % 2 == 0 ? 0.5F : 2.0F)
                                           : static_cast<float>(0.25 + random_unit(17, i));
    }
    buffer = upload(values.data(), values.size() * sizeof(float));
  }
  auto* const data = static_cast<float*>(buffer.data()) + (role == Role::b ? kFactors : 0);
  return ingot::vector(data, Dtype::f32, count, gpu_->backend().device());
}

Tensor CrossInputs::scale() {
  if (scale_.data() == nullptr) scale_ = upload(&kScale, sizeof(kScale));
  return ingot::vector(scale_.data(), Dtype::f32, 1, gpu_->backend().device());
}

Buffer CrossInputs::upload(const void* data, std::size_t bytes) {
  Buffer buffer(gpu_->backend(), bytes);
  gpu_->device_api().copy_from_host(buffer.data(), data, bytes, gpu_->stream());
  return buffer;
}

const Buffer& CrossInputs::stretch(Dtype dtype, Input input) {
  Buffer& buffer = stretches_[{dtype, input}];
  if (buffer.data() != nullptr) return buffer;
  const auto size = static_cast<std::size_t>(size_of(dtype));
  std::vector<std::byte> block(kPeriod * size);
  for (std::size_t i = 0; i < kPeriod; ++i) {
    const std::uint32_t bits = encode_input(dtype, random_value(input, dtype, 31, i));
    std::memcpy(block.data() + i * size, &bits, size);
  }
  const std::size_t elements = kLargest + 8 * static_cast<std::size_t>(kApart);
  buffer = Buffer(gpu_->backend(), elements * size);
  for (std::size_t at = 0; at < buffer.bytes(); at += block.size()) {
    gpu_->device_api().copy_from_host(static_cast<std::byte*>(buffer.data()) + at, block.data(),
                                      std::min(block.size(), buffer.bytes() - at), gpu_->stream());
  }
  return buffer;
}

Tensor CrossOutput::place(Dtype dtype, std::int64_t rows, std::int64_t cols, Placement placement) {
  const auto size = static_cast<std::size_t>(size_of(dtype));
  start_ = kCrossGuard + static_cast<std::size_t>(placement.offset) * size;
  tensor_ = {.data = static_cast<std::byte*>(now_.data()) + start_,
             .dtype = dtype,
             .rows = rows,
             .cols = cols,
             .row_stride = cols + placement.padding,
             .device = gpu_->backend().device()};
  bytes_ = start_ + static_cast<std::size_t>(rows * tensor_.row_stride) * size + kCrossGuard;
  return tensor_;
}

BytesParams CrossOutput::compared(Verdict::Bytes* found) const {
  const auto size = static_cast<std::size_t>(size_of(tensor_.dtype));
  return {.now = static_cast<const unsigned char*>(now_.data()),
          .before = static_cast<const unsigned char*>(before_.data()),
          .bytes = static_cast<long long>(bytes_),
          .start = static_cast<long long>(start_),
          .rows = tensor_.rows,
          .row_bytes = tensor_.cols * static_cast<long long>(size),
          .pitch_bytes = tensor_.row_stride * static_cast<long long>(size),
          .poison = kSecondPoison,
          .found = found};
}

std::string name(const CrossRun& run) {
  return name(Case{.spec = run.spec, .shape = run.shape.shape, .input = run.input, .placement = run.shape.placement});
}

double cross_tolerance(const GemmSpec& spec, Dtype out) {
  if (out == Dtype::bf16) return 0x1p-8;
  if (!is_fp8(spec.a)) return out == Dtype::f32 ? 1e-4 : 1e-3;
  return spec.fast_accumulation ? 5e-3 : 1e-3;
}

bool may_round_twice(const GemmSpec& spec) {
  const bool cublaslt = spec.kernel == GemmKernel::cublaslt || spec.kernel == GemmKernel::automatic;
  return cublaslt && spec.bias && !is_fp8(spec.a);
}

double cross_sum_error(const GemmSpec& spec) {
  if (!is_fp8(spec.a) || spec.kernel == GemmKernel::simt) return 0x1p-11;
  if (spec.kernel == GemmKernel::mma) return 0x1p-13;
  return spec.fast_accumulation ? 0x1p-8 : 0x1p-10;
}

GemmTensors Cross::tensors(const CrossRun& run, Verdict* verdict, std::size_t time) {
  const GemmSpec& spec = run.spec;
  const auto [m, n, k] = run.shape.shape;
  const Placement at = run.shape.placement;
  const Input input = run.input;
  GemmTensors t{.a = inputs_.matrix(spec.a, input, Role::a, m, k, at),
                .b = inputs_.matrix(spec.b, input, Role::b, n, k, at),
                .out = out_.place(spec.out, m, n, at),
                .beta = kCrossBeta};
  if (is_fp8(spec.a)) {
    t.scale_inv_a = inputs_.scale_inv(input, Role::a, scale_count(spec.scale_a, m, k));
    t.scale_inv_b = inputs_.scale_inv(input, Role::b, scale_count(spec.scale_b, n, k));
  }
  const Dtype beside = epilogue_dtype(spec);
  const GemmEpilogue& epilogue = spec.epilogue;
  if (spec.bias) t.bias = inputs_.vector(bias_dtype(spec), input, Role::bias, n);
  if (epilogue.c) t.c = inputs_.matrix(*epilogue.c, input, Role::c, m, n, at);
  const auto kinds = epilogue.pointwise.inputs();
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const Role role = i == 0 ? Role::first : Role::second;
    switch (kinds[i].kind) {
      case PointwiseInput::Kind::matrix: t.inputs[i] = inputs_.matrix(beside, input, role, m, n, at); break;
      case PointwiseInput::Kind::column: t.inputs[i] = inputs_.vector(beside, input, role, n); break;
      case PointwiseInput::Kind::row: t.inputs[i] = inputs_.vector(Dtype::f32, input, role, m); break;
      case PointwiseInput::Kind::column_f32: break;  // no GEMM has them
    }
  }
  if (epilogue.preactivation) t.preactivation = pre_.place(beside, m, n, at);
  const Device device = gpu_.backend().device();
  if (epilogue.amax) t.amax = vector(&verdict->amax_found[time], Dtype::f32, 1, device);
  if (is_fp8(spec.out)) {
    t.scale = inputs_.scale();
    t.scale_inv = vector(&verdict->scale_inv_found[time], Dtype::f32, 1, device);
  }
  return t;
}

JudgeParams Cross::judged(const CrossRun& run, const GemmTensors& t, Verdict* verdict) {
  const GemmSpec& spec = run.spec;
  const auto [m, n, k] = run.shape.shape;
  const bool scale_inv = is_fp8(spec.a) && !has_group_scale_inv(spec);
  const Sums& of = sums(run, t);
  JudgeParams p{.sums = static_cast<const double*>(of.values.data()),
                .magnitudes = static_cast<const double*>(of.magnitudes.data()),
                .m = m,
                .n = n,
                .bias = checker_.of(t.bias),
                .c = checker_.of(t.c),
                .first = checker_.of(t.inputs[0]),
                .second = checker_.of(t.inputs[1]),
                .out = checker_.of(t.out),
                .preactivation = checker_.of(t.preactivation),
                .beta = static_cast<double>(kCrossBeta),
                .scale = is_fp8(spec.out) ? static_cast<double>(kScale) : 1.0,
                .sum_error = cross_sum_error(spec),
                .value = static_cast<long long>(kCrossValues[run.cell->epilogue]),
                .exact = run.input == Input::integers && !may_round_twice(spec) ? 1 : 0,
                .verdict = verdict};
  if (scale_inv) {
    p.scale_inv_a = static_cast<const float*>(t.scale_inv_a.data);
    p.scale_inv_b = static_cast<const float*>(t.scale_inv_b.data);
    p.factor_a_stride = spec.scale_a == kRowwise ? 1 : 0;
    p.factor_b_stride = spec.scale_b == kRowwise ? 1 : 0;
  }
  return p;
}

const Cross::Sums& Cross::sums(const CrossRun& run, const GemmTensors& t) {
  const GemmSpec& spec = run.spec;
  const bool grouped = has_group_scale_inv(spec);
  const auto [m, n, k] = run.shape.shape;
  Sums& kept = sums_[{grouped ? spec.scale_b.rows : 0, run.input}];
  const std::string of = std::string(ingot::name(spec.a)) + "*" + std::string(ingot::name(spec.b)) + " " +
                         std::to_string(run.shape.turn) + (run.shape.whole ? " whole" : "");
  if (kept.of == of) return kept;
  if (kept.values.data() == nullptr) {
    kept.values = Buffer(gpu_.backend(), kLargest * sizeof(double));
    kept.magnitudes = Buffer(gpu_.backend(), kLargest * sizeof(double));
  }
  kept.of = of;
  checker_.sums({.a = checker_.of(t.a),
                 .b = checker_.of(t.b),
                 .m = m,
                 .n = n,
                 .k = k,
                 .groups = grouped ? (k + 127) / 128 : 0,
                 .b_rows = grouped ? spec.scale_b.rows : 1,
                 .scale_inv_a = static_cast<const float*>(t.scale_inv_a.data),
                 .scale_inv_b = static_cast<const float*>(t.scale_inv_b.data),
                 .sums = static_cast<double*>(kept.values.data()),
                 .magnitudes = static_cast<double*>(kept.magnitudes.data())});
  return kept;
}

bool Cross::enqueue(const CrossRun& run) {
  if (waiting_.size() == kBatch) flush();
  Verdict* const verdict = static_cast<Verdict*>(verdicts_.data()) + waiting_.size();
  if (waiting_.empty()) clear_verdicts();
  try {
    twice(run, verdict);
  } catch (const Error& error) {
    const bool none = run.spec.kernel == GemmKernel::cublaslt && error.code() == ErrorCode::invalid_argument;
    if (!none) throw;
    return false;
  }
  checker_.judge(judged(run, tensors(run, verdict, 1), verdict));
  waiting_.push_back(run);
  ++counts_[run.spec.kernel == GemmKernel::automatic ? "the library's choice"
                                                     : std::string(ingot::name(run.spec.kernel))];
  ++runs_;
  return true;
}

void Cross::flush() {
  if (waiting_.empty()) return;
  std::vector<Verdict> found(waiting_.size());
  gpu_.device_api().copy_to_host(found.data(), verdicts_.data(), found.size() * sizeof(Verdict), gpu_.stream());
  const std::vector<CrossRun> runs = std::exchange(waiting_, {});
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::string fault = fault_of(runs[i], found[i]);
    if (fault.empty()) continue;
    if (found[i].out.wrong + found[i].preactivation.wrong != 0) fault += "; " + again(runs[i], found[i]);
    BOOST_ERROR(name(runs[i]) << ": " << fault);
    if (++faults_ == 10) BOOST_FAIL("10 products are wrong; the rest is not run");
  }
}

void Cross::twice(const CrossRun& run, Verdict* verdict) {
  const bool pre = run.spec.epilogue.preactivation;
  const auto poison = [&](unsigned char byte) {
    out_.poison(byte);
    if (pre) pre_.poison(byte);
  };
  const GemmTensors first = tensors(run, verdict, 0);
  poison(kFirstPoison);
  gpu_.backend().gemm(run.spec, first, gpu_.stream());
  out_.keep();
  if (pre) pre_.keep();
  poison(kSecondPoison);
  gpu_.backend().gemm(run.spec, tensors(run, verdict, 1), gpu_.stream());
  checker_.bytes(out_.compared(&verdict->out_bytes));
  if (pre) checker_.bytes(pre_.compared(&verdict->preactivation_bytes));
}

std::string Cross::fault_of(const CrossRun& run, const Verdict& v) {
  const GemmSpec& spec = run.spec;
  const Shape shape = run.shape.shape;
  const std::int64_t elements = shape.rows * shape.cols;
  const auto place = [cols = shape.cols](unsigned long long index) {
    const auto at = static_cast<std::int64_t>(index);
    return "first at index " + std::to_string(at) + " (row " + std::to_string(at / cols) + ", col " +
           std::to_string(at % cols) + ")";
  };
  const auto of_bytes = [](const char* what, const Verdict::Bytes& bytes) -> std::string {
    if (bytes.damaged != 0) {
      return std::string(what) + ": " + std::to_string(bytes.damaged) + " bytes around it were written, the first " +
             std::to_string(static_cast<std::int64_t>(bytes.first_damaged) - static_cast<std::int64_t>(kCrossGuard)) +
             " bytes from its place";
    }
    if (bytes.different == 0) return {};
    return std::string(what) + ": " + std::to_string(bytes.different) +
           " bytes were not written or differ from run to run, the first " +
           std::to_string(static_cast<std::int64_t>(bytes.first_different) - static_cast<std::int64_t>(kCrossGuard)) +
           " bytes from its place";
  };
  const auto of_errors = [&](const char* what, const Verdict::Errors& errors, Dtype dtype) -> std::string {
    if (errors.wrong != 0) {
      return std::string(what) + ": " + std::to_string(errors.wrong) + " of " + std::to_string(elements) +
             " elements are wrong, " + place(errors.first);
    }
    // With few elements, the whole says no more than each element.
    if (is_fp8(dtype) || elements < 256) return {};
    const double allowed = cross_tolerance(spec, dtype);
    if (errors.error <= allowed * allowed * errors.norm) return {};
    return std::string(what) + ": relative error " + std::to_string(std::sqrt(errors.error / errors.norm)) +
           ", but at most " + std::to_string(allowed) + " is allowed";
  };
  std::string fault = of_bytes("out", v.out_bytes);
  if (fault.empty()) fault = of_bytes("preactivation", v.preactivation_bytes);
  if (fault.empty()) fault = of_errors("out", v.out, spec.out);
  if (fault.empty()) fault = of_errors("preactivation", v.preactivation, epilogue_dtype(spec));
  for (std::size_t time = 0; time < 2 && fault.empty(); ++time) {
    if (spec.epilogue.amax) {
      const auto found = static_cast<double>(v.amax_found[time]);
      const double amax = std::max(static_cast<double>(kAmaxBefore), v.amax);
      const double bound = v.amax_bound + (is_fp8(spec.out) ? 0x1p-23 * amax : 0);
      if (!(std::fabs(found - amax) <= bound)) {
        fault = "amax: expected " + std::to_string(amax) + ", got " + std::to_string(found);
      }
    }
    if (is_fp8(spec.out) && v.scale_inv_found[time] != 1 / kScale) {
      fault = "factor: got " + std::to_string(v.scale_inv_found[time]);
    }
  }
  return fault;
}

std::string Cross::again(const CrossRun& run, const Verdict& found) {
  clear_verdicts();
  auto* const verdict = static_cast<Verdict*>(verdicts_.data());
  twice(run, verdict);
  JudgeParams params = judged(run, tensors(run, verdict, 1), verdict);
  const bool out = found.out.wrong != 0;
  params.only = static_cast<long long>(out ? found.out.first : found.preactivation.first);
  params.only_preactivation = out ? 0 : 1;
  checker_.judge(params);
  Verdict one;
  gpu_.device_api().copy_to_host(&one, verdict, sizeof(one), gpu_.stream());
  return "there, in one more run: expected " + std::to_string(one.expected) + " +- " + std::to_string(one.bound) +
         ", got " + std::to_string(one.actual);
}

void Cross::clear_verdicts() {
  Verdict empty;
  empty.amax_found = {kAmaxBefore, kAmaxBefore};
  const std::vector<Verdict> all(kBatch, empty);
  gpu_.device_api().copy_from_host(verdicts_.data(), all.data(), all.size() * sizeof(Verdict), gpu_.stream());
}

}  // namespace ingot::test
