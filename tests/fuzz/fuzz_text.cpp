// Parsers of text: recordings, tuning records, lines of specs, pointwise expressions.
#include <optional>
#include <string>

#include "fuzz/targets.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/codegen/recording.h"
#include "ingot/runtime/tuning/tuning_record.h"
#include "ingot/runtime/util/text.h"

namespace ingot::fuzz {

bool recording(std::string_view input) {
  const ParsedRecording parsed = parse_recording(input);
  require((parsed.damaged > 0) != parsed.first.empty(), "damage and a reason, or neither");
  const ParsedRecording again = parse_recording(print(parsed.recording));
  require(again.damaged == 0 && again.recording == parsed.recording, "a recording that does not come back");
  return !parsed.recording.empty();
}

bool tuning_record(std::string_view input) {
  std::string problem;
  const std::optional<TuningRecord> record = parse_tuning_record(input, problem);
  require(record.has_value() == problem.empty(), "a record or a reason, and not both");
  if (!record) return false;
  require(record->us > 0, "a time that nothing takes");
  require(parse_tuning_record(print(*record), problem) == record, "a record that does not come back");
  return true;
}

bool sealed_tuning_record(std::string_view object) {
  return !object.empty() && tuning_record(with_checksum(std::string(object)));
}

bool spec_line(std::string_view input) {
  std::optional<KernelSpec> spec;
  if (!accepts([&] { spec = parse(input); })) return false;
  require(parse(print(*spec)) == *spec, "a spec that does not come back");
  require(hash_value(parse(print(*spec))) == hash_value(*spec), "another hash of the same spec");
  return true;
}

bool pointwise(std::string_view input) {
  std::optional<Pointwise> expression;
  if (!accepts([&] { expression = parse_pointwise(input); })) return false;
  require(parse_pointwise(print(*expression)) == *expression, "an expression that does not come back");
  return true;
}

}  // namespace ingot::fuzz
