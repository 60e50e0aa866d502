// A compiler without NVRTC: it counts its compiles, takes as long as it is told, and refuses sources that contain
// "#error". Its machine code is its input, so a test notices if kernels are mixed up.
#pragma once

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "ingot/runtime/error.h"
#include "ingot/runtime/jit/compiler.h"

namespace ingot::test {

inline CompiledKernel fake_kernel(const Source& source, Target target) {
  const std::string code = print(target) + '\0' + source.text;
  CompiledKernel kernel{
      .lowered_name = "_Z" + std::to_string(source.text.size()) + "kernelv",
      .cubin = std::vector<std::byte>(code.size()),
      .resources = {.registers = 32, .spill_bytes = 0, .stack_bytes = 16, .static_shared_bytes = 1024},
      .log = "warning: made by a fake compiler"};
  std::memcpy(kernel.cubin.data(), code.data(), code.size());
  return kernel;
}

class FakeCompiler final : public Compiler {
 public:
  explicit FakeCompiler(std::string identity = "fake 1", std::chrono::milliseconds duration = {})
      : identity_(std::move(identity)), duration_(duration) {}

  std::string identity() const override { return identity_; }

  CompiledKernel compile(const Source& source, Target target) const override {
    ++compiles;
    std::this_thread::sleep_for(duration_);
    if (source.text.find("#error") != std::string::npos) {
      throw Error(ErrorCode::compile_failed, source.name, "does not compile", source.text);
    }
    return fake_kernel(source, target);
  }

  mutable std::atomic<int> compiles{0};

 private:
  std::string identity_;
  std::chrono::milliseconds duration_;
};

}  // namespace ingot::test
