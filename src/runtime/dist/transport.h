// How the ranks of a Comm reach each other: one implementation for NCCL and one for threads of a process. Comm has
// checked what a call is given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "ingot/codegen/types/dtype.h"
#include "ingot/runtime/core/device_api.h"

struct ncclComm;

namespace ingot {

class LocalGroup;
class NcclLibrary;

// Each rank's `bytes`, one after the other, into `to`.
struct GatherPiece {
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t bytes = 0;
};

// largest: of f32 values without a sign, compared by their bits, so that NaN is larger than all.
enum class Reduction : std::uint8_t { sum, largest };

struct ReducedPiece {
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t count = 0;  // of the elements that a rank is given
  Dtype dtype = Dtype::f32;
  Reduction reduction = Reduction::sum;
};

class Transport {
 public:
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual void all_gather(std::span<const GatherPiece> pieces, Stream& stream) = 0;
  virtual void reduce_scatter(const ReducedPiece& piece, Stream& stream) = 0;
  virtual void all_reduce(const ReducedPiece& piece, Stream& stream) = 0;

 protected:
  Transport() = default;
};

// Throw Error{invalid_argument, cuda_failed}: see Comm's constructors.
std::unique_ptr<Transport> make_nccl_transport(const DeviceApi& device_api, const NcclLibrary& nccl,
                                               ncclComm* communicator);
std::unique_ptr<Transport> make_local_transport(const DeviceApi& device_api, LocalGroup& group, int rank);

}  // namespace ingot
