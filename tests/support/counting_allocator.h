// A StreamAllocator that counts what it has given, poisons it, and fails on request. Boost.Test checks what goes back.
#pragma once

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <new>

#include "ingot/runtime/util/stream_allocator.h"

namespace ingot::test {

class CountingAllocator final : public StreamAllocator {
 public:
  void* allocate(std::size_t bytes, CUstream_st* stream) override {
    BOOST_TEST(stream == expected);
    if (gives_null) return nullptr;
    void* const data = static_cast<std::byte*>(::operator new (bytes + offset, std::align_val_t{256})) + offset;
    std::memset(data, 0xff, bytes);
    live[data] = bytes;
    ++given;
    live_bytes += bytes;
    most_bytes = std::max(most_bytes, live_bytes);
    return data;
  }
  void release(void* data, std::size_t bytes, CUstream_st* stream) noexcept override {
    BOOST_TEST(stream == expected);
    BOOST_TEST(live.at(data) == bytes);
    live.erase(data);
    live_bytes -= bytes;
    ::operator delete (static_cast<std::byte*>(data) - offset, std::align_val_t{256});
  }

  CUstream_st* expected = nullptr;
  std::map<void*, std::size_t> live;
  std::size_t live_bytes = 0;
  std::size_t most_bytes = 0;  // at once
  int given = 0;
  bool gives_null = false;
  std::size_t offset = 0;
};

}  // namespace ingot::test
