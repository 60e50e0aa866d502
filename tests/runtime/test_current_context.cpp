// The guard that makes a CUDA context current, on a fake driver of two functions: which context is current, and how
// often it was set.
#include "ingot/runtime/cuda/driver.h"

#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "ingot/codegen/types/target.h"
#include "ingot/runtime/util/error.h"
#include "support/processes.h"

BOOST_AUTO_TEST_SUITE(test_current_context)

using namespace ingot;

namespace {

CUcontext current = nullptr;
int changes = 0;
CUresult answer = CUDA_SUCCESS;

Driver::Api fake_driver() {
  current = nullptr;
  changes = 0;
  answer = CUDA_SUCCESS;
  Driver::Api api;
  api.cuCtxGetCurrent = [](CUcontext* context) {
    *context = current;
    return CUDA_SUCCESS;
  };
  api.cuCtxSetCurrent = [](CUcontext context) {
    if (answer != CUDA_SUCCESS) return answer;
    current = context;
    ++changes;
    return CUDA_SUCCESS;
  };
  return api;
}

// Never dereferenced.
const auto kOurs = reinterpret_cast<CUcontext>(std::uintptr_t{1});
const auto kTheirs = reinterpret_cast<CUcontext>(std::uintptr_t{2});

}  // namespace

BOOST_AUTO_TEST_CASE(the_callers_context_is_put_back) {
  const Driver::Api api = fake_driver();
  current = kTheirs;
  {
    const CurrentContext guard(api, kOurs);
    BOOST_TEST(current == kOurs);
    const CurrentContext inner(api, kOurs);  // a call within a call
    BOOST_TEST(changes == 1);
  }
  BOOST_TEST(current == kTheirs);
  BOOST_TEST(changes == 2);
}

BOOST_AUTO_TEST_CASE(one_that_is_current_already_is_not_set) {
  const Driver::Api api = fake_driver();
  current = kOurs;
  { const CurrentContext guard(api, kOurs); }
  BOOST_TEST(current == kOurs);
  BOOST_TEST(changes == 0);
}

BOOST_AUTO_TEST_CASE(a_thread_without_one_keeps_ours) {
  const Driver::Api api = fake_driver();
  { const CurrentContext guard(api, kOurs); }
  { const CurrentContext guard(api, kOurs); }
  BOOST_TEST(current == kOurs);
  BOOST_TEST(changes == 1);
}

BOOST_AUTO_TEST_CASE(a_change_that_the_driver_refuses_is_not_undone) {
  const Driver::Api api = fake_driver();
  current = kTheirs;
  answer = CUDA_ERROR_INVALID_CONTEXT;
  {
    const CurrentContext guard(api, kOurs);
    BOOST_TEST(guard.result() == CUDA_ERROR_INVALID_CONTEXT);
    answer = CUDA_SUCCESS;
  }
  BOOST_TEST(current == kTheirs);
  BOOST_TEST(changes == 0);
}

// A child of fork() cannot use CUDA: its first call says so, and what to do.
BOOST_AUTO_TEST_CASE(an_error_in_a_forked_child_names_the_cause) {
  const std::unique_ptr<Driver> driver = make_dry_driver(gpu_named("h100"));
  const auto message = [&] {
    try {
      driver->check(CUDA_ERROR_NOT_INITIALIZED, "cuCtxSetCurrent");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string cause =
      "; this process was made by fork() after its parent had opened CUDA, which a child cannot use: start it with the "
      "method \"spawn\"";
  BOOST_TEST(!message().ends_with(cause));
  BOOST_TEST(test::run_in_process([&] { return message().ends_with(cause) ? 0 : 1; }) == 0);
}

BOOST_AUTO_TEST_SUITE_END()
