// A stream: where work is enqueued, with scratch memory for that work. Work on one stream runs in order, so it can all
// share one scratch; two streams never do. Only one thread at a time may use a stream.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "ingot/api.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/device_api.h"
#include "ingot/runtime/util/stream_allocator.h"

namespace ingot {

class Stream;

// Where a stream takes its scratch memory while a graph captures it (runtime/cuda/captured_graph.h).
class INGOT_API CapturedScratch {
 public:
  virtual ~CapturedScratch() = default;
  CapturedScratch(const CapturedScratch&) = delete;
  CapturedScratch& operator=(const CapturedScratch&) = delete;

  // From now on the stream takes its scratch memory here; until leave().
  virtual void join(Stream& stream) = 0;
  virtual void leave(const Stream& stream) noexcept = 0;
  // For Stream's functions of the same names. Throws Error{out_of_memory, cuda_failed}.
  virtual void* scratch(const Stream& stream, std::size_t bytes) = 0;
  virtual void* zeros(const Stream& stream, std::size_t bytes) = 0;
  virtual void* call_scratch(const Stream& stream, std::size_t bytes) = 0;
  virtual void* kept(const Stream& stream, std::size_t bytes) = 0;
  // An operation failed halfway: what was recorded of it spoils the zeros in each replay, and so they are cleared
  // there.
  virtual void clear_zeros(Stream& stream) = 0;

 protected:
  CapturedScratch() = default;
  static void set(Stream& stream, CapturedScratch* scratch);
};

class INGOT_API Stream {
 public:
  // Creates a stream, and destroys it with this object.
  explicit Stream(DeviceApi& device_api);
  // Uses the caller's stream (PyTorch's current one, for example), which must outlive this object.
  Stream(DeviceApi& device_api, CUstream_st* handle);
  // Likewise, and operations take their scratch memory from the allocator, which must outlive this object. It goes back
  // when this object does. If the caller captures the stream, make an object for each capture, as memory that an
  // allocator gives then may belong to the captured graph.
  Stream(DeviceApi& device_api, CUstream_st* handle, StreamAllocator& allocator);
  ~Stream();
  Stream(Stream&&) = delete;
  Stream& operator=(Stream&&) = delete;

  // Work enqueued here from now on starts after all work enqueued so far on `other`, a stream of the same device. If
  // `other` is capturing a graph, this stream joins the capture. A stream that is capturing waits for streams of its
  // capture only: others join first, by waiting for it. Throws Error{cuda_failed, invalid_argument}.
  void wait_for(const Stream& other);

  CUstream_st* handle() const { return handle_; }
  // Has this object made the stream?
  bool is_owned() const { return owned_; }
  DeviceApi& device_api() const { return *device_api_; }
  // Null if the memory is the device's.
  StreamAllocator* allocator() const { return allocator_; }

  // Memory for one operation's intermediate results: at least `bytes`, aligned to 256 bytes, valid until the next call
  // of scratch() on this stream. It grows and never shrinks. While a Graph captures this stream, it is memory of that
  // graph; a capture that the caller began does not let it grow, unless it is an allocator's.
  void* scratch(std::size_t bytes);
  // Likewise, but filled with zeros, which each operation must restore, because the next one relies on them. The
  // replays of a graph that the caller captured, and not Graph, must therefore run in one order with all other work of
  // this object. With an allocator small zeros are the captured graph's own, and its replays free of that. (All that is
  // instantiated from one captured graph has its addresses, of zeros and scratch memory too, and must run in one
  // order.)
  void* zeros(std::size_t bytes);
  // Memory of the allocator for one call of several operations, in addition to their scratch(): at least `bytes`,
  // aligned to 256 bytes. It goes back when the block does. While a Graph captures this stream it is memory of that
  // graph, for its calls one after the other. Throws Error{invalid_argument} if there is no allocator.
  StreamBlock call_scratch(std::size_t bytes);
  // Likewise, for what one call leaves to a later one: a graph that captures both keeps it for them alone.
  StreamBlock kept(std::size_t bytes);
  // May scratch() be asked for this many bytes during any capture?
  bool has_scratch(std::size_t bytes) const {
    return captured_into_ != nullptr || allocator_ != nullptr || scratch_.bytes() >= bytes;
  }
  // Call this after an operation failed halfway: the zeros are cleared before their next use. What a capture has
  // recorded of it spoils them in each replay, so the capture records their clearing.
  void spoil_zeros() noexcept;

 private:
  friend class CapturedScratch;
  friend class StreamUse;

  StreamAllocator& needed_allocator() const;
  void clear_zeros(void* data, std::size_t bytes);

  DeviceApi* device_api_;
  CUstream_st* handle_;
  bool owned_;
  StreamAllocator* allocator_ = nullptr;
  StreamBlock scratch_block_;  // with an allocator, these two take the place of the next two
  StreamBlock zeros_block_;
  Buffer scratch_;
  Buffer zeros_;
  bool zeros_hold_ = true;
  std::uint64_t zeros_cleared_in_ = 0;  // if they do not hold: the caller's capture that has recorded their clearing
  CapturedScratch* captured_into_ = nullptr;  // while a Graph captures this stream
  void* fence_ = nullptr;                     // of wait_for(); created by its first call
  std::atomic<const void*> user_{nullptr};    // the thread whose StreamUse has it
};

// Says that this thread uses a stream for the time of a call of several operations, which another thread's would come
// between. The calls of one thread may be nested. Costs one atomic exchange, and no lock.
class INGOT_API StreamUse {
 public:
  explicit StreamUse(Stream& stream) noexcept;
  ~StreamUse();
  StreamUse(const StreamUse&) = delete;
  StreamUse& operator=(const StreamUse&) = delete;

  // A call of another thread is using the stream, so this one must not.
  bool refused() const { return refused_; }
  // A call of this thread is using the stream, and this one is nested in it.
  bool nested() const { return stream_ == nullptr && !refused_; }

 private:
  Stream* stream_ = nullptr;  // null: nothing to give up
  bool refused_ = false;
};

// The stream must belong to the backend or device that is called.
INGOT_API void check_stream(const Stream& stream, const DeviceApi& device_api);

}  // namespace ingot
