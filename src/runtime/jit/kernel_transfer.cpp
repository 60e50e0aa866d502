#include "ingot/runtime/jit/kernel_transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "ingot/runtime/error.h"
#include "ingot/runtime/jit/kernel_identity.h"
#include "ingot/runtime/jit/kernel_listing.h"
#include "ingot/runtime/util/printable.h"

namespace ingot {
namespace {

bool asked_to_stop(const std::function<bool()>& stop) { return stop && stop(); }

// Why the store would not use a kernel, or empty.
std::string refuse(const KernelFile& file, const KernelKey& key, const ImportRules& rules) {
  if (!is_current(file, key, rules.identity)) {
    return "made for another version of Ingot or its templates, which this one never finds";
  }
  if (!trusts(Trust::same_build, file.kernel.toolchain, rules.toolchain)) {
    const bool same_version = compiler_version(file.kernel.toolchain) == compiler_version(rules.toolchain);
    const auto shown = [&](const std::string& toolchain) {
      return printable(same_version ? toolchain : compiler_version(toolchain));
    };
    return fmt::format(
        "compiled by another build of NVRTC ({}; here {}{}), so the store would replace them; name the file in "
        "INGOT_CACHE_TIERS to use them",
        shown(file.kernel.toolchain), shown(rules.toolchain),
        same_version ? ": sizes and checksums of its libraries differ" : "");
  }
  return {};
}

}  // namespace

void add_refused(std::vector<Refused>& all, const Refused& more) {
  const auto same = std::ranges::find(all, more.why, &Refused::why);
  if (same == all.end()) {
    all.push_back(more);
  } else {
    same->count += more.count;
  }
}

ImportedKernels import_kernels(const KernelTier& from, KernelStore& to, const ImportRules& rules,
                               const std::function<bool()>& stop) {
  ImportedKernels imported;
  for (const KernelEntry& entry : from.list()) {
    imported.stopped = asked_to_stop(stop);
    if (imported.stopped) break;
    std::string problem;
    const std::optional<KernelFile> file = from.read(entry.key, problem);
    if (!file) {
      if (!problem.empty()) {
        add_refused(imported.refused,
                    {.why = problem, .first = kernel_file_path(entry.key), .count = 1, .damaged = true});
      }
      continue;
    }
    if (const std::string why = refuse(*file, entry.key, rules); !why.empty()) {
      add_refused(imported.refused, {.why = why, .first = file->source.name, .count = 1});
      continue;
    }
    std::optional<KernelFile> ours;
    to.check(entry.key, &ours);
    if (ours && trusts(Trust::same_build, ours->kernel.toolchain, rules.toolchain)) {
      ++imported.there;
      continue;
    }
    if (!to.put(entry.key, file->source, file->target, file->kernel)) {
      throw Error(ErrorCode::io_failed, to.root().string(),
                  fmt::format("{} kernels were imported, then one could not be written: {}", imported.added,
                              to.disabled_reason()));
    }
    ++imported.added;
  }
  return imported;
}

ExportedKernels export_kernels(KernelStore& from, const std::string& identity,
                               const std::function<bool(const KernelFile&)>& wanted,
                               const std::function<bool()>& stop) {
  ExportedKernels exported;
  for (const KernelEntry& entry : from.list()) {
    exported.stopped = asked_to_stop(stop);
    if (exported.stopped) break;
    std::string problem;
    const std::optional<KernelFile> file = from.read(entry.key, problem);
    if (!file) {
      if (!problem.empty()) {
        exported.damaged.push_back(fmt::format("{} {}", (from.root() / kernel_file_path(entry.key)).string(), problem));
      }
    } else if (!is_current(*file, entry.key, identity)) {
      ++exported.of_other_versions;
    } else if (!wanted(*file)) {
      ++exported.not_wanted;
    } else {
      exported.kernels.push_back(
          {.key = entry.key, .file = encode_kernel_file(entry.key, file->source, file->target, file->kernel)});
    }
  }
  return exported;
}

}  // namespace ingot
