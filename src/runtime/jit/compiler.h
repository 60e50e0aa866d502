// Compiles a source to machine code. An interface, so that tests can count compiles and make them fail without NVRTC.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/generate.h"
#include "ingot/codegen/types/target.h"

namespace ingot {

// What ptxas reports of a kernel.
struct KernelResources {
  int registers = 0;    // per thread
  int spill_bytes = 0;  // stores + loads
  int stack_bytes = 0;
  int static_shared_bytes = 0;
  bool operator==(const KernelResources&) const = default;
};

struct CompiledKernel {
  std::string lowered_name;  // the symbol to launch
  std::vector<std::byte> cubin;
  KernelResources resources;
  std::string log;        // warnings of the front end and of ptxas
  std::string toolchain;  // Compiler::toolchain() of the compiler that made it
  bool operator==(const CompiledKernel&) const = default;
};

class INGOT_API Compiler {
 public:
  virtual ~Compiler() = default;
  Compiler(const Compiler&) = delete;
  Compiler& operator=(const Compiler&) = delete;

  // kernel_identity() of the templates that it compiles with. Part of a kernel's key; contains no paths.
  virtual std::string identity() const = 0;
  // Which compiler it is: name, version, and a fingerprint of its file ("nvrtc 13.0 109300000-<16 hex digits>"). Kept
  // with each kernel; no part of its key.
  virtual std::string toolchain() const = 0;

  // Thread-safe. Throws Error{compile_failed}, whose log() has the messages and the numbered source.
  virtual CompiledKernel compile(const Source& source, Target target) const = 0;

 protected:
  Compiler() = default;
};

}  // namespace ingot
