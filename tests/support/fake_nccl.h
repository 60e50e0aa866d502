// A stand-in for NCCL (fake_nccl.cpp, built as libnccl.so.2): communicators of threads of one process, whose memory is
// the host's. A test opens it by its path and makes communicators of it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ingot/runtime/dist/nccl_library.h"

namespace ingot::test {

// The file and the folder that it is in.
std::string fake_nccl_file();
std::string fake_nccl_folder();

// Opened once; NcclLibrary that Comms are given.
const NcclLibrary& fake_nccl();

// Communicators of `ranks` threads, destroyed with this object.
class FakeNccl {
 public:
  // Rank i's is of the device `device`.
  explicit FakeNccl(int ranks, int device = 2);
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  ncclComm* at(int rank) const { return communicators_[static_cast<std::size_t>(rank)]; }
  // The calls of a rank since this was last asked: "start; ncclAllGather 64; end; ".
  std::string calls(int rank) const;
  // The call of this name returns this result from now on ("": none does).
  void fail(int rank, const char* call, int result) const;
  // What ncclCommGetAsyncError() answers: 0 for none.
  void set_async_error(int rank, int result) const;
  // The end of a group returns ncclInProgress, and the next `count` questions of ncclCommGetAsyncError() say so too.
  void set_in_progress(int rank, int count) const;
  // Calls are noted and move nothing, for memory that is none (make_dry_driver()).
  void only_note(int rank) const;

 private:
  std::vector<ncclComm*> communicators_;
};

}  // namespace ingot::test
