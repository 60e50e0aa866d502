// read_file(): whole files, and at once an error for what could be read for ever or waited for.
#include "ingot/runtime/util/read_file.h"

#include <boost/test/unit_test.hpp>

#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "support/expect_error.h"
#include "support/processes.h"
#include "support/temporary_directory.h"

BOOST_AUTO_TEST_SUITE(test_read_file)

using namespace ingot;
using test::check_contains;
using test::error_of;

namespace {

namespace fs = std::filesystem;

struct Fixture {
  std::string refusal(const fs::path& path, ErrorCode code = ErrorCode::io_failed, std::uint64_t limit = 100) const {
    const std::string message = error_of([&] { read_file(path, limit, "make one"); }, code);
    BOOST_TEST(message.starts_with(path.string() + ": "), message);
    return message;
  }

  test::TemporaryDirectory directory;
  fs::path file = directory.path() / "file";
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(files, Fixture)

BOOST_AUTO_TEST_CASE(all_bytes_are_read) {
  for (const std::size_t size : {0, 1, 99, 100}) {
    std::string content(size, '\0');
    for (std::size_t i = 0; i < size; ++i) content[i] = static_cast<char>(i * 37);
    std::ofstream(file, std::ios::binary) << content;
    BOOST_TEST(read_file(file, 100) == content);
  }
  fs::create_symlink("file", directory.path() / "link");
  BOOST_TEST(read_file(directory.path() / "link", 100).size() == 100U);
  // Its size is said to be 0.
  BOOST_TEST(read_file("/proc/self/status", 1 << 20).find("VmPeak") != std::string::npos);
  std::ofstream(file, std::ios::binary) << std::string(3'000'000, 'x');
  BOOST_TEST(read_file(file, 3'000'000).size() == 3'000'000U);
}

BOOST_AUTO_TEST_CASE(what_is_missing_is_told_with_the_remedy) {
  check_contains(refusal(file, ErrorCode::not_found), {"there is no such file; make one"});
  check_contains(refusal(file / "below", ErrorCode::not_found), {"there is no such file"});
  std::ofstream(file) << "x";
  check_contains(refusal(file / "below", ErrorCode::not_found), {"there is no such file"});
}

BOOST_AUTO_TEST_CASE(what_is_no_file_is_refused_at_once) {
  check_contains(refusal(directory.path()), {"is a folder; name a file"});
  BOOST_REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  check_contains(refusal(file), {"is not a regular file; copy its content"});
  check_contains(refusal("/dev/zero"), {"is not a regular file"});
}

BOOST_AUTO_TEST_CASE(what_is_too_large_is_refused) {
  std::ofstream(file, std::ios::binary) << std::string(101, 'x');
  check_contains(refusal(file), {"has 101 bytes; at most 100 are read"});
  check_contains(refusal("/proc/self/status", ErrorCode::io_failed, 10), {"has more than 10 bytes"});
  fs::resize_file(file, std::uintmax_t{1} << 40);  // sparse
  check_contains(refusal(file, ErrorCode::io_failed, std::uint64_t{1} << 30), {"has 1099511627776 bytes; at most"});
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const int status = test::run_in_process([&] {
    const rlimit limit{.rlim_cur = 1 << 30, .rlim_max = 1 << 30};
    if (setrlimit(RLIMIT_AS, &limit) != 0) return 1;
    const std::string message = error_of([&] { read_file(file, std::uint64_t{1} << 41); }, ErrorCode::out_of_memory);
    return message.find("has 1099511627776 bytes, for which there is not enough memory") == std::string::npos ? 2 : 0;
  });
  BOOST_TEST(status == 0);
#endif
}

BOOST_AUTO_TEST_CASE(what_may_not_be_read_is_refused) {
  std::ofstream(file) << "x";
  fs::permissions(directory.path(), fs::perms::all);
  fs::permissions(file, fs::perms::none);
  BOOST_TEST(test::run_unprivileged([&] {
               return refusal(file).find("cannot be read: Permission denied") == std::string::npos ? 1 : 0;
             }) == 0);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
