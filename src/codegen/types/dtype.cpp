#include "ingot/codegen/types/dtype.h"

#include "formats.cuh"

namespace ingot {
namespace {

struct DtypeFacts {
  std::string_view name;
  double fp8_max = 0.0;
};

// In the enum's order.
constexpr std::array kFacts{
    DtypeFacts{"f32"},
    DtypeFacts{"bf16"},
    DtypeFacts{"f16"},
    DtypeFacts{"e4m3fn", e4m3fn::kMax},
    DtypeFacts{"e5m2", e5m2::kMax},
    DtypeFacts{"e4m3fnuz", e4m3fnuz::kMax},
    DtypeFacts{"e5m2fnuz", e5m2fnuz::kMax},
    DtypeFacts{"e8m0fnu"},
    DtypeFacts{"e3m2fn", e3m2fn::kMax},
    DtypeFacts{"e2m3fn", e2m3fn::kMax},
    DtypeFacts{"e2m1fn", e2m1fn::kMax},
    DtypeFacts{"u8"},
};
static_assert(kFacts.size() == kHighPrecisionDtypes.size() + kFp8Dtypes.size() + 2 + kSubByteDtypes.size());

// A value that the enum does not have (memory not initialised, a newer caller) is shown as such by the messages that
// refuse it.
constexpr DtypeFacts kUnknown{"unknown dtype"};

const DtypeFacts& facts(Dtype dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  return index < kFacts.size() ? kFacts[index] : kUnknown;
}

}  // namespace

std::string_view name(Dtype dtype) { return facts(dtype).name; }

std::optional<Dtype> parse_dtype(std::string_view text) {
  for (std::size_t i = 0; i < kFacts.size(); ++i) {
    if (kFacts[i].name == text) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

float fp8_max(Dtype dtype) { return static_cast<float>(facts(dtype).fp8_max); }

}  // namespace ingot
