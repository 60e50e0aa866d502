// Comm: what arrives on every rank over threads and over a stand-in for NCCL, what NCCL is called with, and what is
// refused.
#include "ingot/runtime/dist/comm.h"

#include <boost/test/unit_test.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ingot/runtime/context/dry_run.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/cpu/cpu_device.h"
#include "ingot/runtime/cuda/graph.h"
#include "ingot/runtime/dist/local_group.h"
#include "support/expect_error.h"
#include "support/fake_device.h"
#include "support/fake_nccl.h"
#include "support/ranks.h"

BOOST_AUTO_TEST_SUITE(test_comm)

using namespace ingot;
using test::check_contains;
using test::error_of;
using test::on_ranks;
using test::Rank;
using test::run_ranks;
using test::Wire;

namespace {

constexpr std::array kWires{Wire::threads, Wire::nccl};
constexpr unsigned char kPoison = 0xa5;

using Bytes = std::vector<unsigned char>;

// Different on every rank and in every tensor.
Bytes pattern(int rank, int tensor, std::size_t count) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<unsigned char>(31 * rank + 101 * tensor + 7 * static_cast<int>(i));
  }
  return bytes;
}

Bytes joined(int ranks, int tensor, std::size_t count) {
  Bytes all;
  for (int rank = 0; rank < ranks; ++rank) {
    const Bytes part = pattern(rank, tensor, count);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

// Of one dtype's own bits, by shifts: small whole numbers are exact in each.
Bytes encoded(Dtype dtype, std::span<const float> values) {
  Bytes bytes;
  for (const float value : values) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const auto half = std::bit_cast<std::uint32_t>(value * 0x1p-112F) >> 13U & 0x7fffU;
    const std::uint32_t bits = dtype == Dtype::f32    ? word
                               : dtype == Dtype::bf16 ? word >> 16U
                                                      : (word >> 16U & 0x8000U) | half;
    for (int i = 0; i < size_of(dtype); ++i) bytes.push_back(static_cast<unsigned char>(bits >> (8 * i)));
  }
  return bytes;
}

// What rank r adds at i.
float term(int rank, std::size_t i) { return static_cast<float>((rank + 1) * 3 - static_cast<int>(i % 7)); }

std::vector<float> terms(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = term(rank, i);
  return values;
}

std::vector<float> sums(int ranks, std::size_t count) {
  std::vector<float> values(count);
  for (int rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < count; ++i) values[i] += term(rank, i);
  }
  return values;
}

Bytes part_of(const Bytes& all, int rank, int ranks) {
  const std::size_t size = all.size() / static_cast<std::size_t>(ranks);
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(size) * rank;
  return {begin, begin + static_cast<std::ptrdiff_t>(size)};
}

// An own result of each rank, compared when all threads have ended.
struct Results {
  explicit Results(int ranks) : of(static_cast<std::size_t>(ranks)) {}
  Bytes& at(const Rank& rank) { return of[static_cast<std::size_t>(rank.number)]; }
  std::vector<Bytes> of;
};

}  // namespace

// ---- what arrives ---------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(codes_and_scale_inv_are_gathered_together) {
  for (const Wire wire : kWires) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (const std::int64_t rows : {0, 1, 5}) {
        constexpr std::int64_t kCols = 33;
        Results codes(ranks);
        Results scale_inv(ranks);
        run_ranks(wire, ranks, [&](Rank& rank) {
          Bytes mine = pattern(rank.number, 0, static_cast<std::size_t>(rows * kCols));
          Bytes own_scale_inv = pattern(rank.number, 1, static_cast<std::size_t>(rows * 4));
          codes.at(rank).assign(mine.size() * static_cast<std::size_t>(ranks), kPoison);
          scale_inv.at(rank).assign(own_scale_inv.size() * static_cast<std::size_t>(ranks), kPoison);
          const Device device = rank.device.device();
          const std::array pairs{
              GatherTensors{matrix(mine.data(), Dtype::e4m3fn, rows, kCols, device),
                            matrix(codes.at(rank).data(), Dtype::e4m3fn, rows * ranks, kCols, device)},
              GatherTensors{vector(own_scale_inv.data(), Dtype::f32, rows, device),
                            vector(scale_inv.at(rank).data(), Dtype::f32, rows * ranks, device)}};
          rank.comm.all_gather(pairs, rank.stream);
          if (rank.comm.rank() != rank.number || rank.comm.size() != ranks) throw std::logic_error("who am I?");
        });
        for (int rank = 0; rank < ranks; ++rank) {
          BOOST_TEST(codes.of[static_cast<std::size_t>(rank)] ==
                     joined(ranks, 0, static_cast<std::size_t>(rows * kCols)));
          BOOST_TEST(scale_inv.of[static_cast<std::size_t>(rank)] ==
                     joined(ranks, 1, static_cast<std::size_t>(rows * 4)));
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_rank_gathers_into_the_memory_that_its_own_part_is_in) {
  for (const Wire wire : kWires) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      Results all(ranks);
      run_ranks(wire, ranks, [&](Rank& rank) {
        Bytes& into = all.at(rank);
        into.assign(static_cast<std::size_t>(ranks) * 12, kPoison);
        const Bytes own = pattern(rank.number, 2, 12);
        unsigned char* const place = into.data() + 12 * rank.number;
        std::memcpy(place, own.data(), own.size());
        const Device device = rank.device.device();
        const std::array pair{GatherTensors{vector(place, Dtype::f32, 3, device),
                                            vector(into.data(), Dtype::f32, std::int64_t{3} * ranks, device)}};
        rank.comm.all_gather(pair, rank.stream);
      });
      for (const Bytes& each : all.of) BOOST_TEST(each == joined(ranks, 2, 12));
    }
  }
}

BOOST_AUTO_TEST_CASE(rows_are_divided_as_torch_chunk_divides_them) {
  const auto counts = [](std::int64_t count, int ranks) {
    std::vector<std::int64_t> all;
    std::int64_t next = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const Shard shard = shard_of(count, rank, ranks);
      BOOST_TEST(shard.begin == next);
      next += shard.count;
      all.push_back(shard.count);
      BOOST_TEST(shard.padded == shard_of(count, 0, ranks).count);
    }
    BOOST_TEST(next == count);
    return all;
  };
  using List = std::vector<std::int64_t>;
  BOOST_TEST(counts(12, 4) == (List{3, 3, 3, 3}));
  BOOST_TEST(counts(10, 4) == (List{3, 3, 3, 1}));
  BOOST_TEST(counts(5, 4) == (List{2, 2, 1, 0}));
  BOOST_TEST(counts(2, 4) == (List{1, 1, 0, 0}));
  BOOST_TEST(counts(0, 3) == (List{0, 0, 0}));
  BOOST_TEST(counts(7, 1) == (List{7}));
  check_contains(error_of([] { shard_of(3, 2, 2); }, ErrorCode::invalid_argument), {"shard: 2 of 2 of 3 rows"});
}

// The rows of a matrix come first, and what pads the last shards after them.
BOOST_AUTO_TEST_CASE(shards_of_different_sizes_are_whole_again) {
  constexpr std::int64_t kCols = 5;
  for (const Wire wire : kWires) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (const std::int64_t rows : {2, 10}) {
        const Bytes whole = pattern(0, 3, static_cast<std::size_t>(rows * kCols));
        Results all(ranks);
        run_ranks(wire, ranks, [&](Rank& rank) {
          const Shard shard = shard_of(rows, rank.number, ranks);
          Bytes mine(static_cast<std::size_t>(shard.padded * kCols), kPoison);
          std::memcpy(mine.data(), whole.data() + shard.begin * kCols, static_cast<std::size_t>(shard.count * kCols));
          all.at(rank).resize(mine.size() * static_cast<std::size_t>(ranks));
          const Device device = rank.device.device();
          const std::array pair{
              GatherTensors{matrix(mine.data(), Dtype::e5m2, shard.padded, kCols, device),
                            matrix(all.at(rank).data(), Dtype::e5m2, shard.padded * ranks, kCols, device)}};
          rank.comm.all_gather(pair, rank.stream);
        });
        for (Bytes& each : all.of) {
          each.resize(whole.size());
          BOOST_TEST(each == whole);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(sums_are_scattered) {
  for (const Wire wire : kWires) {
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
      for (int ranks = 1; ranks <= 4; ++ranks) {
        for (const std::int64_t rows : {0, 3}) {
          for (const bool in_place : {false, true}) {
            const auto count = static_cast<std::size_t>(rows * 5 * ranks);
            Results mine(ranks);
            run_ranks(wire, ranks, [&](Rank& rank) {
              Bytes all = encoded(dtype, terms(rank.number, count));
              Bytes part(all.size() / static_cast<std::size_t>(ranks), kPoison);
              unsigned char* const to =
                  in_place ? all.data() + part.size() * static_cast<std::size_t>(rank.number) : part.data();
              const Device device = rank.device.device();
              rank.comm.reduce_scatter(matrix(all.data(), dtype, rows * ranks, 5, device),
                                       matrix(to, dtype, rows, 5, device), rank.stream);
              mine.at(rank).assign(to, to + part.size());
            });
            const Bytes expected = encoded(dtype, sums(ranks, count));
            for (int rank = 0; rank < ranks; ++rank) {
              BOOST_TEST(mine.of[static_cast<std::size_t>(rank)] == part_of(expected, rank, ranks));
            }
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(sums_are_for_every_rank) {
  for (const Wire wire : kWires) {
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
      for (int ranks = 1; ranks <= 4; ++ranks) {
        for (const std::size_t count : {std::size_t{0}, std::size_t{11}}) {
          Results all(ranks);
          run_ranks(wire, ranks, [&](Rank& rank) {
            all.at(rank) = encoded(dtype, terms(rank.number, count));
            rank.comm.all_reduce_sum(
                vector(all.at(rank).data(), dtype, static_cast<std::int64_t>(count), rank.device.device()),
                rank.stream);
          });
          for (const Bytes& each : all.of) BOOST_TEST(each == encoded(dtype, sums(ranks, count)));
        }
      }
    }
  }
}

// 256 + 1 is 256 in bf16: two roundings would lose both ones. (-0) + (-0) is -0.
BOOST_AUTO_TEST_CASE(threads_round_a_sum_once) {
  Results all(3);
  run_ranks(Wire::threads, 3, [&](Rank& rank) {
    const std::array values{rank.number == 0 ? 256.0F : 1.0F, -0.0F};
    all.at(rank) = encoded(Dtype::bf16, values);
    rank.comm.all_reduce_sum(vector(all.at(rank).data(), Dtype::bf16, 2, rank.device.device()), rank.stream);
  });
  const std::array expected{258.0F, -0.0F};
  for (const Bytes& each : all.of) BOOST_TEST(each == encoded(Dtype::bf16, expected));
}

// 2^24 + 1 is 2^24 in f32, and 2^24 + 2 is exact: in the order of the ranks both ones would be lost. Five ranks: the
// fifth is added last.
BOOST_AUTO_TEST_CASE(threads_add_in_pairs) {
  for (const auto& [terms, sum] : {std::pair{std::vector{0x1p24F, 0.0F, 1.0F, 1.0F}, 0x1p24F + 2.0F},
                                   std::pair{std::vector{0x1p24F, 0.0F, 1.0F}, 0x1p24F},
                                   std::pair{std::vector{1.0F, 1.0F, 0.0F, 0.0F, 0x1p24F}, 0x1p24F + 2.0F},
                                   std::pair{std::vector{0x1p24F, 0.0F, 0.0F, 1.0F, 1.0F}, 0x1p24F}}) {
    std::vector<float> found = terms;
    run_ranks(Wire::threads, static_cast<int>(found.size()), [&](Rank& rank) {
      float* const own = &found[static_cast<std::size_t>(rank.number)];
      rank.comm.all_reduce_sum(vector(own, Dtype::f32, 1, rank.device.device()), rank.stream);
    });
    for (const float each : found) BOOST_TEST(each == sum);
  }
}

BOOST_AUTO_TEST_CASE(the_largest_maximum_is_for_every_rank_and_nan_is_kept) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> given{
      {0, 1, 3e38F, 5, 0x1p-149F, kInf}, {0, 2, kInf, kNan, 0, kNan}, {0, 1.5F, 1, 7, 0, 2}, {0, 0, 0, 0, 0, 0}};
  const auto bits = [](std::span<const float> values) {
    std::vector<std::uint32_t> words;
    for (const float each : values) words.push_back(std::bit_cast<std::uint32_t>(each));
    return words;
  };
  for (const Wire wire : kWires) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      std::vector<std::vector<float>> maxima(given.begin(), given.begin() + ranks);
      run_ranks(wire, ranks, [&](Rank& rank) {
        auto& own = maxima[static_cast<std::size_t>(rank.number)];
        rank.comm.all_reduce_max(vector(own.data(), Dtype::f32, 6, rank.device.device()), rank.stream);
      });
      std::vector<float> expected = given[0];
      if (ranks > 1) expected = {0, 2, kInf, kNan, 0x1p-149F, kNan};
      if (ranks > 2) expected[3] = kNan;
      for (const auto& each : maxima) BOOST_TEST(bits(each) == bits(expected), "of " << ranks << " ranks");
    }
  }
}

// ---- one rank -------------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(one_rank_needs_no_communicator) {
  const auto device = make_cpu_device();
  Stream stream(*device);
  Comm comm(*device);
  BOOST_TEST(comm.rank() == 0);
  BOOST_TEST(comm.size() == 1);
  std::array values{1.0F, 2.0F, 3.0F};
  std::array<float, 3> all{};
  const Tensor mine = vector(values.data(), Dtype::f32, 3, device->device());
  const Tensor to = vector(all.data(), Dtype::f32, 3, device->device());
  const std::array pair{GatherTensors{mine, to}};
  comm.all_gather(pair, stream);
  BOOST_TEST(all == values);
  all = {};
  comm.reduce_scatter(mine, to, stream);
  BOOST_TEST(all == values);
  comm.reduce_scatter(to, to, stream);
  comm.all_reduce_sum(to, stream);
  comm.all_reduce_max(to, stream);
  comm.handshake({}, stream);
  BOOST_TEST(all == values);
  check_contains(error_of(
                     [&] {
                       comm.all_gather(
                           std::array{GatherTensors{mine, vector(all.data(), Dtype::f32, 2, device->device())}},
                           stream);
                     },
                     ErrorCode::invalid_argument),
                 {"it must have 12 bytes, 12 for each of 1 rank,"});
}

// ---- what is refused before anything is enqueued
// ---------------------------------------------------------------------

namespace {

// One of two ranks, which reaches nobody.
struct Half {
  std::unique_ptr<DeviceApi> device = make_cpu_device();
  Stream stream{*device};
  LocalGroup group{2};
  Comm comm{*device, group, 1};
  std::array<float, 64> memory{};

  Tensor at(std::size_t first, Dtype dtype, std::int64_t rows, std::int64_t cols) {
    return matrix(memory.data() + first, dtype, rows, cols, device->device());
  }
  std::string gather(const Tensor& mine, const Tensor& all) {
    return error_of(
        [&] {
          comm.all_gather(std::array{GatherTensors{mine, all}}, stream);
        },
        ErrorCode::invalid_argument);
  }
  std::string scatter(const Tensor& all, const Tensor& mine) {
    return error_of([&] { comm.reduce_scatter(all, mine, stream); }, ErrorCode::invalid_argument);
  }
};

}  // namespace

BOOST_FIXTURE_TEST_CASE(tensors_that_do_not_fit_are_refused, Half) {
  BOOST_TEST(
      gather(at(0, Dtype::f32, 2, 3), at(16, Dtype::f32, 3, 3)) ==
      "all_gather all: is f32[3, 3] on cpu; it must have 48 bytes, 24 for each of 2 ranks, as all_gather mine is "
      "f32[2, 3] on cpu");
  BOOST_TEST(gather(at(0, Dtype::f32, 2, 3), at(16, Dtype::e4m3fn, 4, 12)) ==
             "all_gather all: is e4m3fn[4, 12] on cpu; all_gather mine is f32[2, 3] on cpu: both must have one dtype");
  Tensor strided = at(16, Dtype::f32, 4, 3);
  strided.row_stride = 4;
  BOOST_TEST(
      gather(at(0, Dtype::f32, 2, 3), strided) ==
      "all_gather all: is f32[4, 3] on cpu, row stride 4; it must be contiguous (a row stride of its columns), as "
      "it travels as one piece of memory");
  // Rank 1's own place begins at 6.
  BOOST_TEST(gather(at(3, Dtype::f32, 2, 3), at(0, Dtype::f32, 4, 3)) ==
             "all_gather mine: is f32[2, 3] on cpu; its memory overlaps that of all_gather all; it must be this rank's "
             "place there, or elsewhere");
  check_contains(gather(Tensor{}, at(0, Dtype::f32, 4, 3)),
                 {"all_gather all: is f32[4, 3] on cpu; it must have 0 bytes"});
  BOOST_TEST(scatter(at(0, Dtype::f32, 5, 1), at(16, Dtype::f32, 2, 1)) ==
             "reduce_scatter all: is f32[5, 1] on cpu; it must have 16 bytes, 8 for each of 2 ranks, as reduce_scatter "
             "mine is f32[2, 1] on cpu");
  Tensor elsewhere = at(0, Dtype::f32, 1, 4);
  elsewhere.device = {DeviceType::cuda, 1};
  check_contains(error_of([&] { comm.all_reduce_sum(elsewhere, stream); }, ErrorCode::invalid_argument),
                 {"all_reduce_sum: is f32[1, 4] on cuda:1"});
}

BOOST_FIXTURE_TEST_CASE(no_sum_is_in_fp8, Half) {
  const std::string why =
      "; sums over ranks are of f32, bf16 or f16: one in FP8 would round and saturate at each rank; cast the sum "
      "instead";
  BOOST_TEST(scatter(at(0, Dtype::e4m3fn, 4, 4), at(16, Dtype::e4m3fn, 2, 4)) ==
             "reduce_scatter all: is e4m3fn[4, 4] on cpu" + why);
  BOOST_TEST(error_of([&] { comm.all_reduce_sum(at(0, Dtype::e5m2, 1, 4), stream); }, ErrorCode::invalid_argument) ==
             "all_reduce_sum: is e5m2[1, 4] on cpu" + why);
  BOOST_TEST(error_of([&] { comm.all_reduce_max(at(0, Dtype::bf16, 1, 4), stream); }, ErrorCode::invalid_argument) ==
             "all_reduce_max: is bf16[1, 4] on cpu; maxima are f32");
}

BOOST_FIXTURE_TEST_CASE(streams_of_other_contexts_are_refused, Half) {
  const auto other = make_cpu_device();
  Stream of_other(*other);
  check_contains(error_of([&] { comm.all_reduce_max(at(0, Dtype::f32, 1, 4), of_other); }, ErrorCode::invalid_argument),
                 {"belongs to another Context's backend"});
}

// ---- threads --------------------------------------------------------------------------------------------------------

BOOST_FIXTURE_TEST_CASE(a_rank_has_one_comm, Half) {
  const auto join = [&](int rank) {
    return error_of([&] { const Comm again(*device, group, rank); }, ErrorCode::invalid_argument);
  };
  BOOST_TEST(join(1) == "rank: 1 of the group has had its Comm; each rank has one, for as long as it takes part");
  BOOST_TEST(join(2) == "rank: is 2, but the group's ranks are 0 to 1");
  BOOST_TEST(join(-1) == "rank: is -1, but the group's ranks are 0 to 1");
  BOOST_TEST(error_of([] { const LocalGroup none(0); }, ErrorCode::invalid_argument) ==
             "group: has 0 ranks, but must have one or more");
  test::FakeDevice gpu;
  BOOST_TEST(error_of([&] { const Comm comm_of_gpu(gpu, group, 0); }, ErrorCode::invalid_argument) ==
             "group: is of threads that share the host's memory, but this context is on cuda:2; give the Comm a "
             "communicator of NCCL, or make the Context on the CPU");
}

BOOST_AUTO_TEST_CASE(ranks_that_ask_for_different_things_all_throw) {
  const auto thrown = on_ranks(Wire::threads, 3, [](Rank& rank) {
    std::array<float, 8> memory{};
    const Device device = rank.device.device();
    if (rank.number != 2) return rank.comm.all_reduce_sum(vector(memory.data(), Dtype::f32, 4, device), rank.stream);
    rank.comm.all_reduce_sum(vector(memory.data(), Dtype::f32, 3, device), rank.stream);
  });
  for (const std::string& each : thrown) {
    BOOST_TEST(each ==
               "all_reduce_sum: rank 0 calls all_reduce_sum of 4 f32 a rank and rank 2 all_reduce_sum of 3 f32 a rank; "
               "every rank must make the same calls in the same order");
  }
  const auto others = on_ranks(Wire::threads, 2, [](Rank& rank) {
    std::array<float, 8> memory{};
    const Device device = rank.device.device();
    if (rank.number == 1) return rank.comm.all_reduce_max(vector(memory.data(), Dtype::f32, 4, device), rank.stream);
    const std::array pairs{
        GatherTensors{vector(memory.data(), Dtype::f32, 2, device), vector(memory.data() + 4, Dtype::f32, 4, device)},
        GatherTensors{vector(memory.data() + 2, Dtype::f32, 1, device),
                      vector(memory.data() + 2, Dtype::f32, 2, device)}};
    rank.comm.all_gather(pairs, rank.stream);
  });
  check_contains(others[0],
                 {"all_gather: rank 0 calls all_gather of 8 and 4 bytes a rank and rank 1 all_reduce_max of 4 f32"});
  check_contains(others[1], {"all_reduce_max: rank 0 calls all_gather of 8 and 4 bytes a rank and rank 1"});
}

BOOST_AUTO_TEST_CASE(nobody_waits_for_a_rank_that_has_ended) {
  const auto thrown = on_ranks(Wire::threads, 3, [](Rank& rank) {
    std::array<float, 4> memory{};
    if (rank.number == 1) throw std::runtime_error("rank 1 fails");
    rank.comm.all_reduce_sum(vector(memory.data(), Dtype::f32, 4, rank.device.device()), rank.stream);
  });
  BOOST_TEST(thrown[0] ==
             "all_reduce_sum: rank 1 has ended, and rank 0 waits for it in all_reduce_sum of 4 f32 a rank; every rank "
             "must make the same calls");
  BOOST_TEST(thrown[1] == "rank 1 fails");
  check_contains(thrown[2], {"rank 1 has ended, and rank 2 waits for it"});
}

BOOST_AUTO_TEST_CASE(a_capture_on_some_ranks_is_refused_on_all) {
  LocalGroup group(2);
  const auto thrown = test::on_threads(2, [&](int rank) {
    test::FakeDevice device({DeviceType::cpu, 0});
    device.is_capturing = rank == 1;
    Stream stream(device);
    Comm comm(device, group, rank);
    std::array<float, 4> memory{};
    comm.all_reduce_max(vector(memory.data(), Dtype::f32, 4, device.device()), stream);
  });
  for (const std::string& each : thrown) {
    BOOST_TEST(
        each ==
        "all_reduce_max: rank 1 is capturing a graph in its all_reduce_max and rank 0 is not; capture the step on "
        "every rank or on none");
  }
}

// ---- NCCL -----------------------------------------------------------------------------------------------------------

namespace {

// A rank of two whose calls are noted and move nothing.
struct Noted {
  Noted() { communicators.only_note(1); }

  test::FakeDevice device;
  Stream stream{device};
  test::FakeNccl communicators{2};
  Comm comm{device, test::fake_nccl(), communicators.at(1)};
  std::array<float, 64> memory{};

  Tensor at(std::size_t first, Dtype dtype, std::int64_t count) {
    return vector(memory.data() + first, dtype, count, device.device());
  }
  std::string calls() const { return communicators.calls(1); }
  std::string reduce() {
    return error_of([&] { comm.all_reduce_sum(at(0, Dtype::f32, 4), stream); }, ErrorCode::cuda_failed);
  }
};

}  // namespace

BOOST_FIXTURE_TEST_CASE(nccl_is_called_once_a_group, Noted) {
  const std::array pairs{GatherTensors{at(0, Dtype::e4m3fn, 20), at(8, Dtype::e4m3fn, 40)},
                         GatherTensors{Tensor{.device = device.device()}, Tensor{.device = device.device()}},
                         GatherTensors{at(32, Dtype::f32, 3), at(40, Dtype::f32, 6)}};
  comm.all_gather(pairs, stream);
  BOOST_TEST(calls() == "ncclAllGather 20 of 1; ncclAllGather 12 of 1; end; ");
  comm.reduce_scatter(at(0, Dtype::bf16, 8), at(16, Dtype::bf16, 4), stream);
  BOOST_TEST(calls() == "ncclReduceScatter 4 of 9; end; ");
  comm.all_reduce_sum(at(0, Dtype::f16, 8), stream);
  BOOST_TEST(calls() == "ncclAllReduce 8 of 6; end; ");
  comm.all_reduce_sum(at(0, Dtype::f32, 8), stream);
  BOOST_TEST(calls() == "ncclAllReduce 8 of 7; end; ");
  comm.all_reduce_max(at(0, Dtype::f32, 8), stream);  // their bits, as ncclUint32
  BOOST_TEST(calls() == "ncclAllReduce 8 of 3; end; ");
  comm.all_reduce_max(at(0, Dtype::f32, 0), stream);
  comm.all_gather({}, stream);
  BOOST_TEST(calls() == "");
}

BOOST_FIXTURE_TEST_CASE(the_callers_stream_is_given, Noted) {
  Stream whole(device, nullptr);
  comm.all_reduce_sum(at(0, Dtype::f32, 8), whole);
  BOOST_TEST(calls() == "ncclAllReduce 8 of 7 on the default stream; end; ");
}

BOOST_FIXTURE_TEST_CASE(what_nccl_reports_is_an_error, Noted) {
  const std::string path = test::fake_nccl_file();
  communicators.fail(1, "ncclAllReduce", 1);
  BOOST_TEST(reduce() ==
             "ncclAllReduce: unhandled cuda error: the cable is cut (" + path + "); NCCL_DEBUG=WARN says more");
  BOOST_TEST(calls() == "ncclAllReduce 4 of 7; end; ");  // the group is closed
  communicators.fail(1, "ncclGroupEnd", 6);
  check_contains(reduce(), {"ncclAllReduce: remote process exited: the cable is cut"});
  communicators.fail(1, "ncclAllGather", 1);
  const std::array pairs{GatherTensors{at(0, Dtype::e4m3fn, 20), at(8, Dtype::e4m3fn, 40)},
                         GatherTensors{at(32, Dtype::f32, 3), at(40, Dtype::f32, 6)}};
  static_cast<void>(calls());
  check_contains(error_of([&] { comm.all_gather(pairs, stream); }, ErrorCode::cuda_failed),
                 {"ncclAllGather: unhandled"});
  BOOST_TEST(calls() == "ncclAllGather 20 of 1; end; ");
  communicators.fail(1, "", 0);
  comm.all_reduce_sum(at(0, Dtype::f32, 4), stream);
}

BOOST_FIXTURE_TEST_CASE(a_communicator_that_was_aborted_is_refused, Noted) {
  communicators.set_async_error(1, 6);
  const std::string why = "communicator: has failed or was aborted: remote process exited: the cable is cut (" +
                          test::fake_nccl_file() + "); make a new one on every rank";
  BOOST_TEST(reduce() == why);
  BOOST_TEST(calls() == "");
  BOOST_TEST(error_of([&] { const Comm again(device, test::fake_nccl(), communicators.at(1)); },
                      ErrorCode::cuda_failed) == why);
}

// As NCCL does it for communicators that do not block.
BOOST_FIXTURE_TEST_CASE(a_call_that_is_in_progress_is_waited_for, Noted) {
  communicators.set_in_progress(1, 4);
  comm.all_reduce_sum(at(0, Dtype::f32, 4), stream);
  BOOST_TEST(calls() == "ncclAllReduce 4 of 7; end; ");
  communicators.set_in_progress(1, 0);
  comm.all_reduce_sum(at(0, Dtype::f32, 4), stream);
}

BOOST_AUTO_TEST_CASE(a_communicator_of_another_device_is_refused) {
  const test::FakeNccl communicators(2, 1);
  test::FakeDevice device;
  const auto made = [&](DeviceApi& of, ncclComm* communicator, ErrorCode code) {
    return error_of([&] { const Comm comm(of, test::fake_nccl(), communicator); }, code);
  };
  BOOST_TEST(made(device, communicators.at(0), ErrorCode::invalid_argument) ==
             "communicator: is of cuda:1, but this context is on cuda:2; make the Context on the communicator's GPU");
  const auto cpu = make_cpu_device();
  BOOST_TEST(made(*cpu, communicators.at(0), ErrorCode::invalid_argument) ==
             "communicator: is of cuda:1, but this context is on cpu; make the Context on the communicator's GPU");
  BOOST_TEST(
      made(device, nullptr, ErrorCode::invalid_argument) ==
      "communicator: is null; make one with NCCL first (PyTorch makes a process group's at its first collective)");
  test::FakeDevice first({DeviceType::cuda, 1});
  communicators.fail(0, "ncclCommCount", 1);
  check_contains(made(first, communicators.at(0), ErrorCode::cuda_failed), {"ncclCommCount: unhandled cuda error ("});
}

// On the CUDA backend itself, with a driver that does nothing: collectives are captured with the rest of a step.
BOOST_AUTO_TEST_CASE(collectives_are_captured) {
  DryRun dry(gpu_named("h200"));
  DeviceApi& device = dry.backend();
  Stream stream(device);
  const test::FakeNccl communicators(2, device.device().index);
  communicators.only_note(0);
  Comm comm(device, test::fake_nccl(), communicators.at(0));
  Comm alone(device);
  const OwnedTensor all(device, Dtype::f32, 1, 8);
  const OwnedTensor mine(device, Dtype::f32, 1, 4);
  const OwnedTensor copied(device, Dtype::f32, 1, 4);
  Graph graph(stream, [&] {
    comm.reduce_scatter(all, mine, stream);
    comm.all_reduce_max(mine, stream);
    alone.all_gather(std::array{GatherTensors{mine, copied}}, stream);
    BOOST_TEST(error_of([&] { comm.handshake({}, stream); }, ErrorCode::invalid_argument) ==
               "handshake: waits for the stream, which is capturing a graph; call it once, before the first capture");
  });
  BOOST_TEST(communicators.calls(0) == "ncclReduceScatter 4 of 7; end; ncclAllReduce 4 of 3; end; ");
}

BOOST_AUTO_TEST_SUITE_END()
