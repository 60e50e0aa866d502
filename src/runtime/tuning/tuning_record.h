// What was measured to be the fastest kernel of one product on one machine: a value, and its one line of text, which is
// what the store keeps, what `ingot tune --export` writes and what --import reads.
//
//   {"ingot_tuning":1,"spec":"gemm ...","m":...,"n":...,"k":...,"kernel":"gemm ... kernel=sm90:...","us":...,
//    "cublaslt_us":...,"bf16_us":...,"date":"2026-11-21","device":"NVIDIA H200","target":"sm_90a",
//    "multiprocessors":132,"driver":"13.0","compiler":"ingot 0.1.0; ...","cublaslt":"13.1.0","checksum":"<32 hex>"}
//
// The checksum, XXH3-128 of all before it, comes last. Any change of this format changes the number in front.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ingot/codegen/gemm/gemm_estimate.h"
#include "ingot/codegen/matmul.h"
#include "ingot/runtime/util/digest.h"

namespace ingot {

// All that a measurement depends on beside the product: a record of another machine is not used.
struct TuningMachine {
  std::string device{};  // "NVIDIA H200"
  std::string target{};  // "sm_90a"
  int multiprocessors = 0;
  std::string driver{};    // "13.0"
  std::string compiler{};  // Compiler::identity(): Ingot's version, the templates' digest, NVRTC; empty without one
  std::string cublaslt{};  // "13.1.0"; empty without one
  bool operator==(const TuningMachine&) const = default;
};

// How `theirs` is another machine than `ours`, in words; empty if it is not.
std::string difference(const TuningMachine& theirs, const TuningMachine& ours);

struct TuningRecord {
  TuningMachine machine{};
  MatmulSpec spec{};  // without a choice of kernel
  MatmulSize size{};
  MatmulSpec chosen{};     // the spec with its kernel
  double us = 0;           // of one call, the median
  double cublaslt_us = 0;  // of cuBLASLt's best algorithm; 0 where it does not take the call
  double bf16_us = 0;      // of the same product in bf16; 0 where that was not measured
  std::string date{};      // UTC
  bool operator==(const TuningRecord&) const = default;
};

std::string print(const TuningRecord& record);
// Nothing, with the reason in `problem` ("does not match its checksum"), unless the line is as print() made it.
std::optional<TuningRecord> parse_tuning_record(std::string_view line, std::string& problem);

// Of all that decides the measurement: two records of one key say which kernel is fastest for the same thing.
Digest tuning_key(const TuningMachine& machine, const MatmulSpec& spec, const MatmulSize& size);

}  // namespace ingot
