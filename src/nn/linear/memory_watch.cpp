#include "ingot/nn/linear/memory_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "ingot/codegen/types/spec_hash.h"
#include "ingot/nn/linear/linear_checks.h"
#include "ingot/nn/linear/tensor_checks.h"
#include "ingot/runtime/util/digest.h"

namespace ingot {
namespace {

// ---- sums of memory ------------------------------------------------------------------------------------------------

// In pieces, so that the host needs little memory for it.
std::uint64_t add_bytes(std::uint64_t sum, const void* data, std::size_t bytes, Backend& backend, Stream& stream) {
  constexpr std::size_t kPiece = std::size_t{16} << 20U;
  std::vector<char> piece(std::min(bytes, kPiece));
  for (std::size_t done = 0; done < bytes; done += piece.size()) {
    piece.resize(std::min(bytes - done, kPiece));
    backend.copy_to_host(piece.data(), static_cast<const std::byte*>(data) + done, piece.size(), stream);
    const Digest digest = ingot::digest({piece.data(), piece.size()});
    std::uint64_t word = 0;
    std::memcpy(&word, digest.data(), sizeof(word));
    sum = mix(sum + word);
  }
  return sum;
}

// Of the elements alone: what lies between rows may be another tensor's.
std::uint64_t add_tensor(std::uint64_t sum, const Tensor& tensor, Backend& backend, Stream& stream) {
  if (tensor.data == nullptr || tensor.empty()) return sum;
  const std::size_t row = static_cast<std::size_t>(tensor.cols * size_of(tensor.dtype));
  const auto rows = static_cast<std::size_t>(tensor.rows);
  if (rows == 1 || tensor.row_stride == tensor.cols) return add_bytes(sum, tensor.data, rows * row, backend, stream);
  const auto* data = static_cast<const std::byte*>(tensor.data);
  for (std::size_t i = 0; i < rows; ++i, data += tensor.row_stride * size_of(tensor.dtype)) {
    sum = add_bytes(sum, data, row, backend, stream);
  }
  return sum;
}

// What a sum is of, by its place in MemorySums.
enum class Watched : std::uint8_t {
  saved,
  input,
  gamma,
  weight,
  codes,
  down_weight,
  down_codes,
  output,
  prologue_inputs,
  epilogue_inputs,
  given_input
};

struct WatchedMessage {
  const char* name;
  const char* remedy;
};

constexpr const char* kKeepValues = "keep its values until the backward is done";
constexpr const char* kCastLater =
    "cast a weight again, or write its codes, only when the backwards of its forwards are done";
constexpr std::array<WatchedMessage, kWatchedMemory> kMessages{
    {{"saved",
      "it was overwritten, or another forward was given the same memory: give each forward memory of its own until its "
      "backward is done"},
     {"input", kKeepValues},
     {"gamma", kKeepValues},
     {"weight", "update the weight behind the backward"},
     {"codes", kCastLater},
     {"down.weight", "update the weight behind the backward"},
     {"down.codes", kCastLater},
     {"output", kKeepValues},
     {"an input of the prologue", kKeepValues},
     {"an input of the epilogue", kKeepValues},
     {"given_input", kKeepValues}}};

// Notes sums, or compares with those that a forward noted.
class Watch {
 public:
  Watch(Backend& backend, Stream& stream) : backend_(&backend), stream_(&stream) {}
  Watch(Backend& backend, Stream& stream, const std::string& subject, const MemorySums& expected)
      : backend_(&backend), stream_(&stream), subject_(&subject), expected_(&expected) {}

  // A sum is of all these tensors, so it needs all that forward had.
  void operator()(Watched what, std::initializer_list<Tensor> tensors) {
    const auto index = static_cast<std::size_t>(what);
    if (expected_ != nullptr && expected_->of[index] == 0) return;
    std::uint64_t sum = 0;
    for (const Tensor& tensor : tensors) sum = add_tensor(sum, tensor, *backend_, *stream_);
    if (expected_ == nullptr) {
      sums_.of[index] = sum;
    } else if (sum != 0 && sum != expected_->of[index]) {
      const auto& [name, remedy] = kMessages[index];
      refuse_argument(fmt::format("{} {}", *subject_, name).c_str(),
                      fmt::format("changed between forward and backward, which reads it: {}", remedy));
    }
  }
  void operator()(const MemoryRegion& saved, std::size_t bytes) {
    const auto count = static_cast<std::int64_t>(saved.data == nullptr ? 0 : bytes);
    (*this)(Watched::saved,
            {{.data = saved.data, .dtype = Dtype::e4m3fn, .rows = 1, .cols = count, .row_stride = count}});
  }

  const MemorySums& sums() const { return sums_; }

 private:
  Backend* backend_;
  Stream* stream_;
  const std::string* subject_ = nullptr;
  const MemorySums* expected_ = nullptr;
  MemorySums sums_{};
};

// ---- what backward reads again -------------------------------------------------------------------------------------

// The weight of one linear layer. `layer`: of LinearForwardTensors, LinearBackwardTensors and their like.
template <class Layer>
void watch_weight(Watch& watch, const LinearPlan& plan, const Layer& layer, const Float8View& codes, Watched weight,
                  Watched of_codes) {
  const bool casts_again = plan.weight_again.any && !is_given(codes.transposed);
  if (!is_float8(plan.config.grad_input) || casts_again) return watch(weight, {layer.weight});
  if (codes.transposed.data == nullptr) return;
  const CastSpec& spec = plan.weight_again.any ? plan.weight_again.spec : plan.weight.spec;
  const bool own = plan.weight_again.any || spec.transposed_scale;
  watch(of_codes, {codes.transposed, own ? codes.transposed_factors : codes.factors});
}

void watch_all(Watch& watch, Watched what, const PointwiseTensors& inputs) {
  static_assert(kMaxPointwiseInputs == 4);
  watch(what, {inputs[0], inputs[1], inputs[2], inputs[3]});
}

template <class Tensors>
void watch_inputs(Watch& watch, const LinearPlan& plan, const Tensors& t) {
  const bool reads_input = plan.trains_weight && plan.grad_weight_reads_input();
  if (reads_input) watch(Watched::input, {t.input});
  if (plan.gradient.of_output()) watch(Watched::output, {t.output});
  if (plan.trains_weight && plan.input_again.any) watch_all(watch, Watched::prologue_inputs, t.prologue_inputs);
  watch_all(watch, Watched::epilogue_inputs, t.epilogue_inputs);
  if (t.given_input.transposed.data == nullptr) return;
  watch(Watched::given_input, {t.given_input.transposed, t.given_input.transposed_factors});
}

// `codes`: the weight's, for a forward that casts them itself too.
template <class Tensors>
void watch(Watch& watch, const LinearPlan& plan, const Tensors& t, const Float8View& codes) {
  watch(t.saved->memory, plan.saved_memory(t.saved->tokens).bytes);
  watch_weight(watch, plan, t, codes, Watched::weight, Watched::codes);
  watch_inputs(watch, plan, t);
}

template <class Tensors>
void watch_norm(Watch& watch, const NormLinearPlan& plan, const Tensors& t) {
  if (plan.norm || plan.linear.grad_weight_reads_input()) watch(Watched::input, {t.input});
  if (plan.norm) watch(Watched::gamma, {t.gamma});
}

template <class Tensors>
void watch(Watch& watch, const NormLinearPlan& plan, const Tensors& t, const Float8View& codes) {
  watch(t.saved->memory, plan.saved_memory(t.saved->tokens).bytes);
  watch_norm(watch, plan, t);
  watch_weight(watch, plan.linear, t, codes, Watched::weight, Watched::codes);
  if (plan.linear.gradient.of_output()) watch(Watched::output, {t.output});
  watch_all(watch, Watched::epilogue_inputs, t.epilogue_inputs);
}

template <class Tensors>
void watch(Watch& watch, const MlpPlan& plan, const Tensors& t, const Float8View& up, const Float8View& down) {
  watch(t.saved->memory, plan.saved_memory(t.saved->tokens).bytes);
  watch_norm(watch, plan.up, t);
  watch_weight(watch, plan.up.linear, t.up, up, Watched::weight, Watched::codes);
  watch_weight(watch, plan.down, t.down, down, Watched::down_weight, Watched::down_codes);
}

// Of LinearForwardTensors and their like.
template <class Layer>
Float8View codes_of(const LinearPlan& plan, const Backend& backend, const Layer& layer) {
  return layer.weight_into ? weight_codes(plan, *layer.weight_into, backend.device()) : layer.codes;
}

// Leaves out what a backward for these gradients does not read.
template <class Layer>
void forget_weight(Layer& layer, bool is_read) {
  if (is_read) return;
  layer.weight = {};
  layer.codes = {};
}

LinearBackwardTensors read_by(LinearBackwardTensors t) {
  forget_weight(t, is_given(t.grad_input));
  if (is_given(t.grad_weight)) return t;
  t.input = {};
  t.prologue_inputs = {};
  t.given_input = {};
  return t;
}

NormLinearBackwardTensors read_by(const NormLinearPlan& plan, NormLinearBackwardTensors t) {
  forget_weight(t, is_given(t.grad_input));
  if (!plan.backward_reads_input(wanted_gradients(t))) t.input = {};
  if (!is_given(t.grad_input)) t.gamma = {};
  return t;
}

MlpBackwardTensors read_by(const MlpPlan& plan, MlpBackwardTensors t) {
  const MlpGradients wants = wanted_gradients(t);
  forget_weight(t.down, wants.reaches_up());
  forget_weight(t.up, wants.input);
  if (!plan.up.backward_reads_input(wants.of_up())) t.input = {};
  if (!wants.input) t.gamma = {};
  return t;
}

// ---- freed memory --------------------------------------------------------------------------------------------------

class AllocationCheck {
 public:
  AllocationCheck(const std::string& subject, const Backend& backend, const Stream& stream)
      : subject_(&subject), backend_(&backend) {
    if (!backend.capturing(stream)) return;
    refuse_argument(fmt::format("{} stream", subject).c_str(),
                    "is capturing a graph, but ContextOptions::check_memory asks for checks that wait for the stream: "
                    "check steps that are not captured");
  }

  void operator()(const char* name, const void* data, std::size_t bytes) const {
    if (data == nullptr || bytes == 0 || backend_->is_allocated(data, bytes)) return;
    refuse_argument(fmt::format("{} {}", *subject_, name).c_str(),
                    fmt::format("is {} bytes at {}, which no allocation holds: they were freed too early; keep them "
                                "until the stream has passed the last call that reads them",
                                bytes, fmt::ptr(data)));
  }
  void operator()(std::initializer_list<NamedTensor> tensors) const {
    for (const auto& [name, tensor] : tensors) (*this)(name, tensor->data, byte_span(*tensor, name));
  }
  void operator()(const char* name, const PointwiseTensors& inputs) const {
    for (const Tensor& input : inputs) (*this)({{name, &input}});
  }
  void operator()(const char* name, const Float8View& codes) const {
    (*this)(
        {{name, &codes.codes}, {name, &codes.transposed}, {name, &codes.factors}, {name, &codes.transposed_factors}});
  }
  void operator()(const char* name, const MemoryRegion& region) const { (*this)(name, region.data, region.bytes); }

  // What all forwards and all backwards have.
  template <class Tensors>
  void memory(const Tensors& t) const {
    if (t.saved != nullptr) (*this)("saved", t.saved->memory);
    (*this)("scratch", t.scratch);
    (*this)({{"input", &t.input}});
  }
  template <class Layer>
  void forward_layer(const char* weight, const char* codes, const Layer& t) const {
    (*this)({{weight, &t.weight}, {"bias", &t.bias}});
    (*this)(codes, t.codes);
    if (t.weight_into) (*this)(codes, *t.weight_into);
  }
  template <class Layer>
  void backward_layer(const char* weight, const char* codes, const Layer& t) const {
    (*this)({{weight, &t.weight}, {"grad_weight", &t.grad_weight}, {"grad_bias", &t.grad_bias}});
    (*this)(codes, t.codes);
  }

 private:
  const std::string* subject_;
  const Backend* backend_;
};

}  // namespace

void look_at_forward(const std::string& subject, Backend& backend, const LinearForwardTensors& t, Stream& stream) {
  const AllocationCheck check(subject, backend, stream);
  check.memory(t);
  check.forward_layer("weight", "codes", t);
  check({{"output", &t.output}});
  check("an input of the prologue", t.prologue_inputs);
  check("an input of the epilogue", t.epilogue_inputs);
  check("given_input", t.given_input);
}

void look_at_forward(const std::string& subject, Backend& backend, const NormLinearForwardTensors& t, Stream& stream) {
  const AllocationCheck check(subject, backend, stream);
  check.memory(t);
  check.forward_layer("weight", "codes", t);
  check({{"gamma", &t.gamma}, {"beta", &t.beta}, {"output", &t.output}});
  check("an input of the epilogue", t.epilogue_inputs);
}

void look_at_forward(const std::string& subject, Backend& backend, const MlpForwardTensors& t, Stream& stream) {
  const AllocationCheck check(subject, backend, stream);
  check.memory(t);
  check.forward_layer("up.weight", "up.codes", t.up);
  check.forward_layer("down.weight", "down.codes", t.down);
  check({{"gamma", &t.gamma}, {"beta", &t.beta}, {"output", &t.output}});
}

void look_at_backward(const std::string& subject, const LinearPlan& plan, Backend& backend,
                      const LinearBackwardTensors& t, Stream& stream) {
  const AllocationCheck check(subject, backend, stream);
  check.memory(t);
  check.backward_layer("weight", "codes", t);
  check({{"output", &t.output}, {"grad_output", &t.grad_output}, {"grad_input", &t.grad_input}});
  check("an input of the prologue", t.prologue_inputs);
  check("an input of the epilogue", t.epilogue_inputs);
  check("given_input", t.given_input);
  const LinearBackwardTensors read = read_by(t);
  Watch compare(backend, stream, subject, t.saved->sums);
  watch(compare, plan, read, read.codes);
}

void look_at_backward(const std::string& subject, const NormLinearPlan& plan, Backend& backend,
                      const NormLinearBackwardTensors& t, Stream& stream) {
  const AllocationCheck check(subject, backend, stream);
  check.memory(t);
  check.backward_layer("weight", "codes", t);
  check({{"gamma", &t.gamma}, {"beta", &t.beta}, {"output", &t.output}, {"grad_output", &t.grad_output}});
  check({{"grad_input", &t.grad_input}, {"grad_gamma", &t.grad_gamma}, {"grad_beta", &t.grad_beta}});
  check("an input of the epilogue", t.epilogue_inputs);
  const NormLinearBackwardTensors read = read_by(plan, t);
  Watch compare(backend, stream, subject, t.saved->sums);
  watch(compare, plan, read, read.codes);
}

void look_at_backward(const std::string& subject, const MlpPlan& plan, Backend& backend, const MlpBackwardTensors& t,
                      Stream& stream) {
  const AllocationCheck check(subject, backend, stream);
  check.memory(t);
  check.backward_layer("up.weight", "up.codes", t.up);
  check.backward_layer("down.weight", "down.codes", t.down);
  check({{"gamma", &t.gamma}, {"beta", &t.beta}, {"grad_output", &t.grad_output}});
  check({{"grad_input", &t.grad_input}, {"grad_gamma", &t.grad_gamma}, {"grad_beta", &t.grad_beta}});
  const MlpBackwardTensors read = read_by(plan, t);
  Watch compare(backend, stream, subject, t.saved->sums);
  watch(compare, plan, read, read.up.codes, read.down.codes);
}

void remember_forward(const LinearPlan& plan, Backend& backend, const LinearForwardTensors& t, Stream& stream) {
  Watch note(backend, stream);
  watch(note, plan, t, codes_of(plan, backend, t));
  t.saved->sums = note.sums();
}

void remember_forward(const NormLinearPlan& plan, Backend& backend, const NormLinearForwardTensors& t, Stream& stream) {
  Watch note(backend, stream);
  watch(note, plan, t, codes_of(plan.linear, backend, t));
  t.saved->sums = note.sums();
}

void remember_forward(const MlpPlan& plan, Backend& backend, const MlpForwardTensors& t, Stream& stream) {
  Watch note(backend, stream);
  watch(note, plan, t, codes_of(plan.up.linear, backend, t.up), codes_of(plan.down, backend, t.down));
  t.saved->sums = note.sums();
}

}  // namespace ingot
