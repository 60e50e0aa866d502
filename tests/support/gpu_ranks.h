// A rank for each GPU of the machine, as a thread of this process, over NCCL itself.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ingot/runtime/dist/comm.h"
#include "ingot/runtime/dist/nccl_library.h"
#include "support/gpu_test.h"
#include "support/ranks.h"

namespace ingot::test {

// All GPUs' communicators, made by NCCL in one call.
struct Machine {
  std::string problem;
  std::unique_ptr<NcclLibrary> nccl = NcclLibrary::open("", cuda_options().cuda_root.string(), problem);
  Library made_by;
  std::vector<ncclComm*> communicators;

  Machine() {
    if (nccl == nullptr) return;
    made_by = Library::open(nccl->path(), problem);
    std::string ignored;
    const int gpus = Driver::open(ignored)->device_count();
    communicators.resize(static_cast<std::size_t>(gpus));
    const auto make = reinterpret_cast<int (*)(ncclComm**, int, const int*)>(made_by.symbol("ncclCommInitAll"));
    BOOST_REQUIRE(make != nullptr);
    BOOST_REQUIRE(make(communicators.data(), gpus, nullptr) == 0);
  }
  ~Machine() {
    const auto destroy = reinterpret_cast<int (*)(ncclComm*)>(made_by.symbol("ncclCommDestroy"));
    for (ncclComm* each : communicators) static_cast<void>(destroy(each));
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  int ranks() const { return static_cast<int>(communicators.size()); }
};

}  // namespace ingot::test
