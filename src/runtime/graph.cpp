#include "ingot/runtime/graph.h"

#include <utility>

#include "ingot/runtime/check.h"
#include "ingot/runtime/error.h"

namespace ingot {

Graph::Graph(Stream& stream, const std::function<void()>& work)
    : backend_(&stream.backend()), captured_(backend_->capture(stream, work)) {
  captured_->instantiate();
}
Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(Graph&&) noexcept = default;
Graph::~Graph() = default;

void Graph::replay(Stream& stream) {
  check_stream(stream, *backend_);
  if (captured_ == nullptr) {
    throw Error(ErrorCode::invalid_argument, "graph",
                "was moved from, so it holds no work; replay the one it moved to");
  }
  if (backend_->capturing(stream)) {
    throw Error(ErrorCode::invalid_argument, "graph",
                "cannot be replayed on a stream that is being captured; enqueue the work itself there, or replay after "
                "the capture");
  }
  captured_->replay(stream);
}

bool Graph::update(Stream& stream, const std::function<void()>& work) {
  check_stream(stream, *backend_);
  std::unique_ptr<CapturedWork> recorded = backend_->capture(stream, work);
  if (captured_ != nullptr && captured_->take(*recorded)) return true;
  recorded->instantiate();
  captured_ = std::move(recorded);
  return false;
}

}  // namespace ingot
