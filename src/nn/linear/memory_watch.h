// Debug check (ContextOptions::check_memory): detects memory of a call that was freed, and memory that was modified
// between a forward and the backward that reads it again. Each check copies that memory to the host and waits for the
// stream.
//
// A layer or module has two functions of its plan and its tensors, which the templates below find by their types:
// check_held() passes all memory of a call to an AllocationCheck, watch() what backward reads again to a Watch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "ingot/nn/linear/linear_tensors.h"

namespace ingot {

// Refuses memory that no allocation holds.
class AllocationCheck {
 public:
  // Throws for a stream that is capturing. `subject`: the layer, in messages.
  AllocationCheck(const std::string& subject, const DeviceApi& device_api, const Stream& stream);

  void operator()(const char* name, const MemoryRegion& region) const;
  void operator()(const char* name, const Tensor& tensor) const;
  void operator()(const char* name, const Float8View& codes) const;
  void operator()(const char* name, const PointwiseTensors& inputs) const;

  // Checks the tensors that calls of all layers have.
  template <class Tensors>
  void call(const Tensors& t) const {
    if (t.saved != nullptr) (*this)("saved", t.saved->memory);
    (*this)("scratch", t.scratch);
    (*this)("input", t.input);
    if constexpr (requires { t.gamma; }) {
      (*this)("gamma", t.gamma);
      (*this)("beta", t.beta);
    }
    if constexpr (requires { t.output; }) (*this)("output", t.output);
    if constexpr (requires { t.prologue_inputs; }) (*this)("an input of the prologue", t.prologue_inputs);
    if constexpr (requires { t.epilogue_inputs; }) (*this)("an input of the epilogue", t.epilogue_inputs);
    if constexpr (requires { t.given_input; }) (*this)("given_input", t.given_input);
    if constexpr (requires { t.grad_output; }) {
      (*this)("grad_output", t.grad_output);
      (*this)("grad_input", t.grad_input);
    }
    if constexpr (requires { t.grad_gamma; }) {
      (*this)("grad_gamma", t.grad_gamma);
      (*this)("grad_beta", t.grad_beta);
    }
  }
  // Checks the tensors of one weight.
  template <class Tensors>
  void weight(const char* weight, const char* codes, const Tensors& t) const {
    (*this)(weight, t.weight);
    (*this)(codes, t.codes);
    if constexpr (requires { t.weight_into; }) {
      (*this)("bias", t.bias);
      if (t.weight_into) (*this)(codes, *t.weight_into);
    } else {
      (*this)("grad_weight", t.grad_weight);
      (*this)("grad_bias", t.grad_bias);
    }
  }

 private:
  const std::string* subject_;
  const DeviceApi* device_api_;
};

inline constexpr const char* kKeepValues = "keep its values until the backward is done";

// Notes sums on behalf of a forward, or compares with those that it noted.
class Watch {
 public:
  Watch(LinearSaved& saved, DeviceApi& device_api, Stream& stream)
      : device_api_(&device_api), stream_(&stream), notes_(&saved) {}
  Watch(const std::string& subject, const LinearSaved& saved, DeviceApi& device_api, Stream& stream)
      : device_api_(&device_api), stream_(&stream), subject_(&subject), expected_(&saved) {}

  // A sum is of all these tensors, so it needs all that forward had. `remedy` ends the message.
  void operator()(const char* name, std::span<const Tensor> tensors, const char* remedy = kKeepValues);
  void operator()(const char* name, const Tensor& tensor) { (*this)(name, {&tensor, 1}); }
  // The saved memory itself, of this size.
  void saved(std::size_t bytes);
  // A weight as grad_input's GEMM reads it.
  template <class Tensors>
  void weight(const LinearPlan& plan, const Tensors& t, const char* weight, const char* codes) {
    Float8View read = t.codes;
    if constexpr (requires { t.weight_into; }) {
      if (t.weight_into) read = weight_codes(plan, *t.weight_into, device_api_->device());
    }
    this->weight(plan, t.weight, read, weight, codes);
  }

 private:
  void weight(const LinearPlan& plan, const Tensor& tensor, const Float8View& read, const char* weight,
              const char* codes);

  DeviceApi* device_api_;
  Stream* stream_;
  const std::string* subject_ = nullptr;
  LinearSaved* notes_ = nullptr;
  const LinearSaved* expected_ = nullptr;
};

// For a forward: everything that any backward reads again. For a backward: what this one reads again.
void watch(Watch& watch, const LinearPlan& plan, const LinearForwardTensors& tensors);
void watch(Watch& watch, const LinearPlan& plan, const LinearBackwardTensors& tensors);

void check_held(const AllocationCheck& check, const auto& tensors) {
  check.call(tensors);
  check.weight("weight", "codes", tensors);
}

// Runs enqueue() of a forward or recompute, whose arguments were checked before, between its two memory checks.
template <class Plan, class Tensors, class Enqueue>
void watched_forward(const Plan& plan, Backend& backend, const Tensors& tensors, Stream& stream,
                     const Enqueue& enqueue) {
  if (!backend.device_api().checks_memory()) return enqueue();
  check_held(AllocationCheck(plan.subject, backend, stream), tensors);
  enqueue();
  if (tensors.saved == nullptr) return;
  Watch note(*tensors.saved, backend, stream);
  watch(note, plan, tensors);
}

// Call before a backward enqueues anything, after the checks of its arguments.
template <class Plan, class Tensors>
void watch_backward(const Plan& plan, Backend& backend, const Tensors& tensors, Stream& stream) {
  if (!backend.device_api().checks_memory()) return;
  check_held(AllocationCheck(plan.subject, backend, stream), tensors);
  Watch compare(plan.subject, *tensors.saved, backend, stream);
  watch(compare, plan, tensors);
}

// The same for functions of many experts, which look at less: `look(watch)` passes what a forward notes, or what a
// backward compares. saved: null for a forward that keeps nothing.
template <class Enqueue, class Look>
void watched_forward_of_experts(const std::string& subject, LinearSaved* saved, DeviceApi& device_api, Stream& stream,
                                const Enqueue& enqueue, const Look& look) {
  if (saved == nullptr || !device_api.checks_memory()) return enqueue();
  AllocationCheck(subject, device_api, stream)("saved", saved->memory);
  enqueue();
  Watch note(*saved, device_api, stream);
  look(note);
}
template <class Look>
void watch_backward_of_experts(const std::string& subject, const LinearSaved& saved, DeviceApi& device_api,
                               Stream& stream, const Look& look) {
  if (!device_api.checks_memory()) return;
  AllocationCheck(subject, device_api, stream)("saved", saved.memory);
  Watch compare(subject, saved, device_api, stream);
  look(compare);
}

}  // namespace ingot
