#include "ingot/runtime/cuda/graph.h"

#include <utility>

#include "ingot/runtime/core/check.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cuda/captured_graph.h"
#include "ingot/runtime/util/error.h"

namespace ingot {

struct Graph::Recorded {
  std::unique_ptr<GraphScratch> scratch;
  std::unique_ptr<CapturedWork> work;
};

Graph::Recorded Graph::record(Stream& stream, const std::function<void()>& work) {
  Recorded recorded{.scratch = std::make_unique<GraphScratch>(stream.device_api()), .work = nullptr};
  recorded.work = stream.device_api().capture(stream, [&] {
    recorded.scratch->join(stream);
    work();
  });
  recorded.scratch->end(stream);
  return recorded;
}

Graph::Graph(Stream& stream, const std::function<void()>& work) : device_api_(&stream.device_api()) {
  Recorded recorded = record(stream, work);
  recorded.work->instantiate();
  scratch_ = std::move(recorded.scratch);
  captured_ = std::move(recorded.work);
}
Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(Graph&& other) noexcept {
  device_api_ = other.device_api_;
  captured_ = std::move(other.captured_);  // before the memory that it uses
  scratch_ = std::move(other.scratch_);
  return *this;
}
Graph::~Graph() = default;

void Graph::replay(Stream& stream) {
  check_stream(stream, *device_api_);
  if (captured_ == nullptr) {
    throw Error(ErrorCode::invalid_argument, "graph",
                "was moved from, so it holds no work; replay the one it moved to");
  }
  if (device_api_->capturing(stream)) {
    throw Error(ErrorCode::invalid_argument, "graph",
                "cannot be replayed on a stream that is being captured; enqueue the work itself there, or replay after "
                "the capture");
  }
  captured_->replay(stream);
}

bool Graph::update(Stream& stream, const std::function<void()>& work) {
  check_stream(stream, *device_api_);
  Recorded recorded = record(stream, work);
  const bool taken = captured_ != nullptr && captured_->take(*recorded.work);
  if (!taken) {
    recorded.work->instantiate();
    captured_ = std::move(recorded.work);
  }
  scratch_ = std::move(recorded.scratch);
  return taken;
}

}  // namespace ingot
