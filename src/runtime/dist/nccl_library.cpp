#include "ingot/runtime/dist/nccl_library.h"

#include <fmt/format.h>

namespace ingot {
namespace {

constexpr const char* kLibraryName = "libnccl.so.2";

Library open_library(const std::string& file, const std::string& cuda_root, std::string& problem) {
  if (!file.empty()) {
    Library named = Library::open(file, problem);
    if (!named) problem = fmt::format("NCCL cannot be opened ({}); name the program's libnccl.so.2", problem);
    return named;
  }
  if (cuda_root != Library::kNowhere) {
    if (Library loaded = Library::loaded(kLibraryName)) return loaded;
  }
  return Library::open_cuda({kLibraryName}, cuda_root, problem);
}

// The first function that the library lacks, or null.
const char* resolve(const Library& library, NcclFunctions& into) {
  const char* missing = nullptr;
  const auto find = [&]<class Function>(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(library.symbol(name));
    if (function == nullptr && missing == nullptr) missing = name;
  };
  find(into.get_version, "ncclGetVersion");
  find(into.get_error_string, "ncclGetErrorString");
  find(into.get_last_error, "ncclGetLastError");
  find(into.comm_count, "ncclCommCount");
  find(into.comm_user_rank, "ncclCommUserRank");
  find(into.comm_cu_device, "ncclCommCuDevice");
  find(into.comm_get_async_error, "ncclCommGetAsyncError");
  find(into.all_gather, "ncclAllGather");
  find(into.reduce_scatter, "ncclReduceScatter");
  find(into.all_reduce, "ncclAllReduce");
  find(into.group_start, "ncclGroupStart");
  find(into.group_end, "ncclGroupEnd");
  return missing;
}

}  // namespace

std::unique_ptr<NcclLibrary> NcclLibrary::open(const std::string& file, const std::string& cuda_root,
                                               std::string& problem) {
  Library library = open_library(file, cuda_root, problem);
  if (!library) return nullptr;
  std::unique_ptr<NcclLibrary> opened(new NcclLibrary(std::move(library)));
  if (const char* missing = resolve(opened->library_, opened->functions_)) {
    problem = fmt::format("{} lacks {}; NCCL 2.13 or newer is needed", opened->path(), missing);
    return nullptr;
  }
  return opened;
}

// 22809 is 2.28.9; before 2.9 a version had one digit less.
std::string NcclLibrary::version() const {
  int number = 0;
  static_cast<void>(functions_.get_version(&number));
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

}  // namespace ingot
