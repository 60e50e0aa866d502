#include "support/fake_nccl.h"

#include <filesystem>

#include "ingot/runtime/util/error.h"

namespace ingot::test {
namespace {

template <class Function>
Function* control(const char* name) {
  std::string problem;
  static const Library library = Library::open(fake_nccl_file(), problem);
  auto* const found = reinterpret_cast<Function*>(library.symbol(name));
  if (found == nullptr) throw Error(ErrorCode::not_found, name, problem);
  return found;
}

}  // namespace

std::string fake_nccl_file() { return INGOT_FAKE_NCCL; }
std::string fake_nccl_folder() { return std::filesystem::path(fake_nccl_file()).parent_path().string(); }

const NcclLibrary& fake_nccl() {
  static const std::unique_ptr<NcclLibrary> opened = [] {
    std::string problem;
    auto library = NcclLibrary::open(fake_nccl_file(), "", problem);
    if (library == nullptr) throw Error(ErrorCode::not_found, "fake NCCL", problem);
    return library;
  }();
  return *opened;
}

FakeNccl::FakeNccl(int ranks, int device) {
  ncclComm** const made = control<ncclComm**(int, int)>("fake_nccl_make")(ranks, device);
  communicators_.assign(made, made + ranks);
  delete[] made;
}

FakeNccl::~FakeNccl() {
  for (ncclComm* each : communicators_) control<void(ncclComm*)>("fake_nccl_destroy")(each);
}

std::string FakeNccl::calls(int rank) const { return control<const char*(ncclComm*)>("fake_nccl_calls")(at(rank)); }

void FakeNccl::fail(int rank, const char* call, int result) const {
  control<void(ncclComm*, const char*, int)>("fake_nccl_fail")(at(rank), call, result);
}

void FakeNccl::set_async_error(int rank, int result) const {
  control<void(ncclComm*, int)>("fake_nccl_set_async_error")(at(rank), result);
}

void FakeNccl::set_in_progress(int rank, int count) const {
  control<void(ncclComm*, int)>("fake_nccl_set_in_progress")(at(rank), count);
}

void FakeNccl::only_note(int rank) const { control<void(ncclComm*)>("fake_nccl_only_note")(at(rank)); }

}  // namespace ingot::test
