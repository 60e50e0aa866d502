// Binds the core's reader and writer of safetensors files (nn/weights/safetensors.h): names, types and shapes, and the
// bytes of a tensor into memory of the caller's. ingot/nn/_checkpoint.py makes PyTorch tensors of them.
#include "ingot/nn/weights/safetensors.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "module.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

// A vector of files that cannot be copied hides from Python's class that it cannot be copied either.
struct OpenCheckpoint {
  explicit OpenCheckpoint(const std::string& path) : files(SafetensorsCheckpoint::open(path)) {}
  OpenCheckpoint(const OpenCheckpoint&) = delete;
  OpenCheckpoint& operator=(const OpenCheckpoint&) = delete;

  SafetensorsCheckpoint files;
};

// (type, shape, bytes)
nb::tuple facts(const OpenCheckpoint& checkpoint, const std::string& name) {
  const StoredTensor& tensor = *checkpoint.files.at(name).tensor;
  return nb::make_tuple(tensor.type, nb::cast(tensor.shape), tensor.bytes);
}

void read_into(const OpenCheckpoint& checkpoint, const std::string& name, std::uintptr_t data, std::uint64_t bytes) {
  const nb::gil_scoped_release release;
  const auto [file, tensor] = checkpoint.files.at(name);
  file->read(*tensor, 0, {reinterpret_cast<std::byte*>(data), bytes});
}

// Each tensor is (name, type, shape, address, bytes).
void write(const std::string& file, const nb::list& tensors, const std::map<std::string, std::string>& metadata) {
  std::vector<TensorToStore> all;
  for (const nb::handle each : tensors) {
    const auto tuple = nb::cast<nb::tuple>(each);
    const auto data = nb::cast<std::uintptr_t>(tuple[3]);
    all.push_back({.name = nb::cast<std::string>(tuple[0]),
                   .type = nb::cast<std::string>(tuple[1]),
                   .shape = nb::cast<std::vector<std::int64_t>>(tuple[2]),
                   .bytes = {reinterpret_cast<const std::byte*>(data), nb::cast<std::size_t>(tuple[4])}});
  }
  const nb::gil_scoped_release release;
  write_safetensors(file, all, metadata);
}

}  // namespace

void bind_safetensors(nb::module_& module) {
  nb::class_<OpenCheckpoint>(module, "SafetensorsCheckpoint")
      .def(nb::init<const std::string&>(), "path"_a)
      .def("names", [](const OpenCheckpoint& self) { return self.files.names(); })
      .def("facts", &facts, "name"_a)
      .def("read_into", &read_into, "name"_a, "data"_a, "bytes"_a);
  module.def("write_safetensors", &write, "file"_a, "tensors"_a, "metadata"_a);
}

}  // namespace ingot::python
