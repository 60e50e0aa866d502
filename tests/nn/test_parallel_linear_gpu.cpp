// Column- and row-parallel layers over NCCL, with a rank for each GPU of the machine: next to one rank on the CPU, and
// captured into graphs.
#include "support/gpu_ranks.h"

#include <algorithm>
#include <string>
#include <vector>

#include "ingot/runtime/cuda/graph.h"
#include "nn/parallel_case.h"

BOOST_AUTO_TEST_SUITE(test_parallel_linear_gpu)

using namespace ingot;
using namespace ingot::test;

namespace {

// A rank's part of a host matrix on its GPU. What the layer writes is brought back to that part.
class OnDevice {
 public:
  OnDevice(const Tensor& host, Backend& backend, Stream& stream)
      : host_(host), backend_(&backend), stream_(&stream), memory_(backend, host.dtype, host.rows, host.cols) {
    each_row([&](void* row, void* device, std::size_t bytes) {
      backend_->device_api().copy_from_host(device, row, bytes, *stream_);
    });
  }
  const Tensor& view() const { return memory_.view(); }
  void bring_back() const {
    each_row([&](void* row, void* device, std::size_t bytes) {
      backend_->device_api().copy_to_host(row, device, bytes, *stream_);
    });
  }

 private:
  template <class Copy>
  void each_row(const Copy& copy) const {
    const auto bytes = static_cast<std::size_t>(host_.cols * size_of(host_.dtype));
    for (std::int64_t r = 0; r < host_.rows; ++r) {
      copy(static_cast<std::byte*>(host_.data) + r * host_.row_stride * size_of(host_.dtype),
           static_cast<std::byte*>(memory_.view().data) + static_cast<std::size_t>(r) * bytes, bytes);
    }
  }

  Tensor host_;
  Backend* backend_;
  Stream* stream_;
  OwnedTensor memory_;
};

// One rank's parts of the host's matrices.
struct Parts {
  Tensor input, weight, output, grad_output, grad_input, grad_weight;
};

Parts parts_of(const ParallelCase& of, const ParallelInputs& in, const ParallelResults& out, int rank) {
  const int n = of.ranks;
  if (of.kind == ParallelKind::column) {
    return {in.input.rows_of(rank, n),       in.weight.rows_of(rank, n),      out.output.cols_of(rank, n),
            in.grad_output.cols_of(rank, n), out.grad_input.rows_of(rank, n), out.grad_weight.rows_of(rank, n)};
  }
  return {in.input.cols_of(rank, n),       in.weight.cols_of(rank, n),      out.output.rows_of(rank, n),
          in.grad_output.rows_of(rank, n), out.grad_input.cols_of(rank, n), out.grad_weight.cols_of(rank, n)};
}

template <class Layer>
void run(Layer& layer, const Parts& parts, Backend& backend, Stream& stream) {
  const OnDevice input(parts.input, backend, stream);
  const OnDevice weight(parts.weight, backend, stream);
  const OnDevice output(parts.output, backend, stream);
  const OnDevice grad_output(parts.grad_output, backend, stream);
  const OnDevice grad_input(parts.grad_input, backend, stream);
  const OnDevice grad_weight(parts.grad_weight, backend, stream);
  const auto step = [&] {
    layer.weight_changed();
    layer.forward({.input = input.view(), .weight = weight.view(), .output = output.view()}, stream);
    layer.backward(
        {.grad_output = grad_output.view(), .grad_input = grad_input.view(), .grad_weight = grad_weight.view()},
        stream);
  };
  step();
  Graph graph(stream, step);
  for (const OnDevice* each : {&output, &grad_input, &grad_weight}) {
    const Tensor& view = each->view();
    backend.device_api().fill_zero(view.data, byte_span(view, "result"), stream);
  }
  graph.replay(stream);
  for (const OnDevice* each : {&output, &grad_input, &grad_weight}) each->bring_back();
}

// With sequence parallelism, where each rank writes its own part of every result.
void compare(const Machine& machine, const ParallelCase& of) {
  const ParallelInputs inputs(of);
  const ParallelResults expected = on_one(of, inputs);
  const ParallelResults found(of);
  const auto thrown = on_threads(of.ranks, [&](int rank) {
    ContextOptions options = cuda_options();
    options.device_index = rank;
    Context context(options);
    Backend& backend = context.backend();
    Stream stream(backend);
    Comm comm(backend, *machine.nccl, machine.communicators[static_cast<std::size_t>(rank)]);
    const ParallelLinearOptions of_layer{.name = "up",
                                         .config = recipe(of.recipe),
                                         .shape = {.in_features = of.in, .out_features = of.out},
                                         .dtypes = {.input = of.dtype},
                                         .sequence_parallel = true};
    const Parts parts = parts_of(of, inputs, found, rank);
    if (of.kind == ParallelKind::column) {
      ColumnParallelLinear layer(backend, comm, of_layer);
      comm.handshake(std::vector{layer.shared()}, stream);
      run(layer, parts, backend, stream);
    } else {
      RowParallelLinear layer(backend, comm, of_layer);
      run(layer, parts, backend, stream);
    }
  });
  for (const std::string& each : thrown) BOOST_TEST(each == "", of.text() << ": " << each);
  // The kernels add in another order than the CPU, and round to bf16 afterwards.
  constexpr double kGpu = 6e-3;
  const ParallelBounds bounds = bounds_of(of);
  BOOST_TEST(difference(found.output, expected.output) <= std::max(bounds.output, kGpu), of.text());
  BOOST_TEST(difference(found.grad_input, expected.grad_input) <= std::max(bounds.grad_input, kGpu), of.text());
  BOOST_TEST(difference(found.grad_weight, expected.grad_weight) <= std::max(bounds.grad_weight, kGpu), of.text());
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_recipe_gives_what_one_rank_gives) {
  const Machine machine;
  if (machine.nccl == nullptr) {
    BOOST_TEST_MESSAGE("no NCCL: " << machine.problem);
    return;
  }
  for (const Recipe& each : recipes()) {
    if (each.name == "delayed") continue;  // its scales are made as tensorwise's, in the first step
    for (const ParallelKind kind : {ParallelKind::column, ParallelKind::row}) {
      compare(machine, {.kind = kind,
                        .recipe = std::string(each.name),
                        .sequence_parallel = true,
                        .ranks = machine.ranks(),
                        .dtype = Dtype::bf16,
                        .tokens = 64,
                        .in = 1024,
                        .out = 2048,
                        .bias = false});
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
