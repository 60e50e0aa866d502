#include "ingot/runtime/context/dry_run.h"

#include <cstddef>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "ingot/runtime/context/cuda_backend.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/jit/compiler.h"
#include "ingot/runtime/jit/kernel_cache.h"
#include "ingot/runtime/jit/kernel_store.h"
#include "ingot/runtime/jit/recorder.h"

namespace ingot {
namespace {

constexpr int kRegisters = 64;  // of a thread: what a kernel in one launch has, whose grid depends on it

// Its kernels are loaded and launched by a driver that does nothing.
class DryCompiler final : public Compiler {
 public:
  std::string identity() const override { return "dry run"; }
  std::string toolchain() const override { return "dry run 1.0"; }
  CompiledKernel compile(const Source& source, Target) const override {
    return {.lowered_name = source.name,
            .cubin = std::vector<std::byte>(1),
            .resources = {.registers = kRegisters},
            .log = {},
            .toolchain = toolchain()};
  }
};

}  // namespace

// Members are constructed in this order, and each uses those above it.
struct DryRun::Parts {
  explicit Parts(const Gpu& of)
      : gpu(of),
        driver(make_dry_driver(gpu)),
        store(std::filesystem::path()),
        cache(&compiler, store, gpu.target, driver.get()),
        backend(make_cuda_backend(*driver, 0, cache, {.recorder = &recorder})) {
    cache.record_with(&recorder);
  }

  Gpu gpu;
  std::unique_ptr<Driver> driver;
  DryCompiler compiler;
  KernelStore store;
  KernelCache cache;
  Recorder recorder{{}, {}, std::numeric_limits<std::size_t>::max()};  // all that is run: it ends with this object
  std::unique_ptr<Backend> backend;
};

DryRun::DryRun(const Gpu& gpu) : parts_(std::make_unique<Parts>(gpu)) {}
DryRun::~DryRun() = default;

const Gpu& DryRun::gpu() const { return parts_->gpu; }
Backend& DryRun::backend() { return *parts_->backend; }
Recording DryRun::recording() const { return parts_->recorder.recording(); }

}  // namespace ingot
