// PyTorch's tensors as what the layers' functions take: matrices, and regions of bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>

#include "ingot/nn/linear/linear_memory.h"
#include "torch_abi/torch_library.h"

namespace ingot::python {

// What messages call a tensor. The text is made only for a message, as every call names its tensors.
struct TensorName {
  const std::string& subject;  // linear "wq"
  const char* tensor;          // input

  std::string text() const { return subject + " " + tensor; }
};

// A tensor of any rank as a matrix: the last dimension's elements are the columns.
struct TorchMatrix {
  Tensor view{};
  TorchTensor copy{};  // what the view shows, if the strides of the tensor are not those of a matrix
};

// Throws Error{invalid_argument} for a tensor without dimensions, of another dtype than f32, bf16 and f16, and on
// neither CPU nor CUDA.
TorchMatrix matrix_of(const TorchTensor& tensor, const TensorName& name);
// The same for an operand that may be one element standing for all (strides of 0: the gradient of a sum): then [1, 1].
TorchMatrix matrix_or_element_of(const TorchTensor& tensor, const TensorName& name);

// The sizes of a tensor, without an allocation.
class TorchSizes {
 public:
  // Throws Error{invalid_argument} for more dimensions than PyTorch's tensors have.
  explicit TorchSizes(std::span<const std::int64_t> sizes);

  std::int64_t& back() { return sizes_[count_ - 1]; }
  const std::int64_t* data() const { return sizes_.data(); }
  std::size_t size() const { return count_; }
  const std::int64_t* begin() const { return sizes_.data(); }
  const std::int64_t* end() const { return sizes_.data() + count_; }

 private:
  std::array<std::int64_t, kMostDimensions> sizes_{};
  std::size_t count_;
};

// The sizes of a layer's result for a tensor of these: the last one replaced.
TorchSizes sizes_with_last(std::span<const std::int64_t> sizes, std::int64_t last);

// Memory for one call, of PyTorch's allocator. PyTorch's CPU memory is aligned to 64 bytes, so that on the CPU the call
// works on separate aligned memory, which is copied from and to PyTorch's tensors.
class TorchRegion {
 public:
  TorchRegion() = default;
  TorchRegion(std::size_t bytes, Device device);
  // What an earlier call has left in a tensor.
  TorchRegion(TorchTensor tensor, Device device);

  const MemoryRegion& region() const { return region_; }
  // As a tensor, for a later call.
  TorchTensor publish() &&;

 private:
  struct Free {
    void operator()(std::byte* data) const { ::operator delete[](data, std::align_val_t{kLinearAlignment}); }
  };

  MemoryRegion region_{};
  TorchTensor tensor_{};
  std::unique_ptr<std::byte[], Free> aligned_{};
};

}  // namespace ingot::python
