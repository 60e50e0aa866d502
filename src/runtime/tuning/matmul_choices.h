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
#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/matmul.h"
#include "ingot/runtime/tuning/tuning_record.h"
#include "ingot/runtime/tuning/tuning_store.h"
#include "ingot/runtime/util/grow_only_table.h"

namespace ingot {

class KernelTier;  // runtime/jit/kernel_tier.h

// on: records are read, and `ingot tune` writes them. off: they are ignored. frozen: they are read but never written,
// so that every run chooses the same kernels.
enum class Tuning : std::uint8_t { on, off, frozen };

// Where records come from: the store first, then the tiers in their order; the first record of a matmul counts. With a
// `file`, they come from it alone.
struct TuningSources {
  TuningStore* store = nullptr;  // outlives the choices
  std::filesystem::path file{};
  std::vector<const KernelTier*> tiers{};  // so do these; each is read once
};

class INGOT_API MatmulChoices {
 public:
  using Warn = std::function<void(const std::string&)>;

  // `warn` gets one line about the store's or the file's records of another machine, one about damaged records of the
  // file, and for each tier one about damaged records and one if it has no record for this machine; the store itself
  // reports its damaged ones.
  MatmulChoices(Tuning tuning, TuningSources sources, TuningMachine machine, Warn warn = {});

  // The spec with its kernel for a call whose spec names none, or null if there is no record. The result lives as long
  // as this object.
  const MatmulSpec* find(const MatmulCall& call);
  // The number of records, for tests and reports.
  std::size_t size();

 private:
  struct Entry {
    std::size_t hash;
    MatmulCall call;
    MatmulSpec chosen;
  };
  // Records of other machines, and how the first of them differs from this one.
  struct Foreign {
    std::size_t count = 0;
    std::string how{};
  };

  void load_once() {
    std::call_once(loaded_, [this] { load(); });
  }
  void load() noexcept;
  void load_tier(const KernelTier& tier);
  std::vector<TuningRecord> read_file();
  Foreign add(const std::vector<TuningRecord>& records);
  void warn(const std::string& text) const;

  Tuning tuning_;
  TuningSources sources_;
  TuningMachine machine_;
  Warn warn_;
  std::once_flag loaded_;
  GrowOnlyTable<Entry> table_;
};

}  // namespace ingot
