// How long a training step takes on many GPUs, what each GPU sends, and what binds: from the measured cost of layers on
// one GPU (conversion.h), the links, and the schedule of FSDP2 and of tensor parallelism with sequence parallelism.
//
//   const ModelShape model = read_model_shape(text, "config.json");
//   const StepEstimate step = step_estimate({.model = model, .mesh = {.shards = 64, .tensor = 4}, .recipe =
//   "rowwise"});
//
// Bytes are those of docs/distributed.md. Times are estimates: that page compares them with what was measured on 1, 2
// and 4 GPUs. Nothing was measured on more, nor between nodes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/api.h"
#include "ingot/nn/planning/gpu_mesh.h"
#include "ingot/nn/planning/model_shape.h"

namespace ingot {

struct StepRequest {
  ModelShape model{};
  GpuMesh mesh{};
  GpuLinks links{};
  std::string gpu = "h200";               // or h100
  std::string recipe = "high_precision";  // of all linear layers but the head
  std::int64_t tokens = 8192;             // in a step, of the GPUs that divide a layer together
  std::int64_t sequence = 4096;           // of these, tokens that attend to each other; all, where there are fewer
  bool float8_gather = true;              // where FSDP2 can; otherwise weights cross as 16-bit values
  bool optimizer = true;                  // AdamW
  int parameter_bytes = 4;                // 4 or 2; the optimizer's moments have as many. Gradients cross in f32

  // How many tokens attend to each other.
  std::int64_t attended() const { return std::min(sequence, tokens); }
};

struct StepBytes {
  double weights = 0;    // gathers: a layer's in forward and again in backward, the embedding's and the head's once
  double gradients = 0;  // reduce-scatter, and the all-reduce among replicas
  double maxima = 0;     // of what is cast
  double tensor = 0;     // tensor parallelism's activations and their gradients
  double all() const { return weights + gradients + maxima + tensor; }
};

struct StepEstimate {
  // While the GPU computes:
  double gemms_ms = 0;  // of linear layers and the head
  double casts_ms = 0;
  double attention_ms = 0;  // causal: forward 2 * tokens * sequence * width operations, backward 2.5 times as many
  double other_ms = 0;      // norms, activations, loss, optimizer, FSDP's copies: by the bytes that they move
  // While links are busy:
  double weights_ms = 0;    // gathers
  double gradients_ms = 0;  // reduce-scatters, with the all-reduces among replicas
  double tensor_ms = 0;     // tensor parallelism's collectives, which the next GEMM waits for
  // Of weights_ms and gradients_ms. In forward a layer's gather runs while the layer in front of it computes; in
  // backward the gather for the next layer and the reduce-scatter of the last one run while a layer computes. Nothing
  // hides the first gathers, the last reduce-scatters, and what takes longer than the layer.
  double hidden_ms = 0;
  double exposed_ms = 0;
  double slowed_ms = 0;  // what hidden collectives take from what computes meanwhile: multiprocessors and memory
  // What FSDP2's hooks and the calls of compiled layers keep the host, with the processor that was measured. It runs
  // ahead of the GPU, and small steps wait for it.
  double host_ms = 0;

  StepBytes sent{};         // by each rank, around a ring
  double memory_bytes = 0;  // of each rank: parameters, moments, what backward keeps, what is gathered
  double gpu_bytes = 0;     // of memory, as the GPU is sold: 80e9 of an h100, 141e9 of an h200
  std::string binds{};      // the largest part of the step: "GEMMs"
  std::string note{};       // which weights are gathered in 16 bits in spite of float8_gather, and why

  double gpu_ms() const { return gemms_ms + casts_ms + attention_ms + other_ms + tensor_ms + exposed_ms + slowed_ms; }
  bool fits() const { return memory_bytes <= gpu_bytes; }
  bool waits_for_host() const { return host_ms > gpu_ms(); }
  double step_ms() const { return std::max(gpu_ms(), host_ms); }
};

// What a rank gives to one gather of a weight that `ranks` ranks divide by its rows: codes, or 16-bit values. Rows that
// do not divide are padded.
INGOT_API double gathered_bytes(std::string_view recipe, std::int64_t rows, std::int64_t columns, std::int64_t ranks,
                                bool float8);

// Throws Error{invalid_argument} for what check_mesh() refuses, a mesh that does not divide the model, a GPU other
// than h200 and h100, unknown recipes and numbers out of range.
INGOT_API StepEstimate step_estimate(const StepRequest& request);

}  // namespace ingot
