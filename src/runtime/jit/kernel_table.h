// The loaded kernels of a cache by spec and pass, read without a lock.
#pragma once

#include <cstddef>
#include <type_traits>
#include <variant>

#include "ingot/codegen/generate.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/util/grow_only_table.h"

namespace ingot {

template <class Value>
class KernelTable {
 public:
  // Null if there is none. Spec: a KernelSpec, or one of its alternatives, which is not copied.
  template <class Spec>
  Value* find(const Spec& spec, Pass pass) const noexcept {
    const Entry* entry = table_.find(hash(spec, pass), Matches<Spec>{spec, pass});
    return entry == nullptr ? nullptr : entry->value;
  }

  // Inserts the value unless the key has one already; returns the value in the table.
  Value* insert(const KernelSpec& spec, Pass pass, Value* value) {
    return table_
        .insert({.hash = hash(spec, pass), .spec = spec, .pass = pass, .value = value}, Matches<KernelSpec>{spec, pass})
        .value;
  }

  std::size_t size() const { return table_.size(); }

 private:
  struct Entry {
    std::size_t hash;
    KernelSpec spec;
    Pass pass;
    Value* value;
  };
  template <class Spec>
  struct Matches {
    const Spec& spec;
    Pass pass;
    bool operator()(const Entry& entry) const noexcept {
      if constexpr (std::is_same_v<Spec, KernelSpec>) {
        return entry.pass == pass && entry.spec == spec;
      } else {
        const Spec* const held = std::get_if<Spec>(&entry.spec);
        return entry.pass == pass && held != nullptr && *held == spec;
      }
    }
  };

  template <class Spec>
  static std::size_t hash(const Spec& spec, Pass pass) noexcept {
    return hash_value(spec) + static_cast<std::size_t>(pass);
  }

  GrowOnlyTable<Entry> table_;
};

}  // namespace ingot
