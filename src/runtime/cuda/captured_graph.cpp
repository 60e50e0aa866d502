#include "ingot/runtime/cuda/captured_graph.h"
#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

class CapturedGraph final : public CapturedWork {
 public:
  CapturedGraph(const Driver& driver, int device_index, CUgraph graph)
      : driver_(&driver), device_index_(device_index), graph_(graph) {}
  ~CapturedGraph() override {
    try {
      const CurrentContext current(*driver_, device_index_);
      destroy();
    } catch (const Error&) {
      return;  // a broken context reports it to the next call that can throw
    }
  }

  void check_not_empty() const {
    std::size_t nodes = 0;
    driver_->check(driver_->api().cuGraphGetNodes(graph_, nullptr, &nodes), "cuGraphGetNodes");
    if (nodes != 0) return;
    throw Error(ErrorCode::invalid_argument, "graph",
                "the work enqueued nothing on the stream that is captured; enqueue it on that stream, or on one that "
                "joins it by Stream::wait_for()");
  }

  void instantiate() override {
    const CurrentContext current(*driver_, device_index_);
    driver_->check(driver_->api().cuGraphInstantiate(&executable_, graph_, 0), "cuGraphInstantiate");
  }

  void replay(Stream& stream) override {
    const CurrentContext current(*driver_, device_index_, stream.handle());
    driver_->check(driver_->api().cuGraphLaunch(executable_, stream.handle()), "cuGraphLaunch");
  }

  bool take(CapturedWork& other) override {
    const CurrentContext current(*driver_, device_index_);
    CapturedGraph& theirs = dynamic_cast<CapturedGraph&>(other);
    CUgraphExecUpdateResultInfo why{};
    return driver_->api().cuGraphExecUpdate(executable_, theirs.graph_, &why) == CUDA_SUCCESS;
  }

 private:
  void destroy() noexcept {
    if (executable_ != nullptr) static_cast<void>(driver_->api().cuGraphExecDestroy(executable_));
    static_cast<void>(driver_->api().cuGraphDestroy(graph_));
  }

  const Driver* driver_;
  int device_index_;
  CUgraph graph_;
  CUgraphExec executable_ = nullptr;
};

[[noreturn]] void refuse(ErrorCode code, const std::string& message) { throw Error(code, "graph", message); }

void check_can_capture(const Driver& driver, const Stream& stream) {
  if (stream.handle() == nullptr) {
    refuse(ErrorCode::invalid_argument, "the default stream cannot be captured; use another Stream");
  }
  if (driver.capturing(stream.handle())) {
    refuse(ErrorCode::invalid_argument,
           "the stream is being captured already; end that capture first, or capture on another stream");
  }
}

// Ends the capture whatever `work` does, so that the stream stays usable. Null where the driver broke it off.
CUgraph record(const Driver& driver, const Stream& stream, const std::function<void()>& work) {
  const Driver::Api& api = driver.api();
  CUgraph graph = nullptr;
  driver.check(api.cuStreamBeginCapture(stream.handle(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
  try {
    work();
  } catch (...) {
    if (api.cuStreamEndCapture(stream.handle(), &graph) == CUDA_SUCCESS && graph != nullptr) {
      static_cast<void>(api.cuGraphDestroy(graph));
    }
    throw;
  }
  const CUresult result = api.cuStreamEndCapture(stream.handle(), &graph);
  if (result == CUDA_SUCCESS && graph != nullptr) return graph;
  std::string why = "no graph was given";
  try {
    driver.check(result, "cuStreamEndCapture");
  } catch (const Error& error) {
    why = error.what();
  }
  refuse(
      ErrorCode::cuda_failed,
      "the capture was broken off: the work waited for the device, allocated memory or left a second stream unjoined "
      "(" +
          why + "); run the step once before capturing it, and let the stream wait_for() every other that it uses");
}

}  // namespace

std::unique_ptr<CapturedWork> capture_graph(const Driver& driver, int device_index, Stream& stream,
                                            const std::function<void()>& work) {
  check_can_capture(driver, stream);
  auto captured = std::make_unique<CapturedGraph>(driver, device_index, record(driver, stream, work));
  captured->check_not_empty();
  return captured;
}

GraphScratch::~GraphScratch() {
  for (const Part& part : parts_) {
    if (part.stream != nullptr) set(*part.stream, nullptr);
  }
}

void GraphScratch::join(Stream& stream) {
  parts_.push_back({.stream = &stream});
  set(stream, this);
}

void GraphScratch::leave(const Stream& stream) noexcept {
  for (Part& part : parts_) {
    if (part.stream == &stream) part.stream = nullptr;
  }
}

void GraphScratch::end(Stream& captured) {
  for (Part& part : parts_) {
    if (part.stream != nullptr) set(*part.stream, nullptr);
    part.stream = nullptr;
    for (const Buffer& block : part.zeros.blocks) device_api_->fill_zero(block.data(), block.bytes(), captured);
  }
  device_api_->synchronize(captured);
}

void GraphScratch::clear_zeros(Stream& stream) {
  const std::vector<Buffer>& blocks = part_of(stream).zeros.blocks;
  if (!blocks.empty()) device_api_->fill_zero(blocks.back().data(), blocks.back().bytes(), stream);
}

GraphScratch::Part& GraphScratch::part_of(const Stream& stream) {
  return *std::find_if(parts_.begin(), parts_.end(), [&](const Part& part) { return part.stream == &stream; });
}

void* GraphScratch::Blocks::reserve(DeviceApi& device_api, std::size_t bytes) {
  if (blocks.empty() || blocks.back().bytes() < bytes) blocks.emplace_back(device_api, bytes);
  return blocks.back().data();
}

}  // namespace ingot
