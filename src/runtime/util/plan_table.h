// Plans that are made once for each key and found again: the first `most` for ever, without a lock, and of further ones
// the `most` latest, so that a program with ever new sizes finds the plans of the step that it has just run.
//
// Entry has a member `hash` of type std::size_t and can be copied.
#pragma once

#include <cstddef>
#include <list>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "ingot/runtime/util/fork_mutex.h"
#include "ingot/runtime/util/grow_only_table.h"

namespace ingot {

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
