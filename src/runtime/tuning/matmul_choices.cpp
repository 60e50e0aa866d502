#include "ingot/runtime/tuning/matmul_choices.h"

#include <fmt/format.h>

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "ingot/runtime/jit/kernel_tier.h"
#include "ingot/runtime/tuning/tuning_record.h"
#include "ingot/runtime/util/count_of.h"

namespace ingot {
namespace {

std::string ignored(int records) {
  return records == 1 ? "1 record is ignored" : fmt::format("{} records are ignored", records);
}

}  // namespace

MatmulChoices::MatmulChoices(Tuning tuning, TuningSources sources, TuningMachine machine, Warn warn)
    : tuning_(tuning), sources_(std::move(sources)), machine_(std::move(machine)), warn_(std::move(warn)) {}

const MatmulSpec* MatmulChoices::find(const MatmulCall& call) {
  if (tuning_ == Tuning::off) return nullptr;
  load_once();
  const Entry* const entry = table_.find(hash_value(call), matching(call));
  return entry == nullptr ? nullptr : &entry->chosen;
}

std::size_t MatmulChoices::size() {
  if (tuning_ == Tuning::off) return 0;
  load_once();
  return table_.size();
}

// Without records GEMMs are only slower, so nothing here may make the call that triggers the reading fail.
void MatmulChoices::load() noexcept {
  try {
    const bool from_file = !sources_.file.empty();
    const Foreign foreign = add(from_file ? read_file() : sources_.store->load());
    if (foreign.count > 0) {
      warn(fmt::format("{} tuning {} another machine's ({}) and {} ignored; `ingot tune` makes this one's",
                       foreign.count, foreign.count == 1 ? "record is" : "records are", foreign.how,
                       foreign.count == 1 ? "is" : "are"));
    }
    if (from_file) return;
    for (const KernelTier* tier : sources_.tiers) load_tier(*tier);
  } catch (const std::exception& error) {
    warn(fmt::format("tuning records cannot be read, and kernels are chosen without them: {}", error.what()));
  }
}

std::vector<TuningRecord> MatmulChoices::read_file() {
  TuningFile file = read_tuning_file(sources_.file);
  if (file.damaged > 0) {
    warn(fmt::format("tuning file {}: {}; {}", sources_.file.string(), file.problem, ignored(file.damaged)));
  }
  return std::move(file.records);
}

// A bundle may serve several kinds of machines, so records of others are not reported, unless all are.
void MatmulChoices::load_tier(const KernelTier& tier) {
  const TuningFile read = read_tuning_of(tier);
  if (read.damaged > 0) {
    warn(fmt::format("tuning records of {}: {}; {}", tier.name(), read.problem, ignored(read.damaged)));
  }
  const Foreign foreign = add(read.records);
  if (foreign.count > 0 && foreign.count == read.records.size()) {
    warn(fmt::format("{} has {}, but none for this machine ({})", tier.name(), count_of(foreign.count, "tuning record"),
                     foreign.how));
  }
}

MatmulChoices::Foreign MatmulChoices::add(const std::vector<TuningRecord>& records) {
  Foreign foreign;
  for (const TuningRecord& record : records) {
    std::string differs = difference(record.machine, machine_);
    if (!differs.empty()) {
      if (foreign.count++ == 0) foreign.how = std::move(differs);
      continue;
    }
    const MatmulCall call{.spec = record.spec, .size = record.size};
    table_.insert({.hash = hash_value(call), .call = call, .chosen = record.chosen}, matching(call));
  }
  return foreign;
}

void MatmulChoices::warn(const std::string& text) const {
  if (warn_) warn_(text);
}

}  // namespace ingot
