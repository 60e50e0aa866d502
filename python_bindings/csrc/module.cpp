// ingot._core, the C++ module under the Python package `ingot` (python_bindings/ingot/): contexts, errors, and the
// functions that module.h names.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "context.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/recording.h"
#include "ingot/codegen/types/dtype.h"
#include "ingot/runtime/util/error.h"
#include "module.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

nb::dict to_dict(const ContextInfo& info) {
  nb::dict libraries;
  for (const LibraryInfo& library : info.libraries) {
    nb::dict entry;
    entry["version"] = library.version;
    entry["path"] = library.path;
    entry["problem"] = library.problem;
    libraries[library.name.c_str()] = entry;
  }
  nb::dict store;
  store["root"] = info.store_root.string();
  store["files"] = info.store_usage.files;
  store["bytes"] = info.store_usage.bytes;
  store["problem"] = info.store_problem;
  nb::dict tiers;
  for (const TierInfo& tier : info.tiers) {
    nb::dict entry;
    entry["kernels"] = tier.kernels;
    entry["tuning_records"] = tier.tuning_records;
    entry["problem"] = tier.problem;
    tiers[tier.path.c_str()] = entry;
  }
  nb::dict result;
  result["version"] = info.ingot_version;
  result["device"] = print(info.device);
  result["device_name"] = info.device_name;
  result["reason"] = info.reason;
  result["target"] = print(info.target);
  result["libraries"] = libraries;
  result["store"] = store;
  result["tiers"] = tiers;
  return result;
}

nb::dict to_dict(const ContextStats& stats) {
  const KernelCache::Stats& kernels = stats.kernels;
  nb::dict tiers;
  for (std::size_t at = 0; at < stats.tiers.size(); ++at) tiers[stats.tiers[at].c_str()] = kernels.by_tier[at];
  nb::dict result;
  result["compiled"] = kernels.compiled;
  result["compile_seconds"] = static_cast<double>(kernels.compile_microseconds) * 1e-6;
  result["loaded"] = kernels.loaded;
  result["from_tiers"] = tiers;
  result["launched"] = stats.launches;
  return result;
}

const char* kind_name(DtypeKind kind) {
  switch (kind) {
    case DtypeKind::high_precision: return "high_precision";
    case DtypeKind::fp8: return "fp8";
    case DtypeKind::sub_byte: return "sub_byte";
    case DtypeKind::scale: return "scale";
    case DtypeKind::bytes: return "bytes";
  }
  return "";
}

// kDtypeTable as (name, bits, kind).
nb::tuple dtypes() {
  nb::list all;
  for (const DtypeFacts& facts : kDtypeTable) {
    all.append(nb::make_tuple(std::string(facts.name), facts.bits, kind_name(facts.kind)));
  }
  return nb::tuple(all);
}

// Python's types and PyTorch's operators can be registered once in a process, by one copy of this module: another one
// would end in messages about types.
void refuse_a_second_import(const nb::module_& module) {
  constexpr const char* kKey = "ingot._core";
  nb::dict of_process = nb::borrow<nb::dict>(PyInterpreterState_GetDict(PyInterpreterState_Get()));
  const nb::object file = nb::getattr(module, "__file__", nb::str("an unknown file"));
  if (!of_process.contains(kKey)) {
    of_process[kKey] = file;
    return;
  }
  const auto first = nb::cast<std::string>(nb::str(of_process[kKey]));
  throw nb::import_error(
      ("ingot: is loaded in this process already, from " + first + ", and cannot be loaded again, from " +
       nb::cast<std::string>(nb::str(file)) +
       ": import one copy of the package, and neither reload ingot._core nor remove it from sys.modules")
          .c_str());
}

void bind_context(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<PythonContext>(
      module, "Context",
      "A device and the kernels that are compiled for it.\n\n"
      "device: \"auto\" (a GPU if there is one, else the CPU), \"cpu\", \"cuda\" or \"cuda:N\". "
      "Functions that are given none use one context for each device, which lasts until the process "
      "ends. The environment is read when a context is made (docs/environment.md). Raises ingot.Error "
      "for another name, and for a GPU that is not there.")
      .def(nb::new_([](const std::string& device) {
             const nb::gil_scoped_release free;
             return new PythonContext(context_options(device));
           }),
           "device"_a = "auto")
      .def_prop_ro(
          "device", [](PythonContext& self) { return print(self.context().device()); },
          "The device's name, \"cpu\" or \"cuda:N\".")
      .def(
          "info", [](PythonContext& self) { return to_dict(self.info()); },
          "What was found, as ingot.info() returns it, of this context.")
      .def(
          "stats", [](PythonContext& self) { return to_dict(self.context().stats()); },
          "What this context has done so far, as ingot.stats() returns it.")
      .def(
          "recording", [](PythonContext& self) { return print(self.context().recording()); },
          "What this context was asked for so far, as ingot.recording() returns it.");
}

}  // namespace
}  // namespace ingot::python

NB_MODULE(_core, module) {
  namespace nb = nanobind;
  using namespace nb::literals;
  using ingot::python::PythonContext;

  ingot::python::refuse_a_second_import(module);
  // At Python's end PyTorch's threads and caches may keep objects of ours; the process gives their memory back.
  nb::set_leak_warnings(false);
  nb::exception<ingot::Error>(module, "Error").doc() =
      "What Ingot's functions raise: for arguments that they cannot take, what a device or the compiler reports, and "
      "what is "
      "missing on this machine. The message is one sentence that names the argument or the layer.";
  module.attr("__version__") = ingot::version();
  module.attr("dtypes") = ingot::python::dtypes();

  ingot::python::bind_context(module);
  module.def(
      "canonical_spec", [](const std::string& line) { return ingot::print(ingot::parse(line)); }, "line"_a);
  module.def(
      "context_for", [](const std::string& device) -> PythonContext& { return ingot::python::shared_context(device); },
      "device"_a, nb::rv_policy::reference, nb::call_guard<nb::gil_scoped_release>());
  module.def("end_contexts", &ingot::python::end_shared_contexts, nb::call_guard<nb::gil_scoped_release>());
  ingot::python::bind_operations(module);
  ingot::python::bind_planning(module);
  ingot::python::bind_safetensors(module);
  ingot::python::bind_torch(module);
  ingot::python::bind_torch_modules(module);
  ingot::python::bind_torch_observers(module);
  ingot::python::bind_torch_shards(module);
  ingot::python::bind_weight_only(module);
}
