#include "support/fake_device.h"

#include <algorithm>

namespace ingot::test {

void* FakeDevice::allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  if (bytes > largest) throw Error(ErrorCode::out_of_memory, "fake", "is full");
  ++allocations;
  void* data = std::malloc(bytes);
  live[data] = bytes;
  return data;
}

void FakeDevice::release(void* data) noexcept {
  live.erase(data);
  std::free(data);
}

void FakeDevice::copy_from_host(void* to, const void* from, std::size_t bytes, Stream&) {
  std::memcpy(to, from, bytes);
}

void FakeDevice::copy_to_host(void* to, const void* from, std::size_t bytes, Stream&) { std::memcpy(to, from, bytes); }

void FakeDevice::copy(void* to, const void* from, std::size_t bytes, Stream&) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

void FakeDevice::fill_zero(void* data, std::size_t bytes, Stream&) {
  if (fill_fails) throw Error(ErrorCode::cuda_failed, "fake", "cannot fill");
  std::memset(data, 0, bytes);
}

void FakeDevice::fill(float* data, float value, std::size_t count, Stream&) { std::fill_n(data, count, value); }

CUstream_st* FakeDevice::create_stream() {
  return reinterpret_cast<CUstream_st*>(static_cast<std::uintptr_t>(++streams));
}

}  // namespace ingot::test
