// Buffer, Scratch and OwnedTensor: ownership, growth, captures, and failed allocations.
#include "ingot/runtime/core/buffer.h"

#include <boost/test/unit_test.hpp>
#include <utility>

#include "ingot/runtime/core/stream.h"
#include "support/fake_device.h"
#include "support/refused.h"

BOOST_AUTO_TEST_SUITE(test_buffer)

using namespace ingot;
using ingot::test::FakeDevice;
using ingot::test::refused;

BOOST_AUTO_TEST_CASE(releases_what_it_allocated) {
  FakeDevice device;
  {
    Buffer buffer(device, 100);
    BOOST_TEST(buffer.bytes() == 100U);
    BOOST_TEST(device.live.contains(buffer.data()));
  }
  BOOST_TEST(device.live.empty());
  BOOST_TEST(Buffer(device, 0).data() == nullptr);
}

BOOST_AUTO_TEST_CASE(moving_leaves_nothing_behind) {
  FakeDevice device;
  Buffer first(device, 100);
  void* const data = first.data();
  Buffer second(std::move(first));
  BOOST_TEST(second.data() == data);
  BOOST_TEST(first.data() == nullptr);  // NOLINT(bugprone-use-after-move): what is left is the point
  BOOST_TEST(first.bytes() == 0U);
  Buffer third(device, 50);
  third = std::move(second);
  BOOST_TEST(third.data() == data);
  BOOST_TEST(second.bytes() == 0U);  // NOLINT(bugprone-use-after-move)
  BOOST_TEST(device.live.size() == 1U);

  OwnedTensor tensor(device, Dtype::f32, 2, 3);
  const OwnedTensor moved(std::move(tensor));
  BOOST_TEST(moved.view().rows == 2);
  BOOST_TEST(tensor.view().data == nullptr);  // NOLINT(bugprone-use-after-move)
  BOOST_TEST(tensor.view().empty());
}

BOOST_AUTO_TEST_CASE(reserve_grows_and_never_shrinks) {
  FakeDevice device;
  Stream stream(device);
  Buffer buffer;
  buffer.reserve(device, 10, stream);
  buffer.reserve(device, 100, stream);
  void* const data = buffer.data();
  buffer.reserve(device, 20, stream);
  BOOST_TEST(buffer.data() == data);
  BOOST_TEST(buffer.bytes() == 100U);
  BOOST_TEST(device.allocations == 2);
}

// Runs on the path of every launch.
BOOST_AUTO_TEST_CASE(room_that_is_there_costs_no_question) {
  FakeDevice device;
  Stream stream(device);
  Buffer buffer(device, 100);
  OwnedTensor tensor(device, Dtype::bf16, 4, 4);
  buffer.reserve(device, 100, stream);
  tensor.resize(device, Dtype::f32, 2, 4, stream);
  BOOST_TEST(device.capture_questions == 0);
  buffer.reserve(device, 101, stream);
  BOOST_TEST(device.capture_questions == 1);
}

BOOST_AUTO_TEST_CASE(what_stays_behind_is_bounded) {
  FakeDevice device;
  Stream stream(device);
  Buffer buffer;
  for (std::size_t bytes = 1000; bytes <= 2000; ++bytes) buffer.reserve(device, bytes, stream);
  BOOST_TEST(device.allocations == 3);
  std::size_t held = 0;
  for (const auto& [data, bytes] : device.live) held += bytes;
  BOOST_TEST(held == 1000U + 1500U + 2250U);

  // If there is no room for more than is needed, the needed size must do.
  device.largest = 2300;
  buffer.reserve(device, 2300, stream);
  BOOST_TEST(buffer.bytes() == 2300U);
}

BOOST_AUTO_TEST_CASE(nothing_grows_during_capture) {
  FakeDevice device;
  Stream stream(device);
  Buffer buffer(device, 10);
  void* const data = buffer.data();
  device.is_capturing = true;
  buffer.reserve(device, 10, stream);
  const auto error = refused([&] { buffer.reserve(device, 11, stream); });
  BOOST_TEST((error.code == ErrorCode::invalid_argument));
  BOOST_TEST(error.message ==
             "stream: is capturing a graph, and this step needs 11 bytes, but only 10 are allocated; nothing is "
             "allocated during capture: run the step once before capturing it");
  BOOST_TEST(buffer.data() == data);
  BOOST_TEST(buffer.bytes() == 10U);

  device.is_capturing = false;
  OwnedTensor tensor(device, Dtype::bf16, 4, 4);
  device.is_capturing = true;
  BOOST_TEST(refused([&] { tensor.resize(device, Dtype::bf16, 4, 5, stream); }).threw);
  BOOST_TEST(describe(tensor) == "bf16[4, 4] on cuda:2");
  BOOST_TEST(tensor.view().data != nullptr);
}

BOOST_AUTO_TEST_CASE(memory_that_a_graph_may_hold_outlives_growth) {
  FakeDevice device;
  Stream stream(device);
  {
    Buffer buffer;
    buffer.reserve(device, 10, stream);
    void* const in_graph = buffer.data();
    device.is_capturing = true;
    buffer.reserve(device, 10, stream);
    device.is_capturing = false;
    buffer.reserve(device, 100, stream);
    BOOST_TEST(buffer.data() != in_graph);
    BOOST_TEST(device.live.contains(in_graph));
  }
  BOOST_TEST(device.live.empty());
}

BOOST_AUTO_TEST_CASE(a_failed_growth_changes_nothing) {
  FakeDevice device;
  Stream stream(device);
  OwnedTensor tensor(device, Dtype::f32, 2, 2);
  void* const data = tensor.view().data;
  device.largest = 0;
  BOOST_TEST(refused([&] { tensor.resize(device, Dtype::f32, 20, 20, stream); }).message == "fake: is full");
  BOOST_TEST(tensor.view().data == data);
  BOOST_TEST(describe(tensor) == "f32[2, 2] on cuda:2");
  BOOST_TEST(device.live.contains(data));
  device.largest = 10000;
  tensor.resize(device, Dtype::f32, 20, 20, stream);
  BOOST_TEST(device.live.contains(tensor.view().data));
}

BOOST_AUTO_TEST_CASE(owned_tensors_reshape_in_place) {
  FakeDevice device;
  Stream stream(device);
  OwnedTensor tensor(device, Dtype::f32, 4, 8);
  BOOST_TEST(describe(tensor) == "f32[4, 8] on cuda:2");
  BOOST_TEST(device.live.at(tensor.view().data) == 128U);
  void* const data = tensor.view().data;
  tensor.resize(device, Dtype::bf16, 16, 4, stream);
  BOOST_TEST(describe(tensor) == "bf16[16, 4] on cuda:2");
  BOOST_TEST(tensor.view().data == data);
  tensor.resize(device, Dtype::bf16, 0, 4, stream);
  BOOST_TEST(tensor.view().empty());
  const auto error = refused([&] { OwnedTensor(device, Dtype::f32, -1, 4); });
  BOOST_TEST(error.message == "tensor: is f32[-1, 4] on cpu; sizes and strides must not be negative");
}

BOOST_AUTO_TEST_SUITE_END()
