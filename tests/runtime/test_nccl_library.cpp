// NcclLibrary: which libnccl.so.2 is opened, and what is said where there is none.
#include "ingot/runtime/dist/nccl_library.h"

#include <boost/test/unit_test.hpp>

#include <filesystem>
#include <string>

#include "ingot/runtime/util/library.h"
#include "support/fake_nccl.h"
#include "support/temporary_directory.h"

BOOST_AUTO_TEST_SUITE(test_nccl_library)

using namespace ingot;
namespace fs = std::filesystem;

BOOST_AUTO_TEST_CASE(a_file_that_is_named_is_opened) {
  std::string problem;
  const auto nccl = NcclLibrary::open(test::fake_nccl_file(), "none", problem);
  BOOST_REQUIRE_MESSAGE(nccl != nullptr, problem);
  BOOST_TEST(nccl->path() == test::fake_nccl_file());
  BOOST_TEST(nccl->version() == "2.28.9");
}

// The one that made the program's communicators, whatever other folders hold one.
BOOST_AUTO_TEST_CASE(one_that_the_process_has_loaded_comes_first) {
  std::string problem;
  const Library loaded = Library::open(test::fake_nccl_file(), problem);
  BOOST_REQUIRE_MESSAGE(loaded, problem);
  const test::TemporaryDirectory other;
  fs::copy_file(test::fake_nccl_file(), other.path() / "libnccl.so.2");
  const auto nccl = NcclLibrary::open("", other.path().string(), problem);
  BOOST_REQUIRE_MESSAGE(nccl != nullptr, problem);
  BOOST_TEST(nccl->path() == test::fake_nccl_file());
}

BOOST_AUTO_TEST_CASE(without_one_the_reason_is_told) {
  std::string problem;
  BOOST_TEST((NcclLibrary::open("", "none", problem) == nullptr));
  BOOST_TEST(problem ==
             "libnccl.so.2 was not looked for: INGOT_CUDA_ROOT is \"none\", which says to use no CUDA library");
  BOOST_TEST((NcclLibrary::open("/nowhere/libnccl.so.2", "", problem) == nullptr));
  BOOST_TEST(problem.starts_with("NCCL cannot be opened (/nowhere/libnccl.so.2: "), problem);
  BOOST_TEST(problem.ends_with("); name the program's libnccl.so.2"), problem);
}

BOOST_AUTO_TEST_CASE(a_library_that_lacks_a_function_is_refused) {
  std::string problem;
  const Library math = Library::open("libm.so.6", problem);
  BOOST_TEST((NcclLibrary::open(math.path(), "", problem) == nullptr));
  BOOST_TEST(problem == math.path() + " lacks ncclGetVersion; NCCL 2.13 or newer is needed");
}

BOOST_AUTO_TEST_SUITE_END()
