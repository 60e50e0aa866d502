#include "ingot/runtime/dist/comm.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "ingot/runtime/core/check_tensor.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/dist/transport.h"
#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

// One piece of memory: its bytes.
std::size_t check_piece(const char* what, const Tensor& tensor, Device device) {
  const Range range = check_matrix(what, tensor, tensor.dtype, device);
  if (tensor.rows > 1 && tensor.row_stride != tensor.cols) {
    refuse(what, tensor, "it must be contiguous (a row stride of its columns), as it travels as one piece of memory");
  }
  return range.bytes;
}

// The tensor of one rank and that of all.
struct Pair {
  const char* what_mine;
  const char* what_all;
  const Tensor& mine;
  const Tensor& all;
};

// Returns the bytes of `mine`.
std::size_t check_pair(const Pair& pair, int rank, int size, Device device) {
  const std::size_t mine = check_piece(pair.what_mine, pair.mine, device);
  const std::size_t all = check_piece(pair.what_all, pair.all, device);
  if (pair.mine.dtype != pair.all.dtype) {
    refuse(pair.what_all, pair.all,
           fmt::format("{} is {}: both must have one dtype", pair.what_mine, describe(pair.mine)));
  }
  if (all != mine * static_cast<std::size_t>(size)) {
    refuse(pair.what_all, pair.all,
           fmt::format("it must have {}, {} for each of {}, as {} is {}",
                       count_of(mine * static_cast<std::size_t>(size), "byte"), mine, count_of(size, "rank"),
                       pair.what_mine, describe(pair.mine)));
  }
  const Range of_mine{pair.what_mine, &pair.mine, mine};
  const Range of_all{pair.what_all, &pair.all, all};
  const bool in_place = of_mine.begin() == of_all.begin() + static_cast<std::size_t>(rank) * mine;
  if (!in_place && overlap(of_mine, of_all)) {
    refuse(
        pair.what_mine, pair.mine,
        fmt::format("its memory overlaps that of {}; it must be this rank's place there, or elsewhere", pair.what_all));
  }
  return mine;
}

void check_summed(const char* what, const Tensor& tensor) {
  if (is_high_precision(tensor.dtype)) return;
  refuse(what, tensor,
         "sums over ranks are of f32, bf16 or f16: one in FP8 would round and saturate at each rank; cast "
         "the sum instead");
}

std::size_t count_of(const Tensor& tensor) { return static_cast<std::size_t>(tensor.rows * tensor.cols); }

}  // namespace

Shard shard_of(std::int64_t count, int rank, int ranks) {
  if (count < 0 || rank < 0 || rank >= ranks) {
    throw Error(ErrorCode::invalid_argument, "shard",
                fmt::format("{} of {} of {} rows: there is no such part", rank, ranks, count));
  }
  const std::int64_t padded = (count + ranks - 1) / ranks;
  const std::int64_t begin = std::min(count, padded * rank);
  return {.begin = begin, .count = std::min(padded, count - begin), .padded = padded};
}

Comm::Comm(DeviceApi& device_api) : device_api_(&device_api) {}

Comm::Comm(DeviceApi& device_api, const NcclLibrary& nccl, ncclComm* communicator)
    : device_api_(&device_api), transport_(make_nccl_transport(device_api, nccl, communicator)) {}

Comm::Comm(DeviceApi& device_api, LocalGroup& group, int rank)
    : device_api_(&device_api), transport_(make_local_transport(device_api, group, rank)) {}

Comm::~Comm() = default;
Comm::Comm(Comm&& other) noexcept = default;
Comm& Comm::operator=(Comm&& other) noexcept = default;

int Comm::rank() const { return transport_ == nullptr ? 0 : transport_->rank(); }
int Comm::size() const { return transport_ == nullptr ? 1 : transport_->size(); }

void Comm::all_gather(std::span<const GatherTensors> tensors, Stream& stream) {
  check_stream(stream, *device_api_);
  std::vector<GatherPiece> pieces;
  pieces.reserve(tensors.size());
  for (const GatherTensors& each : tensors) {
    const std::size_t bytes =
        check_pair({"all_gather mine", "all_gather all", each.mine, each.all}, rank(), size(), device());
    if (bytes != 0) pieces.push_back({.from = each.mine.data, .to = each.all.data, .bytes = bytes});
  }
  if (size() > 1) {
    if (!pieces.empty()) transport_->all_gather(pieces, stream);
    return;
  }
  for (const GatherPiece& each : pieces) {
    if (each.from != each.to) device_api_->copy(each.to, each.from, each.bytes, stream);
  }
}

void Comm::reduce_scatter(const Tensor& all, const Tensor& mine, Stream& stream) {
  check_stream(stream, *device_api_);
  check_summed("reduce_scatter all", all);
  const std::size_t bytes =
      check_pair({"reduce_scatter mine", "reduce_scatter all", mine, all}, rank(), size(), device());
  if (bytes == 0) return;
  if (size() > 1) {
    return transport_->reduce_scatter({.from = all.data, .to = mine.data, .count = count_of(mine), .dtype = mine.dtype},
                                      stream);
  }
  if (all.data != mine.data) device_api_->copy(mine.data, all.data, bytes, stream);
}

void Comm::all_reduce_sum(const Tensor& tensor, Stream& stream) {
  check_stream(stream, *device_api_);
  check_summed("all_reduce_sum", tensor);
  if (check_piece("all_reduce_sum", tensor, device()) == 0 || size() == 1) return;
  transport_->all_reduce({.from = tensor.data, .to = tensor.data, .count = count_of(tensor), .dtype = tensor.dtype},
                         stream);
}

void Comm::all_reduce_max(const Tensor& maxima, Stream& stream) {
  check_stream(stream, *device_api_);
  if (maxima.dtype != Dtype::f32) refuse("all_reduce_max", maxima, "maxima are f32");
  if (check_piece("all_reduce_max", maxima, device()) == 0 || size() == 1) return;
  transport_->all_reduce(
      {.from = maxima.data, .to = maxima.data, .count = count_of(maxima), .reduction = Reduction::largest}, stream);
}

}  // namespace ingot
