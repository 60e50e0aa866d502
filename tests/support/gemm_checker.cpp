#include "support/gemm_checker.h"

namespace ingot::test {

Source check_source(const char* name, const char* text) {
  const auto same_size = [](const char* what, std::size_t bytes) {
    return std::string("static_assert(sizeof(") + what + ") == " + std::to_string(bytes) + ", \"\");\n";
  };
  return {.name = name,
          .text = std::string(kCheckStructs) + same_size("SumsParams", sizeof(SumsParams)) +
                  same_size("JudgeParams", sizeof(JudgeParams)) + same_size("BytesParams", sizeof(BytesParams)) +
                  same_size("Verdict", sizeof(Verdict)) + text};
}

std::array<Source, 3> check_sources() {
  return {check_source("sums in f64", kSumsText), check_source("judge in f64", kJudgeText),
          check_source("compare bytes", kBytesText)};
}

GemmChecker::GemmChecker(MeasuredGpu& gpu) : gpu_(&gpu) {
  const std::array<Source, 3> sources = check_sources();
  for (std::size_t i = 0; i < sources.size(); ++i) kernels_[i] = &gpu.context().cache().get(sources[i]);
}

CheckedMatrix GemmChecker::of(const Tensor& tensor) {
  if (tensor.data == nullptr) return {};
  const Dtype dtype = tensor.dtype;
  const bool fnuz = dtype == Dtype::e4m3fnuz || dtype == Dtype::e5m2fnuz;
  CheckedMatrix matrix{.data = tensor.data, .pitch = tensor.row_stride, .not_number = fnuz ? 0x80 : -1};
  switch (dtype) {
    case Dtype::f32: matrix.kind = 0; break;
    case Dtype::bf16:
      matrix.kind = 1;
      matrix.largest = 0x7f7f;
      break;
    case Dtype::f16:
      matrix.kind = 2;
      matrix.largest = 0x7bff;
      break;
    case Dtype::e4m3fn:
      matrix.kind = 3;
      matrix.largest = 0x7e;
      break;
    case Dtype::e5m2:
      matrix.kind = 3;
      matrix.largest = 0x7b;
      break;
    default: matrix.kind = 3; matrix.largest = 0x7f;
  }
  if (matrix.kind >= 2) matrix.table = table(dtype);
  return matrix;
}

void GemmChecker::sums(const SumsParams& params) {
  const auto tiles = [](long long extent) { return static_cast<unsigned>((extent + kCheckTile - 1) / kCheckTile); };
  kernels_[0]->launch(gpu_->stream().handle(),
                      {.grid_x = tiles(params.n), .grid_y = tiles(params.m), .block = kCheckThreads}, params);
}

const double* GemmChecker::table(Dtype dtype) {
  Buffer& buffer = tables_[dtype];
  if (buffer.data() == nullptr) {
    std::vector<double> values(dtype == Dtype::f16 ? 65536 : 256);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = decode_reference(dtype, static_cast<std::uint32_t>(i));
    }
    buffer = Buffer(gpu_->backend(), values.size() * sizeof(double));
    gpu_->device_api().copy_from_host(buffer.data(), values.data(), buffer.bytes(), gpu_->stream());
  }
  return static_cast<const double*>(buffer.data());
}

}  // namespace ingot::test
