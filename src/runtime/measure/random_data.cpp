#include "ingot/runtime/measure/random_data.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cpu/thread_pool.h"
#include "ingot/runtime/util/error.h"

#include "numerics.cuh"

namespace ingot {
namespace {

constexpr std::size_t kAlignment = 256;  // of the blocks that are copied
// Just short of 64 MB, and no multiple of a usual row, so that consecutive rows all differ.
constexpr std::size_t kBlockBytes = (std::size_t{64} << 20U) - 37 * kAlignment;

// splitmix64: the sum of four uniform 16-bit numbers is bell-shaped enough.
float random_value(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed * 0xd1342543de82ef95U + (index + 1) * 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  z ^= z >> 31U;
  const auto sum = static_cast<float>((z & 0xffffU) + (z >> 16U & 0xffffU) + (z >> 32U & 0xffffU) + (z >> 48U));
  return (sum / 65535.0F - 2.0F) * 1.7320508F;
}

template <class Encode>
void generate(std::vector<std::byte>& bytes, std::size_t count, std::uint64_t seed, const Encode& encode) {
  using Bits = decltype(encode(0.0F));
  bytes.resize(count * sizeof(Bits));
  ThreadPool pool(0);
  pool.parallel_for(static_cast<std::int64_t>(count), 1 << 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Bits bits = encode(random_value(seed, static_cast<std::uint64_t>(i)));
      std::memcpy(bytes.data() + static_cast<std::size_t>(i) * sizeof(Bits), &bits, sizeof(Bits));
    }
  });
}

}  // namespace

std::vector<std::byte> random_values(Dtype dtype, std::size_t count, std::uint64_t seed, float deviation) {
  std::vector<std::byte> bytes;
  switch (dtype) {
    case Dtype::f32: generate(bytes, count, seed, [=](float x) { return x * deviation; }); break;
    case Dtype::bf16:
      generate(bytes, count, seed, [=](float x) { return from_float<bf16>(x * deviation).bits; });
      break;
    case Dtype::f16: generate(bytes, count, seed, [=](float x) { return from_float<f16>(x * deviation).bits; }); break;
    default:
      throw Error(ErrorCode::invalid_argument, "random input",
                  "is of an FP8 format; make f32, bf16 or f16 values and cast them");
  }
  return bytes;
}

RandomData::RandomData(Backend& backend, Stream& stream, Copy copy)
    : backend_(&backend), stream_(&stream), copy_(std::move(copy)) {}

const Buffer& RandomData::block(Dtype dtype, float deviation) {
  const auto found = blocks_.find({dtype, deviation});
  if (found != blocks_.end()) return found->second;
  const auto element = static_cast<std::size_t>(size_of(dtype));
  const std::vector<std::byte> values = random_values(dtype, kBlockBytes / element, 1, deviation);
  Buffer buffer(*backend_, values.size());
  backend_->device_api().copy_from_host(buffer.data(), values.data(), values.size(), *stream_);
  return blocks_.emplace(std::pair{dtype, deviation}, std::move(buffer)).first->second;
}

void RandomData::fill(void* to, std::size_t bytes, Dtype dtype, std::uint64_t seed, float deviation) {
  const Buffer& from = block(dtype, deviation);
  auto* at = static_cast<std::byte*>(to);
  std::size_t offset = seed * 7919 % (from.bytes() / kAlignment) * kAlignment;
  while (bytes > 0) {
    const std::size_t piece = std::min(bytes, from.bytes() - offset);
    copy_(at, static_cast<const std::byte*>(from.data()) + offset, piece);
    at += piece;
    bytes -= piece;
    offset = 0;
  }
}

}  // namespace ingot
