// A compiler without NVRTC: it counts its compiles, takes as long as it is told, and refuses sources that contain
// "#error". Its machine code is its input, so a test notices if kernels are mixed up.
#pragma once

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "ingot/runtime/jit/compiler.h"
#include "ingot/runtime/util/error.h"

namespace ingot::test {

CompiledKernel fake_kernel(const Source& source, Target target);

class FakeCompiler final : public Compiler {
 public:
  explicit FakeCompiler(std::string identity = "fake 1", std::chrono::milliseconds duration = {},
                        std::string toolchain = "fake 1.0");

  std::string identity() const override { return identity_; }
  std::string toolchain() const override { return toolchain_; }

  CompiledKernel compile(const Source& source, Target target) const override;

  mutable std::atomic<int> compiles{0};

 private:
  std::string identity_;
  std::chrono::milliseconds duration_;
  std::string toolchain_;
};

}  // namespace ingot::test
