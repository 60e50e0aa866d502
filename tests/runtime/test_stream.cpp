// Stream: ownership of the device stream, and its scratch memory and zeros, also during captures.
#include "ingot/runtime/core/stream.h"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <thread>

#include "support/counting_allocator.h"
#include "support/fake_device.h"
#include "support/refused.h"

BOOST_AUTO_TEST_SUITE(test_stream)

using namespace ingot;
using ingot::test::CountingAllocator;
using ingot::test::FakeDevice;
using ingot::test::refused;

BOOST_AUTO_TEST_CASE(owns_the_stream_that_it_makes) {
  FakeDevice device;
  {
    const Stream stream(device);
    BOOST_TEST(stream.handle() != nullptr);
    BOOST_TEST(&stream.device_api() == &device);
    BOOST_TEST(device.streams == 1);
  }
  BOOST_TEST(device.streams == 0);
}

BOOST_AUTO_TEST_CASE(leaves_the_callers_stream_alone) {
  FakeDevice device;
  CUstream_st* const handle = device.create_stream();
  {
    const Stream stream(device, handle);
    BOOST_TEST(stream.handle() == handle);
  }
  BOOST_TEST(device.streams == 1);
}

BOOST_AUTO_TEST_CASE(scratch_is_kept_between_calls_and_goes_with_the_stream) {
  FakeDevice device;
  {
    Stream stream(device);
    BOOST_TEST(stream.scratch(0) == nullptr);
    void* const data = stream.scratch(1000);
    BOOST_TEST(device.live.at(data) == 1000U);
    BOOST_TEST(stream.scratch(10) == data);
    BOOST_TEST(device.live.at(stream.scratch(2000)) == 2000U);
  }
  BOOST_TEST(device.live.empty());
}

BOOST_AUTO_TEST_CASE(an_allocator_gives_all_scratch_memory_and_gets_it_back) {
  FakeDevice device;
  CUstream_st* const handle = device.create_stream();
  CountingAllocator allocator;
  allocator.expected = handle;
  {
    Stream stream(device, handle, allocator);
    BOOST_TEST(stream.allocator() == &allocator);
    BOOST_TEST(stream.scratch(0) == nullptr);
    BOOST_TEST(allocator.given == 0);
    void* const scratch = stream.scratch(1000);
    BOOST_TEST(allocator.live.at(scratch) == 1000U);
    BOOST_TEST(stream.scratch(10) == scratch);
    BOOST_TEST(allocator.live.at(stream.scratch(2000)) == 2000U);
    BOOST_TEST(allocator.live.size() == 1U, "the smaller block has gone back");

    auto* const zeros = static_cast<unsigned char*>(stream.zeros(100));
    BOOST_TEST(allocator.live.contains(zeros));
    BOOST_TEST(std::all_of(zeros, zeros + 100, [](unsigned char byte) { return byte == 0; }));
    zeros[7] = 1;
    BOOST_TEST(stream.zeros(50) == zeros);
    BOOST_TEST(zeros[7] == 1);
    stream.spoil_zeros();
    stream.zeros(100);
    BOOST_TEST(zeros[7] == 0);

    device.is_capturing = true;  // what an allocator gives then belongs to the capture
    BOOST_TEST(allocator.live.at(stream.scratch(3000)) == 3000U);
  }
  BOOST_TEST(allocator.live.empty());
  BOOST_TEST(device.live.empty());
}

BOOST_AUTO_TEST_CASE(an_allocator_that_gives_no_memory_is_named) {
  FakeDevice device;
  CUstream_st* const handle = device.create_stream();
  CountingAllocator allocator;
  allocator.expected = handle;
  Stream stream(device, handle, allocator);
  allocator.gives_null = true;
  auto error = refused([&] { stream.scratch(77); });
  BOOST_TEST((error.code == ErrorCode::out_of_memory));
  BOOST_TEST(error.subject == "stream allocator");
  BOOST_TEST(error.message == "stream allocator: gave null for 77 bytes; let it throw, or release memory");
  allocator.gives_null = false;
  allocator.offset = 16;
  error = refused([&] { stream.zeros(77); });
  BOOST_TEST((error.code == ErrorCode::invalid_argument));
  BOOST_TEST(error.message == "stream allocator: gave an address that is no multiple of 256; align its memory");
  BOOST_TEST(allocator.live.empty());
  allocator.offset = 0;
  BOOST_TEST(stream.scratch(77) != nullptr);
}

// Each block has its own memory, whatever scratch() has, and goes back by itself.
BOOST_AUTO_TEST_CASE(an_allocator_gives_memory_for_calls_and_for_what_they_keep) {
  FakeDevice device;
  CUstream_st* const handle = device.create_stream();
  CountingAllocator allocator;
  allocator.expected = handle;
  Stream stream(device, handle, allocator);
  void* const scratch = stream.scratch(100);
  {
    const StreamBlock call = stream.call_scratch(1000);
    const StreamBlock kept = stream.kept(2000);
    BOOST_TEST(allocator.live.at(call.data()) == 1000U);
    BOOST_TEST(allocator.live.at(kept.data()) == 2000U);
    BOOST_TEST(stream.scratch(100) == scratch);
    BOOST_TEST(stream.call_scratch(0).data() == nullptr);
  }
  BOOST_TEST(allocator.live.size() == 1U);
  Stream bare(device);
  for (const auto& take : {&Stream::call_scratch, &Stream::kept}) {
    const auto error = refused([&] { (bare.*take)(10); });
    BOOST_TEST((error.code == ErrorCode::invalid_argument));
    BOOST_TEST(error.message ==
               "stream: has no allocator to take memory from; make it with a StreamAllocator, or give the call memory");
  }
}

BOOST_AUTO_TEST_CASE(one_thread_at_a_time_uses_a_stream) {
  FakeDevice device;
  Stream stream(device);
  const auto refused_elsewhere = [&] {
    bool refused = false;
    std::thread([&] { refused = StreamUse(stream).refused(); }).join();
    return refused;
  };
  BOOST_TEST(!refused_elsewhere());
  {
    const StreamUse use(stream);
    BOOST_TEST(!use.refused());
    BOOST_TEST(!use.nested());
    BOOST_TEST(refused_elsewhere());
    { BOOST_TEST(StreamUse(stream).nested()); }
    BOOST_TEST(refused_elsewhere(), "the nested use has not given it up");
  }
  BOOST_TEST(!refused_elsewhere());
}

BOOST_AUTO_TEST_CASE(zeros_are_cleared_when_they_grow_and_only_then) {
  FakeDevice device;
  Stream stream(device);
  auto* const first = static_cast<unsigned char*>(stream.zeros(100));
  BOOST_TEST(std::all_of(first, first + 100, [](unsigned char byte) { return byte == 0; }));
  first[7] = 1;
  BOOST_TEST(stream.zeros(50) == first);
  BOOST_TEST(first[7] == 1);
  auto* const larger = static_cast<unsigned char*>(stream.zeros(1000));
  BOOST_TEST(std::all_of(larger, larger + 1000, [](unsigned char byte) { return byte == 0; }));
  BOOST_TEST(stream.scratch(10) != larger);
}

BOOST_AUTO_TEST_CASE(zeros_that_were_not_cleared_or_were_spoilt_are_cleared_before_their_next_use) {
  FakeDevice device;
  Stream stream(device);
  const auto all_zero = [](const void* data) {
    const auto* const bytes = static_cast<const unsigned char*>(data);
    return std::all_of(bytes, bytes + 100, [](unsigned char byte) { return byte == 0; });
  };
  device.fill_fails = true;
  BOOST_CHECK_THROW(stream.zeros(100), Error);
  BOOST_REQUIRE(device.live.size() == 1U);
  std::memset(device.live.begin()->first, 1, 100);
  BOOST_CHECK_THROW(stream.zeros(100), Error);
  device.fill_fails = false;
  BOOST_TEST(all_zero(stream.zeros(100)));
  std::memset(stream.zeros(100), 1, 100);
  stream.spoil_zeros();
  BOOST_TEST(all_zero(stream.zeros(100)));
}

BOOST_AUTO_TEST_CASE(scratch_does_not_grow_during_capture) {
  FakeDevice device;
  Stream stream(device);
  void* const data = stream.scratch(1000);
  device.is_capturing = true;
  BOOST_TEST(stream.scratch(1000) == data);
  const auto error = refused([&] { stream.scratch(1001); });
  BOOST_TEST(error.message ==
             "stream: is capturing a graph, and this step needs 1001 bytes, but only 1000 are allocated; nothing "
             "is allocated during capture: run the step once before capturing it");
  BOOST_TEST(stream.scratch(1000) == data);
}

// What a capture of the caller's records clears nothing yet.
BOOST_AUTO_TEST_CASE(zeros_whose_clearing_a_capture_records_are_cleared_again_outside) {
  FakeDevice device;
  Stream stream(device);
  auto* const zeros = static_cast<unsigned char*>(stream.zeros(100));
  stream.spoil_zeros();
  device.is_capturing = true;
  std::memset(zeros, 1, 100);
  BOOST_TEST(stream.zeros(100) == zeros);
  BOOST_TEST(zeros[7] == 0, "the capture clears them");
  zeros[7] = 1;
  stream.zeros(100);
  BOOST_TEST(zeros[7] == 1, "once");
  device.is_capturing = false;
  stream.zeros(100);
  BOOST_TEST(zeros[7] == 0, "and so does the work that runs");
  zeros[7] = 1;
  stream.zeros(100);
  BOOST_TEST(zeros[7] == 1);

  device.is_capturing = true;
  stream.spoil_zeros();
  BOOST_TEST(zeros[7] == 0, "each replay spoils them, and clears them");
  device.is_capturing = false;
  zeros[7] = 1;
  stream.zeros(100);
  BOOST_TEST(zeros[7] == 1, "an operation that is only recorded has spoiled nothing");
}

BOOST_AUTO_TEST_SUITE_END()
