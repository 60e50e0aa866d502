// FileLock: exclusive locks on single bytes of a file, between threads and processes, and after a kill or a fork.
#include <boost/test/unit_test.hpp>

#include <fcntl.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "ingot/runtime/util/file_lock.h"
#include "support/processes.h"
#include "support/temporary_directory.h"

BOOST_AUTO_TEST_SUITE(test_file_lock)

using namespace ingot;
using namespace std::chrono_literals;
using std::chrono::steady_clock;

namespace {

struct Fixture {
  FileLock lock(std::uint64_t byte, std::chrono::milliseconds wait = 0ms) const {
    return FileLock(AT_FDCWD, file, byte, wait);
  }
  bool is_free(std::uint64_t byte) const { return lock(byte).held(); }

  test::TemporaryDirectory directory;
  std::string file = directory.path() / "lock";
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(file_lock, Fixture)

BOOST_AUTO_TEST_CASE(one_holder_per_byte) {
  {
    const FileLock first = lock(7);
    BOOST_TEST(first.held());
    BOOST_TEST(!is_free(7));
    BOOST_TEST(is_free(6));
    BOOST_TEST(is_free(8));
    BOOST_TEST(is_free(~std::uint64_t{0}));
  }
  BOOST_TEST(is_free(7));
  BOOST_TEST(std::filesystem::exists(file), "the lock file was deleted");
}

BOOST_AUTO_TEST_CASE(bytes_at_the_far_end) {
  const FileLock last = lock(~std::uint64_t{0});
  BOOST_TEST(last.held());
  BOOST_TEST(!is_free(~std::uint64_t{0}));
  BOOST_TEST(!is_free(~std::uint64_t{0} >> 2U));  // only the low 62 bits count
  BOOST_TEST(is_free(0));
}

BOOST_AUTO_TEST_CASE(moves) {
  FileLock first = lock(1);
  {
    const FileLock second = std::move(first);
    BOOST_TEST(second.held());
    BOOST_TEST(!first.held());
    BOOST_TEST(!is_free(1));
  }
  BOOST_TEST(is_free(1));
  BOOST_TEST(!FileLock().held());
}

BOOST_AUTO_TEST_CASE(wait_ends) {
  const FileLock first = lock(1);
  const auto start = steady_clock::now();
  BOOST_TEST(!lock(1, 100ms).held());
  const auto waited = steady_clock::now() - start;
  BOOST_TEST((waited >= 100ms));
  BOOST_TEST((waited < 10s));
}

BOOST_AUTO_TEST_CASE(waiter_gets_it) {
  FileLock first = lock(1);
  std::jthread holder([held = std::move(first)]() mutable {
    std::this_thread::sleep_for(50ms);
    const FileLock released = std::move(held);
  });
  BOOST_TEST(lock(1, 60s).held());
}

BOOST_AUTO_TEST_CASE(kill_releases) {
  int ready[2];
  BOOST_REQUIRE(pipe(ready) == 0);
  const pid_t child = test::start_process([&] {
    const FileLock held = lock(1);
    const char state = held.held() ? 1 : 0;
    if (write(ready[1], &state, 1) != 1) return 1;
    pause();
    return 0;
  });
  char state = 0;
  BOOST_REQUIRE(read(ready[0], &state, 1) == 1);
  BOOST_TEST(state == 1);
  BOOST_TEST(!is_free(1));
  kill(child, SIGKILL);
  BOOST_TEST(test::wait_for(child) == -SIGKILL);
  BOOST_TEST(is_free(1));
  close(ready[0]);
  close(ready[1]);
}

// A child that is forked while the lock is held shares the open file, but must not keep the lock alive.
BOOST_AUTO_TEST_CASE(forked_child_keeps_nothing) {
  pid_t child = 0;
  {
    const FileLock held = lock(1);
    child = test::start_process([] {
      pause();
      return 0;
    });
  }
  BOOST_TEST(is_free(1));
  kill(child, SIGKILL);
  test::wait_for(child);
}

BOOST_AUTO_TEST_CASE(nothing_to_lock, *boost::unit_test::timeout(60)) {
  BOOST_TEST(!FileLock(AT_FDCWD, directory.path() / "no/such/folder", 0, 60s).held());
  BOOST_TEST(!FileLock(AT_FDCWD, directory.path(), 0, 60s).held());
  BOOST_TEST(!FileLock(-1, "lock", 0, 60s).held());
  std::filesystem::create_symlink(directory.path() / "elsewhere", directory.path() / "link");
  BOOST_TEST(!FileLock(AT_FDCWD, directory.path() / "link", 0, 60s).held());
  BOOST_TEST(!std::filesystem::exists(directory.path() / "elsewhere"));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
