// The driver's graph of what a stream captured, its executable graph once it is replayed, and the memory of that work.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/device_api.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cuda/driver.h"

namespace ingot {

// `driver` must outlive the result; the device's context is current, here and in the calls of what is returned.
std::unique_ptr<CapturedWork> capture_graph(const Driver& driver, int device_index, Stream& stream,
                                            const std::function<void()>& work);

// The scratch memory of the work that one graph captures, which belongs to the graph: a replay uses the addresses that
// were captured, so two graphs, or a graph and other work of the stream that it was captured from, can only run side by
// side if none of them shares this memory.
// One thread at a time may use it.
class GraphScratch final : public CapturedScratch {
 public:
  explicit GraphScratch(DeviceApi& device_api) : device_api_(&device_api) {}
  // Streams that are still here leave.
  ~GraphScratch() override;

  void join(Stream& stream) override;
  void leave(const Stream& stream) noexcept override;
  void* scratch(const Stream& stream, std::size_t bytes) override {
    return part_of(stream).scratch.reserve(*device_api_, bytes);
  }
  void* zeros(const Stream& stream, std::size_t bytes) override {
    return part_of(stream).zeros.reserve(*device_api_, bytes);
  }
  void* call_scratch(const Stream& stream, std::size_t bytes) override {
    return part_of(stream).calls.reserve(*device_api_, bytes);
  }
  void* kept(const Stream& stream, std::size_t bytes) override { return part_of(stream).kept.add(*device_api_, bytes); }
  void clear_zeros(Stream& stream) override;

  // The capture is over: all streams leave, and what has to be zeros is. Waits for the device.
  void end(Stream& captured);

 private:
  // Work that was captured goes on using the block that it was given, so a block that is too small for later work
  // stays.
  struct Blocks {
    std::vector<Buffer> blocks{};
    void* reserve(DeviceApi& device_api, std::size_t bytes);
    void* add(DeviceApi& device_api, std::size_t bytes) { return blocks.emplace_back(device_api, bytes).data(); }
  };
  struct Part {
    Stream* stream;  // null: has left
    Blocks scratch{};
    Blocks zeros{};
    Blocks calls{};
    Blocks kept{};
  };

  Part& part_of(const Stream& stream);

  DeviceApi* device_api_;
  std::vector<Part> parts_;
};

}  // namespace ingot
