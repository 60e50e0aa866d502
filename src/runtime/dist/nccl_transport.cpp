// Collectives on the program's NCCL communicator.
#include <fmt/format.h>

#include <functional>
#include <string>
#include <thread>

#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/dist/nccl_library.h"
#include "ingot/runtime/dist/transport.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

// Of nccl.h's enumerations.
constexpr int kSuccess = 0;
constexpr int kInProgress = 7;
constexpr int kUint8 = 1;
constexpr int kUint32 = 3;
constexpr int kSum = 0;
constexpr int kMax = 2;

int nccl_dtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::f16: return 6;
    case Dtype::f32: return 7;
    case Dtype::bf16: return 9;
    default: break;
  }
  throw Error(ErrorCode::invalid_argument, std::string(name(dtype)), "nccl_dtype() lacks this dtype");
}

struct NcclReduction {
  int dtype;
  int operation;
};

// The largest f32 without a sign is that of the integers with their bits, for which NaN is larger than Inf; NCCL's
// largest float forgets NaN.
NcclReduction nccl_reduction(const ReducedPiece& piece) {
  if (piece.reduction == Reduction::largest) return {.dtype = kUint32, .operation = kMax};
  return {.dtype = nccl_dtype(piece.dtype), .operation = kSum};
}

class NcclTransport final : public Transport {
 public:
  NcclTransport(const DeviceApi& device_api, const NcclLibrary& nccl, ncclComm* communicator);

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_gather(std::span<const GatherPiece> pieces, Stream& stream) override {
    enqueue("ncclAllGather", stream, [&] {
      int result = kSuccess;
      for (const GatherPiece& each : pieces) {
        if (is_refused(result)) break;
        result = api().all_gather(each.from, each.to, each.bytes, kUint8, communicator_, stream.handle());
      }
      return result;
    });
  }

  void reduce_scatter(const ReducedPiece& piece, Stream& stream) override {
    const NcclReduction how = nccl_reduction(piece);
    enqueue("ncclReduceScatter", stream, [&] {
      return api().reduce_scatter(piece.from, piece.to, piece.count, how.dtype, how.operation, communicator_,
                                  stream.handle());
    });
  }

  void all_reduce(const ReducedPiece& piece, Stream& stream) override {
    const NcclReduction how = nccl_reduction(piece);
    enqueue("ncclAllReduce", stream, [&] {
      return api().all_reduce(piece.from, piece.to, piece.count, how.dtype, how.operation, communicator_,
                              stream.handle());
    });
  }

 private:
  const NcclFunctions& api() const { return nccl_->functions(); }
  static bool is_refused(int result) { return result != kSuccess && result != kInProgress; }
  std::string text_of(int result) const;
  void check(int result, const char* call) const;
  int state() const;
  void check_alive() const;

  template <class Calls>
  void enqueue(const char* name, Stream& stream, const Calls& calls);

  const DeviceApi* device_api_;
  const NcclLibrary* nccl_;
  ncclComm* communicator_;
  int rank_ = 0;
  int size_ = 0;
};

NcclTransport::NcclTransport(const DeviceApi& device_api, const NcclLibrary& nccl, ncclComm* communicator)
    : device_api_(&device_api), nccl_(&nccl), communicator_(communicator) {
  const Device ours = device_api.device();
  if (communicator == nullptr) {
    throw Error(ErrorCode::invalid_argument, "communicator",
                "is null; make one with NCCL first (PyTorch makes a process group's at its first collective)");
  }
  check_alive();
  Device theirs{DeviceType::cuda, 0};
  check(api().comm_cu_device(communicator, &theirs.index), "ncclCommCuDevice");
  if (theirs != ours) {
    throw Error(ErrorCode::invalid_argument, "communicator",
                fmt::format("is of {}, but this context is on {}; make the Context on the communicator's GPU",
                            print(theirs), print(ours)));
  }
  check(api().comm_count(communicator, &size_), "ncclCommCount");
  check(api().comm_user_rank(communicator, &rank_), "ncclCommUserRank");
}

// "unhandled cuda error: Call to ibv_create_qp failed (/usr/lib/libnccl.so.2)"
std::string NcclTransport::text_of(int result) const {
  const char* const last = api().get_last_error(communicator_);
  const std::string detail = last == nullptr || *last == '\0' ? "" : fmt::format(": {}", last);
  return fmt::format("{}{} ({})", api().get_error_string(result), detail, nccl_->path());
}

void NcclTransport::check(int result, const char* call) const {
  if (!is_refused(result)) return;
  throw Error(ErrorCode::cuda_failed, call, text_of(result) + "; NCCL_DEBUG=WARN says more");
}

int NcclTransport::state() const {
  int result = kSuccess;
  check(api().comm_get_async_error(communicator_, &result), "ncclCommGetAsyncError");
  return result;
}

void NcclTransport::check_alive() const {
  const int result = state();
  if (!is_refused(result)) return;
  throw Error(ErrorCode::cuda_failed, "communicator",
              fmt::format("has failed or was aborted: {}; make a new one on every rank", text_of(result)));
}

// A call on a communicator that does not block may return before it has enqueued its work.
template <class Calls>
void NcclTransport::enqueue(const char* name, Stream& stream, const Calls& calls) {
  check_alive();
  const auto in_group = [&] {
    check(api().group_start(), "ncclGroupStart");
    const int called = calls();
    int ended = api().group_end();
    check(called, name);
    check(ended, name);
    while (ended == kInProgress) {
      std::this_thread::yield();
      ended = state();
    }
    check(ended, name);
  };
  device_api_->in_context(stream, std::ref(in_group));
}

}  // namespace

std::unique_ptr<Transport> make_nccl_transport(const DeviceApi& device_api, const NcclLibrary& nccl,
                                               ncclComm* communicator) {
  return std::make_unique<NcclTransport>(device_api, nccl, communicator);
}

}  // namespace ingot
