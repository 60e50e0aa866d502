// Compiles a source to machine code. An interface, so that tests can count compiles and make them fail without NVRTC.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

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
  std::string log;  // warnings of the front end and of ptxas
  bool operator==(const CompiledKernel&) const = default;
};

class Compiler {
 public:
  virtual ~Compiler() = default;
  Compiler(const Compiler&) = delete;
  Compiler& operator=(const Compiler&) = delete;

  // Everything besides source and target that decides the output: the library's build, a digest of all templates, the
  // options, NVRTC's version and file. Part of the store's key; contains no paths.
  virtual std::string identity() const = 0;

  // Thread-safe. Throws Error{compile_failed}, whose log() has the messages and the numbered source.
  virtual CompiledKernel compile(const Source& source, Target target) const = 0;

 protected:
  Compiler() = default;
};

}  // namespace ingot
