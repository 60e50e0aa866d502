// PyTorch's stable C functions, looked up by name in the process that has loaded PyTorch: the module needs no PyTorch
// when it is built, and one build serves every version from 2.7 on. What they do is documented in PyTorch's
// torch/csrc/inductor/aoti_torch/c/shim.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "ingot/codegen/types/dtype.h"
#include "ingot/runtime/core/tensor.h"

struct CUstream_st;  // the driver API's CUstream is a pointer to this
struct AtenTensorOpaque;
struct TorchLibraryOpaque;

namespace ingot::python {

using TorchHandle = AtenTensorOpaque*;
// An argument or a result of an operator: a tensor's handle, an integer, or the address of another TorchValue, which
// take_optional() reads; 0 for an optional argument that is not given.
using TorchValue = std::uint64_t;
// Takes its arguments from `stack`, whose tensors are its own, and leaves its results there.
using TorchKernel = void (*)(TorchValue* stack, std::uint64_t arguments, std::uint64_t results);

// Each returns 0, or another number after an error.
struct TorchFunctions {
  std::int32_t (*delete_tensor)(TorchHandle);
  std::int32_t (*data)(TorchHandle, void**);
  std::int32_t (*rank)(TorchHandle, std::int64_t*);
  std::int32_t (*sizes)(TorchHandle, std::int64_t**);
  std::int32_t (*strides)(TorchHandle, std::int64_t**);
  std::int32_t (*dtype)(TorchHandle, std::int32_t*);
  std::int32_t (*device_type)(TorchHandle, std::int32_t*);
  std::int32_t (*device_index)(TorchHandle, std::int32_t*);
  std::int32_t (*empty_strided)(std::int64_t rank, const std::int64_t* sizes, const std::int64_t* strides,
                                std::int32_t dtype, std::int32_t device_type, std::int32_t device_index, TorchHandle*);
  std::int32_t (*copy)(TorchHandle to, TorchHandle from, std::int32_t non_blocking);
  std::int32_t (*undefined)(TorchHandle*);
  // From 2.13 on frees the value of an optional argument; null before.
  std::int32_t (*delete_value)(TorchValue*);
  std::int32_t (*library_fragment)(const char* name, const char* file, std::uint32_t line, TorchLibraryOpaque**);
  std::int32_t (*library_kernels)(const char* name, const char* dispatch_key, const char* file, std::uint32_t line,
                                  TorchLibraryOpaque**);
  std::int32_t (*define)(TorchLibraryOpaque*, const char* schema);
  std::int32_t (*implement)(TorchLibraryOpaque*, const char* name, TorchKernel);
  // From 2.10 on kernels say which version of the stable interface they were written for; null before.
  std::int32_t (*implement_versioned)(TorchLibraryOpaque*, const char* name, TorchKernel, std::uint64_t version);
  std::uint64_t (*version)();
  // PyTorch's numbers for what they are named after.
  std::int32_t f32, bf16, f16, bytes, int32, cpu, cuda;
  std::int32_t e4m3fn, e5m2, e4m3fnuz, e5m2fnuz;
};

// Throws Error{not_found} if the process has not loaded PyTorch 2.7 or later.
const TorchFunctions& torch_functions();

// The value of an optional argument that is given. PyTorch allocates it for the call, and this frees it.
TorchValue take_optional(TorchValue argument);

// The stream that PyTorch's current thread uses on a GPU. Throws Error{not_found} if this PyTorch has no CUDA.
CUstream_st* torch_stream(int device_index);

// One reference to a PyTorch tensor. Move-only. Its functions throw Error{cuda_failed} when PyTorch reports an error.
class TorchTensor {
 public:
  TorchTensor() = default;
  // Takes over the reference.
  explicit TorchTensor(TorchHandle handle) : handle_(handle) {}
  ~TorchTensor();
  TorchTensor(TorchTensor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  TorchTensor& operator=(TorchTensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  // A contiguous tensor of PyTorch's allocator, on its current stream, with any values.
  static TorchTensor empty(std::span<const std::int64_t> sizes, std::int32_t dtype, Device device);
  static TorchTensor empty_bytes(std::size_t bytes, Device device);
  // What is None in Python.
  static TorchTensor none();

  TorchHandle handle() const { return handle_; }
  // Not for an optional argument that a call lacks.
  bool given() const { return handle_ != nullptr; }
  TorchHandle release() { return std::exchange(handle_, nullptr); }
  void* data() const;
  std::span<const std::int64_t> sizes() const;
  std::span<const std::int64_t> strides() const;
  std::int64_t elements() const;
  // Is the tensor contiguous, its last dimension the fastest?
  bool is_contiguous() const;
  // nullopt: one that layers do not take.
  std::optional<Dtype> dtype() const;
  // nullopt: one that is not FP8.
  std::optional<Dtype> float8_dtype() const;
  bool is_int32() const;
  // nullopt: neither a CPU nor a GPU of CUDA's.
  std::optional<Device> device() const;
  void copy_from(const TorchTensor& other);

 private:
  TorchHandle handle_ = nullptr;
};

inline constexpr std::size_t kMostDimensions = 64;  // as many as PyTorch's own
// Throws Error{invalid_argument} for more.
void require_dimensions(std::size_t count);

// PyTorch's number for a dtype in high precision or FP8.
std::int32_t torch_dtype(Dtype dtype);

}  // namespace ingot::python
