// GEMMs on a Hopper GPU with operands that gemm_sm90 cannot read as they are stored (columns along k, unaligned rows,
// any K). Staging copies such operands to aligned rows first: its results are right, and the library stages where it
// pays.
#include "support/gpu_test.h"

#include <vector>

#include "cases.h"
#include "ingot/runtime/context/context.h"
#include "support/gemm_on_gpu.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_gemm_staged_gpu)

namespace {

Context& context() {
  static Context one(cuda_options());
  return one;
}

struct Fixture : GemmOnGpu {
  Fixture() : GemmOnGpu(context()) {}

  // Kernel launches of one call.
  std::int64_t launches(const Case& c) {
    PlacedCase placed(c, maker.inputs(c), cuda, stream);
    placed.enqueue(stream);
    const std::int64_t before = cuda.device_api().launches();
    placed.enqueue(stream);
    cuda.device_api().synchronize(stream);
    return cuda.device_api().launches() - before;
  }
};

constexpr Shape kShapes[] = {{1, 1, 1},       {7, 16, 17},     {100, 7, 127},     {17, 129, 100},
                             {129, 127, 129}, {300, 200, 257}, {127, 1000, 1000}, {1000, 129, 384}};

// Along k with aligned rows, and with every other alignment and pitch.
constexpr Placement kPlaces[] = {{0, 0}, {3, 0}, {0, 1}, {5, 8}};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(staged, Fixture)

BOOST_AUTO_TEST_CASE(by_name) {
  const std::vector<KernelSpec> specs{parse("gemm e4m3fn*e4m3fn->f32 tn scale=row,row fast kernel=sm90 staged=a,b"),
                                      parse("gemm e4m3fn*e5m2->bf16 nt scale=tensor,row bias kernel=sm90 staged=a,b"),
                                      parse("gemm e5m2*e4m3fn->f32 tn scale=1x128,128x128 kernel=sm90 staged=a,b")};
  compile(specs);
  for (const KernelSpec& spec : specs) {
    for (const Shape& shape : kShapes) {
      for (const Placement& placement : kPlaces) {
        expect_right({.spec = spec, .shape = shape, .placement = placement});
        expect_right({.spec = spec, .shape = shape, .input = Input::integers, .placement = placement});
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(by_the_library) {
  for (const char* const line :
       {"gemm e4m3fn*e4m3fn->bf16 tn scale=row,row fast", "gemm e4m3fn*e5m2->f32 nn",
        "gemm e4m3fn*e4m3fn->bf16 tt scale=1x128,1x128", "gemm e4m3fnuz*e4m3fn->bf16 tn scale=row,tensor",
        "gemm bf16*e4m3fn->bf16 nt scale=tensor,row", "gemm e5m2*f16->f32 tn scale=row,tensor"}) {
    for (const Shape& shape : kShapes) {
      for (const Placement& placement : kPlaces) {
        expect_right({.spec = parse(line), .shape = shape, .placement = placement});
      }
    }
  }
}

// Large GEMMs are staged; for small ones it does not pay.
BOOST_AUTO_TEST_CASE(where_it_pays) {
  const KernelSpec turned = parse("gemm e4m3fn*e4m3fn->bf16 tn fast");
  const KernelSpec along = parse("gemm e4m3fn*e4m3fn->bf16 nt fast");
  BOOST_TEST(launches({.spec = turned, .shape = {4096, 4096, 4096}}) == 3);
  BOOST_TEST(launches({.spec = turned, .shape = {64, 64, 64}}) == 1);
  BOOST_TEST(launches({.spec = along, .shape = {4096, 4096, 4096}, .placement = {1, 0}}) == 3);
  BOOST_TEST(launches({.spec = along, .shape = {4096, 4096, 4096}}) == 1);
  // If rows are aligned, K need not be a multiple of anything.
  BOOST_TEST(launches({.spec = along, .shape = {4096, 4096, 4090}, .placement = {6, 0}}) == 1);
  expect_right({.spec = along, .shape = {1024, 1024, 1018}, .placement = {6, 0}});
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
