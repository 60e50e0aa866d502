// The compiler that uses NVRTC, opened at run time: source to cubin for the exact target. It needs no toolkit, and no
// headers but the templates.
#pragma once

#include <memory>
#include <string>

#include "ingot/api.h"
#include "ingot/codegen/template_files.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/jit/compiler.h"

namespace ingot {

class INGOT_API NvrtcCompiler final : public Compiler {
 public:
  // Null if there is no NVRTC, with the reason and the paths searched in `problem`. driver_version: what its machine
  // code is for (Driver::cuda_version()); 0: any.
  static std::unique_ptr<NvrtcCompiler> open(const std::string& cuda_root, TemplateFiles templates,
                                             std::string& problem, int driver_version = 0);
  ~NvrtcCompiler() override;

  std::string identity() const override;
  std::string toolchain() const override;
  CompiledKernel compile(const Source& source, Target target) const override;
  // The same compile, as PTX text. Throws Error{compile_failed}.
  std::string ptx(const Source& source, Target target) const;

  // Does NVRTC know the target's architecture (9.0 for sm_90a)?
  bool compiles_for(Target target) const;

  std::string version() const;  // "13.0.88"
  const std::string& path() const;

 private:
  NvrtcCompiler();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ingot
