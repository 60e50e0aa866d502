#include "ingot/nn/observe/monitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/write_file.h"

#include "numerics.cuh"

namespace ingot {
namespace {

[[noreturn]] void refuse(const char* subject, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, subject, message);
}

double fraction(std::uint64_t count, std::int64_t of) {
  return of == 0 ? 0.0 : static_cast<double>(count) / static_cast<double>(of);
}

// The spec's line without its first word: what was cast to what.
std::string describe(const CastStatsSpec& spec) { return print(spec).substr(std::string_view("cast_stats ").size()); }

// Formats 0 as "0", and small fractions with enough digits to differ from it.
std::string percent(double share) { return share == 0 ? "0" : fmt::format("{:.3g}%", 100 * share); }

std::string scale_range(const CastStats& stats) {
  const auto same = stats.smallest_scale_inv == stats.largest_scale_inv;
  return same ? fmt::format("{:.3g}", stats.largest_scale_inv)
              : fmt::format("{:.3g} .. {:.3g}", stats.smallest_scale_inv, stats.largest_scale_inv);
}

// Converts scale_inv of groups that are ordered by group to row by row.
std::vector<std::byte> row_by_row(const std::vector<std::byte>& by_group, std::int64_t groups, std::int64_t rows) {
  std::vector<std::byte> scale_inv(by_group.size());
  const auto at = [](std::int64_t index) { return static_cast<std::size_t>(index) * sizeof(float); };
  for (std::int64_t g = 0; g < groups; ++g) {
    for (std::int64_t r = 0; r < rows; ++r) {
      std::memcpy(&scale_inv[at(r * groups + g)], &by_group[at(g * rows + r)], sizeof(float));
    }
  }
  return scale_inv;
}

// Copies a tensor to the host as dense rows.
std::vector<std::byte> fetch(const Tensor& tensor, DeviceApi& device_api, Stream& stream) {
  std::vector<std::byte> memory(byte_span(tensor, "dump"));
  device_api.copy_to_host(memory.data(), tensor.data, memory.size(), stream);
  const auto size = static_cast<std::size_t>(size_of(tensor.dtype));
  const auto width = static_cast<std::size_t>(tensor.cols) * size;
  const auto pitch = static_cast<std::size_t>(tensor.row_stride) * size;
  for (std::size_t r = 1; r < static_cast<std::size_t>(tensor.rows) && pitch != width; ++r) {
    std::memmove(memory.data() + r * width, memory.data() + r * pitch, width);
  }
  memory.resize(static_cast<std::size_t>(tensor.rows) * width);
  return memory;
}

// Converts high-precision elements to f32, exactly.
std::vector<std::byte> as_f32(std::vector<std::byte> elements, Dtype dtype) {
  if (dtype == Dtype::f32) return elements;
  std::vector<std::byte> wide(2 * elements.size());
  for (std::size_t i = 0; i < elements.size() / 2; ++i) {
    u16 bits = 0;
    std::memcpy(&bits, elements.data() + 2 * i, 2);
    const float value = dtype == Dtype::bf16 ? to_float(bf16{bits}) : to_float(f16{bits});
    std::memcpy(wide.data() + 4 * i, &value, 4);
  }
  return wide;
}

// Writes a dense, row-major matrix as NumPy's .npy file (version 1.0 of the format, described in numpy.lib.format), and
// replaces an existing file: f32 as '<f4', an FP8 dtype as its codes, '|u1', bf16 and f16 as their bits, '<u2'. Throws
// Error{io_failed}, and then leaves at most a truncated file.
void write_npy(const std::filesystem::path& file, Dtype dtype, std::int64_t rows, std::int64_t cols,
               std::span<const std::byte> elements) {
  constexpr std::size_t kPrefix = 10;  // magic number, version, header length
  constexpr std::size_t kAlignment = 64;
  const char* const type = dtype == Dtype::f32 ? "<f4" : size_of(dtype) == 1 ? "|u1" : "<u2";
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}, {}), }}", type, rows, cols);
  text.append(kAlignment - (kPrefix + text.size() + 1) % kAlignment, ' ');
  text.push_back('\n');
  const std::string prefix = {'\x93',
                              'N',
                              'U',
                              'M',
                              'P',
                              'Y',
                              1,
                              0,
                              static_cast<char>(text.size() & 0xffU),
                              static_cast<char>(text.size() >> 8U)};
  write_file(file, {prefix, text, {reinterpret_cast<const char*>(elements.data()), elements.size()}});
}

nlohmann::ordered_json to_json(const MonitorRecord& record) {
  const CastStats& stats = record.stats;
  nlohmann::ordered_json line{{"step", record.step},
                              {"layer", record.layer},
                              {"tensor", record.tensor},
                              {"kind", record.is_cast() ? "cast" : "gemm"},
                              {"dtype", name(record.spec.in)},
                              {"elements", record.elements},
                              {"amax", stats.amax},
                              {"smallest", stats.smallest},
                              {"nan", stats.nan_count},
                              {"inf", stats.inf_count}};
  if (!record.is_cast()) return line;
  line["gemms"] = record.gemms;
  line["codes"] = name(*record.spec.out);
  line["scale"] = print(record.spec.scale);
  line["transposed"] = record.spec.transposed;
  line["smallest_scale_inv"] = stats.smallest_scale_inv;
  line["largest_scale_inv"] = stats.largest_scale_inv;
  line["saturated"] = stats.saturated;
  line["flushed"] = stats.flushed;
  line["spoiled"] = stats.spoiled;
  line["sqnr_db"] = record.sqnr();
  return line;
}

}  // namespace

double MonitorRecord::saturated_fraction() const { return fraction(stats.saturated, elements); }
double MonitorRecord::flushed_fraction() const { return fraction(stats.flushed, elements); }
double MonitorRecord::sqnr() const {
  if (stats.sum_of_squared_errors == 0) return std::numeric_limits<double>::infinity();
  return 10 * std::log10(stats.sum_of_squares / stats.sum_of_squared_errors);
}

Monitor::Monitor(Backend& backend, MonitorOptions options) : backend_(&backend), options_(std::move(options)) {
  if (options_.every < 1) refuse("Monitor every", fmt::format("is {}, but must be 1 or more steps", options_.every));
  if (options_.history < 1) {
    refuse("Monitor history", fmt::format("is {}, but must be 1 or more steps", options_.history));
  }
  if (!options_.warn) {
    options_.warn = [](const std::string& line) { fmt::print(stderr, "ingot: {}\n", line); };
  }
}

// Is this stream's work in one order with that of the step so far? The CPU's is done when its call returns.
bool Monitor::is_in_order(const Stream& stream) const {
  return !in_step_ || backend_->device().type == DeviceType::cpu || handle_ == stream.handle();
}

void Monitor::require_one_stream(const Stream& stream) {
  if (&stream.device_api() != &backend_->device_api()) {
    refuse("Monitor stream", "belongs to another backend than the monitor: make one for each");
  }
  if (!is_in_order(stream)) {
    refuse("Monitor stream",
           "differs from the one before in this step: a monitor observes the layers of one stream; make one for each");
  }
}

bool Monitor::may_observe(const Stream& stream) {
  require_one_stream(stream);
  if (!backend_->device_api().capturing(stream)) return true;
  if (!told_of_capture_) options_.warn("the monitor observes nothing while the stream is capturing a graph");
  told_of_capture_ = true;
  return false;
}

// A step's results reuse the memory of the previous step's, which step_done() has read.
Tensor Monitor::next_slot() {
  const std::size_t block = running_.size() / kSlots;
  if (block == blocks_.size()) blocks_.emplace_back(*backend_, kSlots * sizeof(CastStats));
  auto* const slots = static_cast<std::byte*>(blocks_[block].data());
  return vector(slots + running_.size() % kSlots * sizeof(CastStats), Dtype::f32, kCastStatsWords, backend_->device());
}

void Monitor::observe(const CastStatsSpec& spec, CastStatsTensors tensors, MonitorRecord record, Stream& stream) {
  tensors.stats = next_slot();
  backend_->cast_stats(spec, tensors, stream);
  record.step = step_;
  record.spec = spec;
  record.elements = tensors.input.rows * tensors.input.cols;
  running_.push_back(std::move(record));
  in_step_ = true;
  handle_ = stream.handle();
}

void Monitor::cast(const CastEvent& event, Stream& stream) {
  if (!observing() && dumps_.empty()) return;
  const Tensor& values = event.values;
  const bool nowhere = values.data == nullptr && values.rows == 0 && values.cols == 0;
  if (nowhere || !may_observe(stream)) return;
  if (!dumps_.empty()) write_dumps(event, stream);
  if (!observing()) return;
  observe({.in = values.dtype, .out = event.codes.dtype, .scale = event.scale, .transposed = event.transposed},
          {.input = values, .codes = event.codes, .scale_inv = event.scale_inv, .stats = {}},
          {.layer = std::string(event.layer),
           .tensor = std::string(event.tensor),
           .gemms = std::string(event.gemms),
           .spec = {},
           .stats = {}},
          stream);
}

void Monitor::gemm(const GemmEvent& event, Stream& stream) {
  const Tensor& out = event.tensors.out;
  if (!observing() || is_fp8(out.dtype) || !may_observe(stream)) return;
  observe({.in = out.dtype}, {.input = out, .stats = {}},
          {.layer = std::string(event.layer), .tensor = std::string(event.role), .gemms = {}, .spec = {}, .stats = {}},
          stream);
}

void Monitor::step_done(Stream& stream) {
  if (!running_.empty()) {
    require_one_stream(stream);
    std::vector<CastStats> results(running_.size());
    for (std::size_t first = 0; first < results.size(); first += kSlots) {
      const std::size_t count = std::min(kSlots, results.size() - first);
      backend_->device_api().copy_to_host(&results[first], blocks_[first / kSlots].data(), count * sizeof(CastStats),
                                          stream);
    }
    for (std::size_t i = 0; i < results.size(); ++i) running_[i].stats = results[i];
    warn_of(running_);
    kept_.push_back(std::move(running_));
    if (kept_.size() > static_cast<std::size_t>(options_.history)) kept_.pop_front();
  }
  running_.clear();
  in_step_ = false;
  std::erase_if(dumps_, [](const Dump& dump) { return dump.step.has_value(); });
  ++step_;
}

// Warns once per tensor, even if several of its casts saw the fault.
void Monitor::warn_of(std::span<const MonitorRecord> step) const {
  const MonitorRecord* told = nullptr;
  for (const MonitorRecord& record : step) {
    if (!record.is_broken()) continue;
    if (told != nullptr && told->layer == record.layer && told->tensor == record.tensor &&
        told->is_cast() == record.is_cast()) {
      continue;
    }
    const CastStats& stats = record.stats;
    std::string line = fmt::format("step {}: {} {} of {} has {} NaN and {} Inf among its {} elements", record.step,
                                   record.is_cast() ? "tensor" : "the result", record.tensor, record.layer,
                                   stats.nan_count, stats.inf_count, record.elements);
    if (stats.spoiled != 0) line += fmt::format("; scaling makes {} finite elements NaN or Inf", stats.spoiled);
    options_.warn(line);
    told = &record;
  }
}

std::vector<MonitorRecord> Monitor::records() const {
  std::vector<MonitorRecord> all;
  for (const auto& step : kept_) all.insert(all.end(), step.begin(), step.end());
  return all;
}

std::string Monitor::table() const {
  if (kept_.empty()) return "no step has been observed\n";
  std::vector<std::array<std::string, 10>> rows{
      {"layer", "tensor", "what", "amax", "scale_inv", "saturated", "flushed", "nan", "inf", "SQNR dB"}};
  for (const MonitorRecord& record : kept_.back()) {
    const CastStats& stats = record.stats;
    const bool cast = record.is_cast();
    rows.push_back({record.layer, record.tensor,
                    cast ? describe(record.spec) : "GEMM, " + std::string(name(record.spec.in)),
                    fmt::format("{:.4g}", stats.amax), cast ? scale_range(stats) : "",
                    cast ? percent(record.saturated_fraction()) : "", cast ? percent(record.flushed_fraction()) : "",
                    fmt::format("{}", stats.nan_count), fmt::format("{}", stats.inf_count),
                    cast ? fmt::format("{:.1f}", record.sqnr()) : ""});
  }
  constexpr std::size_t kTexts = 3;  // of the columns; the others are numbers, which end at one place
  std::array<std::size_t, 10> widths{};
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text = fmt::format("step {}\n", kept_.back().front().step);
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      text += i < kTexts ? fmt::format("{:<{}}  ", row[i], widths[i]) : fmt::format("{:>{}}  ", row[i], widths[i]);
    }
    text.replace(text.size() - 2, 2, "\n");
  }
  return text;
}

std::string Monitor::json_lines() const {
  std::string text;
  if (kept_.empty()) return text;
  // A layer's name may have bytes that are no UTF-8; JSON shows U+FFFD in their place.
  for (const MonitorRecord& record : kept_.back()) {
    text += to_json(record).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }
  return text;
}

void Monitor::dump(std::string layer, std::string tensor, std::filesystem::path folder) {
  dumps_.push_back({.layer = std::move(layer), .tensor = std::move(tensor), .folder = std::move(folder)});
}

// One step may write both sets of codes of a tensor; step_done() then forgets the request.
void Monitor::write_dumps(const CastEvent& event, Stream& stream) {
  for (Dump& dump : dumps_) {
    if (dump.layer != event.layer || dump.tensor != event.tensor) continue;
    dump.step = step_;
    std::string file = fmt::format("{}.{}.step{}", dump.layer, dump.tensor, step_);
    std::ranges::replace(file, '/', '_');
    const auto write = [&](const char* what, const Tensor& tensor) {
      std::vector<std::byte> elements = fetch(tensor, *backend_, stream);
      const Dtype dtype = is_fp8(tensor.dtype) ? tensor.dtype : Dtype::f32;
      write_npy(dump.folder / fmt::format("{}.{}.npy", file, what), dtype, tensor.rows, tensor.cols,
                dtype == tensor.dtype ? elements : as_f32(std::move(elements), tensor.dtype));
    };
    write("values", event.values);
    write(event.transposed ? "transposed" : "codes", event.codes);
    const Tensor& scale_inv = event.scale_inv;
    write_npy(dump.folder / fmt::format("{}.{}scale_inv.npy", file, event.transposed ? "transposed_" : ""), Dtype::f32,
              1, scale_inv.rows * scale_inv.cols,
              row_by_row(fetch(scale_inv, *backend_, stream), scale_inv.rows, scale_inv.cols));
  }
}

}  // namespace ingot
