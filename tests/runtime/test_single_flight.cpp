// SingleFlight: threads that ask for the same key at once compute its value only once. An error that would
// only repeat is remembered; after any other failure the next caller tries again. And ForkMutex, which it locks with:
// a child that is forked at any moment finds no key and no mutex taken by a thread that it does not have.
#include <boost/test/unit_test.hpp>

#include <atomic>
#include <chrono>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ingot/runtime/util/single_flight.h"
#include "support/function_ref.h"
#include "support/processes.h"

BOOST_AUTO_TEST_SUITE(test_single_flight)

using namespace ingot;
using namespace std::chrono_literals;

namespace {

std::string error_of(SingleFlight<int, int>& flights, int key, test::FunctionRef<int()> compute) {
  try {
    flights.get(key, compute);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

BOOST_AUTO_TEST_CASE(computes_once_per_key) {
  SingleFlight<int, int> flights;
  int computed = 0;
  for (int round = 0; round < 3; ++round) {
    for (int key = 0; key < 5; ++key) {
      BOOST_TEST(flights.get(key, [&] {
        ++computed;
        return 10 * key;
      }) == 10 * key);
    }
  }
  BOOST_TEST(computed == 5);
}

BOOST_AUTO_TEST_CASE(refusals_are_remembered) {
  for (const ErrorCode code : {ErrorCode::compile_failed, ErrorCode::invalid_spec}) {
    SingleFlight<int, int> flights;
    int computed = 0;
    const auto refuse = [&]() -> int { throw Error(code, "it", "refused " + std::to_string(++computed)); };
    for (int i = 0; i < 3; ++i) BOOST_TEST(error_of(flights, 1, refuse) == "it: refused 1");
    BOOST_TEST(error_of(flights, 2, refuse) == "it: refused 2");
  }
}

BOOST_AUTO_TEST_CASE(other_failures_are_tried_again) {
  SingleFlight<int, int> flights;
  int computed = 0;
  BOOST_TEST(error_of(flights, 1, [&]() -> int {
               ++computed;
               throw std::bad_alloc();
             }) == "std::bad_alloc");
  for (const ErrorCode code : {ErrorCode::cuda_failed, ErrorCode::out_of_memory, ErrorCode::io_failed}) {
    BOOST_TEST(error_of(flights, 1, [&]() -> int {
                 ++computed;
                 throw Error(code, "it", "failed");
               }) == "it: failed");
  }
  BOOST_TEST(flights.get(1, [&] { return ++computed; }) == 5);
}

BOOST_AUTO_TEST_CASE(sixty_four_threads) {
  SingleFlight<int, int> flights;
  std::atomic<int> computed{0};
  std::atomic<int> right{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 64; ++i) {
      threads.emplace_back([&] {
        const int value = flights.get(1, [&] {
          ++computed;
          std::this_thread::sleep_for(50ms);
          return 42;
        });
        if (value == 42) ++right;
      });
    }
  }
  BOOST_TEST(computed == 1);
  BOOST_TEST(right == 64);
}

// A slow key does not delay another: the first waits for the second to finish.
BOOST_AUTO_TEST_CASE(no_lock_while_computing, *boost::unit_test::timeout(60)) {
  SingleFlight<int, int> flights;
  std::atomic<bool> second_done{false};
  std::jthread first([&] {
    flights.get(1, [&] {
      while (!second_done) std::this_thread::yield();
      return 1;
    });
  });
  BOOST_TEST(flights.get(2, [] { return 2; }) == 2);
  second_done = true;
}

BOOST_AUTO_TEST_CASE(a_child_computes_what_a_thread_of_its_parent_was_computing, *boost::unit_test::timeout(60)) {
  SingleFlight<int, int> flights;
  BOOST_TEST(flights.get(1, [] { return 1; }) == 1);
  std::atomic<bool> computing{false};
  std::atomic<bool> over{false};
  std::jthread first([&] {
    flights.get(2, [&] {
      computing = true;
      while (!over) std::this_thread::yield();
      return 2;
    });
  });
  while (!computing) std::this_thread::yield();
  const int status = test::run_in_process([&] {
    ::alarm(20);
    return 10 * flights.get(1, [] { return 7; }) + flights.get(2, [] { return 3; });
  });
  BOOST_TEST(status == 13);
  over = true;
  first.join();
  BOOST_TEST(flights.get(2, [] { return 5; }) == 2);
}

BOOST_AUTO_TEST_CASE(a_mutex_is_free_in_a_child, *boost::unit_test::timeout(60)) {
  ForkMutex mutex;
  int sections = 0;
  std::atomic<bool> over{false};
  std::vector<std::jthread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (!over) {
        const std::lock_guard lock(mutex);
        ++sections;
        for (int spin = 0; spin < 1000; ++spin) std::atomic_signal_fence(std::memory_order_seq_cst);
        ++sections;
      }
    });
  }
  for (int i = 0; i < 30; ++i) {
    const int status = test::run_in_process([&] {
      ::alarm(20);
      const std::lock_guard lock(mutex);
      const ForkMutex another;  // a child makes and destroys its own
      return sections % 2;
    });
    BOOST_TEST(status == 0);
  }
  over = true;
}

BOOST_AUTO_TEST_SUITE_END()
