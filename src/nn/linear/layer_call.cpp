#include "ingot/nn/linear/layer_call.h"

#include <fmt/format.h>

#include "ingot/nn/linear/tensor_checks.h"

namespace ingot {
namespace {

[[noreturn]] void refuse(const std::string& subject, const std::string& name, const char* stream) {
  const std::string layer = name.empty() ? subject : fmt::format("{} \"{}\"", subject, name);
  refuse_argument(fmt::format("{} {}", layer, stream).c_str(),
                  "is in use by another thread's call of a layer: give each thread its own Stream, or let one call "
                  "end before the next begins");
}

}  // namespace

LayerCall::LayerCall(const std::string& subject, Stream& stream, Stream* side, const std::string& name)
    : stream_(&stream), use_(stream) {
  if (use_.refused()) refuse(subject, name, "stream");
  if (side == nullptr) return;
  side_.emplace(*side);
  if (side_->refused()) refuse(subject, name, "side stream");
}

std::string missing_scratch(std::size_t bytes) {
  return fmt::format(
      "is missing; it must have {} bytes: the plan says how much memory a call needs, and a Stream with a "
      "StreamAllocator gives it for the time of the call",
      bytes);
}

// A graph has one memory for the calls that it captures. One within another, as of an observer, must not have that too.
StreamBlock LayerCall::block(std::size_t bytes) const {
  return use_.nested() ? stream_->kept(bytes) : stream_->call_scratch(bytes);
}

MemoryRegion LayerCall::scratch_or(Buffer& own, DeviceApi& device_api, std::size_t bytes) {
  if (gives_scratch(*stream_)) {
    owned_scratch_ = block(bytes);
    return {owned_scratch_.data(), bytes};
  }
  own.reserve(device_api, bytes, *stream_);
  return {own.data(), own.bytes()};
}

LayerCall::Scratch::Scratch(std::size_t bytes, const LayerCall& call, Stream* side)
    : stream_(call.stream_), side_(side), bytes_(bytes), block_(call.block(bytes)) {}

LayerCall::Scratch::~Scratch() {
  if (bytes_ == 0 || side_ == nullptr) return;
  try {
    stream_->wait_for(*side_);
  } catch (const Error&) {
    return;  // the context is broken; the next call reports it
  }
}

}  // namespace ingot
