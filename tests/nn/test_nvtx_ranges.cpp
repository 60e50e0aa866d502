// NvtxRanges with a fake NVTX library of the test tree (support/fake_nvtx.cpp), without a library, and with an
// incomplete one.
#include "ingot/nn/observe/ranges.h"

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "ingot/nn/observe/observer.h"
#include "ingot/runtime/cuda/nvtx.h"
#include "ingot/runtime/util/library.h"
#include "support/temporary_directory.h"

BOOST_AUTO_TEST_SUITE(test_nvtx_ranges)

using namespace ingot;
namespace fs = std::filesystem;

namespace {

constexpr const char* kRoot = INGOT_FAKE_NVTX;

std::string calls() {
  std::string problem;
  static const Library library = Library::open(std::string(kRoot) + "/lib/libnvtx3interop.so", problem);
  const auto log = reinterpret_cast<const char* (*)()>(library.symbol("fake_nvtx_log"));
  BOOST_REQUIRE_MESSAGE(log != nullptr, problem);
  return log();
}

}  // namespace

BOOST_AUTO_TEST_CASE(ranges_nest_as_layers_do) {
  std::string problem = "untouched";
  const auto nvtx = Nvtx::open(kRoot, problem);
  BOOST_REQUIRE_MESSAGE(nvtx != nullptr, problem);
  BOOST_TEST(nvtx->path() == std::string(kRoot) + "/lib/libnvtx3interop.so");
  BOOST_TEST(nvtx->version() == "3");
  NvtxRanges ranges(nvtx.get());
  calls();
  {
    const ObservedRange forward(&ranges, "layers.0.wq", "forward");
    const ObservedRange output(&ranges, "layers.0.wq", "output");
  }
  BOOST_TEST(calls() == "+layers.0.wq forward;+layers.0.wq output;-;-;");
  BOOST_CHECK_THROW(
      {
        const ObservedRange backward(&ranges, "a", "backward");
        throw 1;
      },
      int);
  BOOST_TEST(calls() == "+a backward;-;");
}

BOOST_AUTO_TEST_CASE(without_a_library_there_are_no_ranges) {
  std::string problem;
  const auto nvtx = Nvtx::open("none", problem);
  BOOST_TEST((nvtx == nullptr));
  BOOST_TEST(problem ==
             "libnvtx3interop.so or libnvtx3interop.so.1 or libnvToolsExt.so.1 was not looked for: INGOT_CUDA_ROOT is "
             "\"none\", which says to use no CUDA library");
  NvtxRanges ranges(nvtx.get());
  calls();
  { const ObservedRange forward(&ranges, "a", "forward"); }
  { const ObservedRange nobody(nullptr, "a", "forward"); }
  BOOST_TEST(calls() == "");
}

BOOST_AUTO_TEST_CASE(a_library_that_lacks_a_function_is_refused) {
  const test::TemporaryDirectory root;
  std::string problem;
  const Library math = Library::open("libm.so.6", problem);
  fs::create_directories(root.path() / "lib");
  fs::copy_file(math.path(), root.path() / "lib" / "libnvtx3interop.so");
  BOOST_TEST((Nvtx::open(root.path().string(), problem) == nullptr));
  BOOST_TEST(problem == (root.path() / "lib" / "libnvtx3interop.so").string() +
                            " lacks nvtxRangePushA; take it from CUDA's toolkit or the wheel nvidia-nvtx");
}

BOOST_AUTO_TEST_CASE(the_older_library_is_taken_too) {
  const test::TemporaryDirectory root;
  fs::create_directories(root.path() / "lib");
  fs::copy_file(std::string(kRoot) + "/lib/libnvtx3interop.so", root.path() / "lib" / "libnvToolsExt.so.1");
  std::string problem;
  const auto nvtx = Nvtx::open(root.path().string(), problem);
  BOOST_REQUIRE_MESSAGE(nvtx != nullptr, problem);
  // The newer library takes precedence only within one search location.
  BOOST_TEST(nvtx->version() == "2");
}

namespace {

struct Noting final : LayerObserver {
  explicit Noting(std::string name, std::string& log) : name_(std::move(name)), log_(&log) {}
  void begin(std::string_view layer, std::string_view what) override {
    *log_ += name_ + "+" + std::string(layer) + "." + std::string(what) + " ";
  }
  void end() noexcept override { *log_ += name_ + "- "; }

 private:
  std::string name_;
  std::string* log_;
};

}  // namespace

BOOST_AUTO_TEST_CASE(several_observers_are_told_in_order_and_ended_in_reverse) {
  std::string log;
  Noting a("a", log);
  Noting b("b", log);
  LayerObservers both({&a, &b});
  { const ObservedRange range(&both, "l", "forward"); }
  BOOST_TEST(log == "a+l.forward b+l.forward b- a- ");
}

BOOST_AUTO_TEST_SUITE_END()
