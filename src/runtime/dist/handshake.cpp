// Comm::handshake(). First every rank says how many layers it has and the digest of them all. Where these differ, every
// rank learns the digest of each layer of each rank, and so which is the first that differs, and then what each rank
// has there. What a rank knows then is the same on all, and so is the error.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/dist/comm.h"
#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/digest.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

struct ModelRecord {
  std::uint64_t layers = 0;
  Digest digest{};
  bool operator==(const ModelRecord&) const = default;
};

// All zero where a rank has no such layer.
struct LayerRecord {
  Digest digest{};
  std::uint64_t text_bytes = 0;
  bool operator==(const LayerRecord&) const = default;
};

static_assert(sizeof(ModelRecord) == 24 && sizeof(LayerRecord) == 24 && std::is_trivially_copyable_v<LayerRecord>);

std::string text_of(const SharedLayer& layer) { return fmt::format("\"{}\" ({})", layer.name, layer.description); }

LayerRecord record_of(const SharedLayer& layer) {
  return {.digest = digest_fields({layer.name, layer.description}), .text_bytes = text_of(layer).size()};
}

struct Difference {
  std::size_t layer;
  std::size_t rank;  // the first that differs from rank 0 there
};

// In `records` each rank has `layers`.
Difference first_difference(const std::vector<LayerRecord>& records, std::size_t layers, std::size_t ranks) {
  for (std::size_t layer = 0; layer < layers; ++layer) {
    for (std::size_t rank = 1; rank < ranks; ++rank) {
      if (records[rank * layers + layer] != records[layer]) return {.layer = layer, .rank = rank};
    }
  }
  throw Error(
      ErrorCode::invalid_argument, "handshake",
      "the ranks' models differ and none of their layers does; call handshake() on every rank at the same time");
}

}  // namespace

// `all` has room for every rank's bytes.
void Comm::exchange(const void* mine, void* all, std::size_t bytes, Stream& stream) {
  const auto ranks = static_cast<std::size_t>(size());
  const Buffer memory(*device_api_, bytes * ranks);
  auto* const place = static_cast<std::byte*>(memory.data()) + bytes * static_cast<std::size_t>(rank());
  device_api_->copy_from_host(place, mine, bytes, stream);
  const auto as_vector = [&](void* data, std::size_t count) {
    return vector(data, Dtype::u8, static_cast<std::int64_t>(count), device());
  };
  const std::array pair{GatherTensors{.mine = as_vector(place, bytes), .all = as_vector(memory.data(), bytes * ranks)}};
  all_gather(pair, stream);
  device_api_->copy_to_host(all, memory.data(), bytes * ranks, stream);
}

void Comm::handshake(std::span<const SharedLayer> layers, Stream& stream) {
  check_stream(stream, *device_api_);
  if (device_api_->capturing(stream)) {
    throw Error(ErrorCode::invalid_argument, "handshake",
                "waits for the stream, which is capturing a graph; call it once, before the first capture");
  }
  if (size() == 1) return;
  const auto ranks = static_cast<std::size_t>(size());

  std::vector<LayerRecord> own(layers.size());
  std::ranges::transform(layers, own.begin(), record_of);
  const ModelRecord mine{
      .layers = layers.size(),
      .digest = digest({reinterpret_cast<const char*>(own.data()), own.size() * sizeof(LayerRecord)})};
  std::vector<ModelRecord> models(ranks);
  exchange(&mine, models.data(), sizeof(mine), stream);
  if (std::ranges::all_of(models, [&](const ModelRecord& each) { return each == models.front(); })) return;

  const std::size_t most = std::ranges::max(models, {}, &ModelRecord::layers).layers;
  own.resize(most);
  std::vector<LayerRecord> records(most * ranks);
  exchange(own.data(), records.data(), most * sizeof(LayerRecord), stream);
  const Difference found = first_difference(records, most, ranks);

  std::size_t bytes = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    bytes = std::max(bytes, static_cast<std::size_t>(records[rank * most + found.layer].text_bytes));
  }
  std::string text = found.layer < layers.size() ? text_of(layers[found.layer]) : std::string();
  text.resize(bytes);
  std::vector<char> texts(bytes * ranks);
  exchange(text.data(), texts.data(), bytes, stream);
  const auto on = [&](std::size_t rank) {
    const std::size_t length = records[rank * most + found.layer].text_bytes;
    const std::string its = count_of(models[rank].layers, "layer");
    if (length == 0) return fmt::format("missing on rank {} (which has {})", rank, its);
    return fmt::format("{} on rank {}", std::string_view(texts.data() + rank * bytes, length), rank);
  };
  throw Error(
      ErrorCode::invalid_argument, fmt::format("layer {} of the model", found.layer),
      fmt::format("is {} and {}; every rank must build the same layers in the same order", on(0), on(found.rank)));
}

}  // namespace ingot
