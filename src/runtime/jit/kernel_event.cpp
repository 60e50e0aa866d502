#include "ingot/runtime/jit/kernel_event.h"

#include <fmt/format.h>

namespace ingot {
namespace {

std::string text(const KernelEvent& event) {
  switch (event.kind) {
    case KernelEvent::Kind::compiled: return "compiled";
    case KernelEvent::Kind::from_store: return "read from the store";
    case KernelEvent::Kind::from_tier: return "read from " + event.tier;
    case KernelEvent::Kind::differing: return "not as the compiler makes it; compiled";
  }
  return {};
}

}  // namespace

std::string print(const KernelEvent& event) {
  return fmt::format("{} in {:.1f} ms for {}: {}", text(event), static_cast<double>(event.time.count()) / 1e3,
                     print(event.target), event.name);
}

}  // namespace ingot
