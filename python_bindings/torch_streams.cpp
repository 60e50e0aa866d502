#include "torch_streams.h"

#include <algorithm>
#include <atomic>

namespace ingot::python {
namespace {

constexpr std::size_t kAlignment = 256;  // StreamAllocator's

struct Known {
  std::uint64_t serial;
  CUstream_st* handle;
  TorchStream* stream;
};

std::uint64_t next_serial() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

void* TorchAllocator::allocate(std::size_t bytes, CUstream_st* /*stream*/) {
  // PyTorch's CPU memory is aligned to 64 bytes only.
  std::size_t room = bytes + (device_.type == DeviceType::cpu ? kAlignment : 0);
  TorchTensor block = TorchTensor::empty_bytes(room, device_);
  void* data = block.data();
  if (device_.type == DeviceType::cpu) data = std::align(kAlignment, bytes, data, room);
  blocks_.emplace_back(data, std::move(block));
  return data;
}

void TorchAllocator::release(void* data, std::size_t /*bytes*/, CUstream_st* /*stream*/) noexcept {
  const auto found = std::ranges::find(blocks_, data, [](const auto& block) { return block.first; });
  if (found == blocks_.end()) return;
  std::swap(*found, blocks_.back());
  blocks_.pop_back();
}

TorchStream::TorchStream(Backend& backend, CUstream_st* handle)
    : allocator_(backend.device()), stream_(backend, handle, allocator_) {}

TorchStreams::TorchStreams() : serial_(next_serial()) {}

Stream& TorchStreams::current(Backend& backend, std::optional<TorchStream>& own) {
  const Device device = backend.device();
  CUstream_st* const handle = device.type == DeviceType::cpu ? nullptr : torch_stream(device.index);
  thread_local std::vector<Known> known;
  auto found =
      std::ranges::find_if(known, [&](const Known& at) { return at.serial == serial_ && at.handle == handle; });
  if (found == known.end()) {
    const std::lock_guard lock(mutex_);
    streams_.push_back(std::make_unique<TorchStream>(backend, handle));
    known.push_back({.serial = serial_, .handle = handle, .stream = streams_.back().get()});
    found = known.end() - 1;
  }
  Stream& stream = found->stream->stream();
  if (!backend.capturing(stream)) return stream;
  return own.emplace(backend, handle).stream();
}

}  // namespace ingot::python
