// The CUDA text of render() compiles without a warning, a spill or a stack frame, in each precision and for each
// target. Needs NVRTC, but no GPU.
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "codegen/pointwise_cases.h"
#include "ingot/codegen/template_files.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/jit/nvrtc_compiler.h"
#include "ingot/runtime/util/error.h"

BOOST_AUTO_TEST_SUITE(test_pointwise_nvrtc)

using namespace ingot;
using namespace ingot::test;

namespace {

void expect_clean(const NvrtcCompiler& compiler, PointwisePrecision precision, Target target) {
  const Source source = kernel_of(many_expressions(), precision);
  try {
    const CompiledKernel kernel = compiler.compile(source, target);
    BOOST_TEST(kernel.log == "", source.name << " for " << print(target));
    BOOST_TEST(kernel.resources.spill_bytes == 0, source.name << " for " << print(target));
    BOOST_TEST(kernel.resources.stack_bytes == 0, source.name << " for " << print(target));
    BOOST_TEST(!kernel.cubin.empty());
  } catch (const Error& error) {
    BOOST_ERROR(error.what() << "\n" << error.log());
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(rendered_text_compiles_cleanly) {
  const char* root = std::getenv("INGOT_CUDA_ROOT");
  std::string problem;
  const auto compiler = NvrtcCompiler::open(root != nullptr ? root : "", embedded_templates(), problem);
  BOOST_REQUIRE_MESSAGE(compiler != nullptr, "this test needs NVRTC: " << problem);
  for (const Target target : kSupportedTargets) expect_clean(*compiler, PointwisePrecision::reproducible16, target);
  for (const auto precision : {PointwisePrecision::reproducible32, PointwisePrecision::fast}) {
    expect_clean(*compiler, precision, target_for(9, 0));
  }
}

BOOST_AUTO_TEST_SUITE_END()
