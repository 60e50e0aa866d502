// Spec -> kernel, read without a lock: what stands between every call and its launch.
//
// An open-addressing table of atomic pointers to entries that never change. A reader probes from the hash until it
// meets its entry or an empty slot. Writers take a mutex, and only ever fill empty slots; a table that is half full is
// copied into one of twice the size, which is then published. Readers may still be in the old one, so it stays until
// the end: all old tables together are no larger than the current one. A reader that misses a just-inserted entry takes
// the slow path, which knows it.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "ingot/codegen/generate.h"
#include "ingot/codegen/kernel_spec.h"

namespace ingot {

template <class Value>
class KernelTable {
 public:
  KernelTable() { publish(std::make_unique<Slots>(kFirstSlots)); }
  KernelTable(const KernelTable&) = delete;
  KernelTable& operator=(const KernelTable&) = delete;

  // Null where it is not there.
  Value* find(const KernelSpec& spec, Pass pass) const noexcept {
    const Entry* entry = find_entry(*current_.load(std::memory_order_acquire), hash(spec, pass), spec, pass);
    return entry == nullptr ? nullptr : entry->value;
  }

  // The value under this key: the one given, or the one that was there before.
  Value* insert(const KernelSpec& spec, Pass pass, Value* value) {
    const std::lock_guard lock(mutex_);
    const std::size_t hashed = hash(spec, pass);
    if (const Entry* there = find_entry(*tables_.back(), hashed, spec, pass)) return there->value;
    if (2 * (entries_.size() + 1) > tables_.back()->size()) grow();
    entries_.push_back(std::make_unique<const Entry>(Entry{hashed, spec, pass, value}));
    place(*tables_.back(), *entries_.back());
    return value;
  }

  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }

 private:
  struct Entry {
    std::size_t hash;
    KernelSpec spec;
    Pass pass;
    Value* value;
  };
  using Slots = std::vector<std::atomic<const Entry*>>;  // a power of two of them

  static constexpr std::size_t kFirstSlots = 64;

  static std::size_t hash(const KernelSpec& spec, Pass pass) noexcept {
    return hash_value(spec) + static_cast<std::size_t>(pass);
  }

  static const Entry* find_entry(const Slots& slots, std::size_t hashed, const KernelSpec& spec, Pass pass) noexcept {
    const std::size_t mask = slots.size() - 1;
    for (std::size_t i = hashed & mask;; i = (i + 1) & mask) {
      const Entry* entry = slots[i].load(std::memory_order_acquire);
      if (entry == nullptr) return nullptr;
      if (entry->hash == hashed && entry->pass == pass && entry->spec == spec) return entry;
    }
  }

  static void place(Slots& slots, const Entry& entry) noexcept {
    const std::size_t mask = slots.size() - 1;
    std::size_t i = entry.hash & mask;
    while (slots[i].load(std::memory_order_relaxed) != nullptr) i = (i + 1) & mask;
    slots[i].store(&entry, std::memory_order_release);
  }

  void grow() {
    auto larger = std::make_unique<Slots>(2 * tables_.back()->size());
    for (const auto& entry : entries_) place(*larger, *entry);
    publish(std::move(larger));
  }

  void publish(std::unique_ptr<Slots> slots) {
    tables_.push_back(std::move(slots));
    current_.store(tables_.back().get(), std::memory_order_release);
  }

  std::atomic<const Slots*> current_{nullptr};

  mutable std::mutex mutex_;  // guards the rest
  std::vector<std::unique_ptr<Slots>> tables_;
  std::vector<std::unique_ptr<const Entry>> entries_;
};

}  // namespace ingot
