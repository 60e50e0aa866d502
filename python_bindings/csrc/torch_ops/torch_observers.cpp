// Monitors, NVTX ranges and traces for Python, of the layers that PyTorch's operators run.
#include "torch_ops/torch_observers.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "context.h"
#include "ingot/nn/observe/monitor.h"
#include "ingot/nn/observe/ranges.h"
#include "ingot/runtime/util/error.h"
#include "module.h"
#include "torch_abi/torch_names.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

// The observers of one call, with what keeps them alive.
struct Together {
  explicit Together(std::vector<std::shared_ptr<LayerObserver>> of) : kept(std::move(of)), all(pointers()) {}

  std::vector<LayerObserver*> pointers() const {
    std::vector<LayerObserver*> each;
    for (const auto& one : kept) each.push_back(one.get());
    return each;
  }

  std::vector<std::shared_ptr<LayerObserver>> kept;
  LayerObservers all;
};

// The names of layers to watch; empty: all of them. A module's name stands for its parts, too: "mlp" for "mlp.up".
class LayerNames {
 public:
  explicit LayerNames(const std::vector<std::string>& names) : names_(names.begin(), names.end()) {}

  bool has(std::string_view layer) const {
    if (names_.empty()) return true;
    for (std::string name(layer);;) {
      if (names_.contains(name)) return true;
      const std::size_t dot = name.rfind('.');
      if (dot == std::string::npos) return false;
      name.resize(dot);
    }
  }

 private:
  std::unordered_set<std::string> names_;
};

// A Monitor for layers of several threads: forward runs on one, backward on autograd's.
class WatchedLayers final : public LayerObserver {
 public:
  WatchedLayers(Backend& backend, int every, int history, const std::vector<std::string>& layers)
      : layers_(layers),
        monitor_(backend, {.every = every, .history = history, .warn = [this](const std::string& line) {
                             warnings_.push_back(line);
                           }}) {}

  bool wants_values() const override {
    const std::lock_guard lock(mutex_);
    return monitor_.wants_values();
  }
  void cast(const CastEvent& event, Stream& stream) override {
    if (!layers_.has(event.layer)) return;
    const std::lock_guard lock(mutex_);
    monitor_.cast(event, stream);
  }
  void gemm(const GemmEvent& event, Stream& stream) override {
    if (!layers_.has(event.layer)) return;
    const std::lock_guard lock(mutex_);
    monitor_.gemm(event, stream);
  }

  // Calls use(monitor) while no layer reports.
  template <class Use>
  auto with_monitor(const Use& use) {
    const std::lock_guard lock(mutex_);
    return use(monitor_);
  }
  std::vector<std::string> take_warnings() {
    const std::lock_guard lock(mutex_);
    return std::exchange(warnings_, {});
  }

 private:
  LayerNames layers_;
  mutable std::mutex mutex_;  // guards all below
  std::vector<std::string> warnings_;
  Monitor monitor_;
};

nb::dict to_dict(const MonitorRecord& record) {
  nb::dict entry;
  const CastStats& stats = record.stats;
  entry["step"] = record.step;
  entry["layer"] = record.layer;
  entry["tensor"] = record.tensor;
  entry["kind"] = record.is_cast() ? "cast" : "gemm";
  entry["dtype"] = std::string(name(record.spec.in));
  entry["elements"] = record.elements;
  entry["amax"] = stats.amax;
  entry["smallest"] = stats.smallest;
  entry["nan"] = stats.nan_count;
  entry["inf"] = stats.inf_count;
  if (!record.is_cast()) return entry;
  entry["gemms"] = record.gemms;
  entry["codes"] = std::string(name(*record.spec.out));
  entry["scale"] = print(record.spec.scale);
  entry["transposed"] = record.spec.transposed;
  entry["smallest_scale_inv"] = stats.smallest_scale_inv;
  entry["largest_scale_inv"] = stats.largest_scale_inv;
  entry["saturated_fraction"] = record.saturated_fraction();
  entry["flushed_fraction"] = record.flushed_fraction();
  entry["sqnr_db"] = record.sqnr();
  return entry;
}

// Observes while it is started. What is observed is the layers of the context's device.
class TorchMonitor {
 public:
  TorchMonitor(PythonContext& context, int every, int history, const std::vector<std::string>& layers)
      : context_(&context),
        watched_(std::make_shared<WatchedLayers>(context.context().backend(), every, history, layers)) {}
  ~TorchMonitor() { stop(); }
  TorchMonitor(const TorchMonitor&) = delete;
  TorchMonitor& operator=(const TorchMonitor&) = delete;

  void start() { TorchObservers::of_process().add(&context_->context().backend(), watched_); }
  void stop() { TorchObservers::of_process().remove(watched_.get()); }

  void step_done() {
    std::optional<TorchStream> own;
    Stream& stream = context_->torch_streams().current(context_->context().backend(), own);
    watched_->with_monitor([&](Monitor& monitor) { monitor.step_done(stream); });
  }
  std::string table() const {
    return watched_->with_monitor([](const Monitor& monitor) { return monitor.table(); });
  }
  std::string json_lines() const {
    return watched_->with_monitor([](const Monitor& monitor) { return monitor.json_lines(); });
  }
  nb::list records() const {
    nb::list all;
    for (const MonitorRecord& record :
         watched_->with_monitor([](const Monitor& monitor) { return monitor.records(); })) {
      all.append(to_dict(record));
    }
    return all;
  }
  void dump(const std::string& layer, const std::string& tensor, const std::filesystem::path& folder) {
    watched_->with_monitor([&](Monitor& monitor) { monitor.dump(layer, tensor, folder); });
  }
  std::vector<std::string> take_warnings() { return watched_->take_warnings(); }

 private:
  PythonContext* context_;
  std::shared_ptr<WatchedLayers> watched_;
};

// Ranges in a profiler while it is started, of the layers of every device. A call that has begun keeps the library.
class TorchNvtx {
 public:
  // Throws Error{not_found} if there is no NVTX.
  TorchNvtx() {
    std::string problem;
    std::unique_ptr<Nvtx> nvtx = Nvtx::open(ContextOptions::from_environment().cuda_root.string(), problem);
    if (nvtx == nullptr) throw Error(ErrorCode::not_found, "NVTX", problem);
    shown_ = std::make_shared<Shown>(std::move(nvtx));
  }
  ~TorchNvtx() { stop(); }
  TorchNvtx(const TorchNvtx&) = delete;
  TorchNvtx& operator=(const TorchNvtx&) = delete;

  void start() { TorchObservers::of_process().add(nullptr, {shown_, &shown_->ranges}); }
  void stop() { TorchObservers::of_process().remove(&shown_->ranges); }

 private:
  struct Shown {
    explicit Shown(std::unique_ptr<Nvtx> opened) : nvtx(std::move(opened)), ranges(nvtx.get()) {}

    std::unique_ptr<Nvtx> nvtx;
    NvtxRanges ranges;
  };

  std::shared_ptr<Shown> shown_;
};

// Records from its start to its end what a device launches, and the layers' ranges.
class TorchTrace {
 public:
  explicit TorchTrace(PythonContext& context) : context_(&context) {}
  ~TorchTrace() { stop(); }
  TorchTrace(const TorchTrace&) = delete;
  TorchTrace& operator=(const TorchTrace&) = delete;

  void start() {
    Backend& backend = context_->context().backend();
    std::optional<TorchStream> own;
    recording_ = std::make_shared<Recording>(backend, context_->torch_streams().current(backend, own));
    TorchObservers::of_process().add(&backend, observer());
  }
  // Throws Error{io_failed}.
  void write(const std::filesystem::path& file) {
    if (recording_ != nullptr) recording_->trace.write(file);
  }
  void stop() {
    if (recording_ == nullptr) return;
    TorchObservers::of_process().remove(&recording_->ranges);
    recording_ = nullptr;
  }

 private:
  struct Recording {
    Recording(Backend& backend, Stream& stream) : trace(backend, stream), ranges(trace) {}

    Trace trace;
    TraceRanges ranges;
  };

  std::shared_ptr<LayerObserver> observer() const { return {recording_, &recording_->ranges}; }

  PythonContext* context_;
  std::shared_ptr<Recording> recording_;
};

}  // namespace

TorchObservers& TorchObservers::of_process() {
  static auto* const observers = new TorchObservers;  // never destroyed: other threads may call until the very end
  return *observers;
}

void TorchObservers::add(const Backend* backend, std::shared_ptr<LayerObserver> observer) {
  const std::lock_guard lock(mutex_);
  if (entries_.empty()) forget_noted_names();
  entries_.push_back({.backend = backend, .observer = std::move(observer), .process = ::getpid()});
  count_.store(static_cast<int>(entries_.size()), std::memory_order_release);
}

void TorchObservers::remove(const LayerObserver* observer) {
  std::vector<Entry> kept;  // destroyed after the lock: what was removed is
  const std::lock_guard lock(mutex_);
  kept.swap(entries_);
  std::ranges::copy_if(kept, std::back_inserter(entries_),
                       [&](const Entry& entry) { return entry.observer.get() != observer; });
  count_.store(static_cast<int>(entries_.size()), std::memory_order_release);
}

std::shared_ptr<LayerObserver> TorchObservers::find(const Backend& backend) {
  std::vector<std::shared_ptr<LayerObserver>> found;
  {
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : entries_) {
      if (entry.process != ::getpid()) continue;
      if (entry.backend == nullptr || entry.backend == &backend) found.push_back(entry.observer);
    }
  }
  if (found.size() <= 1) return found.empty() ? nullptr : std::move(found.front());
  const auto together = std::make_shared<Together>(std::move(found));
  return {together, &together->all};
}

// Layers may report while Python waits for one of these, and report to Python's own code never: no lock of Python's is
// needed within.
void bind_torch_observers(nb::module_& module) {
  using Free = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<TorchMonitor>(module, "TorchMonitor")
      .def(nb::init<PythonContext&, int, int, const std::vector<std::string>&>(), "context"_a, "every"_a, "history"_a,
           "layers"_a, nb::keep_alive<1, 2>())
      .def("start", &TorchMonitor::start, Free())
      .def("stop", &TorchMonitor::stop, Free())
      .def("step_done", &TorchMonitor::step_done, Free())
      .def("table", &TorchMonitor::table, Free())
      .def("json_lines", &TorchMonitor::json_lines, Free())
      .def("records", &TorchMonitor::records)
      .def("dump", &TorchMonitor::dump, "layer"_a, "tensor"_a, "folder"_a, Free())
      .def("take_warnings", &TorchMonitor::take_warnings, Free());
  nb::class_<TorchNvtx>(module, "TorchNvtx")
      .def(nb::init<>())
      .def("start", &TorchNvtx::start, Free())
      .def("stop", &TorchNvtx::stop, Free());
  nb::class_<TorchTrace>(module, "TorchTrace")
      .def(nb::init<PythonContext&>(), "context"_a, nb::keep_alive<1, 2>())
      .def("start", &TorchTrace::start, Free())
      .def("write", &TorchTrace::write, "file"_a, Free())
      .def("stop", &TorchTrace::stop, Free());
}

}  // namespace ingot::python
