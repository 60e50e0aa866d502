#include "torch_abi/torch_library.h"

#include <dlfcn.h>

#include <array>
#include <bit>
#include <string>

#include "ingot/nn/linear/linear_memory.h"
#include "ingot/runtime/util/error.h"
#include "torch_abi/torch_dry_run.h"

namespace ingot::python {
namespace {

constexpr std::size_t kCpuAlignment = 64;  // PyTorch's

// PyTorch is loaded so that its symbols are found only through its own handle.
void* symbol_in(const char* library, const char* name) {
  void* const handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) return nullptr;
  void* const found = dlsym(handle, name);
  dlclose(handle);  // gives back only the reference that dlopen() took
  return found;
}

template <class Function>
void look_up(Function& function, const char* name) {
  function = reinterpret_cast<Function>(symbol_in("libtorch_cpu.so", name));
  if (function == nullptr) {
    throw Error(ErrorCode::not_found, "ingot.torch",
                std::string("needs PyTorch 2.7 or later, imported before it; there is no ") + name);
  }
}

std::int32_t number_of(const char* name) {
  std::int32_t (*function)() = nullptr;
  look_up(function, name);
  return function();
}

TorchFunctions look_up_all() {
  TorchFunctions all{};
  look_up(all.delete_tensor, "aoti_torch_delete_tensor_object");
  look_up(all.data, "aoti_torch_get_data_ptr");
  look_up(all.rank, "aoti_torch_get_dim");
  look_up(all.sizes, "aoti_torch_get_sizes");
  look_up(all.strides, "aoti_torch_get_strides");
  look_up(all.dtype, "aoti_torch_get_dtype");
  look_up(all.device_type, "aoti_torch_get_device_type");
  look_up(all.device_index, "aoti_torch_get_device_index");
  look_up(all.empty_strided, "aoti_torch_empty_strided");
  look_up(all.copy, "aoti_torch_copy_");
  look_up(all.undefined, "aoti_torch_new_uninitialized_tensor");
  all.delete_value =
      reinterpret_cast<decltype(all.delete_value)>(symbol_in("libtorch_cpu.so", "torch_delete_stable_ivalue"));
  look_up(all.library_fragment, "aoti_torch_library_init_fragment");
  look_up(all.library_kernels, "aoti_torch_library_init_impl");
  look_up(all.define, "aoti_torch_library_def");
  look_up(all.implement, "aoti_torch_library_impl");
  look_up(all.version, "aoti_torch_abi_version");
  void* const versioned = symbol_in("libtorch_cpu.so", "torch_library_impl");
  all.implement_versioned = reinterpret_cast<decltype(all.implement_versioned)>(versioned);
  all.f32 = number_of("aoti_torch_dtype_float32");
  all.bf16 = number_of("aoti_torch_dtype_bfloat16");
  all.f16 = number_of("aoti_torch_dtype_float16");
  all.bytes = number_of("aoti_torch_dtype_uint8");
  all.int32 = number_of("aoti_torch_dtype_int32");
  all.e4m3fn = number_of("aoti_torch_dtype_float8_e4m3fn");
  all.e5m2 = number_of("aoti_torch_dtype_float8_e5m2");
  all.e4m3fnuz = number_of("aoti_torch_dtype_float8_e4m3fnuz");
  all.e5m2fnuz = number_of("aoti_torch_dtype_float8_e5m2fnuz");
  all.cpu = number_of("aoti_torch_device_type_cpu");
  all.cuda = number_of("aoti_torch_device_type_cuda");
  return all;
}

void require(std::int32_t code, const char* what) {
  if (code == 0) return;
  throw Error(ErrorCode::cuda_failed, what, "failed in PyTorch, whose own message is on stderr");
}

}  // namespace

const TorchFunctions& torch_functions() {
  static const TorchFunctions all = look_up_all();
  return all;
}

TorchValue take_optional(TorchValue argument) {
  auto* const value = std::bit_cast<TorchValue*>(argument);
  const TorchValue taken = *value;
  if (const auto free = torch_functions().delete_value) {
    free(value);
  } else {
    delete value;  // PyTorch's `new`, which is the process's
  }
  return taken;
}

CUstream_st* torch_stream(int device_index) {
  using Current = std::int32_t (*)(std::int32_t, void**);
  static const Current current =
      reinterpret_cast<Current>(symbol_in("libtorch_cuda.so", "aoti_torch_get_current_cuda_stream"));
  if (current == nullptr) throw Error(ErrorCode::not_found, "ingot.torch", "this PyTorch was built without CUDA");
  void* stream = nullptr;
  require(current(device_index, &stream), "PyTorch's current stream");
  return static_cast<CUstream_st*>(stream);
}

TorchTensor::~TorchTensor() {
  if (handle_ != nullptr) static_cast<void>(torch_functions().delete_tensor(handle_));
}

TorchTensor TorchTensor::empty(std::span<const std::int64_t> sizes, std::int32_t dtype, Device device) {
  require_dimensions(sizes.size());
  std::array<std::int64_t, kMostDimensions> strides{};
  std::int64_t step = 1;
  for (std::size_t at = sizes.size(); at-- > 0; step *= sizes[at] > 0 ? sizes[at] : 1) strides[at] = step;
  const TorchFunctions& torch = torch_functions();
  TorchHandle handle = nullptr;
  const bool is_cpu = device.type == DeviceType::cpu || TorchDryRun::of_thread() != nullptr;
  const std::int32_t code =
      torch.empty_strided(static_cast<std::int64_t>(sizes.size()), sizes.data(), strides.data(), dtype,
                          is_cpu ? torch.cpu : torch.cuda, is_cpu ? 0 : device.index, &handle);
  if (code != 0) {  // PyTorch does not say why, but of memory there is one reason
    throw Error(ErrorCode::out_of_memory, "memory for a tensor",
                "failed in PyTorch, whose own message is on stderr: use fewer tokens, or free what is not needed");
  }
  return TorchTensor(handle);
}

TorchTensor TorchTensor::empty_bytes(std::size_t bytes, Device device) {
  const std::array<std::int64_t, 1> size{static_cast<std::int64_t>(bytes)};
  return empty(size, torch_functions().bytes, device);
}

TorchTensor TorchTensor::none() {
  TorchHandle handle = nullptr;
  require(torch_functions().undefined(&handle), "an undefined tensor");
  return TorchTensor(handle);
}

void* TorchTensor::data() const {
  void* data = nullptr;
  require(torch_functions().data(handle_, &data), "a tensor's address");
  if (TorchDryRun::of_thread() == nullptr) return data;
  // A tensor on the CPU, aligned to 64 bytes, stands for one on a GPU, aligned to 256 and more. Nobody follows the
  // address, so it may be any that is aligned so and keeps tensors apart.
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(data) * (kLinearAlignment / kCpuAlignment));
}

std::span<const std::int64_t> TorchTensor::sizes() const {
  std::int64_t rank = 0;
  std::int64_t* sizes = nullptr;
  require(torch_functions().rank(handle_, &rank), "a tensor's rank");
  require(torch_functions().sizes(handle_, &sizes), "a tensor's sizes");
  return {sizes, static_cast<std::size_t>(rank)};
}

std::span<const std::int64_t> TorchTensor::strides() const {
  std::int64_t* strides = nullptr;
  require(torch_functions().strides(handle_, &strides), "a tensor's strides");
  return {strides, sizes().size()};
}

std::int64_t TorchTensor::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes()) count *= size;
  return count;
}

bool TorchTensor::is_contiguous() const {
  const std::span<const std::int64_t> sizes = this->sizes();
  const std::span<const std::int64_t> strides = this->strides();
  std::int64_t step = 1;
  bool contiguous = true;
  for (std::size_t at = sizes.size(); at-- > 0; step *= sizes[at]) contiguous &= sizes[at] == 1 || strides[at] == step;
  return contiguous || step == 0;
}

std::optional<Dtype> TorchTensor::dtype() const {
  const TorchFunctions& torch = torch_functions();
  std::int32_t number = 0;
  require(torch.dtype(handle_, &number), "a tensor's dtype");
  if (number == torch.bf16) return Dtype::bf16;
  if (number == torch.f32) return Dtype::f32;
  if (number == torch.f16) return Dtype::f16;
  return std::nullopt;
}

std::optional<Dtype> TorchTensor::float8_dtype() const {
  std::int32_t number = 0;
  require(torch_functions().dtype(handle_, &number), "a tensor's dtype");
  for (const Dtype each : {Dtype::e4m3fn, Dtype::e5m2, Dtype::e4m3fnuz, Dtype::e5m2fnuz}) {
    if (number == torch_dtype(each)) return each;
  }
  return std::nullopt;
}

bool TorchTensor::is_int32() const {
  std::int32_t number = 0;
  require(torch_functions().dtype(handle_, &number), "a tensor's dtype");
  return number == torch_functions().int32;
}

std::optional<Device> TorchTensor::device() const {
  const TorchFunctions& torch = torch_functions();
  std::int32_t type = 0;
  std::int32_t index = 0;
  require(torch.device_type(handle_, &type), "a tensor's device");
  if (type == torch.cpu) {
    TorchDryRun* const dry = TorchDryRun::of_thread();
    return dry == nullptr ? Device{} : dry->device();
  }
  if (type != torch.cuda) return std::nullopt;
  require(torch.device_index(handle_, &index), "a tensor's device");
  return Device{.type = DeviceType::cuda, .index = index};
}

void TorchTensor::copy_from(const TorchTensor& other) {
  require(torch_functions().copy(handle_, other.handle_, 1), "a copy of a tensor");
}

void require_dimensions(std::size_t count) {
  if (count <= kMostDimensions) return;
  throw Error(ErrorCode::invalid_argument, "tensor", "has more than 64 dimensions: reshape it");
}

std::int32_t torch_dtype(Dtype dtype) {
  const TorchFunctions& torch = torch_functions();
  switch (dtype) {
    case Dtype::f32: return torch.f32;
    case Dtype::bf16: return torch.bf16;
    case Dtype::f16: return torch.f16;
    case Dtype::e4m3fn: return torch.e4m3fn;
    case Dtype::e5m2: return torch.e5m2;
    case Dtype::e4m3fnuz: return torch.e4m3fnuz;
    case Dtype::e5m2fnuz: return torch.e5m2fnuz;
    default:
      throw Error(ErrorCode::invalid_argument, "dtype", "PyTorch's operators have no " + std::string(name(dtype)));
  }
}

}  // namespace ingot::python
