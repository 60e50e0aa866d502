// Random inputs by the gigabyte. Data affects a GPU's power, and so its clock: zeros or one repeated row would make
// every figure look better. A block of bell-shaped values is made once on the CPU and kept in the device's memory; a
// tensor is filled with copies of it that start at the tensor's own offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"

namespace ingot {

// `count` values of mean 0 and this standard deviation, within 3.5 times that, in a high-precision dtype. Depends only
// on the arguments.
std::vector<std::byte> random_values(Dtype dtype, std::size_t count, std::uint64_t seed, float deviation = 1.0F);

class RandomData {
 public:
  // Copies within the memory of the backend's device.
  using Copy = std::function<void(void* to, const void* from, std::size_t bytes)>;

  RandomData(Backend& backend, Stream& stream, Copy copy);

  // Fills a tensor's memory, starting at an offset that the seed decides. There is one block for each dtype and
  // deviation, kept for later calls. FP8 values are not made here; cast others instead. Throws Error{invalid_argument}.
  void fill(void* to, std::size_t bytes, Dtype dtype, std::uint64_t seed, float deviation = 1.0F);

  Backend& backend() const { return *backend_; }
  Stream& stream() const { return *stream_; }

 private:
  const Buffer& block(Dtype dtype, float deviation);

  Backend* backend_;
  Stream* stream_;
  Copy copy_;
  std::map<std::pair<Dtype, float>, Buffer> blocks_;
};

}  // namespace ingot
