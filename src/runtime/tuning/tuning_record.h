// A tuning record: the fastest measured kernel of one matmul on one machine. A value and its text, one line, which the
// store keeps, `ingot tune --export` writes and --import reads.
//
//   {"ingot_tuning":1,"spec":"gemm ...","m":...,"n":...,"k":...,"kernel":"gemm ... kernel=sm90:...","us":...,
//    "cublaslt_us":...,"bf16_us":...,"date":"2026-11-21","device":"NVIDIA H200","target":"sm_90a",
//    "multiprocessors":132,"driver":"13.0","compiler":"ingot 0.1.0; ...","cublaslt":"13.1.0","checksum":"<32 hex>"}
//
// The checksum comes last: XXH3-128 of everything before it. Any change of this format changes the number at the start.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>
#include "ingot/api.h"
#include "ingot/codegen/gemm/gemm_estimate.h"
#include "ingot/codegen/matmul.h"
#include "ingot/runtime/util/digest.h"

namespace ingot {

class KernelTier;  // runtime/jit/kernel_tier.h

// Everything that a measurement depends on in addition to the matmul. Records of another machine are not used.
struct TuningMachine {
  std::string device{};  // "NVIDIA H200"
  std::string target{};  // "sm_90a"
  int multiprocessors = 0;
  std::string driver{};    // "13.0"
  std::string compiler{};  // kernel_identity(): Ingot's version, the templates' digest, the compiler's options
  std::string cublaslt{};  // "13.1.0"; empty without one
  bool operator==(const TuningMachine&) const = default;
};

// How `theirs` differs from `ours`, in words; empty if they are the same machine.
INGOT_API std::string difference(const TuningMachine& theirs, const TuningMachine& ours);

struct TuningRecord {
  TuningMachine machine{};
  MatmulSpec spec{};  // without a choice of kernel
  MatmulSize size{};
  MatmulSpec chosen{};     // the spec with its kernel
  double us = 0;           // of one call, the median
  double cublaslt_us = 0;  // of cuBLASLt's best algorithm; 0 where it does not take the call
  double bf16_us = 0;      // of the same matmul in bf16; 0 where that was not measured
  std::string date{};      // UTC
  bool operator==(const TuningRecord&) const = default;
};

INGOT_API std::string print(const TuningRecord& record);
// The record, if the line is as print() made it; otherwise nothing, with the reason in `problem` ("does not match its
// checksum").
INGOT_API std::optional<TuningRecord> parse_tuning_record(std::string_view line, std::string& problem);

// A hash of everything that decides the measurement: records with equal keys answer the same question.
INGOT_API Digest tuning_key(const TuningMachine& machine, const MatmulSpec& spec, const MatmulSize& size);

// A file of tuning records, one per line. `ingot tune --export` writes it, --import reads it, and runs that must choose
// the same kernels everywhere use it in place of the store (ContextOptions::tuning_file).
struct TuningFile {
  std::vector<TuningRecord> records{};
  int damaged = 0;        // lines that could not be read, and were skipped
  std::string problem{};  // of the first of them: "line 3 does not match its checksum"
  bool stopped = false;   // before the end
};

// Throws Error{not_found, io_failed}. `stop` is asked before each line.
INGOT_API TuningFile read_tuning_file(const std::filesystem::path& path, const std::function<bool()>& stop = {});
// The same of a bundle, or of a store that may be another user's. The lines of a store are its files.
INGOT_API TuningFile read_tuning_of(const KernelTier& tier, const std::function<bool()>& stop = {});
// All or nothing; what is no regular file, such as a FIFO, is written into. Throws Error{io_failed}.
INGOT_API void write_tuning_file(const std::filesystem::path& path, std::span<const TuningRecord> records);

}  // namespace ingot
