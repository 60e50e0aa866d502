// GEMMs with scale_inv of 1x128 groups and 128x128 blocks on cuBLASLt, on a Hopper GPU: every pair of formats, output
// and epilogue that it takes, at sizes that fill no tile, against float64. Those that are stored as cuBLASLt reads them
// give the same bits as those that are copied first. And a bias at any element.
#include "support/gpu_test.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "ingot/runtime/gemm/cublaslt_rules.h"
#include "ingot/runtime/gemm/gemm_tensors.h"
#include "ingot/runtime/measure/gemm_operands.h"
#include "ingot/runtime/measure/replay.h"
#include "support/epilogue_reference.h"
#include "support/gemm_on_gpu.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_cublaslt_groups_gpu)

namespace {

Context& context() {
  static Context one(cuda_options());
  return one;
}

bool on_hopper() {
  if (context().cache().target() == target_for(9, 0)) return true;
  BOOST_TEST_MESSAGE("skipped: cuBLASLt has scale_inv of groups on sm_90 only");
  return false;
}

struct Fixture : GemmOnGpu {
  EpilogueReference all_outputs;

  Fixture() : GemmOnGpu(context()) {}

  // With a c that is added; operands, scale_inv and c are such that every sum is exact.
  void expect_exact_sum(Case c) {
    c.input = Input::integers;
    const SharedMatrices inputs = maker.inputs(c);
    const Matrices outputs = run(c, inputs, cuda, stream);
    std::string fault = damage(outputs);
    if (fault.empty()) fault = all_outputs.fault(c, inputs, outputs, 0);
    count(c, fault);
  }

  // Has cuBLASLt an algorithm for the call? Other errors are thrown.
  bool has_algorithm(const Case& c) {
    PlacedCase placed(c, maker.inputs(c), cuda, stream);
    try {
      placed.enqueue(stream);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_argument) throw;
      return false;
    }
    cuda.device_api().synchronize(stream);
    return true;
  }
};

// M and N are multiples of 4 and 16, K of 16, alone and with whole tiles.
constexpr Shape kShapes[] = {{4, 16, 16},      {12, 48, 128},     {100, 112, 144},  {132, 144, 400},
                             {260, 272, 512},  {1000, 400, 656},  {516, 1040, 784}, {384, 256, 1024},
                             {128, 128, 2048}, {2052, 1552, 1168}};

std::string line(const char* formats, const char* out, const char* scale, const char* more) {
  return std::string("gemm ") + formats + "->" + out + " scale=1x128," + scale + more + " kernel=cublaslt";
}

void bring(Backend& backend, Stream& stream, std::vector<float>& to, const Tensor& from, std::size_t count) {
  to.resize(count);
  backend.device_api().copy_to_host(to.data(), from.data, count * sizeof(float), stream);
}

// The scale_inv as cuBLASLt reads them, in their own buffer.
Tensor ordered(Backend& backend, Stream& stream, const Tensor& scale_inv, ScaleGranularity scale, std::int64_t rows,
               std::int64_t k, std::vector<Buffer>& memory) {
  const CublasltScaleInv order = cublaslt_scale_inv(scale_inv, scale, rows, k);
  std::vector<float> given;
  bring(backend, stream, given, scale_inv, static_cast<std::size_t>(scale_inv.cols));
  std::vector<float> read(static_cast<std::size_t>(order.read.rows * order.read.pitch), -1.0F);
  const ScaleInvStrides strides = scale_inv_strides(scale, k);
  const std::int64_t groups = scale_count(scale, 1, k);
  const std::int64_t parts = static_cast<std::int64_t>(given.size()) / groups;
  for (std::int64_t r = 0; r < parts; ++r) {
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t at = scale == kRowGroups ? g * order.read.pitch + r : r * order.read.pitch + g;
      read[static_cast<std::size_t>(at)] = given[static_cast<std::size_t>(r * strides.row + g * strides.group)];
    }
  }
  memory.emplace_back(backend, read.size() * sizeof(float));
  backend.device_api().copy_from_host(memory.back().data(), read.data(), read.size() * sizeof(float), stream);
  if (scale == kBlocks) return vector(memory.back().data(), Dtype::f32, scale_inv.cols, backend.device());
  return matrix(memory.back().data(), Dtype::f32, groups, parts, backend.device());
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(cublaslt_groups, Fixture)

BOOST_AUTO_TEST_CASE(every_kind) {
  if (!on_hopper()) return;
  for (const char* const scale : {"128x128", "1x128"}) {
    for (const char* const formats : {"e4m3fn*e4m3fn", "e4m3fn*e5m2", "e5m2*e4m3fn"}) {
      for (const char* const out : {"bf16", "f16", "f32"}) {
        for (const std::string& more :
             {std::string(), std::string(" bias"), std::string(" c=") + out, std::string(" bias c=") + out}) {
          const KernelSpec spec = parse(line(formats, out, scale, more.c_str()));
          std::string none;
          int taken = 0;
          for (const Shape& shape : kShapes) {
            const Case c{.spec = spec, .shape = shape};
            if (!has_algorithm(c)) {
              none += " " + std::to_string(shape.rows) + "x" + std::to_string(shape.cols) + "x" +
                      std::to_string(shape.inner);
              continue;
            }
            ++taken;
            // float64 takes long on the CPU.
            const bool large = shape.rows * shape.cols * shape.inner > std::int64_t{1} << 27;
            if (large && !(std::string(out) == "bf16" && more.empty())) continue;
            if (std::get<GemmSpec>(spec).epilogue.c) {
              expect_exact_sum(c);
              continue;
            }
            Case exact = c;
            exact.input = Input::integers;
            expect_right(c);
            expect_right(exact);
          }
          std::cout << scale << " " << formats << "->" << out << more << ": " << taken << " of " << std::size(kShapes)
                    << (none.empty() ? "" : ", not M x N x K") << none << std::endl;  // seen if a later one hangs
          if (std::string(out) == "bf16" && more.empty()) BOOST_TEST(taken > 0, print(spec));
        }
      }
    }
  }
}

// scale_inv of an operand's transpose, one row for each group of K.
BOOST_AUTO_TEST_CASE(scale_inv_by_group) {
  if (!on_hopper()) return;
  for (const char* const scale : {"128x128", "1x128"}) {
    const KernelSpec spec = parse(line("e4m3fn*e4m3fn", "bf16", scale, ""));
    for (const Shape& shape : kShapes) {
      const Case c{.spec = spec, .shape = shape, .a_by_group = true, .b_by_group = true};
      if (has_algorithm(c)) expect_right(c);
    }
  }
}

BOOST_AUTO_TEST_CASE(scale_inv_as_cublaslt_reads_them) {
  if (!on_hopper()) return;
  MeasuredGpu gpu(context());
  RandomData random(gpu.backend(), gpu.stream(),
                    [&gpu](void* to, const void* from, std::size_t bytes) { gpu.copy(to, from, bytes); });
  for (const ScaleGranularity scale_b : kGroupedScalesOfB) {
    for (const MatmulSize size : {MatmulSize{1024, 768, 2048}, {260, 272, 512}, {3000, 1552, 1536}}) {
      const GemmSpec spec{.scale_a = kRowGroups, .scale_b = scale_b, .kernel = GemmKernel::cublaslt};
      const GemmData data = make_gemm_data(random, {.spec = spec, .size = size}, 5, ScaleInvOrder::by_row);
      const auto bytes = static_cast<std::size_t>(size.m * size.n) * 2;
      std::vector<Buffer> memory;
      GemmTensors tensors = data.tensors;
      tensors.scale_inv_a =
          ordered(gpu.backend(), gpu.stream(), tensors.scale_inv_a, spec.scale_a, size.m, size.k, memory);
      tensors.scale_inv_b = ordered(gpu.backend(), gpu.stream(), tensors.scale_inv_b, scale_b, size.n, size.k, memory);
      BOOST_TEST(cublaslt_scale_inv_bytes(spec, tensors, size) == 0U);
      BOOST_TEST(cublaslt_scale_inv_bytes(spec, data.tensors, size) > 0U);
      std::vector<std::byte> moved(bytes), read(bytes);
      gpu.fill(data.tensors.out.data, 0xa5, bytes);
      gpu.backend().gemm(spec, data.tensors, gpu.stream());
      gpu.device_api().copy_to_host(moved.data(), data.tensors.out.data, bytes, gpu.stream());
      gpu.fill(data.tensors.out.data, 0x5a, bytes);
      gpu.backend().gemm(spec, tensors, gpu.stream());
      gpu.device_api().copy_to_host(read.data(), data.tensors.out.data, bytes, gpu.stream());
      BOOST_TEST((moved == read), print(scale_b) << " " << size.m << "x" << size.n << "x" << size.k);
    }
  }
}

// A slice of a longer bias: a misaligned read would break the context. a and b are zeros, so the output is the bias.
BOOST_AUTO_TEST_CASE(a_bias_at_any_element) {
  MeasuredGpu gpu(context());
  Backend& backend = gpu.backend();
  Stream& on = gpu.stream();
  for (const char* const dtypes : {"bf16*bf16->bf16", "f32*f32->f32"}) {
    for (const std::int64_t n : {72, 1024}) {
      for (const std::int64_t shift : {0, 1, 3}) {
        const auto spec = std::get<GemmSpec>(parse(std::string("gemm ") + dtypes + " bias kernel=cublaslt"));
        const std::int64_t size = size_of(spec.out);
        const OwnedTensor a(backend, spec.a, 128, 64), b(backend, spec.b, n, 64), out(backend, spec.out, 128, n);
        const OwnedTensor bias(backend, spec.out, 1, n + 16);
        backend.device_api().fill_zero(a.view().data, static_cast<std::size_t>(128 * 64 * size), on);
        backend.device_api().fill_zero(b.view().data, static_cast<std::size_t>(n * 64 * size), on);
        std::vector<std::byte> given(static_cast<std::size_t>((n + 16) * size));
        for (std::size_t i = 0; i < given.size(); ++i) given[i] = std::byte(i % 61 + 3);  // no NaN, no subnormal
        backend.device_api().copy_from_host(bias.view().data, given.data(), given.size(), on);
        auto* const from = static_cast<std::byte*>(bias.view().data) + shift * size;
        const Tensor slice = vector(from, spec.out, n, backend.device());
        backend.gemm(spec, {.a = a, .b = b, .bias = slice, .out = out}, on);
        std::vector<std::byte> got(static_cast<std::size_t>(128 * n * size));
        backend.device_api().copy_to_host(got.data(), out.view().data, got.size(), on);
        for (const std::int64_t row : {0, 77, 127}) {
          BOOST_TEST(std::memcmp(got.data() + row * n * size, given.data() + shift * size,
                                 static_cast<std::size_t>(n * size)) == 0,
                     dtypes << " N " << n << " shift " << shift << " row " << row);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
