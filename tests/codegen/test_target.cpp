// Compile targets: how they print and parse, and the best target for a device; and the GPUs that are known by name.
#include <boost/test/unit_test.hpp>

#include <set>
#include <string_view>

#include "ingot/codegen/types/target.h"
#include "ingot/runtime/util/error.h"
#include "support/expect_error.h"

BOOST_AUTO_TEST_SUITE(test_target)

using namespace ingot;

BOOST_AUTO_TEST_CASE(printed_form) {
  BOOST_TEST(print(Target{8, 0, false}) == "sm_80");
  BOOST_TEST(print(Target{8, 9, false}) == "sm_89");
  BOOST_TEST(print(Target{9, 0, true}) == "sm_90a");
  BOOST_TEST(print(Target{10, 0, true}) == "sm_100a");
  BOOST_TEST(print(Target{12, 1, false}) == "sm_121");
}

BOOST_AUTO_TEST_CASE(parse_inverts_print) {
  for (const Target target : kSupportedTargets) {
    BOOST_TEST((parse_target(print(target)) == target), print(target) << " does not come back");
  }
  BOOST_TEST((parse_target("sm_121") == Target{12, 1, false}));
  BOOST_TEST((parse_target("sm_103a") == Target{10, 3, true}));
}

BOOST_AUTO_TEST_CASE(anything_else_is_refused) {
  for (const char* text : {"", "sm_", "sm_a", "sm_9", "sm_9a", "90a", "SM_90a", "sm_90b", "sm_90aa", "sm_ 90", "sm_90 ",
                           "sm_-90", "sm_1000", "sm_00", "sm_090", "compute_90"}) {
    BOOST_TEST(!parse_target(text).has_value(), "\"" << text << "\" was taken for a target");
  }
}

BOOST_AUTO_TEST_CASE(best_target_of_a_device) {
  BOOST_TEST(print(target_for(8, 0)) == "sm_80");
  BOOST_TEST(print(target_for(8, 9)) == "sm_89");
  BOOST_TEST(print(target_for(9, 0)) == "sm_90a");
  BOOST_TEST(print(target_for(12, 0)) == "sm_120a");
}

BOOST_AUTO_TEST_CASE(gpus_by_name) {
  std::set<std::string_view> names;
  std::set<std::string_view> devices;
  for (const Gpu& gpu : known_gpus()) {
    BOOST_TEST(names.insert(gpu.name).second, gpu.name << " is there twice");
    BOOST_TEST(devices.insert(gpu.device).second, gpu.device << " is there twice");
    BOOST_TEST(&gpu_named(gpu.name) == &gpu);
    BOOST_TEST((gpu.multiprocessors > 0 && gpu.block_shared_bytes >= 99 * 1024));
    BOOST_TEST((parse_target(print(gpu.target)) == gpu.target));
  }
  BOOST_TEST(print(gpu_named("h200").target) == "sm_90a");
  BOOST_TEST(gpu_named("h200").multiprocessors == 132);
  BOOST_TEST(gpu_named("h20").multiprocessors == 78);
  BOOST_TEST(print(gpu_named("b200").target) == "sm_100a");
  BOOST_TEST((matmul_device(gpu_named("a100")).target == Target{8, 0, false}));
  BOOST_TEST(matmul_device(gpu_named("a100")).multiprocessors == 108);
  test::check_contains(test::error_of([] { gpu_named("h300"); }, ErrorCode::invalid_argument),
                       {"GPU: \"h300\" must be one of a100, l4, ", "h100-pcie, h200", "rtx-pro-6000"});
}

BOOST_AUTO_TEST_SUITE_END()
