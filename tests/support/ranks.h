// Ranks as threads, each with a device, a stream and a Comm: over a LocalGroup, or over the stand-in for NCCL.
#pragma once

#include <string>
#include <vector>

#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/dist/comm.h"
#include "support/function_ref.h"

namespace ingot::test {

enum class Wire { threads, nccl };

struct Rank {
  int number;
  DeviceApi& device;
  Stream& stream;
  Comm& comm;
};

// work(rank) on a thread for each of n ranks; returns the message of what each threw, empty where it threw nothing. It
// may not use Boost.Test, which is for one thread.
std::vector<std::string> on_threads(int n, test::FunctionRef<void(int)> work);
std::vector<std::string> on_ranks(Wire wire, int n, test::FunctionRef<void(Rank&)> work);

// The same for work that must not throw: fails the test if it does.
void run_ranks(Wire wire, int n, test::FunctionRef<void(Rank&)> work);

}  // namespace ingot::test
