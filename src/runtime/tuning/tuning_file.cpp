#include "ingot/runtime/tuning/tuning_file.h"

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "ingot/runtime/jit/kernel_tier.h"
#include "ingot/runtime/jit/tuning_lines.h"
#include "ingot/runtime/util/read_file.h"
#include "ingot/runtime/util/write_file.h"

namespace ingot {
namespace {

namespace fs = std::filesystem;

// Reads what it is called with.
class LineReader {
 public:
  explicit LineReader(const std::function<bool()>& stop) : stop_(stop) {}

  bool operator()(const TuningLine& line) {
    file_.stopped = stop_ && stop_();
    if (file_.stopped) return false;
    std::string problem = line.problem;
    std::optional<TuningRecord> record;
    if (problem.empty()) record = parse_tuning_record(line.text, problem);
    if (record) {
      file_.records.push_back(*std::move(record));
    } else if (file_.damaged++ == 0) {
      file_.problem = fmt::format("{} {}", line.place, problem);
    }
    return true;
  }

  TuningFile take() { return std::move(file_); }

 private:
  const std::function<bool()>& stop_;
  TuningFile file_;
};

}  // namespace

TuningFile read_tuning_file(const fs::path& path, const std::function<bool()>& stop) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{2} << 30;  // millions of records
  LineReader reader(stop);
  take_tuning_lines(read_file(path, kMostBytes, "`ingot tune --export` writes one"), std::ref(reader));
  return reader.take();
}

TuningFile read_tuning_of(const KernelTier& tier, const std::function<bool()>& stop) {
  LineReader reader(stop);
  tier.read_tuning(std::ref(reader));
  return reader.take();
}

void write_tuning_file(const fs::path& path, std::span<const TuningRecord> records) {
  FileWriter writer(path);
  for (const TuningRecord& record : records) writer.write(print(record) + '\n');
  writer.publish();
}

}  // namespace ingot
