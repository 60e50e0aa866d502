// GPUs in nodes, the links between them, and how long a collective takes on these.
//
// n ranks hold B bytes together, and each node has g of these ranks. A collective then takes:
//   gather, reduce-scatter   (n - 1) / n * B / bandwidth + n - 1 hops: a ring, in which every rank receives all but its
//                            own part, one part in a hop. One hop in g leaves its node.
//   all-reduce               twice that; or a tree up and down, each B / bandwidth + log2(n / g) hops between nodes and
//                            g - 1 within one. The faster of the two.
//   bandwidth                a node's; across nodes that of g adapters, if it is less: each GPU sends through its own.
#pragma once

#include <cstdint>

#include "ingot/api.h"

namespace ingot {

// GPUs are numbered with those that divide a layer (tensor) next to each other, then those that divide parameters
// (shards: FSDP), then whole copies of these (replicas: HSDP).
struct GpuMesh {
  std::int64_t shards = 1;
  std::int64_t replicas = 1;
  std::int64_t tensor = 1;
  std::int64_t node = 8;  // GPUs of a node
};

// The defaults were not measured: 350 of the 450 GB/s of NVLink 4 for NCCL's rings, and nine tenths of an adapter of
// 400 Gb/s for each GPU.
struct GpuLinks {
  double node_gb_per_s = 350;
  double node_us = 3;  // of a hop
  double network_gb_per_s = 45;
  double network_us = 10;
};

struct RankGroup {
  std::int64_t ranks = 1;
  std::int64_t in_node = 1;
  bool crosses() const { return ranks > in_node; }
};

// Throws Error{invalid_argument} for numbers out of range, links without bandwidth, and a mesh that is larger than a
// node but fills no whole nodes, or that cuts its groups across nodes in different ways.
INGOT_API void check_mesh(const GpuMesh& mesh, const GpuLinks& links);

INGOT_API RankGroup tensor_group(const GpuMesh& mesh);
INGOT_API RankGroup shard_group(const GpuMesh& mesh);
INGOT_API RankGroup replica_group(const GpuMesh& mesh);

INGOT_API double gather_ms(const RankGroup& group, const GpuLinks& links, double bytes);
INGOT_API double all_reduce_ms(const RankGroup& group, const GpuLinks& links, double bytes);

}  // namespace ingot
