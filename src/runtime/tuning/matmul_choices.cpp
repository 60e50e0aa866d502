#include "ingot/runtime/tuning/matmul_choices.h"

#include <fmt/format.h>

#include <exception>
#include <utility>
#include <vector>

#include "ingot/runtime/tuning/tuning_file.h"

namespace ingot {

MatmulChoices::MatmulChoices(Tuning tuning, TuningStore& store, std::filesystem::path file, TuningMachine machine,
                             Warn warn)
    : tuning_(tuning), store_(&store), file_(std::move(file)), machine_(std::move(machine)), warn_(std::move(warn)) {}

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
    std::vector<TuningRecord> records;
    if (file_.empty()) {
      records = store_->load();
    } else {
      TuningFile file = read_tuning_file(file_);
      records = std::move(file.records);
      if (file.damaged > 0) {
        warn(
            fmt::format("tuning file {}: {}; {} of its lines are ignored", file_.string(), file.problem, file.damaged));
      }
    }
    std::size_t foreign = 0;
    std::string how;
    for (const TuningRecord& record : records) {
      std::string differs = difference(record.machine, machine_);
      if (differs.empty()) {
        add(record);
      } else if (foreign++ == 0) {
        how = std::move(differs);
      }
    }
    if (foreign > 0) {
      warn(fmt::format("{} tuning {} another machine's ({}) and {} ignored; `ingot tune` makes this one's", foreign,
                       foreign == 1 ? "record is" : "records are", how, foreign == 1 ? "is" : "are"));
    }
  } catch (const std::exception& error) {
    warn(fmt::format("tuning records cannot be read, and kernels are chosen without them: {}", error.what()));
  }
}

void MatmulChoices::add(const TuningRecord& record) {
  const MatmulCall call{.spec = record.spec, .size = record.size};
  table_.insert({.hash = hash_value(call), .call = call, .chosen = record.chosen}, matching(call));
}

void MatmulChoices::warn(const std::string& text) const {
  if (warn_) warn_(text);
}

}  // namespace ingot
