// Finding and opening shared libraries: the order of search locations, versions, and messages when nothing is found.
#include "ingot/runtime/util/library.h"

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "support/temporary_directory.h"

BOOST_AUTO_TEST_SUITE(test_library)

using namespace ingot;
namespace fs = std::filesystem;
using ingot::test::TemporaryDirectory;

namespace {

// A library that every process has, copied under another name: finding it proves which location was searched.
constexpr const char* kName = "libingot-search-test.so";

void plant(const fs::path& folder) {
  std::string problem;
  const Library math = Library::open("libm.so.6", problem);
  BOOST_REQUIRE_MESSAGE(math, problem);
  fs::create_directories(folder);
  fs::copy_file(math.path(), folder / kName);
}

struct CleanEnvironment {
  CleanEnvironment() {
    for (const char* name : {"CUDA_PATH", "CUDA_HOME", "VIRTUAL_ENV", "HOME"}) ::unsetenv(name);
  }
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

BOOST_AUTO_TEST_SUITE(library, *boost::unit_test::fixture<CleanEnvironment>())

BOOST_AUTO_TEST_CASE(opens_by_name_and_knows_the_file) {
  std::string problem;
  const Library library = Library::open("libm.so.6", problem);
  BOOST_REQUIRE_MESSAGE(library, problem);
  BOOST_TEST(library.path().starts_with("/"), library.path());
  const auto cosine = reinterpret_cast<double (*)(double)>(library.symbol("cos"));
  BOOST_REQUIRE(cosine != nullptr);
  BOOST_TEST(cosine(0.0) == 1.0);
  BOOST_TEST(library.symbol("no_such_symbol") == nullptr);
  BOOST_TEST(problem.empty());
}

BOOST_AUTO_TEST_CASE(a_missing_library_is_empty_and_says_why) {
  std::string problem;
  const Library library = Library::open("libingot-nowhere.so.1", problem);
  BOOST_TEST(!library);
  BOOST_TEST(library.symbol("cos") == nullptr);
  BOOST_TEST(library.path().empty());
  BOOST_TEST(contains(problem, "libingot-nowhere.so.1"), problem);
  BOOST_TEST(contains(problem, "No such file"), problem);
}

BOOST_AUTO_TEST_CASE(knows_what_the_process_has_loaded) {
  std::string problem;
  const Library math = Library::open("libm.so.6", problem);
  BOOST_TEST(Library::loaded("libm.so.6").path() == math.path());
  BOOST_TEST(!Library::loaded("libingot-nowhere.so.1"));
}

BOOST_AUTO_TEST_CASE(moves) {
  std::string problem;
  Library first = Library::open("libm.so.6", problem);
  Library second = std::move(first);
  BOOST_TEST(!first);  // NOLINT(bugprone-use-after-move): what is left is the point
  BOOST_TEST(first.path().empty());
  BOOST_TEST(!!second);
  Library third;
  third = std::move(second);
  BOOST_TEST(third.symbol("cos") != nullptr);
}

BOOST_AUTO_TEST_CASE(an_explicit_root_is_searched_in_its_lib64_its_lib_and_itself) {
  for (const char* folder : {"lib64", "lib", ""}) {
    const TemporaryDirectory root;
    plant(root.path() / folder);
    std::string problem;
    const Library library = Library::open_cuda({"libingot-not-this-one.so", kName}, root.path().string(), problem);
    BOOST_REQUIRE_MESSAGE(library, problem);
    BOOST_TEST(library.path() == (root.path() / folder / kName).string());
  }
}

BOOST_AUTO_TEST_CASE(variables_and_wheels_are_searched_in_order) {
  const TemporaryDirectory root;
  const fs::path wheel = root.path() / "venv/lib/python3.11/site-packages/nvidia/cu13/lib";
  const fs::path toolkit = root.path() / "toolkit";
  const fs::path home = root.path() / "home";
  plant(wheel);
  plant(home / ".local/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib");
  plant(toolkit / "lib64");
  std::string problem;

  ::setenv("HOME", home.c_str(), 1);
  BOOST_TEST(contains(Library::open_cuda({kName}, "", problem).path(), "cuda_nvrtc"));
  ::setenv("VIRTUAL_ENV", (root.path() / "venv").c_str(), 1);
  BOOST_TEST(Library::open_cuda({kName}, "", problem).path() == (wheel / kName).string());
  ::setenv("CUDA_HOME", toolkit.c_str(), 1);
  BOOST_TEST(Library::open_cuda({kName}, "", problem).path() == (toolkit / "lib64" / kName).string());
  for (const char* name : {"CUDA_HOME", "VIRTUAL_ENV", "HOME"}) ::unsetenv(name);
}

BOOST_AUTO_TEST_CASE(a_search_that_fails_names_every_place_and_what_to_do) {
  const TemporaryDirectory root;
  ::setenv("CUDA_PATH", "/nowhere/cuda", 1);
  ::setenv("HOME", "/nowhere/home", 1);
  std::string problem;
  BOOST_TEST(!Library::open_cuda({"libingot-a.so", "libingot-b.so"}, root.path().string(), problem));
  ::unsetenv("CUDA_PATH");
  ::unsetenv("HOME");
  BOOST_TEST(problem.starts_with("libingot-a.so or libingot-b.so was not found in " + root.path().string() +
                                 " (INGOT_CUDA_ROOT); /nowhere/cuda (CUDA_PATH); the loader's path; /usr/local/cuda; "
                                 "the nvidia wheels of Python in "
                                 "/nowhere/home/.local, /usr/local, /usr; "));
  BOOST_TEST(
      problem.ends_with(" (the CUDA that Ingot was built with); set INGOT_CUDA_ROOT to a CUDA toolkit, or to the "
                        "folder of an nvidia wheel "
                        "of Python that holds lib/libingot-a.so"));
}

BOOST_AUTO_TEST_CASE(a_file_that_does_not_load_is_named_and_the_search_goes_on) {
  const TemporaryDirectory root;
  fs::create_directories(root.path() / "lib64");
  std::ofstream(root.path() / "lib64" / kName) << "no library";
  std::string problem;
  BOOST_TEST(!Library::open_cuda({kName}, root.path().string(), problem));
  BOOST_TEST(contains(problem, (root.path() / "lib64" / kName).string() + " is there, but does not load: "), problem);
  plant(root.path() / "lib");
  BOOST_TEST(!!Library::open_cuda({kName}, root.path().string(), problem));
}

BOOST_AUTO_TEST_CASE(none_means_no_cuda_library) {
  std::string problem;
  BOOST_TEST(!Library::open_cuda({"libm.so.6"}, "none", problem));
  BOOST_TEST(problem == "libm.so.6 was not looked for: INGOT_CUDA_ROOT is \"none\", which says to use no CUDA library");
}

// Code that CUDA 13's toolkit makes needs a driver of CUDA 13; that of CUDA 12 serves both.
BOOST_AUTO_TEST_CASE(the_drivers_version_decides_which_toolkit_serves) {
  const TemporaryDirectory root;
  const std::string stem = "libingot-search-test.so";
  plant(root.path() / "lib");
  const fs::path planted = root.path() / "lib" / kName;
  const fs::path newer = root.path() / "lib" / (stem + ".13");
  const fs::path older = root.path() / "lib" / (stem + ".12");
  fs::copy_file(planted, newer);
  fs::remove(planted);
  std::string problem;
  const auto found = [&](int driver) { return Library::open_cuda(stem, driver, root.path().string(), problem).path(); };
  BOOST_TEST(found(0) == newer.string());
  BOOST_TEST(found(13000) == newer.string());
  BOOST_TEST(found(12080) == "");
  BOOST_TEST(problem.starts_with("libingot-search-test.so.12 was not found in "), problem);
  BOOST_TEST(problem.ends_with("; " + newer.string() +
                               " is there, but needs a driver of CUDA 13, and this one is of CUDA 12.8: update the "
                               "driver, or install libingot-search-test.so.12"),
             problem);
  fs::copy_file(newer, older);
  BOOST_TEST(found(0) == newer.string());
  BOOST_TEST(found(13010) == newer.string());
  BOOST_TEST(found(12080) == older.string());
  fs::remove(newer);
  BOOST_TEST(found(13010) == older.string());
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
