// Watchdog: a worker that makes progress is left alone; one that hangs is reported, or its process is ended.
#include "support/watchdog.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <boost/test/unit_test.hpp>

BOOST_AUTO_TEST_SUITE(test_watchdog)

using ingot::test::Watchdog;
using namespace std::chrono_literals;

BOOST_AUTO_TEST_CASE(who_gets_on_is_left_alone) {
  std::atomic<int> barks{0};
  {
    Watchdog dog("a worker", 10s, [&](const std::string&) { ++barks; });
    for (int i = 0; i < 5; ++i) dog.alive("step " + std::to_string(i));
  }
  BOOST_TEST(barks == 0);
}

BOOST_AUTO_TEST_CASE(who_hangs_is_told_of_with_what_it_did_last) {
  std::string message;
  std::atomic<bool> barked{false};
  {
    Watchdog dog("a worker", 100ms, [&](const std::string& text) {
      message = text;
      barked = true;
    });
    dog.alive("launch 7");
    for (int i = 0; i < 1000 && !barked; ++i) std::this_thread::sleep_for(10ms);
  }
  BOOST_TEST(message == "a worker has not got on for 0.100000 s, at: launch 7");
}

BOOST_AUTO_TEST_CASE(a_process_that_hangs_ends) {
  const pid_t child = ::fork();
  if (child == 0) {
    const Watchdog dog("a child", 50ms);
    while (true) ::pause();
  }
  int status = 0;
  BOOST_TEST(::waitpid(child, &status, 0) == child);
  BOOST_TEST(WIFEXITED(status));
  BOOST_TEST(WEXITSTATUS(status) == Watchdog::kHung);
}

BOOST_AUTO_TEST_SUITE_END()
