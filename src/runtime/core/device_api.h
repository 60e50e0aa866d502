// A device: its memory, streams, events and graphs, as an interface with one implementation for each kind of device.
// What is computed there is a Backend's (runtime/context/backend.h), which has a DeviceApi.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "ingot/api.h"
#include "ingot/runtime/core/tensor.h"

struct CUstream_st;  // the driver API's CUstream is a pointer to this

namespace ingot {

class LaunchHook;  // runtime/jit/kernel.h
class Stream;

// Work that a stream has captured: what Graph (runtime/cuda/graph.h) owns.
class INGOT_API CapturedWork {
 public:
  virtual ~CapturedWork() = default;
  CapturedWork(const CapturedWork&) = delete;
  CapturedWork& operator=(const CapturedWork&) = delete;

  // Makes it ready to replay, once.
  virtual void instantiate() = 0;
  virtual void replay(Stream& stream) = 0;
  // Replays what `other` holds from now on, if that has the same shape; otherwise returns false and is as it was.
  virtual bool take(CapturedWork& other) = 0;

 protected:
  CapturedWork() = default;
};

// Threads: any number of them may call it at the same time, each with its own stream; a fence and a timing event are
// for one thread at a time. What one thread allocates another may release. Only set_launch_hook() may not run during
// launches. Errors: Error{invalid_argument} before anything is enqueued; Error{cuda_failed, out_of_memory} of the
// driver.
class INGOT_API DeviceApi {
 public:
  virtual ~DeviceApi() = default;
  DeviceApi(const DeviceApi&) = delete;
  DeviceApi& operator=(const DeviceApi&) = delete;

  Device device() const { return device_; }

  // Memory. allocate() aligns to 256 bytes and throws Error{out_of_memory}; 0 bytes gives null. release() waits for the
  // device if it must, and never throws.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* data) noexcept = 0;
  // Ordered on the stream. When the call returns, the host's memory may be read or reused.
  virtual void copy_from_host(void* device_data, const void* host_data, std::size_t bytes, Stream& stream) = 0;
  virtual void copy_to_host(void* host_data, const void* device_data, std::size_t bytes, Stream& stream) = 0;
  // Within the device. It may be captured, and the two may not overlap.
  virtual void copy(void* to, const void* from, std::size_t bytes, Stream& stream) = 0;
  virtual void fill_zero(void* device_data, std::size_t bytes, Stream& stream) = 0;
  // Sets `count` f32 elements to this value. Unlike a copy from the host it may be captured.
  virtual void fill(float* device_data, float value, std::size_t count, Stream& stream) = 0;
  // False if these bytes are known to belong to no allocation, such as freed memory. The CPU knows of none. What an
  // allocator holds back for later, as PyTorch's does, is still allocated.
  virtual bool is_allocated(const void* device_data, std::size_t bytes) const = 0;

  // Do layers look for what a host cannot see: memory that changed between forward and backward, or was freed? Set by
  // ContextOptions::check_memory; docs/stateless_layers.md says what is checked. Not to be called while others run.
  bool checks_memory() const { return checks_memory_; }
  void set_checks_memory(bool checks) { checks_memory_ = checks; }

  // Does the backend read, before each call, which rows experts have, and refuse what is out of bounds? Set by
  // ContextOptions::check_experts. Not to be called while others run.
  bool checks_experts() const { return checks_experts_; }
  void set_checks_experts(bool checks) { checks_experts_ = checks; }

  // A new stream of the device, for Stream's default constructor; null on the CPU, which has none.
  virtual CUstream_st* create_stream() = 0;
  virtual void destroy_stream(CUstream_st* stream) noexcept = 0;
  virtual void synchronize(Stream& stream) = 0;

  // Runs `call`, which gives the stream to another library, with the context of its device current on this thread.
  virtual void in_context(const Stream& stream, const std::function<void()>& call) const = 0;

  // For Stream::wait_for(): `stream` continues after all work enqueued on `other` so far. One thread at a time may use
  // a fence, and may reuse it at once. Null on the CPU, which has none.
  virtual void* create_fence() = 0;
  virtual void destroy_fence(void* fence) noexcept = 0;
  virtual void wait(const Stream& stream, const Stream& other, void* fence) = 0;

  // True while the stream records a CUDA graph.
  virtual bool capturing(const Stream& stream) const = 0;
  // Which capture that is, of all of the process; 0 if the stream records none.
  virtual std::uint64_t capture_number(const Stream& stream) const { return capturing(stream) ? 1 : 0; }
  // For Stream::zeros(), while someone else captures the stream: memory for the graph that holds zeros whenever it is
  // replayed, if all operations restore them. Null where there is none.
  virtual void* zeros_of_capture(const Stream& /*stream*/, std::size_t /*bytes*/) { return nullptr; }
  // They may not hold any more: the capture clears them, and later operations of it are given others.
  virtual void spoil_zeros_of_capture(const Stream& /*stream*/) noexcept {}
  // For Graph: what `work` enqueues on the stream, recorded and not run. Throws Error{invalid_argument} on the CPU.
  virtual std::unique_ptr<CapturedWork> capture(Stream& stream, const std::function<void()>& work) = 0;

  // Timing events on a stream: CUDA events, or the CPU's clock. microseconds_between() takes two recorded events and
  // waits for both. Throws Error{cuda_failed}.
  virtual void* create_timing_event() = 0;
  virtual void destroy_timing_event(void* event) noexcept = 0;
  virtual void record_timing_event(void* event, const Stream& stream) = 0;
  virtual double microseconds_between(void* begin, void* end) = 0;

  // Calls `hook` at every launch from now on, until another hook or null replaces it; until then it must stay alive. Do
  // not call this while another thread launches.
  void set_launch_hook(LaunchHook* hook) { launch_hook_ = hook; }
  LaunchHook* launch_hook() const { return launch_hook_; }
  // Kernels launched here so far, including cuBLASLt's. 0 on the CPU.
  std::int64_t launches() const { return launches_.load(std::memory_order_relaxed); }
  void count_launch() { launches_.fetch_add(1, std::memory_order_relaxed); }

 protected:
  explicit DeviceApi(Device device) : device_(device) {}

 private:
  Device device_;
  bool checks_memory_ = false;
  bool checks_experts_ = false;
  LaunchHook* launch_hook_ = nullptr;
  std::atomic<std::int64_t> launches_{0};
};

}  // namespace ingot
