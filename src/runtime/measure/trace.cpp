#include "ingot/runtime/measure/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/write_file.h"

namespace ingot {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kHost = 0;  // the processes' numbers
constexpr int kDevice = 1;

Json event(std::string name, const char* category, int process, int track, double begin_us, double duration_us) {
  return {{"name", std::move(name)}, {"cat", category},   {"ph", "X"}, {"pid", process}, {"tid", track},
          {"ts", begin_us},          {"dur", duration_us}};
}

Json name_of(const char* what, int process, int track, std::string name) {
  return {{"name", what}, {"ph", "M"}, {"pid", process}, {"tid", track}, {"args", {{"name", std::move(name)}}}};
}

struct Span {
  double begin_us;
  double end_us;
};

}  // namespace

Trace::Trace(DeviceApi& device_api, Stream& stream)
    : device_api_(&device_api), start_(std::chrono::steady_clock::now()), origin_(nullptr, DestroyEvent{&device_api}) {
  require_no_capture(stream);
  origin_ = record_event(stream);
  device_api_->synchronize(stream);
  origin_us_ = now_us();
  device_api_->set_launch_hook(this);
}

Trace::~Trace() { device_api_->set_launch_hook(nullptr); }

double Trace::now_us() const {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start_).count();
}

Trace::Event Trace::record_event(const Stream& stream) {
  Event made(device_api_->create_timing_event(), DestroyEvent{device_api_});
  device_api_->record_timing_event(made.get(), stream);
  return made;
}

void Trace::require_no_capture(const Stream& stream) const {
  if (!device_api_->capturing(stream)) return;
  throw Error(ErrorCode::invalid_argument, "trace",
              "the stream is capturing a graph, whose launches have no separate times: trace a step that is not "
              "captured");
}

Trace::Thread& Trace::this_thread() {
  const auto [found, is_new] = threads_.try_emplace(std::this_thread::get_id());
  if (is_new) found->second.number = static_cast<int>(threads_.size()) - 1;
  return found->second;
}

// Threads may have a Stream each for one CUDA stream.
const void* Trace::identity(const Stream& stream) const {
  if (device_api_->device().type == DeviceType::cpu) return &stream;
  return stream.handle();
}

void Trace::push(std::string_view layer, std::string_view what) {
  const std::lock_guard lock(mutex_);
  Thread& thread = this_thread();
  Range range{.layer = std::string(layer), .what = std::string(what), .thread = thread.number, .begin_us = now_us()};
  if (!thread.open.empty()) range.parent = thread.open.back();
  thread.open.push_back(ranges_.size());
  ranges_.push_back(std::move(range));
}

void Trace::pop() noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = threads_.find(std::this_thread::get_id());
  if (found == threads_.end() || found->second.open.empty()) return;
  ranges_[found->second.open.back()].end_us = now_us();
  found->second.open.pop_back();
}

void Trace::before(const Stream& stream) {
  require_no_capture(stream);
  const std::lock_guard lock(mutex_);
  Thread& thread = this_thread();
  thread.begin = record_event(stream);
  thread.begin_us = now_us();
}

void Trace::after(const KernelSpec& spec, Pass pass, const Stream& stream) {
  const double end_us = now_us();
  const std::lock_guard lock(mutex_);
  Thread& thread = this_thread();
  const int number = streams_.try_emplace(identity(stream), static_cast<int>(streams_.size())).first->second;
  launches_.push_back({.name = print(spec) + suffix(pass),
                       .thread = thread.number,
                       .stream = number,
                       .range = thread.open.empty() ? std::nullopt : std::optional(thread.open.back()),
                       .begin_us = thread.begin_us,
                       .end_us = end_us,
                       .begin = std::move(thread.begin),
                       .end = record_event(stream)});
}

std::string Trace::json() {
  const std::lock_guard lock(mutex_);
  Json events = Json::array();
  events.push_back(name_of("process_name", kHost, 0, "host"));
  events.push_back(name_of("process_name", kDevice, 0, print(device_api_->device())));
  for (const auto& [id, thread] : threads_) {
    events.push_back(name_of("thread_name", kHost, thread.number, fmt::format("thread {}", thread.number)));
  }
  for (const auto& [stream, number] : streams_) {
    events.push_back(name_of("thread_name", kDevice, number, fmt::format("stream {}", number)));
  }

  std::map<std::pair<std::size_t, int>, Span> spans;  // spans of a range's launches on a stream
  for (const Launch& launch : launches_) {
    const double begin_us = origin_us_ + device_api_->microseconds_between(origin_.get(), launch.begin.get());
    const double duration_us = device_api_->microseconds_between(launch.begin.get(), launch.end.get());
    Json host = event(launch.name, "enqueue", kHost, launch.thread, launch.begin_us, launch.end_us - launch.begin_us);
    Json device = event(launch.name, "launch", kDevice, launch.stream, begin_us, duration_us);
    if (launch.range) {
      const Range& range = ranges_[*launch.range];
      host["args"] = device["args"] = {{"layer", range.layer}, {"role", range.what}};
    }
    for (auto range = launch.range; range; range = ranges_[*range].parent) {
      const Span own{begin_us, begin_us + duration_us};
      Span& span = spans.try_emplace({*range, launch.stream}, own).first->second;
      span = {std::min(span.begin_us, own.begin_us), std::max(span.end_us, own.end_us)};
    }
    events.push_back(std::move(host));
    events.push_back(std::move(device));
  }

  const auto range_event = [&](const Range& range, int process, int track, Span span) {
    Json made =
        event(range.layer + " " + range.what, "range", process, track, span.begin_us, span.end_us - span.begin_us);
    made["args"] = {{"layer", range.layer}, {"role", range.what}};
    events.push_back(std::move(made));
  };
  const double now = now_us();
  for (const Range& range : ranges_) {
    range_event(range, kHost, range.thread, {range.begin_us, range.end_us < 0 ? now : range.end_us});
  }
  for (const auto& [key, span] : spans) range_event(ranges_[key.first], kDevice, key.second, span);
  // A layer's name may have bytes that are no UTF-8; JSON shows U+FFFD in their place.
  return Json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump(-1, ' ', false,
                                                                                  Json::error_handler_t::replace);
}

void Trace::write(const std::filesystem::path& file) { write_file(file, {json(), "\n"}); }

}  // namespace ingot
