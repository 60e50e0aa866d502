// The kernels that tuning has found on this machine, for matmuls whose spec names none. Read without a lock on the
// path of every launch. The first query reads the tuning records, and nothing changes from then on, so that a step and
// its replays run the same kernels. Without a record, the library's own order and cost model decide, which depend only
// on the GEMM, its tensors' addresses and strides, and the GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>

#include "ingot/codegen/matmul.h"
#include "ingot/runtime/tuning/tuning_record.h"
#include "ingot/runtime/tuning/tuning_store.h"
#include "ingot/runtime/util/grow_only_table.h"

namespace ingot {

// on: records are read, and `ingot tune` writes them. off: they are ignored. frozen: they are read but never written,
// so that every run chooses the same kernels.
enum class Tuning : std::uint8_t { on, off, frozen };

class MatmulChoices {
 public:
  using Warn = std::function<void(const std::string&)>;

  // With a `file`, records come from it (tuning_file.h) and the store is ignored. `warn` gets one line about records of
  // another machine and one about damaged records of the file; the store itself reports its damaged ones.
  MatmulChoices(Tuning tuning, TuningStore& store, std::filesystem::path file, TuningMachine machine, Warn warn = {});

  // For a call whose spec names no kernel: the spec with its kernel, or null if there is no record. The result lives as
  // long as this object.
  const MatmulSpec* find(const MatmulCall& call);
  // For tests and reports.
  std::size_t size();

 private:
  struct Entry {
    std::size_t hash;
    MatmulCall call;
    MatmulSpec chosen;
  };

  void load_once() {
    std::call_once(loaded_, [this] { load(); });
  }
  void load() noexcept;
  void add(const TuningRecord& record);
  void warn(const std::string& text) const;

  Tuning tuning_;
  TuningStore* store_;
  std::filesystem::path file_;
  TuningMachine machine_;
  Warn warn_;
  std::once_flag loaded_;
  GrowOnlyTable<Entry> table_;
};

}  // namespace ingot
