// Lists of casts, and of searches for maxima, on a GPU: the parameters of all are in device memory, and each pass is
// one launch over all tiles.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ingot/codegen/cast/cast_plan.h"
#include "ingot/codegen/generate.h"
#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/cast/cuda_cast.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/check.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/util/error.h"

#include "cast/cast_list.cuh"

namespace ingot::cuda {
namespace {

// The list as it is copied to device memory.
struct Table {
  std::vector<CastTilesParams> casts{};
  std::vector<ListedTile> tiles{};
};

template <class Spec>
void append(const Spec& spec, const CastTilesParams& params, Table& table) {
  const i64 count = CastTilesLaunch::grid(params.source.rows, params.source.cols);
  if (count > std::numeric_limits<std::int32_t>::max() - static_cast<i64>(table.tiles.size())) {
    throw Error(ErrorCode::invalid_argument, print(spec),
                "the list has more than 2147483647 tiles of 128 x 128, the blocks of one launch: make it two lists");
  }
  const auto index = static_cast<u32>(table.casts.size());
  for (u32 tile = 0; tile < count; ++tile) table.tiles.push_back({index, tile});
  table.casts.push_back(params);
}

class DeviceTable {
 public:
  DeviceTable(const Table& table, Stream& stream, DeviceApi& device)
      : casts_(upload(table.casts, stream, device)),
        tiles_(upload(table.tiles, stream, device)),
        count_(static_cast<i64>(table.tiles.size())) {}

  i64 tiles() const { return count_; }
  CastListParams params() const {
    return {.casts = static_cast<const CastTilesParams*>(casts_.data()),
            .tiles = static_cast<const ListedTile*>(tiles_.data())};
  }

 private:
  template <class T>
  static Buffer upload(const std::vector<T>& values, Stream& stream, DeviceApi& device) {
    const std::size_t bytes = values.size() * sizeof(T);
    Buffer buffer(device, bytes);
    if (bytes != 0) device.copy_from_host(buffer.data(), values.data(), bytes, stream);
    return buffer;
  }

  Buffer casts_, tiles_;
  i64 count_;
};

bool transposed_aligned(const CastTensors& tensors) {
  return rows_aligned<u8>(tensors.transposed.data, tensors.transposed.row_stride, 16);
}

// Where the maxima of one output start, in floats.
float* take(ScaleGranularity scale, const Tensor& input, float* memory, i64& taken) {
  float* const start = memory + taken;
  taken += scale_count(scale, input.rows, input.cols);
  return start;
}

class CudaCastList final : public CastList {
 public:
  CudaCastList(const CastSpec& spec, std::span<const CastTensors> tensors, Stream& stream, Launcher& launcher)
      : launcher_(&launcher), spec_(spec) {
    spec_.list = true;
    Table table;
    std::vector<Tensor> inputs;
    for (const CastTensors& one : tensors) {
      if (one.input.empty() && spec_.source == ScaleSource::dynamic) {
        empty_.push_back(one);
        continue;
      }
      append(spec_, tiles_params(spec_, one), table);
      unaligned_ = unaligned_ || !transposed_aligned(one);
      inputs.push_back(one.input);
    }
    if (extra_passes(spec_).first) give_maxima(inputs, table);
    table_.emplace(table, stream, launcher.device());
  }

  void run(Stream& stream) override {
    const CurrentContext current = launcher_->device().begin(stream);
    for (const CastTensors& tensors : empty_) fill_scale_inv(spec_, tensors, stream, *launcher_);
    const i64 tiles = table_->tiles();
    if (tiles == 0) return;
    const CastListParams params = table_->params();
    const CastPlan plan = cast_plan(spec_, {.transposed_aligned = !unaligned_}, cast_device(*launcher_),
                                    CastStreamOf(spec_, stream, *launcher_));
    if (plan.first) {
      launcher_->fill_zero(maxima_.data(), maxima_.bytes(), stream);
      launcher_->launch(spec_, *plan.first, tiles, CastTilesLaunch::kThreads, params, stream);
    }
    launcher_->launch(spec_, plan.main, tiles, CastTilesLaunch::kThreads, params, stream);
  }

 private:
  // Contiguous, one array after the other, so that one fill clears them all.
  void give_maxima(std::span<const Tensor> inputs, Table& table) {
    const ScaleGranularity own = spec_.transposed_scale.value_or(spec_.scale);
    const auto needed = [&](float* memory) {
      i64 taken = 0;
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        const auto give = [&](ScaleGranularity scale, CastOutput& output) {
          float* const maxima = take(scale, inputs[i], memory, taken);
          output.from = maxima;
          output.from_count = 1;
          output.amax = reinterpret_cast<u32*>(maxima);
        };
        CastTilesParams& cast = table.casts[i];
        if (from_first_pass(spec_.scale)) give(spec_.scale, spec_.codes ? cast.codes : cast.transposed);
        if (spec_.transposed_scale && from_first_pass(own)) give(own, cast.transposed);
      }
      return taken;
    };
    const i64 floats = needed(nullptr);
    maxima_ = Buffer(launcher_->device(), static_cast<std::size_t>(floats) * sizeof(float));
    needed(static_cast<float*>(maxima_.data()));
  }

  Launcher* launcher_;
  CastSpec spec_;
  std::vector<CastTensors> empty_{};  // with dynamic scales: only their scale_inv are written
  bool unaligned_ = false;            // transposed rows of a matrix do not all start at multiples of 16 bytes
  Buffer maxima_{};
  std::optional<DeviceTable> table_{};
};

// Maxima start as zeros, which are those of a matrix without elements.
class CudaAmaxList final : public AmaxList {
 public:
  CudaAmaxList(const AmaxSpec& spec, std::span<const AmaxTensors> tensors, Stream& stream, Launcher& launcher)
      : launcher_(&launcher),
        spec_(spec),
        zeros_(zeros_of(tensors)),
        table_(table_of(spec, tensors), stream, launcher.device()) {
    spec_.list = true;
  }

  void run(Stream& stream) override {
    const CurrentContext current = launcher_->device().begin(stream);
    for (const std::span<float> part : zeros_) launcher_->fill_zero(part.data(), part.size_bytes(), stream);
    if (table_.tiles() == 0) return;
    launcher_->launch(spec_, Pass::main, table_.tiles(), CastTilesLaunch::kThreads, table_.params(), stream);
  }

 private:
  // The memory of all maxima, in contiguous parts.
  static std::vector<std::span<float>> zeros_of(std::span<const AmaxTensors> tensors) {
    std::vector<std::span<float>> all;
    for (const AmaxTensors& one : tensors) {
      for (const Tensor& amax : {one.amax, one.second_amax}) {
        if (!amax.empty()) all.emplace_back(static_cast<float*>(amax.data), static_cast<std::size_t>(amax.cols));
      }
    }
    std::ranges::sort(all, std::less<>(), [](std::span<float> part) { return part.data(); });
    std::vector<std::span<float>> parts;
    for (const std::span<float> each : all) {
      if (!parts.empty() && parts.back().data() + parts.back().size() == each.data()) {
        parts.back() = {parts.back().data(), parts.back().size() + each.size()};
      } else {
        parts.push_back(each);
      }
    }
    return parts;
  }

  static Table table_of(const AmaxSpec& spec, std::span<const AmaxTensors> tensors) {
    Table table;
    for (const AmaxTensors& one : tensors) {
      if (one.input.empty()) continue;
      CastTilesParams params = tiles_params({.in = spec.in}, {.input = one.input, .scale_inv = {}});
      params.codes.amax = static_cast<u32*>(one.amax.data);
      params.transposed.amax = static_cast<u32*>(one.second_amax.data);
      append(spec, params, table);
    }
    return table;
  }

  Launcher* launcher_;
  AmaxSpec spec_;
  std::vector<std::span<float>> zeros_;
  DeviceTable table_;
};

}  // namespace

std::unique_ptr<AmaxList> make_amax_list(const AmaxSpec& spec, std::span<const AmaxTensors> tensors, Stream& stream,
                                         Launcher& launcher) {
  return std::make_unique<CudaAmaxList>(spec, tensors, stream, launcher);
}

std::unique_ptr<CastList> make_cast_list(const CastSpec& spec, std::span<const CastTensors> tensors, Stream& stream,
                                         Launcher& launcher) {
  return std::make_unique<CudaCastList>(spec, tensors, stream, launcher);
}

}  // namespace ingot::cuda
