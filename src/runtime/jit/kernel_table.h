// The loaded kernels of a cache by spec and pass, read without a lock. A lookup takes the spec as its caller has it: a
// KernelSpec that is made for it would copy the spec, and with it count one more owner of a shared expression.
#pragma once

#include <concepts>
#include <cstddef>
#include <variant>

#include "ingot/codegen/generate.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/util/grow_only_table.h"

namespace ingot {

// A KernelSpec, or one of its alternatives by itself.
template <class Spec>
concept AnyKernelSpec = std::same_as<Spec, KernelSpec> || contains<Spec>(KernelSpecs{});

template <class Value>
class KernelTable {
 public:
  // Null if there is none.
  template <AnyKernelSpec Spec>
  Value* find(const Spec& spec, Pass pass) const noexcept {
    const Entry* entry = table_.find(hash(spec, pass), Matches<Spec>{spec, pass});
    return entry == nullptr ? nullptr : entry->value;
  }

  // Inserts the value unless the key has one already; returns the value in the table.
  template <AnyKernelSpec Spec>
  Value* insert(const Spec& spec, Pass pass, Value* value) {
    return table_
        .insert({.hash = hash(spec, pass), .spec = spec, .pass = pass, .value = value}, Matches<Spec>{spec, pass})
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
    bool operator()(const Entry& entry) const noexcept { return entry.pass == pass && is_same(entry.spec); }

   private:
    bool is_same(const KernelSpec& other) const noexcept {
      if constexpr (std::same_as<Spec, KernelSpec>) {
        return other == spec;
      } else {
        const Spec* const alternative = std::get_if<Spec>(&other);
        return alternative != nullptr && *alternative == spec;
      }
    }
  };

  template <class Spec>
  static std::size_t hash(const Spec& spec, Pass pass) noexcept {
    return hash_value(spec) + pass.number();
  }

  GrowOnlyTable<Entry> table_;
};

}  // namespace ingot
