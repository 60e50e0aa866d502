#include "support/ranks.h"
#include "support/function_ref.h"

#include <boost/test/unit_test.hpp>

#include <exception>
#include <thread>

#include "ingot/runtime/cpu/cpu_device.h"
#include "ingot/runtime/dist/local_group.h"
#include "support/fake_device.h"
#include "support/fake_nccl.h"

namespace ingot::test {

std::vector<std::string> on_threads(int n, test::FunctionRef<void(int)> work) {
  std::vector<std::string> thrown(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&work, &message = thrown[static_cast<std::size_t>(rank)], rank] {
      try {
        work(rank);
      } catch (const std::exception& error) {
        message = error.what();
      }
    });
  }
  for (std::thread& each : threads) each.join();
  return thrown;
}

std::vector<std::string> on_ranks(Wire wire, int n, test::FunctionRef<void(Rank&)> work) {
  if (wire == Wire::threads) {
    LocalGroup group(n);
    return on_threads(n, [&](int number) {
      const auto device = make_cpu_device();
      Stream stream(*device);
      Comm comm(*device, group, number);
      Rank rank{number, *device, stream, comm};
      work(rank);
    });
  }
  const FakeNccl communicators(n);
  const NcclLibrary& nccl = fake_nccl();
  return on_threads(n, [&](int number) {
    FakeDevice device;
    Stream stream(device);
    Comm comm(device, nccl, communicators.at(number));
    Rank rank{number, device, stream, comm};
    work(rank);
  });
}

void run_ranks(Wire wire, int n, test::FunctionRef<void(Rank&)> work) {
  const std::vector<std::string> thrown = on_ranks(wire, n, work);
  for (std::size_t rank = 0; rank < thrown.size(); ++rank) {
    BOOST_TEST(thrown[rank].empty(), "rank " << rank << " threw: " << thrown[rank]);
  }
}

}  // namespace ingot::test
