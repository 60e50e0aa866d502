// A tuning record with a value in every field.
#pragma once

#include <cstdint>
#include <string>

#include "ingot/runtime/tuning/tuning_record.h"

namespace ingot::test {

TuningMachine machine(const std::string& device = "NVIDIA H200");

TuningRecord record(std::int64_t m = 8192, const std::string& device = "NVIDIA H200");

// A record for a GEMM with a decoded weight.
TuningRecord dequant_record(std::int64_t m = 16);

}  // namespace ingot::test
