// KernelTable: the lookup of loaded kernels, which is lock-free for readers while it grows.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <thread>
#include <variant>
#include <vector>

#include "ingot/runtime/jit/kernel_cache.h"

BOOST_AUTO_TEST_SUITE(test_kernel_table)

using namespace ingot;

namespace {

constexpr Pass kPasses[] = {Pass::first, Pass::main};

}  // namespace

BOOST_AUTO_TEST_CASE(finds_what_was_inserted) {
  const std::vector<KernelSpec> specs = all_valid_specs();
  std::vector<int> values(2 * specs.size());
  KernelTable<int> table;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    for (std::size_t pass = 0; pass < 2; ++pass) {
      BOOST_TEST(table.find(specs[i], kPasses[pass]) == nullptr);
      BOOST_TEST(table.insert(specs[i], kPasses[pass], &values[2 * i + pass]) == &values[2 * i + pass]);
    }
  }
  BOOST_TEST(table.size() == values.size());
  BOOST_TEST(values.size() > 500U);  // so that it has grown
  for (std::size_t i = 0; i < specs.size(); ++i) {
    for (std::size_t pass = 0; pass < 2; ++pass) {
      BOOST_TEST(table.find(specs[i], kPasses[pass]) == &values[2 * i + pass], print(specs[i]));
    }
  }
}

BOOST_AUTO_TEST_CASE(first_of_a_key_stays) {
  KernelTable<int> table;
  int a = 0;
  int b = 0;
  BOOST_TEST(table.insert(CastSpec{}, Pass::main, &a) == &a);
  BOOST_TEST(table.insert(CastSpec{}, Pass::main, &b) == &a);
  BOOST_TEST(table.find(CastSpec{}, Pass::main) == &a);
  BOOST_TEST(table.find(CastSpec{}, Pass::first) == nullptr);
  BOOST_TEST(table.size() == 1U);
}

// A lookup takes a KernelSpec or one of its alternatives, and finds the same value.
BOOST_AUTO_TEST_CASE(an_alternative_finds_what_the_variant_does) {
  const std::vector<KernelSpec> specs = all_valid_specs();
  std::vector<int> values(specs.size());
  KernelTable<int> table;
  for (std::size_t i = 0; i < specs.size(); ++i) table.insert(specs[i], Pass::main, &values[i]);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const int* const found = std::visit([&](const auto& spec) { return table.find(spec, Pass::main); }, specs[i]);
    BOOST_TEST(found == &values[i], print(specs[i]));
  }
}

// Readers race with growth. They must find only right values, and a value once found never disappears.
BOOST_AUTO_TEST_CASE(many_threads) {
  const std::vector<KernelSpec> specs = all_valid_specs();
  std::vector<int> values(specs.size());
  KernelTable<int> table;
  std::atomic<std::size_t> inserted{0};
  std::atomic<int> wrong{0};
  std::atomic<int> lost{0};
  {
    std::vector<std::jthread> threads;
    for (int writer = 0; writer < 2; ++writer) {
      threads.emplace_back([&, writer] {
        for (std::size_t i = 0; i < specs.size(); ++i) {
          if (table.insert(specs[i], Pass::main, &values[i]) != &values[i]) ++wrong;
          if (writer == 0) inserted.store(i + 1, std::memory_order_release);
        }
      });
    }
    for (unsigned reader = 0; reader < 4; ++reader) {
      threads.emplace_back([&, reader] {
        for (std::size_t known = 0; known < specs.size();) {
          known = inserted.load(std::memory_order_acquire);
          for (std::size_t i = reader % 7; i < specs.size(); i += 7) {
            const int* value = table.find(specs[i], Pass::main);
            if (value != nullptr && value != &values[i]) ++wrong;
            if (value == nullptr && i < known) ++lost;
          }
        }
      });
    }
  }
  BOOST_TEST(wrong == 0);
  BOOST_TEST(lost == 0);
  BOOST_TEST(table.size() == specs.size());
}

// Prints the time of a hit, with a bound that only a lock, an allocation or a string would exceed.
BOOST_AUTO_TEST_CASE(hit_costs_nanoseconds) {
  const std::vector<KernelSpec> specs = all_valid_specs();
  std::vector<int> values(specs.size());
  KernelTable<int> table;
  for (std::size_t i = 0; i < specs.size(); ++i) table.insert(specs[i], Pass::main, &values[i]);

  // Takes the best of many short rounds: on a busy machine, one time slice is enough for a fair one.
  const auto nanoseconds = [&](std::size_t distinct) {
    constexpr int kRounds = 50;
    constexpr std::size_t kFinds = 20'000;
    double best = std::numeric_limits<double>::infinity();
    for (int round = 0; round < kRounds; ++round) {
      std::size_t found = 0;
      const auto start = std::chrono::steady_clock::now();
      for (std::size_t i = 0, at = 0; i < kFinds; ++i, at = at + 1 == distinct ? 0 : at + 1) {
        found += table.find(specs[at], Pass::main) != nullptr ? 1U : 0U;
      }
      const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
      BOOST_TEST(found == kFinds);
      best = std::min(best, took.count() / static_cast<double>(kFinds));
    }
    return best;
  };
  const double one = nanoseconds(1);
  const double all = nanoseconds(specs.size());
  BOOST_TEST_MESSAGE("hit: " << one << " ns for one spec, " << all << " ns over " << specs.size());
  BOOST_TEST(one < 1000.0);
  BOOST_TEST(all < 1000.0);
}

BOOST_AUTO_TEST_SUITE_END()
