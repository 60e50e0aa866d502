#include "ingot/codegen/types/target.h"
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <charconv>
#include "ingot/runtime/util/error.h"

namespace ingot {

std::string print(Target target) {
  return "sm_" + std::to_string(target.major) + std::to_string(target.minor) + (target.arch_specific ? "a" : "");
}

// The last digit is the minor version: sm_90a is 9.0, sm_121 is 12.1.
std::optional<Target> parse_target(std::string_view text) {
  constexpr std::string_view kPrefix = "sm_";
  if (!text.starts_with(kPrefix)) return std::nullopt;
  text.remove_prefix(kPrefix.size());
  const bool arch_specific = text.ends_with('a');
  if (arch_specific) text.remove_suffix(1);
  if (text.size() < 2 || text.size() > 3 || text.front() == '0') return std::nullopt;
  int number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || stop != end || number < 10) return std::nullopt;
  return Target{number / 10, number % 10, arch_specific};
}

namespace {

// The multiprocessors are NVIDIA's figures; where a data sheet gives CUDA cores only, a 128th of them (a 64th for the
// A100). Shared memory is the CUDA programming guide's limit for a block, by compute capability.
constexpr int kKiB = 1024;
constexpr int kShared80 = 163 * kKiB;
constexpr int kShared89 = 99 * kKiB;
constexpr int kShared90 = 227 * kKiB;
constexpr int kShared100 = 227 * kKiB;
constexpr int kShared120 = 99 * kKiB;

constexpr std::array kGpus{
    Gpu{"a100", "NVIDIA A100-SXM4-80GB", target_for(8, 0), 108, kShared80},
    Gpu{"l4", "NVIDIA L4", target_for(8, 9), 58, kShared89},
    Gpu{"l40", "NVIDIA L40", target_for(8, 9), 142, kShared89},
    Gpu{"l40s", "NVIDIA L40S", target_for(8, 9), 142, kShared89},
    Gpu{"rtx4090", "NVIDIA GeForce RTX 4090", target_for(8, 9), 128, kShared89},
    Gpu{"h20", "NVIDIA H20", target_for(9, 0), 78, kShared90},
    Gpu{"h100", "NVIDIA H100 80GB HBM3", target_for(9, 0), 132, kShared90},
    Gpu{"h100-nvl", "NVIDIA H100 NVL", target_for(9, 0), 132, kShared90},
    Gpu{"h100-pcie", "NVIDIA H100 PCIe", target_for(9, 0), 114, kShared90},
    Gpu{"h200", "NVIDIA H200", target_for(9, 0), 132, kShared90},
    Gpu{"gh200", "NVIDIA GH200 480GB", target_for(9, 0), 132, kShared90},
    Gpu{"b200", "NVIDIA B200", target_for(10, 0), 148, kShared100},
    Gpu{"rtx5090", "NVIDIA GeForce RTX 5090", target_for(12, 0), 170, kShared120},
    Gpu{"rtx-pro-6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition", target_for(12, 0), 188, kShared120},
};

}  // namespace

std::span<const Gpu> known_gpus() { return kGpus; }

std::string gpu_names() {
  std::string names;
  for (const Gpu& gpu : kGpus) names += fmt::format("{}{}", names.empty() ? "" : ", ", gpu.name);
  return names;
}

const Gpu& gpu_named(std::string_view name) {
  const auto* const found = std::ranges::find(kGpus, name, &Gpu::name);
  if (found != kGpus.end()) return *found;
  throw Error(ErrorCode::invalid_argument, "GPU", fmt::format("\"{}\" must be one of {}", name, gpu_names()));
}

const Gpu* gpu_of_target(const Target& target) {
  const std::span<const Gpu> all = known_gpus();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Gpu& gpu) { return gpu.target == target; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace ingot
