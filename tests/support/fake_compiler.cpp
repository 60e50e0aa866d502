#include "support/fake_compiler.h"

namespace ingot::test {

CompiledKernel fake_kernel(const Source& source, Target target) {
  const std::string code = print(target) + '\0' + source.text;
  CompiledKernel kernel{
      .lowered_name = "_Z" + std::to_string(source.text.size()) + "kernelv",
      .cubin = std::vector<std::byte>(code.size()),
      .resources = {.registers = 32, .spill_bytes = 0, .stack_bytes = 16, .static_shared_bytes = 1024},
      .log = "warning: made by a fake compiler",
      .toolchain = "fake 1.0"};
  std::memcpy(kernel.cubin.data(), code.data(), code.size());
  return kernel;
}

FakeCompiler::FakeCompiler(std::string identity, std::chrono::milliseconds duration, std::string toolchain)
    : identity_(std::move(identity)), duration_(duration), toolchain_(std::move(toolchain)) {}

CompiledKernel FakeCompiler::compile(const Source& source, Target target) const {
  ++compiles;
  std::this_thread::sleep_for(duration_);
  if (source.text.find("#error") != std::string::npos) {
    throw Error(ErrorCode::compile_failed, source.name, "does not compile", source.text);
  }
  CompiledKernel kernel = fake_kernel(source, target);
  kernel.toolchain = toolchain_;
  return kernel;
}

}  // namespace ingot::test
