#include "ingot/runtime/jit/kernel_listing.h"

#include <algorithm>
#include <utility>

#include "ingot/codegen/generate.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/error.h"

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

}  // namespace ingot
