#include "torch_abi/torch_streams.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

namespace ingot::python {
namespace {

constexpr std::size_t kAlignment = 256;  // StreamAllocator's

std::uint64_t next_serial() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

void* TorchAllocator::allocate(std::size_t bytes, CUstream_st* /*stream*/) {
  if (kept_.bytes >= bytes) {
    blocks_.push_back(std::exchange(kept_, Block{}));
    return blocks_.back().data;
  }
  // PyTorch's CPU memory is aligned to 64 bytes only.
  std::size_t room = bytes + (device_.type == DeviceType::cpu ? kAlignment : 0);
  TorchTensor memory = TorchTensor::empty_bytes(room, device_);
  void* data = memory.data();
  if (device_.type == DeviceType::cpu) data = std::align(kAlignment, bytes, data, room);
  blocks_.push_back({.data = data, .bytes = bytes, .memory = std::move(memory)});
  return data;
}

void TorchAllocator::release(void* data, std::size_t /*bytes*/, CUstream_st* /*stream*/) noexcept {
  const auto found = std::ranges::find(blocks_, data, &Block::data);
  if (found == blocks_.end() || holds_) return;
  if (found->bytes <= kSmall && found->bytes > kept_.bytes) std::swap(kept_, *found);
  std::swap(*found, blocks_.back());
  blocks_.pop_back();
}

TorchStream::TorchStream(DeviceApi& device_api, CUstream_st* handle, bool holds)
    : allocator_(device_api.device(), holds), stream_(device_api, handle, allocator_) {}

// What a thread keeps, of every device.
class ThreadStreams {
 public:
  ThreadStreams() = default;
  ThreadStreams(const ThreadStreams&) = delete;
  ThreadStreams& operator=(const ThreadStreams&) = delete;
  ~ThreadStreams() {
    for (const Known& each : known_) drop(each);
  }

  TorchStream& of(const TorchStreams& streams, DeviceApi& device_api) {
    for (const Known& each : known_) {
      if (each.serial == streams.serial_) return *each.stream;
    }
    auto stream = std::make_unique<TorchStream>(device_api, nullptr);
    known_.push_back({.serial = streams.serial_, .stream = stream.get(), .kept = streams.kept_});
    const std::lock_guard lock(streams.kept_->mutex);
    streams.kept_->streams.push_back(std::move(stream));
    return *known_.back().stream;
  }

 private:
  struct Known {
    std::uint64_t serial = 0;
    TorchStream* stream = nullptr;
    std::weak_ptr<TorchStreams::Kept> kept;  // gone with the TorchStreams, which may end before the thread
  };

  static void drop(const Known& known) {
    const std::shared_ptr<TorchStreams::Kept> kept = known.kept.lock();
    if (kept == nullptr) return;
    std::unique_ptr<TorchStream> dropped;  // destroyed after the lock is released
    const std::lock_guard lock(kept->mutex);
    const auto found = std::ranges::find(kept->streams, known.stream, &std::unique_ptr<TorchStream>::get);
    if (found == kept->streams.end()) return;
    dropped = std::move(*found);
    kept->streams.erase(found);
  }

  std::vector<Known> known_;
};

TorchStreams::TorchStreams() : serial_(next_serial()), kept_(std::make_shared<Kept>()) {}

Stream& TorchStreams::current(DeviceApi& device_api, std::optional<TorchStream>& own, std::int64_t tokens) const {
  const Device device = device_api.device();
  CUstream_st* const handle = device.type == DeviceType::cpu ? nullptr : torch_stream(device.index);
  if (handle != nullptr || tokens >= kManyTokens) return own.emplace(device_api, handle).stream();
  thread_local ThreadStreams streams;
  return streams.of(*this, device_api).stream();
}

CUstream_st* TorchStreams::beside(DeviceApi& device_api, CUstream_st* stream) const {
  const std::lock_guard lock(kept_->mutex);
  std::unique_ptr<Stream>& kept = kept_->beside[stream];
  if (kept == nullptr) kept = std::make_unique<Stream>(device_api);
  return kept->handle();
}

std::size_t TorchStreams::count() const {
  const std::lock_guard lock(kept_->mutex);
  return kept_->streams.size();
}

}  // namespace ingot::python
