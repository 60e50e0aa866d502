// What ranks do together: collectives on tensors, each enqueued on the rank's stream. A Comm borrows what connects the
// ranks and owns nothing of it. docs/distributed.md says what crosses the wire.
//
//   Comm comm(context.device_api(), *nccl, communicator);   // ncclComm_t of the program, on the context's GPU
//   comm.handshake(layers, stream);                          // once: have all ranks built the same model?
//   comm.all_gather(std::array{GatherTensors{codes, all_codes}, GatherTensors{scale_inv, all_scale_inv}}, stream);
//
// Codes travel as bytes and are never summed. Every rank calls the same collectives in the same order with the same
// sizes, and captures a step into a graph on all ranks or on none: NCCL cannot see that one does not, and waits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ingot/api.h"
#include "ingot/runtime/core/device_api.h"
#include "ingot/runtime/core/tensor.h"

struct ncclComm;  // ncclComm_t is a pointer to this

namespace ingot {

class LocalGroup;
class NcclLibrary;
class Transport;

// Both of one dtype and contiguous. `all` has as many bytes as the `mine` of all ranks together, which follow one
// another there by rank: a matrix whose rows are divided is whole again. `mine` may be its own place in `all`.
struct GatherTensors {
  Tensor mine;
  Tensor all;
};

// What ranks must have alike in a layer: its name, and in words what its kernels and memory depend on, such as
// "bf16[4096, 1024], rowwise".
struct SharedLayer {
  std::string name;
  std::string description;
};

// How `count` rows are divided: ceil(count / ranks) to each rank as long as there are any, as torch.chunk divides them.
// Collectives move `padded` rows of every rank, also where it has fewer; what follows its rows is any value.
struct Shard {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  std::int64_t padded = 0;
};
INGOT_API Shard shard_of(std::int64_t count, int rank, int ranks);

// For one thread at a time, as its communicator is. Move-only. The device must outlive it. Errors:
// Error{invalid_argument} on the rank that gave what does not fit, before anything is enqueued; Error{cuda_failed} for
// what NCCL reports, and for a communicator that has failed or was aborted.
class INGOT_API Comm {
 public:
  // One rank by itself: its collectives are copies. For programs that run on one device and on many.
  explicit Comm(DeviceApi& device_api);
  // The program's communicator (ncclComm_t) on this device, and the NCCL that made it; both must outlive this. Throws
  // Error{invalid_argument} if it is null or of another device.
  Comm(DeviceApi& device_api, const NcclLibrary& nccl, ncclComm* communicator);
  // One of the ranks that are threads of this process. Throws Error{invalid_argument} if there is no such rank or it
  // has had its Comm, and for a device other than the CPU.
  Comm(DeviceApi& device_api, LocalGroup& group, int rank);
  ~Comm();
  Comm(Comm&& other) noexcept;
  Comm& operator=(Comm&& other) noexcept;

  int rank() const;
  int size() const;
  Device device() const { return device_api_->device(); }

  // Every rank's tensors to every rank, all pairs in one launch.
  void all_gather(std::span<const GatherTensors> tensors, Stream& stream);
  // The sum over all ranks of `all`, of which each rank is given its part: `mine` has the bytes of `all` divided by the
  // number of ranks, and may be its own place in `all`. f32, bf16 or f16, contiguous. Threads add in f32, neighbouring
  // ranks in pairs, and round once; NCCL's order is its own, and it rounds to the dtype in between.
  void reduce_scatter(const Tensor& all, const Tensor& mine, Stream& stream);
  // The same sum for every rank, in place.
  void all_reduce_sum(const Tensor& tensor, Stream& stream);
  // The largest of each element over all ranks, in place: f32, maxima of |x|. NaN is kept, as in a cast's amax.
  void all_reduce_max(const Tensor& maxima, Stream& stream);

  // Have all ranks the same layers in the same order? One exchange of 24 bytes a rank; where they differ, two more, and
  // every rank throws the same Error{invalid_argument}, which names the first layer that differs and what two of the
  // ranks have. Waits for the stream, so it is not for captures. Call it once, before a model's first collective.
  void handshake(std::span<const SharedLayer> layers, Stream& stream);

 private:
  void exchange(const void* mine, void* all, std::size_t bytes, Stream& stream);

  DeviceApi* device_api_;
  std::unique_ptr<Transport> transport_;  // null where there is one rank
};

}  // namespace ingot
