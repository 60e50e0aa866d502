// NCCL's functions that Comm calls (comm.h), declared here and opened by name at run time: Ingot is built, and runs on
// one GPU and on the CPU, where there is no NCCL. A communicator is the program's, which makes and destroys it, and
// belongs to the copy of NCCL that made it, so it is this copy that is opened.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "ingot/api.h"
#include "ingot/runtime/util/library.h"

struct CUstream_st;  // cudaStream_t is a pointer to this
struct ncclComm;     // ncclComm_t is a pointer to this

namespace ingot {

// As nccl.h has them. Its enumerations are passed as the integers that they are.
struct NcclFunctions {
  int (*get_version)(int* version) = nullptr;
  const char* (*get_error_string)(int result) = nullptr;
  const char* (*get_last_error)(ncclComm* communicator) = nullptr;
  int (*comm_count)(const ncclComm* communicator, int* ranks) = nullptr;
  int (*comm_user_rank)(const ncclComm* communicator, int* rank) = nullptr;
  int (*comm_cu_device)(const ncclComm* communicator, int* device) = nullptr;
  int (*comm_get_async_error)(ncclComm* communicator, int* result) = nullptr;
  int (*all_gather)(const void* from, void* to, std::size_t count, int dtype, ncclComm* communicator,
                    CUstream_st* stream) = nullptr;
  int (*reduce_scatter)(const void* from, void* to, std::size_t count, int dtype, int operation, ncclComm* communicator,
                        CUstream_st* stream) = nullptr;
  int (*all_reduce)(const void* from, void* to, std::size_t count, int dtype, int operation, ncclComm* communicator,
                    CUstream_st* stream) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
};

class INGOT_API NcclLibrary {
 public:
  // Opens `file` or, if that is empty, the libnccl.so.2 that the process has loaded (the one that made its
  // communicators), or else one that is found as CUDA's libraries are (Library::open_cuda). Null, with the reason in
  // `problem`, if there is none or it lacks a function.
  static std::unique_ptr<NcclLibrary> open(const std::string& file, const std::string& cuda_root, std::string& problem);

  std::string version() const;  // "2.28.9"
  const std::string& path() const { return library_.path(); }
  const NcclFunctions& functions() const { return functions_; }

 private:
  explicit NcclLibrary(Library library) : library_(std::move(library)) {}

  Library library_;
  NcclFunctions functions_{};
};

}  // namespace ingot
