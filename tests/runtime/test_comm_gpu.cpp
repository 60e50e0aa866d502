// Comm over NCCL itself, with a rank for each GPU of the machine as a thread of this process. Without NCCL, or with one
// GPU, only what that has is tested, and a line says so.
#include "ingot/runtime/dist/comm.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/cuda/graph.h"
#include "support/gpu_ranks.h"

BOOST_AUTO_TEST_SUITE(test_comm_gpu)

using namespace ingot;
using test::Machine;
using test::on_threads;

namespace {

// What a thread works with.
struct OneRank {
  OneRank(const Machine& machine, int rank)
      : context(options(rank)), comm(api, *machine.nccl, machine.communicators[static_cast<std::size_t>(rank)]) {}

  static ContextOptions options(int rank) {
    ContextOptions chosen = test::cuda_options();
    chosen.device_index = rank;
    return chosen;
  }

  template <class T>
  OwnedTensor sent(Dtype dtype, const std::vector<T>& values) {
    OwnedTensor tensor(api, dtype, 1, static_cast<std::int64_t>(values.size()));
    api.copy_from_host(tensor.view().data, values.data(), values.size() * sizeof(T), stream);
    return tensor;
  }
  template <class T>
  std::vector<T> received(const Tensor& tensor) {
    std::vector<T> values(static_cast<std::size_t>(tensor.cols));
    api.copy_to_host(values.data(), tensor.data, values.size() * sizeof(T), stream);
    return values;
  }

  Context context;
  DeviceApi& api = context.device_api();
  Stream stream{api};
  Comm comm;
};

constexpr std::int64_t kCount = 1000;

std::vector<std::uint8_t> codes_of(int rank) {
  std::vector<std::uint8_t> codes(kCount);
  for (std::size_t i = 0; i < codes.size(); ++i)
    codes[i] = static_cast<std::uint8_t>(31 * rank + 7 * static_cast<int>(i));
  return codes;
}

template <class T>
void append(std::vector<T>& all, const std::vector<T>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

void gather(OneRank& own, int ranks) {
  const int rank = own.comm.rank();
  const OwnedTensor codes = own.sent(Dtype::e4m3fn, codes_of(rank));
  const OwnedTensor scale_inv = own.sent(Dtype::f32, std::vector{static_cast<float>(rank), 0.5F});
  const OwnedTensor all_codes(own.api, Dtype::e4m3fn, 1, kCount * ranks);
  const OwnedTensor all_scale_inv(own.api, Dtype::f32, 1, std::int64_t{2} * ranks);
  const std::array pairs{GatherTensors{codes, all_codes}, GatherTensors{scale_inv, all_scale_inv}};
  const auto check = [&] {
    std::vector<std::uint8_t> expected;
    std::vector<float> factors;
    for (int each = 0; each < ranks; ++each) {
      append(expected, codes_of(each));
      append(factors, {static_cast<float>(each), 0.5F});
    }
    require(own.received<std::uint8_t>(all_codes) == expected, "codes");
    require(own.received<float>(all_scale_inv) == factors, "scale_inv");
    own.api.fill_zero(all_codes.view().data, static_cast<std::size_t>(kCount * ranks), own.stream);
    own.api.fill_zero(all_scale_inv.view().data, 8 * static_cast<std::size_t>(ranks), own.stream);
  };
  own.comm.all_gather(pairs, own.stream);
  check();
  Graph graph(own.stream, [&] { own.comm.all_gather(pairs, own.stream); });
  for (int replays = 0; replays < 2; ++replays) {
    graph.replay(own.stream);
    check();
  }
}

// Whole numbers, whose sums bf16 has exactly.
void reduce(OneRank& own, int ranks) {
  const int rank = own.comm.rank();
  std::vector<std::uint16_t> terms;
  for (int i = 0; i < 4 * ranks; ++i) {
    terms.push_back(
        static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(rank + i % 5 - 2)) >> 16U));
  }
  std::vector<std::uint16_t> sums;
  for (int i = 0; i < 4 * ranks; ++i) {
    const auto sum = static_cast<float>(ranks * (ranks - 1) / 2 + ranks * (i % 5 - 2));
    sums.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(sum) >> 16U));
  }
  const OwnedTensor all = own.sent(Dtype::bf16, terms);
  const OwnedTensor mine(own.api, Dtype::bf16, 1, 4);
  own.comm.reduce_scatter(all, mine, own.stream);
  require(own.received<std::uint16_t>(mine) == std::vector(sums.begin() + 4 * rank, sums.begin() + 4 * rank + 4),
          "reduce_scatter");
  own.comm.all_reduce_sum(all, own.stream);
  require(own.received<std::uint16_t>(all) == sums, "all_reduce_sum");
}

void reduce_maxima(OneRank& own, int ranks) {
  const bool is_first = own.comm.rank() == 0;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const OwnedTensor maxima =
      own.sent(Dtype::f32, std::vector{static_cast<float>(own.comm.rank()), is_first ? nan : 1.0F, 0.0F});
  own.comm.all_reduce_max(maxima, own.stream);
  const std::vector<float> largest = own.received<float>(maxima);
  require(largest[0] == static_cast<float>(ranks - 1) && std::isnan(largest[1]) && largest[2] == 0, "all_reduce_max");
}

}  // namespace

BOOST_AUTO_TEST_CASE(ranks_gather_and_reduce) {
  const Machine machine;
  if (machine.nccl == nullptr) {
    BOOST_TEST_MESSAGE("no NCCL: " << machine.problem);
    return;
  }
  BOOST_TEST_MESSAGE(machine.ranks() << " ranks, NCCL " << machine.nccl->version());
  const auto thrown = on_threads(machine.ranks(), [&](int rank) {
    OneRank own(machine, rank);
    require(own.comm.rank() == rank && own.comm.size() == machine.ranks(), "rank and size");
    gather(own, machine.ranks());
    reduce(own, machine.ranks());
    reduce_maxima(own, machine.ranks());
    own.comm.handshake({}, own.stream);
    const std::vector<SharedLayer> layers{{.name = "wq", .description = rank == 0 ? "rowwise" : "tensorwise"}};
    if (machine.ranks() == 1) return;
    try {
      own.comm.handshake(layers, own.stream);
    } catch (const Error& error) {
      require(error.message().find("\"wq\" (rowwise) on rank 0 and \"wq\" (tensorwise) on rank 1") != std::string::npos,
              error.what());
      return;
    }
    require(false, "the handshake saw no difference");
  });
  for (const std::string& each : thrown) BOOST_TEST(each == "");
}

BOOST_AUTO_TEST_CASE(a_communicator_of_another_gpu_is_refused) {
  const Machine machine;
  if (machine.ranks() < 2) return;
  Context context(OneRank::options(0));
  BOOST_CHECK_THROW(Comm(context.device_api(), *machine.nccl, machine.communicators[1]), Error);
}

BOOST_AUTO_TEST_SUITE_END()
