#include "ingot/nn/planning/gpu_mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

constexpr std::int64_t kMostGpus = std::int64_t{1} << 20;

[[noreturn]] void refuse_mesh(const char* subject, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, subject, message);
}

void check_sizes(const GpuMesh& mesh) {
  for (const auto& [name, size] : {std::pair{"mesh dp", mesh.shards},
                                   {"mesh replicas", mesh.replicas},
                                   {"mesh tp", mesh.tensor},
                                   {"mesh node", mesh.node}}) {
    if (size >= 1 && size <= kMostGpus) continue;
    refuse_mesh(name, fmt::format("is {}, but must be a whole number from 1 to {}", size, kMostGpus));
  }
  if (mesh.shards > kMostGpus / mesh.tensor || mesh.replicas > kMostGpus / (mesh.tensor * mesh.shards)) {
    refuse_mesh("mesh", fmt::format("dp {} x tp {} x replicas {} is more than {} GPUs", mesh.shards, mesh.tensor,
                                    mesh.replicas, kMostGpus));
  }
  const std::int64_t all = mesh.tensor * mesh.shards * mesh.replicas;
  if (all <= mesh.node) return;
  if (all % mesh.node != 0)
    refuse_mesh("mesh", fmt::format("{} GPUs fill no whole nodes of {}: node is the GPUs of one", all, mesh.node));
  for (const auto& [name, size] : {std::pair{"tp", mesh.tensor}, {"tp x dp", mesh.tensor * mesh.shards}}) {
    if (mesh.node % size == 0 || size % mesh.node == 0) continue;
    refuse_mesh("mesh",
                fmt::format("{} of {} neither divides nodes of {} GPUs nor fills whole ones", name, size, mesh.node));
  }
}

void check_links(const GpuLinks& links) {
  for (const auto& [name, value] :
       {std::pair{"links nvlink", links.node_gb_per_s}, {"links network", links.network_gb_per_s}}) {
    if (std::isfinite(value) && value > 0) continue;
    refuse_mesh(name, fmt::format("is {} GB/s, but must be a positive number", value));
  }
  for (const auto& [name, value] :
       {std::pair{"links nvlink_us", links.node_us}, {"links network_us", links.network_us}}) {
    if (std::isfinite(value) && value >= 0) continue;
    refuse_mesh(name, fmt::format("is {} us, but must be 0 or more", value));
  }
}

// `stride`: how far apart the neighbours of the group are.
RankGroup group_of(const GpuMesh& mesh, std::int64_t ranks, std::int64_t stride) {
  return {.ranks = ranks, .in_node = std::clamp<std::int64_t>(mesh.node / stride, 1, ranks)};
}

double bytes_per_ms(const RankGroup& group, const GpuLinks& links) {
  const double network = static_cast<double>(group.in_node) * links.network_gb_per_s;
  return 1e6 * (group.crosses() ? std::min(links.node_gb_per_s, network) : links.node_gb_per_s);
}

double nodes_of(const RankGroup& group) {
  return static_cast<double>(group.ranks) / static_cast<double>(group.in_node);
}

}  // namespace

void check_mesh(const GpuMesh& mesh, const GpuLinks& links) {
  check_sizes(mesh);
  check_links(links);
}

RankGroup tensor_group(const GpuMesh& mesh) { return group_of(mesh, mesh.tensor, 1); }
RankGroup shard_group(const GpuMesh& mesh) { return group_of(mesh, mesh.shards, mesh.tensor); }
RankGroup replica_group(const GpuMesh& mesh) { return group_of(mesh, mesh.replicas, mesh.tensor * mesh.shards); }

double gather_ms(const RankGroup& group, const GpuLinks& links, double bytes) {
  if (group.ranks == 1) return 0;
  const auto n = static_cast<double>(group.ranks);
  const double crossing = group.crosses() ? (n - 1) / static_cast<double>(group.in_node) : 0;
  const double us = crossing * links.network_us + (n - 1 - crossing) * links.node_us;
  return (n - 1) / n * bytes / bytes_per_ms(group, links) + us / 1e3;
}

double all_reduce_ms(const RankGroup& group, const GpuLinks& links, double bytes) {
  if (group.ranks == 1) return 0;
  const double us =
      std::ceil(std::log2(nodes_of(group))) * links.network_us + static_cast<double>(group.in_node - 1) * links.node_us;
  return 2 * std::min(gather_ms(group, links, bytes), us / 1e3 + bytes / bytes_per_ms(group, links));
}

}  // namespace ingot
