#include "ingot/nn/linear/memory_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "ingot/codegen/types/spec_hash.h"
#include "ingot/nn/linear/linear_checks.h"
#include "ingot/nn/linear/tensor_checks.h"
#include "ingot/runtime/util/digest.h"

namespace ingot {
namespace {

// In pieces, so that the host needs little memory for it.
std::uint64_t add_bytes(std::uint64_t sum, const void* data, std::size_t bytes, DeviceApi& device_api, Stream& stream) {
  constexpr std::size_t kPiece = std::size_t{16} << 20U;
  std::vector<char> piece(std::min(bytes, kPiece));
  for (std::size_t done = 0; done < bytes; done += piece.size()) {
    piece.resize(std::min(bytes - done, kPiece));
    device_api.copy_to_host(piece.data(), static_cast<const std::byte*>(data) + done, piece.size(), stream);
    const Digest digest = ingot::digest({piece.data(), piece.size()});
    std::uint64_t word = 0;
    std::memcpy(&word, digest.data(), sizeof(word));
    sum = mix(sum + word);
  }
  return sum;
}

// Of the elements alone: what is between rows may be another tensor's.
std::uint64_t add_tensor(std::uint64_t sum, const Tensor& tensor, DeviceApi& device_api, Stream& stream) {
  if (tensor.data == nullptr || tensor.empty()) return sum;
  const std::size_t row = static_cast<std::size_t>(tensor.cols * size_of(tensor.dtype));
  const auto rows = static_cast<std::size_t>(tensor.rows);
  if (rows == 1 || tensor.row_stride == tensor.cols) return add_bytes(sum, tensor.data, rows * row, device_api, stream);
  const auto* data = static_cast<const std::byte*>(tensor.data);
  for (std::size_t i = 0; i < rows; ++i, data += tensor.row_stride * size_of(tensor.dtype)) {
    sum = add_bytes(sum, data, row, device_api, stream);
  }
  return sum;
}

template <class Tensors>
void watch_call(Watch& watch, const LinearPlan& plan, const Tensors& t, const LinearGradients& wants) {
  watch.saved(plan.saved_memory(t.saved->tokens).bytes);
  if (wants.input) watch.weight(plan, t, "weight", "codes");
  if (wants.weight && plan.trains_weight) {
    if (plan.grad_weight_reads_input()) watch("input", t.input);
    if (plan.input_again.any) watch("an input of the prologue", t.prologue_inputs);
    const Tensor given[] = {t.given_input.transposed, t.given_input.transposed_scale_inv};
    watch("given_input", given);
  }
  if (plan.gradient.of_output()) watch("output", t.output);
  watch("an input of the epilogue", t.epilogue_inputs);
}

}  // namespace

AllocationCheck::AllocationCheck(const std::string& subject, const DeviceApi& device_api, const Stream& stream)
    : subject_(&subject), device_api_(&device_api) {
  if (!device_api.capturing(stream)) return;
  refuse_argument(fmt::format("{} stream", subject).c_str(),
                  "is capturing a graph, but ContextOptions::check_memory asks for checks that wait for the stream: "
                  "check steps that are not captured");
}

void AllocationCheck::operator()(const char* name, const MemoryRegion& region) const {
  const auto& [data, bytes] = region;
  if (data == nullptr || bytes == 0 || device_api_->is_allocated(data, bytes)) return;
  refuse_argument(fmt::format("{} {}", *subject_, name).c_str(),
                  fmt::format("is {} bytes at {}, which no allocation holds: they were freed too early; keep them "
                              "until the stream has passed the last call that reads them",
                              bytes, fmt::ptr(data)));
}

void AllocationCheck::operator()(const char* name, const Tensor& tensor) const {
  (*this)(name, MemoryRegion{tensor.data, byte_span(tensor, name)});
}

void AllocationCheck::operator()(const char* name, const Float8View& codes) const {
  for (const Tensor* tensor : {&codes.codes, &codes.transposed, &codes.scale_inv, &codes.transposed_scale_inv}) {
    (*this)(name, *tensor);
  }
}

void AllocationCheck::operator()(const char* name, const PointwiseTensors& inputs) const {
  for (const Tensor& input : inputs) (*this)(name, input);
}

void Watch::operator()(const char* name, std::span<const Tensor> tensors, const char* remedy) {
  const std::uint64_t* expected = nullptr;
  if (expected_ != nullptr) {
    const auto noted = std::ranges::find(expected_->sums, std::string_view(name), &MemorySum::name);
    if (noted == expected_->sums.end()) return;
    expected = &noted->sum;
  }
  std::uint64_t sum = 0;
  for (const Tensor& tensor : tensors) sum = add_tensor(sum, tensor, *device_api_, *stream_);
  if (sum == 0) return;
  if (expected == nullptr) return notes_->sums.push_back({name, sum});
  if (sum == *expected) return;
  refuse_argument(fmt::format("{} {}", *subject_, name).c_str(),
                  fmt::format("changed between forward and backward, which reads it: {}", remedy));
}

void Watch::saved(std::size_t bytes) {
  const MemoryRegion& memory = (expected_ != nullptr ? expected_ : notes_)->memory;
  const auto count = static_cast<std::int64_t>(memory.data == nullptr ? 0 : bytes);
  const Tensor tensor{.data = memory.data, .dtype = Dtype::e4m3fn, .rows = 1, .cols = count, .row_stride = count};
  (*this)("saved", {&tensor, 1},
          "it was overwritten, or another forward was given the same memory: give each forward its own memory "
          "until its backward is done");
}

void Watch::weight(const LinearPlan& plan, const Tensor& tensor, const Float8View& read, const char* weight,
                   const char* codes) {
  const bool casts_again = plan.weight_again.any && !is_given(read.transposed);
  if (!is_float8(plan.config.grad_input) || casts_again) {
    return (*this)(weight, {&tensor, 1}, "update the weight after the backward");
  }
  if (read.transposed.data == nullptr) return;
  const CastSpec& spec = plan.weight_again.any ? plan.weight_again.spec : plan.weight.spec;
  const bool own = plan.weight_again.any || spec.transposed_scale;
  const Tensor both[] = {read.transposed, own ? read.transposed_scale_inv : read.scale_inv};
  (*this)(codes, both, "cast a weight again, or write its codes, only when the backwards of its forwards are done");
}

void watch(Watch& watch, const LinearPlan& plan, const LinearForwardTensors& t) {
  watch_call(watch, plan, t, LinearGradients{});
}

void watch(Watch& watch, const LinearPlan& plan, const LinearBackwardTensors& t) {
  watch_call(watch, plan, t, wanted_gradients(t));
}

}  // namespace ingot
