// What a cache reports to a log: where each kernel came from, once per kernel and process, never on the way to a
// launch.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "ingot/api.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/jit/kernel_key.h"

namespace ingot {

struct KernelEvent {
  // differing: found on disk, but the compiler makes other machine code of it (CacheMode::verify).
  enum class Kind : std::uint8_t { compiled, from_store, from_tier, differing };

  Kind kind = Kind::compiled;
  std::string name{};  // Source::name: a spec's line
  Target target{};
  KernelKey key{};
  std::string tier{};                // of from_tier: its path
  std::chrono::microseconds time{};  // to find or to compile it
};

// "compiled in 412.3 ms for sm_90a: cast bf16->e4m3fn scale=row out=codes"
INGOT_API std::string print(const KernelEvent& event);

}  // namespace ingot
