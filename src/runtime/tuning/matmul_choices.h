// Which kernel a product is given when it asks for none: what tuning has found on this machine. Read without a lock on
// the path of every launch; filled from the tuning records when a GEMM is first asked about, and the same from then on,
// so that a step and its replays run the same kernels. Where there is no record, the library's own order and cost model
// decide, as functions of the GEMM, of where its tensors lie and of the GPU alone.
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

// on: records are read, and `ingot tune` writes them. off: they are not looked at. frozen: they are read and nothing
// writes them, so that run after run chooses the same kernels.
enum class Tuning : std::uint8_t { on, off, frozen };

class MatmulChoices {
 public:
  using Warn = std::function<void(const std::string&)>;

  // With a `file`, the records are that file's (tuning_file.h) and the store's are not looked at. `warn` gets one line
  // for each kind of record that is ignored: another machine's, and damaged ones of the file; the store tells its own.
  MatmulChoices(Tuning tuning, TuningStore& store, std::filesystem::path file, TuningMachine machine, Warn warn = {});

  // The spec with its kernel; null where there is no record. Of a call that leaves the kernel open. The reference lives
  // as long as this object.
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
