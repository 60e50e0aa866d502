// SingleFlight: threads that ask for the same key at once compute its value only once. An error that would
// only repeat is remembered; after any other failure the next caller tries again.
#include <boost/test/unit_test.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ingot/runtime/util/single_flight.h"

using namespace ingot;
using namespace std::chrono_literals;

namespace {

std::string error_of(SingleFlight<int, int>& flights, int key, const std::function<int()>& compute) {
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
