// write_file() and FileWriter: the old content or the new one, whole; devices, FIFOs and links stay what they are.
#include "ingot/runtime/util/write_file.h"

#include <boost/test/unit_test.hpp>

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "support/expect_error.h"
#include "support/processes.h"
#include "support/temporary_directory.h"

BOOST_AUTO_TEST_SUITE(test_write_file)

using namespace ingot;
using test::check_contains;
using test::error_of;

namespace {

namespace fs = std::filesystem;

struct Fixture {
  static std::string text(const fs::path& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  std::string refusal(const fs::path& path) const {
    const std::string message = error_of([&] { write_file(path, {"new"}); }, ErrorCode::io_failed);
    BOOST_TEST(message.starts_with(path.string() + ": cannot be written: "), message);
    return message;
  }
  auto entries() const { return std::distance(fs::directory_iterator(directory.path()), {}); }

  test::TemporaryDirectory directory;
  fs::path file = directory.path() / "file";
  fs::path link = directory.path() / "link";
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(files, Fixture)

BOOST_AUTO_TEST_CASE(a_file_is_made_and_replaced) {
  write_file(file, {"one ", "two"});
  BOOST_TEST(text(file) == "one two");
  const std::ifstream old(file);
  write_file(file, {"new"});
  BOOST_TEST(text(file) == "new");
  BOOST_TEST(entries() == 1);
  std::string rest;
  const_cast<std::ifstream&>(old) >> rest;
  BOOST_TEST(rest == "one");  // whoever reads meanwhile reads the old file
}

BOOST_AUTO_TEST_CASE(nothing_changes_before_it_is_published) {
  write_file(file, {"old"});
  {
    FileWriter writer(file);
    writer.write("half of the new");
    BOOST_TEST(text(file) == "old");
    BOOST_TEST(entries() == 2);
  }
  BOOST_TEST(text(file) == "old");
  BOOST_TEST(entries() == 1);
}

BOOST_AUTO_TEST_CASE(permissions_are_kept) {
  write_file(file, {"old"});
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
  write_file(file, {"secret"});
  BOOST_TEST((fs::status(file).permissions() == (fs::perms::owner_read | fs::perms::owner_write)));
}

BOOST_AUTO_TEST_CASE(a_link_stays_a_link) {
  fs::create_directory(directory.path() / "folder");
  const fs::path target = directory.path() / "folder" / "target";
  fs::create_symlink("folder/target", link);
  for (const char* const content : {"made", "replaced"}) {  // the link leads to no file yet; then there is one
    write_file(link, {content});
    BOOST_TEST(fs::is_symlink(link));
    BOOST_TEST(text(target) == content);
    BOOST_TEST(!fs::is_symlink(target));
  }
  BOOST_TEST(std::distance(fs::directory_iterator(directory.path() / "folder"), {}) == 1);
  fs::remove(target);
  { FileWriter(link).write("never published"); }
  BOOST_TEST(fs::is_empty(directory.path() / "folder"));
}

// A link that comes after the writer has looked is not replaced; a file is.
BOOST_AUTO_TEST_CASE(what_comes_meanwhile) {
  {
    FileWriter writer(link);
    writer.write("new");
    fs::create_symlink("elsewhere", link);
    check_contains(error_of([&] { writer.publish(); }, ErrorCode::io_failed), {"cannot be written: File exists"});
  }
  BOOST_TEST(fs::is_symlink(link));
  BOOST_TEST(entries() == 1);
  FileWriter writer(file);
  writer.write("new");
  std::ofstream(file) << "of another process";
  writer.publish();
  BOOST_TEST(text(file) == "new");
}

// Whoever replaces the file between two looks of another writer: it is never written into.
BOOST_AUTO_TEST_CASE(many_writers_of_one_file) {
  constexpr int kWriters = 4;
  constexpr int kWrites = 500;
  const auto content = [](int of) {
    return std::string(100 + static_cast<std::size_t>(of), static_cast<char>('a' + of));
  };
  write_file(file, {content(0)});
  std::atomic<int> ended{0};
  int reads = 0;
  int torn = 0;
  {
    std::vector<std::jthread> writers;
    for (int i = 0; i < kWriters; ++i) {
      writers.emplace_back([&, i] {
        for (int each = 0; each < kWrites; ++each) write_file(file, {content(i)});
        ++ended;
      });
    }
    for (; ended < kWriters; ++reads) {
      const std::string found = text(file);
      torn += found.empty() || found != content(found[0] - 'a') ? 1 : 0;
    }
  }
  BOOST_TEST(torn == 0, torn << " of " << reads << " reads found no whole file");
  BOOST_TEST(entries() == 1);
}

BOOST_AUTO_TEST_CASE(a_link_to_nowhere_is_an_error) {
  fs::create_symlink("no/such/folder", link);
  BOOST_TEST(refusal(link).ends_with("No such file or directory"));
}

BOOST_AUTO_TEST_CASE(a_name_alone_is_a_file_of_the_working_directory) {
  BOOST_TEST(test::run_in_process([&] {
               if (chdir(directory.path().c_str()) != 0) return 1;
               write_file("here", {"new"});
               return text(directory.path() / "here") == "new" ? 0 : 2;
             }) == 0);
  BOOST_TEST(refusal(directory.path() / "nothing" / "").ends_with("No such file or directory"));
  BOOST_TEST(refusal(directory.path() / "new" / "").size() > 0U);
}

BOOST_AUTO_TEST_CASE(sync_waits_for_files_and_lets_pipes_pass) {
  {
    FileWriter writer(file);
    writer.write("kept");
    writer.sync();
    writer.publish();
  }
  BOOST_TEST(text(file) == "kept");
  const fs::path fifo = directory.path() / "fifo";
  BOOST_REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  const FileDescriptor reader(open(fifo.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  FileWriter pipe(fifo);
  pipe.write("gone");
  pipe.sync();
  pipe.publish();
}

// A name that could be guessed could be a link, there before the file is.
BOOST_AUTO_TEST_CASE(names_of_temporary_files_cannot_be_guessed) {
  std::string names[2];
  for (std::string& name : names) {
    FileWriter writer(file);
    name = fs::directory_iterator(directory.path())->path().filename().string();
    BOOST_TEST(name.starts_with("file."));
    BOOST_TEST(name.size() > std::string("file.0123456789abcdef").size());
  }
  BOOST_TEST(names[0] != names[1]);
  write_file(directory.path() / std::string(255, 'n'), {"the longest name"});
  BOOST_TEST(text(directory.path() / std::string(255, 'n')) == "the longest name");
}

BOOST_AUTO_TEST_CASE(a_device_stays_a_device) {
  write_file("/dev/null", {"gone"});
  check_contains(refusal("/dev/full"), {"No space left on device"});
  fs::create_symlink("/dev/full", link);
  check_contains(refusal(link), {"No space left on device"});
  for (const char* const device : {"/dev/null", "/dev/full"}) BOOST_TEST(fs::is_character_file(device));
  BOOST_TEST(fs::is_symlink(link));
}

BOOST_AUTO_TEST_CASE(a_fifo_stays_a_fifo) {
  BOOST_REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  check_contains(refusal(file), {"nothing reads from it; start its reader first"});
  const std::string content(300'000, 'x');  // more than a pipe holds
  std::string got;
  const int reader = ::open(file.c_str(), O_RDONLY | O_NONBLOCK);
  ::fcntl(reader, F_SETFL, 0);
  {
    const std::jthread drain([&] {
      char bytes[4096];
      for (ssize_t count = 1; got.size() < content.size() && count > 0;) {
        count = ::read(reader, bytes, sizeof(bytes));
        if (count > 0) got.append(bytes, static_cast<std::size_t>(count));
        if (count == 0) count = 1;  // the writer has not opened it yet
      }
    });
    write_file(file, {content});
  }
  ::close(reader);
  BOOST_TEST(got == content);
  BOOST_TEST(fs::is_fifo(file));
}

// /dev/stdout, where the shell has sent it to a file: not replaced, which would lose what is printed before and after.
BOOST_AUTO_TEST_CASE(standard_output_is_written_into) {
  for (const std::string& path : {std::string("/dev/stdout"), std::string("/proc/self/fd/1"), file.string()}) {
    fs::remove(file);
    std::fflush(stdout);  // the child would print it again
    const int status = test::run_in_process([&] {
      const int out = ::open(file.c_str(), O_WRONLY | O_CREAT, 0600);
      if (::dup2(out, STDOUT_FILENO) < 0) return 1;
      std::fputs("before ", stdout);
      write_file(path, {"written"});
      std::fputs(" after", stdout);
      return std::fflush(stdout);
    });
    BOOST_TEST(status == 0);
    BOOST_TEST(text(file) == "before written after", path);
    BOOST_TEST(entries() == 1);
  }
  BOOST_TEST(fs::is_symlink("/dev/stdout"));
}

BOOST_AUTO_TEST_CASE(what_cannot_be_written_is_told) {
  check_contains(refusal(directory.path()), {"Is a directory"});
  check_contains(refusal(directory.path() / ""), {"Is a directory"});
  check_contains(refusal(""), {"Is a directory"});
  check_contains(refusal(directory.path() / "no" / "file"), {"No such file or directory"});
  write_file(file, {"old"});
  check_contains(refusal(file / "below"), {"Not a directory"});
  fs::create_symlink("link", link);
  check_contains(refusal(link), {"Too many levels of symbolic links"});
}

// The disk is full in the middle: the old file stays, and nothing is left next to it.
BOOST_AUTO_TEST_CASE(a_full_disk_costs_nothing) {
  write_file(file, {"old"});
  const int status = test::run_in_process([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 100, .rlim_max = 100};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    const std::string message = error_of([&] { write_file(file, {std::string(1000, 'x')}); }, ErrorCode::io_failed);
    return message.find("cannot be written: File too large") == std::string::npos ? 2 : 0;
  });
  BOOST_TEST(status == 0);
  BOOST_TEST(text(file) == "old");
  BOOST_TEST(entries() == 1);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
