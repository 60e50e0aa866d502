#include "training/graphed_step.h"

#include <utility>

namespace training {

GraphedStep::GraphedStep(ingot::Stream& stream, std::function<void()> work, std::function<std::int64_t()> launches,
                         bool graph)
    : stream_(&stream), work_(std::move(work)), launches_(std::move(launches)), use_graph_(graph) {}

void GraphedStep::run() {
  if (!use_graph_ || eager_ < kEager) {
    ++eager_;
    work_();
    return;
  }
  if (!graph_) {
    const std::int64_t before = launches_();
    graph_.emplace(*stream_, work_);
    launches_of_one_ = launches_() - before;
  }
  graph_->replay(*stream_);
  ++replays_;
}

}  // namespace training
