// The checksum is verified before anything is parsed. The parsed values are checked all the same, because a file with a
// valid checksum may still have been written wrongly.
#include "ingot/runtime/tuning/tuning_record.h"
#include <fmt/format.h>
#include <cmath>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <variant>
#include "ingot/runtime/jit/kernel_tier.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/json_text.h"
#include "ingot/runtime/util/read_file.h"
#include "ingot/runtime/util/text.h"
#include "ingot/runtime/util/write_file.h"

namespace ingot {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;

// Parses a line with a valid checksum. Throws Error or JsonFault.
TuningRecord read_fields(const nlohmann::json& json) {
  return {.machine = {.device = json_string(json, "device"),
                      .target = json_string(json, "target"),
                      .multiprocessors = static_cast<int>(json_integer(json, "multiprocessors", 0, 1 << 20)),
                      .driver = json_string(json, "driver"),
                      .compiler = json_string(json, "compiler"),
                      .cublaslt = json_string(json, "cublaslt")},
          .spec = parse_matmul_spec(json_string(json, "spec")),
          .size = {.m = json_integer(json, "m", 1), .n = json_integer(json, "n", 1), .k = json_integer(json, "k", 1)},
          .chosen = parse_matmul_spec(json_string(json, "kernel")),
          .us = json_number(json, "us"),
          .cublaslt_us = json_number(json, "cublaslt_us"),
          .bf16_us = json_number(json, "bf16_us"),
          .date = json_string(json, "date")};
}

// Why tuning cannot have written this record; empty if it can.
std::string fault(const TuningRecord& record) {
  if (names_kernel(record.spec)) return "has a spec that names a kernel";
  if (!names_kernel(record.chosen) || without_kernel(record.chosen) != record.spec) {
    return "has a kernel for another matmul";
  }
  const auto* const dequant = std::get_if<DequantMatmulSpec>(&record.chosen);
  if (dequant != nullptr && (dequant->kernel == DequantKernel::automatic || !dequant->tiling)) {
    return "has a kernel without its tiling";
  }
  for (const double us : {record.us, record.cublaslt_us, record.bf16_us}) {
    if (!std::isfinite(us) || us < 0) return "has an invalid time";
  }
  return record.us > 0 ? "" : "has an invalid time";
}

}  // namespace

std::string difference(const TuningMachine& theirs, const TuningMachine& ours) {
  const auto differs = [](const char* what, const std::string& a, const std::string& b) {
    return fmt::format("{} {}, and this is {}", what, a.empty() ? "none" : a, b.empty() ? "none" : b);
  };
  if (theirs.device != ours.device) return differs("device", theirs.device, ours.device);
  if (theirs.target != ours.target) return differs("target", theirs.target, ours.target);
  if (theirs.multiprocessors != ours.multiprocessors) {
    return differs("multiprocessors", std::to_string(theirs.multiprocessors), std::to_string(ours.multiprocessors));
  }
  if (theirs.driver != ours.driver) return differs("CUDA driver", theirs.driver, ours.driver);
  if (theirs.cublaslt != ours.cublaslt) return differs("cuBLASLt", theirs.cublaslt, ours.cublaslt);
  return theirs.compiler == ours.compiler ? "" : "another version of Ingot, its templates or NVRTC";
}

std::string print(const TuningRecord& record) {
  const TuningMachine& machine = record.machine;
  const Json json{{"ingot_tuning", kFormat},
                  {"spec", print(kernel_spec(record.spec))},
                  {"m", record.size.m},
                  {"n", record.size.n},
                  {"k", record.size.k},
                  {"kernel", print(kernel_spec(record.chosen))},
                  {"us", record.us},
                  {"cublaslt_us", record.cublaslt_us},
                  {"bf16_us", record.bf16_us},
                  {"date", record.date},
                  {"device", machine.device},
                  {"target", machine.target},
                  {"multiprocessors", machine.multiprocessors},
                  {"driver", machine.driver},
                  {"compiler", machine.compiler},
                  {"cublaslt", machine.cublaslt}};
  return with_checksum(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::optional<TuningRecord> parse_tuning_record(std::string_view line, std::string& problem) {
  const auto refuse = [&problem](std::string why) {
    problem = std::move(why);
    return std::nullopt;
  };
  if (!line.starts_with("{\"ingot_tuning\":")) return refuse("is not a tuning record");
  if (std::string why = checksum_fault(line); !why.empty()) return refuse(std::move(why));
  try {
    const auto json = nlohmann::json::parse(line);
    if (json_field(json, "ingot_tuning") != kFormat) return refuse("is of another version of the format");
    TuningRecord record = read_fields(json);
    if (const std::string why = fault(record); !why.empty()) return refuse(why);
    return record;
  } catch (const nlohmann::json::exception&) {
    return refuse("is not JSON");
  } catch (const JsonFault& fault) {
    return refuse(fault.what());
  } catch (const Error& error) {
    return refuse(fmt::format("has a spec that cannot be read ({})", error.what()));
  }
}

Digest tuning_key(const TuningMachine& machine, const MatmulSpec& spec, const MatmulSize& size) {
  return digest_fields({std::to_string(kFormat), print(kernel_spec(spec)), std::to_string(size.m),
                        std::to_string(size.n), std::to_string(size.k), machine.device, machine.target,
                        std::to_string(machine.multiprocessors), machine.driver, machine.compiler, machine.cublaslt});
}

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
