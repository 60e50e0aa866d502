// A hash table that only grows and is read without a lock. Every call looks up its kernel or plan in one of these.
//
// Open addressing over atomic pointers to entries that never change. A reader probes from the hash until it finds its
// entry or an empty slot. Writers hold a mutex and only fill empty slots; a half-full table is copied to one of twice
// the size, which is then published. Readers may still be using the old table, so it is kept until the end: all old
// tables together are no larger than the current one. A reader that misses an entry inserted a moment ago takes the
// slow path, which finds it.
#pragma once

#include <atomic>
#include <cstddef>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>
#include "ingot/runtime/util/fork_mutex.h"

namespace ingot {

// Entry has a member `hash` of type std::size_t. The caller's predicate distinguishes entries with equal hashes.
template <class Entry>
class GrowOnlyTable {
 public:
  GrowOnlyTable() { publish(std::make_unique<Slots>(kFirstSlots)); }
  GrowOnlyTable(const GrowOnlyTable&) = delete;
  GrowOnlyTable& operator=(const GrowOnlyTable&) = delete;

  // Null if there is none.
  template <class Matches>
  const Entry* find(std::size_t hash, const Matches& matches) const noexcept {
    return find_in(*current_.load(std::memory_order_acquire), hash, matches);
  }

  // Inserts the entry unless one that matches is there already; returns the one in the table.
  template <class Matches>
  const Entry& insert(Entry entry, const Matches& matches) {
    return *insert(entry, matches, std::numeric_limits<std::size_t>::max());
  }

  // The same, but a table that has `most` entries gets no more: then null is returned, and `entry` is as it was.
  template <class Matches>
  const Entry* insert(Entry& entry, const Matches& matches, std::size_t most) {
    const std::lock_guard lock(mutex_);
    if (const Entry* there = find_in(*tables_.back(), entry.hash, matches)) return there;
    if (entries_.size() >= most) return nullptr;
    if (2 * (entries_.size() + 1) > tables_.back()->size()) grow();
    entries_.push_back(std::make_unique<const Entry>(std::move(entry)));
    place(*tables_.back(), *entries_.back());
    return entries_.back().get();
  }

  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }

 private:
  using Slots = std::vector<std::atomic<const Entry*>>;  // a power of two of them

  static constexpr std::size_t kFirstSlots = 64;

  template <class Matches>
  static const Entry* find_in(const Slots& slots, std::size_t hash, const Matches& matches) noexcept {
    const std::size_t mask = slots.size() - 1;
    for (std::size_t i = hash & mask;; i = (i + 1) & mask) {
      const Entry* entry = slots[i].load(std::memory_order_acquire);
      if (entry == nullptr) return nullptr;
      if (entry->hash == hash && matches(*entry)) return entry;
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

  mutable ForkMutex mutex_;  // guards the rest
  std::vector<std::unique_ptr<Slots>> tables_;
  std::vector<std::unique_ptr<const Entry>> entries_;
};

// Plans that are made once for each key and found again: the first `most` for ever, without a lock, and of further ones
// the `most` latest, so that a program with ever new sizes finds the plans of the step that it has just run.
//
// Entry has a member `hash` of type std::size_t and can be copied.
template <class Entry>
class PlanTable {
 public:
  explicit PlanTable(std::size_t most) : most_(most) {}

  // Among the first ones; null if it is none of them.
  template <class Matches>
  const Entry* find(std::size_t hash, const Matches& matches) const noexcept {
    return first_.find(hash, matches);
  }

  // A copy of one of the latest.
  template <class Matches>
  std::optional<Entry> find_latest(std::size_t hash, const Matches& matches) {
    const std::lock_guard lock(mutex_);
    const auto at = place_of(hash, matches);
    if (at == places_.end()) return std::nullopt;
    latest_.splice(latest_.begin(), latest_, at->second);
    return latest_.front();
  }

  template <class Matches>
  void insert(Entry entry, const Matches& matches) {
    if (first_.insert(entry, matches, most_) != nullptr) return;
    const std::lock_guard lock(mutex_);
    if (place_of(entry.hash, matches) != places_.end()) return;
    if (latest_.size() >= most_) {
      places_.erase(place_of(latest_.back()));
      latest_.pop_back();
    }
    latest_.push_front(std::move(entry));
    places_.emplace(latest_.front().hash, latest_.begin());
  }

 private:
  using Places = std::unordered_multimap<std::size_t, typename std::list<Entry>::iterator>;

  template <class Matches>
  typename Places::iterator place_of(std::size_t hash, const Matches& matches) {
    auto [at, end] = places_.equal_range(hash);
    while (at != end && !matches(*at->second)) ++at;
    return at == end ? places_.end() : at;
  }
  typename Places::iterator place_of(const Entry& kept) {
    return place_of(kept.hash, [&](const Entry& other) { return &other == &kept; });
  }

  std::size_t most_;
  GrowOnlyTable<Entry> first_;
  ForkMutex mutex_;  // guards the rest
  std::list<Entry> latest_;
  Places places_;
};

}  // namespace ingot
