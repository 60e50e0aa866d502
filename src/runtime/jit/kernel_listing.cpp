#include "ingot/runtime/jit/kernel_listing.h"
#include <fmt/format.h>
#include <algorithm>
#include <optional>
#include <utility>
#include "ingot/codegen/generate.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/jit/kernel_identity.h"
#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/text.h"

namespace ingot {
namespace {

// The name of a generated source is its spec's line, with the suffix of its pass.
struct SpecLine {
  std::string_view line;
  Pass pass = Pass::main;
};

SpecLine without_suffix(std::string_view name) {
  for (const Pass pass :
       {Pass::first, Pass::finish, Pass::whole, Pass::unaligned, Pass::wide, Pass::keeping, Pass::kept}) {
    const std::string_view end = suffix(pass);
    if (name.ends_with(end)) return {.line = name.substr(0, name.size() - end.size()), .pass = pass};
  }
  return {.line = name};
}

std::optional<KernelSpec> parse_spec(std::string_view line) {
  try {
    return parse(line);
  } catch (const Error&) {
    return std::nullopt;
  }
}

ListedKernel describe(KernelFile file, const KernelEntry& entry, std::string_view identity) {
  ListedKernel listed{.entry = entry, .target = file.target};
  listed.current = is_current(file, entry.key, identity);
  if (const auto [line, pass] = without_suffix(file.source.name); parse_spec(line)) {
    listed.operation = line.substr(0, line.find(' '));
    listed.pass = pass;
  }
  listed.name = std::move(file.source.name);
  listed.compiler = std::move(file.kernel.toolchain);
  listed.symbol = std::move(file.kernel.lowered_name);
  return listed;
}

template <class From>
KernelListing list_from(From& from, std::string_view identity, const std::function<bool()>& stop) {
  KernelListing listing;
  for (const KernelEntry& entry : from.list()) {
    listing.stopped = stop && stop();
    if (listing.stopped) break;
    std::string problem;
    if (auto file = from.read(entry.key, problem)) {
      listing.kernels.push_back(describe(*std::move(file), entry, identity));
    } else if (!problem.empty()) {
      listing.damaged.push_back({.entry = entry, .problem = std::move(problem)});
    }
  }
  return listing;
}

std::int64_t total_bytes(const std::vector<KernelEntry>& kernels) {
  std::int64_t bytes = 0;
  for (const KernelEntry& kernel : kernels) bytes += kernel.bytes;
  return bytes;
}

}  // namespace

KernelListing list_kernels(KernelStore& store, std::string_view identity, const std::function<bool()>& stop) {
  return list_from(store, identity, stop);
}

KernelListing list_kernels(const KernelTier& tier, std::string_view identity, const std::function<bool()>& stop) {
  return list_from(tier, identity, stop);
}

bool is_current(const KernelFile& file, const KernelKey& key, std::string_view identity) {
  return kernel_key(file.source, file.target, identity) == key;
}

std::string compiler_version(const std::string& toolchain) {
  const std::size_t name = toolchain.find(' ');
  return name == std::string::npos ? toolchain : toolchain.substr(0, toolchain.find(' ', name + 1));
}

bool is_generated(const Source& source) {
  const auto [line, pass] = without_suffix(source.name);
  const std::optional<KernelSpec> spec = parse_spec(line);
  return spec && has_pass(*spec, pass) && generate(*spec, pass).text == source.text;
}

std::string line_of_recording(const Source& source) {
  return is_generated(source) ? std::string(without_suffix(source.name).line) : "";
}

std::vector<KernelEntry> kernels_to_prune(const KernelListing& listing, const PruneRules& rules, std::time_t now) {
  std::vector<KernelEntry> looked_at;
  for (const ListedKernel& kernel : listing.kernels) {
    const bool wanted = rules.targets.empty() || std::ranges::find(rules.targets, kernel.target) != rules.targets.end();
    if (wanted) looked_at.push_back(kernel.entry);
  }
  if (rules.targets.empty()) {
    for (const DamagedKernel& kernel : listing.damaged) looked_at.push_back(kernel.entry);
  }
  std::ranges::sort(looked_at, {}, &KernelEntry::used);
  if (!rules.unused_for && !rules.max_bytes) return looked_at;

  std::int64_t bytes = total_bytes(looked_at);
  std::size_t removed = 0;
  for (; removed < looked_at.size(); ++removed) {
    const KernelEntry& kernel = looked_at[removed];
    const bool is_old = rules.unused_for && kernel.used && kernel.used->first < now - rules.unused_for->count();
    const bool too_many = rules.max_bytes && bytes > *rules.max_bytes;
    if (!is_old && !too_many) break;
    bytes -= kernel.bytes;
  }
  looked_at.resize(removed);
  return looked_at;
}

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
                  fmt::format("{} imported, then one could not be written: {}", count_of(imported.added, "kernel"),
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
