#include "ingot/runtime/cuda/nvtx.h"

#include <fmt/format.h>

#include <filesystem>

namespace ingot {

std::unique_ptr<Nvtx> Nvtx::open(const std::string& cuda_root, std::string& problem) {
  Library library =
      Library::open_cuda({"libnvtx3interop.so", "libnvtx3interop.so.1", "libnvToolsExt.so.1"}, cuda_root, problem);
  if (!library) return nullptr;
  std::unique_ptr<Nvtx> opened(new Nvtx(std::move(library)));
  const auto find = [&](const char* name) {
    void* const symbol = opened->library_.symbol(name);
    if (symbol == nullptr && problem.empty()) {
      problem = fmt::format("{} lacks {}; take it from CUDA's toolkit or the wheel nvidia-nvtx", opened->path(), name);
    }
    return symbol;
  };
  problem.clear();
  opened->push_ = reinterpret_cast<Push>(find("nvtxRangePushA"));
  opened->pop_ = reinterpret_cast<Pop>(find("nvtxRangePop"));
  if (!problem.empty()) return nullptr;
  return opened;
}

std::string Nvtx::version() const {
  return std::filesystem::path(path()).filename().string().starts_with("libnvToolsExt") ? "2" : "3";
}

}  // namespace ingot
