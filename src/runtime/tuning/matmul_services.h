// What the plans of GEMMs and of matmuls with decoded weights are made with: the services by which a backend chooses
// and records kernels, and the order in which to try these.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace ingot {

class CublasLt;
class MatmulChoices;
class Recorder;

// Each may be null.
struct MatmulServices {
  CublasLt* cublaslt = nullptr;      // null: no GEMM runs on cuBLASLt
  MatmulChoices* choices = nullptr;  // what tuning has found
  Recorder* recorder = nullptr;
  bool compiles = true;  // false: kernels cannot be compiled here
};

// How many sizes the plans of one kind of matmul keep, at some 500 bytes each. A program with more sizes, with another
// number of tokens in each step for instance, makes further plans again at each call (some microseconds).
inline constexpr std::size_t kMostPlans = 65536;

// Which kernels to try for a matmul, in order: a view of a plan that is kept, or its own plan.
template <class Spec>
class KernelOrder {
 public:
  explicit KernelOrder(std::span<const Spec> kept) : specs_(kept) {}
  explicit KernelOrder(std::vector<Spec>&& own) : own_(std::move(own)), specs_(own_) {}
  KernelOrder(KernelOrder&&) noexcept = default;  // a vector that moves keeps its elements where they are
  KernelOrder& operator=(KernelOrder&&) noexcept = default;

  operator std::span<const Spec>() const { return specs_; }  // NOLINT(google-explicit-constructor): it is one
  auto begin() const { return specs_.begin(); }
  auto end() const { return specs_.end(); }
  std::size_t size() const { return specs_.size(); }
  bool empty() const { return specs_.empty(); }
  const Spec& operator[](std::size_t i) const { return specs_[i]; }

 private:
  std::vector<Spec> own_;
  std::span<const Spec> specs_;
};

}  // namespace ingot
