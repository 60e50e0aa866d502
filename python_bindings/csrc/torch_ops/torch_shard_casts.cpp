// This rank's shards of a model's weights, cast to FP8 in few launches with scales that all ranks share: what an
// all-gather of FP8 weights does on each rank. amax() finds the maxima of all shards, the caller reduces them over the
// ranks, scales() makes scales of them, and cast() codes and scale_inv of those, or of others that the caller has put
// in their place, as delayed ones. A weight may have two sets of codes, for GEMMs that need other scales. A set without
// memory for codes has only maxima and scales: another list casts it when its gather begins.
//
// Everything lies in tensors of the caller, which keeps them alive and in place. The lists of what is cast are made
// once; no call allocates, so that a call which has run before may be captured.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays/arrays.h"
#include "context.h"
#include "ingot/codegen/cast/amax_spec.h"
#include "ingot/codegen/cast/cast_spec.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/util/error.h"
#include "module.h"
#include "torch_ops/torch_run.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

// Codes of a shard [rows, columns], by rows, and f32 vectors with an element for each extent that shares a scale.
struct ShardCodes {
  ScaleGranularity granularity;
  std::optional<std::uintptr_t> codes;  // without them, no scale_inv either
  std::uintptr_t amax, scale, scale_inv;
};

struct Shard {
  std::uintptr_t data;
  Dtype dtype;
  std::int64_t rows, columns;
  std::optional<Dtype> rounded;  // what values are rounded to first
  Dtype codes;
  bool pow2;
  std::vector<ShardCodes> sets;  // one or two
};

ShardCodes shard_codes(const std::string& granularity, std::optional<std::uintptr_t> codes, std::uintptr_t amax,
                       std::uintptr_t scale, std::uintptr_t scale_inv) {
  return {granularity_of(granularity, "shard granularity"), codes, amax, scale, scale_inv};
}

Shard shard_of(std::uintptr_t data, const std::string& dtype, std::int64_t rows, std::int64_t columns,
               const std::string& rounded, const std::string& code_dtype, bool pow2, std::vector<ShardCodes> sets) {
  const auto refuse = [](const std::string& why) { throw Error(ErrorCode::invalid_argument, "shard", why); };
  if (rows < 0 || columns < 0) refuse("has a size below 0");
  if (sets.empty() || sets.size() > 2) {
    refuse("has " + std::to_string(sets.size()) + " sets of codes; expected one or two");
  }
  // One order, so that one kernel finds the maxima of both.
  std::ranges::sort(sets, std::less<>(), &ShardCodes::granularity);
  if (sets.size() == 2 && sets[0].granularity == sets[1].granularity) {
    refuse("has two sets of codes with scale \"" + print(sets[0].granularity) + "\": leave one of them out");
  }
  Shard made{.data = data,
             .dtype = dtype_of(dtype, "shard dtype"),
             .rows = rows,
             .columns = columns,
             .rounded = {},
             .codes = dtype_of(code_dtype, "shard code_dtype"),
             .pow2 = pow2,
             .sets = std::move(sets)};
  if (!rounded.empty() && rounded != dtype) made.rounded = dtype_of(rounded, "shard rounded");
  return made;
}

void* pointer(std::uintptr_t address) { return std::bit_cast<void*>(address); }

// What one list or call does together.
template <class Spec, class Tensors>
struct Group {
  Spec spec;
  std::vector<Tensors> tensors{};
};
template <class Spec, class Tensors>
void add(std::vector<Group<Spec, Tensors>>& groups, const Spec& spec, const Tensors& tensors) {
  auto group = std::ranges::find(groups, spec, &Group<Spec, Tensors>::spec);
  if (group == groups.end()) group = groups.insert(groups.end(), Group<Spec, Tensors>{.spec = spec});
  group->tensors.push_back(tensors);
}

float* end_of(const Tensor& vector) { return static_cast<float*>(vector.data) + vector.cols; }

// The same maxima and scales in as few vectors as their memory allows.
void join(std::vector<AmaxScalesTensors>& vectors) {
  std::ranges::sort(vectors, std::less<>(), [](const AmaxScalesTensors& each) { return each.amax.data; });
  std::vector<AmaxScalesTensors> joined;
  for (const AmaxScalesTensors& each : vectors) {
    if (each.amax.empty()) continue;
    if (!joined.empty() && end_of(joined.back().amax) == each.amax.data &&
        end_of(joined.back().scale) == each.scale.data) {
      for (Tensor* const whole : {&joined.back().amax, &joined.back().scale}) {
        whole->cols += each.amax.cols;
        whole->row_stride = whole->cols;
      }
    } else {
      joined.push_back(each);
    }
  }
  vectors = std::move(joined);
}

// What all shards need, by kind.
struct Work {
  void add_shard(const Shard& shard, Device device) {
    const Tensor input = matrix(pointer(shard.data), shard.dtype, shard.rows, shard.columns, device);
    const auto floats = [&](std::uintptr_t data, ScaleGranularity scale) {
      return vector(pointer(data), Dtype::f32, scale_count(scale, shard.rows, shard.columns), device);
    };
    AmaxSpec spec{.in = shard.dtype, .scale = shard.sets.front().granularity, .list = true, .rounded = shard.rounded};
    AmaxTensors amax{.input = input, .amax = floats(shard.sets.front().amax, spec.scale)};
    if (shard.sets.size() == 2) {
      spec.second_scale = shard.sets.back().granularity;
      amax.second_amax = floats(shard.sets.back().amax, *spec.second_scale);
    }
    add(maxima, spec, amax);
    for (const ShardCodes& set : shard.sets) {
      const Tensor found = floats(set.amax, set.granularity);
      const Tensor made = floats(set.scale, set.granularity);
      add(scales, {.out = shard.codes, .pow2 = shard.pow2}, {.amax = found, .scale = made});
      if (!set.codes) continue;
      // The cast raises the maxima to those of the shard: maxima of all ranks stay as they are.
      add(casts,
          {.in = shard.dtype,
           .out = shard.codes,
           .scale = set.granularity,
           .source = ScaleSource::given,
           .list = true,
           .rounded = shard.rounded},
          {.input = input,
           .codes = matrix(pointer(*set.codes), shard.codes, shard.rows, shard.columns, device),
           .scale_inv = floats(set.scale_inv, set.granularity),
           .scales = made,
           .amax = found});
    }
  }

  std::vector<Group<AmaxSpec, AmaxTensors>> maxima{};
  std::vector<Group<AmaxScalesSpec, AmaxScalesTensors>> scales{};
  std::vector<Group<CastSpec, CastTensors>> casts{};
};

class ShardCasts {
 public:
  ShardCasts(const std::string& device, const std::vector<Shard>& shards)
      : backend_(&shared_context(device).context().backend()) {
    Work work;
    for (const Shard& shard : shards) work.add_shard(shard, backend_->device());
    Stream stream(*backend_);
    for (const auto& [spec, tensors] : work.maxima) {
      amax_lists_.push_back(backend_->make_amax_list(spec, tensors, stream));
    }
    for (const auto& [spec, tensors] : work.casts) {
      cast_lists_.push_back(backend_->make_cast_list(spec, tensors, stream));
    }
    for (auto& [spec, tensors] : work.scales) join(tensors);
    scales_ = std::move(work.scales);
    backend_->device_api().synchronize(stream);
  }

  void amax() {
    const std::lock_guard lock(running_);
    const TorchRun place = run();
    for (const auto& list : amax_lists_) list->run(place.stream());
  }

  void scales() {
    const std::lock_guard lock(running_);
    const TorchRun place = run();
    for (const auto& [spec, vectors] : scales_) {
      for (const AmaxScalesTensors& each : vectors) backend_->amax_scales(spec, each, place.stream());
    }
  }

  void cast() {
    const std::lock_guard lock(running_);
    const TorchRun place = run();
    for (const auto& list : cast_lists_) list->run(place.stream());
  }

 private:
  TorchRun run() const {
    if (TorchDryRun::of_thread() == nullptr) return TorchRun(backend_->device());
    throw Error(
        ErrorCode::invalid_argument, "shards",
        "are cast on their own device, but this thread is in a dry run: prepare the model before it is sharded");
  }

  Backend* backend_;  // of the process
  std::vector<std::unique_ptr<AmaxList>> amax_lists_{};
  std::vector<Group<AmaxScalesSpec, AmaxScalesTensors>> scales_{};
  std::vector<std::unique_ptr<CastList>> cast_lists_{};
  std::mutex running_{};  // lists run on one stream at a time
};

}  // namespace

void bind_torch_shards(nb::module_& module) {
  using Free = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<ShardCodes>(module, "TorchShardCodes")
      .def(nb::new_(&shard_codes), "granularity"_a, "codes"_a.none(), "amax"_a, "scale"_a, "scale_inv"_a);
  nb::class_<Shard>(module, "TorchShard")
      .def(nb::new_(&shard_of), "data"_a, "dtype"_a, "rows"_a, "columns"_a, "rounded"_a, "code_dtype"_a, "pow2"_a,
           "sets"_a);
  nb::class_<ShardCasts>(module, "TorchShardCasts")
      .def(nb::init<const std::string&, const std::vector<Shard>&>(), "device"_a, "shards"_a, Free())
      .def("amax", &ShardCasts::amax, Free())
      .def("scales", &ShardCasts::scales, Free())
      .def("cast", &ShardCasts::cast, Free());
}

}  // namespace ingot::python
