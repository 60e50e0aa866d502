// Ranks that are threads of one process and whose memory is the host's: the CPU reference of a Comm, in which schedules
// over several ranks run without a GPU. Unlike NCCL it sees what every rank asks for: where ranks ask for different
// things, and where one ends while others wait for it, each of them throws an error instead of waiting for ever.
#pragma once

#include <memory>

#include "ingot/api.h"

namespace ingot {

// Each of its ranks has one Comm (Comm(device_api, group, rank)), on a thread of its own. It must outlive them.
class INGOT_API LocalGroup {
 public:
  // Throws Error{invalid_argument} for less than one rank.
  explicit LocalGroup(int size);
  ~LocalGroup();
  LocalGroup(const LocalGroup&) = delete;
  LocalGroup& operator=(const LocalGroup&) = delete;

  int size() const;

 private:
  friend class LocalTransport;
  class Table;
  std::unique_ptr<Table> table_;
};

}  // namespace ingot
