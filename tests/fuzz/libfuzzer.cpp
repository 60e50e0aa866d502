// libFuzzer's entry for one target: INGOT_FUZZ_TARGET is its name.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  ingot::fuzz::INGOT_FUZZ_TARGET({reinterpret_cast<const char*>(data), bytes});
  return 0;
}
