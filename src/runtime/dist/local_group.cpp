// Collectives among threads. In each call the ranks meet twice: when all have said what they ask for, which each then
// compares and carries out for itself; and when all have done so, before anyone's memory is used again.
#include "ingot/runtime/dist/local_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/core/visit.h"
#include "ingot/runtime/dist/transport.h"
#include "ingot/runtime/util/error.h"

#include "numerics.cuh"

namespace ingot {

// What a rank asks for.
struct LocalCall {
  std::string_view name;
  std::span<const GatherPiece> gathered{};
  ReducedPiece reduced{};
  bool capturing = false;
};

namespace {

// "all_gather of 64 and 4 bytes", "reduce_scatter of 16 bf16 a rank"
std::string describe(const LocalCall& call) {
  if (call.gathered.empty()) {
    return fmt::format("{} of {} {} a rank", call.name, call.reduced.count, name(call.reduced.dtype));
  }
  std::string sizes;
  for (const GatherPiece& each : call.gathered) sizes += fmt::format("{}{}", sizes.empty() ? "" : " and ", each.bytes);
  return fmt::format("{} of {} bytes a rank", call.name, sizes);
}

bool is_same(const LocalCall& a, const LocalCall& b) {
  return a.name == b.name && std::ranges::equal(a.gathered, b.gathered, {}, &GatherPiece::bytes, &GatherPiece::bytes) &&
         a.reduced.count == b.reduced.count && a.reduced.dtype == b.reduced.dtype;
}

// What is wrong where ranks ask for different things; empty where they do not.
std::string difference(std::span<const LocalCall* const> calls) {
  const LocalCall& first = *calls.front();
  for (std::size_t rank = 1; rank < calls.size(); ++rank) {
    const LocalCall& other = *calls[rank];
    if (!is_same(first, other)) {
      return fmt::format("rank 0 calls {} and rank {} {}; every rank must make the same calls in the same order",
                         describe(first), rank, describe(other));
    }
    if (first.capturing != other.capturing) {
      return fmt::format(
          "rank {} is capturing a graph in its {} and rank {} is not; capture the step on every rank or "
          "on none",
          first.capturing ? 0 : rank, first.name, first.capturing ? rank : 0);
    }
  }
  return {};
}

// The sum over ranks of element i, in pairs: (0 + 1) + (2 + 3), ((0 + 1) + (2 + 3)) + 4. So 1, 2 and 4 ranks that add
// their own terms in pairs too have one sum.
template <class T>
float sum_in_pairs(std::span<const LocalCall* const> calls, std::size_t i) {
  if (calls.size() == 1) return to_float(static_cast<const T*>(calls.front()->reduced.from)[i]);
  const std::size_t first = std::bit_floor(calls.size() - 1);
  return sum_in_pairs<T>(calls.first(first), i) + sum_in_pairs<T>(calls.subspan(first), i);
}

// Of the elements from `begin` on of each rank.
template <class T>
void add(std::span<const LocalCall* const> calls, std::size_t begin, T* to) {
  const std::size_t count = calls.front()->reduced.count;
  for (std::size_t i = 0; i < count; ++i) to[i] = from_float<T>(sum_in_pairs<T>(calls, begin + i));
}

void take_largest(std::span<const LocalCall* const> calls, u32* to) {
  const std::size_t count = calls.front()->reduced.count;
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = 0;
    for (const LocalCall* each : calls) to[i] = std::max(to[i], static_cast<const u32*>(each->reduced.from)[i]);
  }
}

}  // namespace

// Where the ranks meet.
class LocalGroup::Table {
 public:
  explicit Table(int size) : seats_(static_cast<std::size_t>(size)) {}

  int size() const { return static_cast<int>(seats_.size()); }
  void join(int rank);
  void leave(int rank);
  // Calls `work` with the calls of all ranks if all ask for the same, and returns when every rank's work is done.
  template <class Work>
  void run(int rank, const LocalCall& call, const Work& work);

 private:
  struct Seat {
    bool taken = false;
    bool waiting = false;
    const LocalCall* call = nullptr;
  };

  void meet(int rank, const LocalCall& call);
  Seat& seat(int rank) { return seats_[static_cast<std::size_t>(rank)]; }

  std::vector<Seat> seats_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t meetings_ = 0;
  int ended_ = -1;  // the rank that left first
};

void LocalGroup::Table::join(int rank) {
  if (rank < 0 || rank >= size()) {
    throw Error(ErrorCode::invalid_argument, "rank",
                fmt::format("is {}, but the group's ranks are 0 to {}", rank, size() - 1));
  }
  const std::lock_guard lock(mutex_);
  if (seat(rank).taken) {
    throw Error(ErrorCode::invalid_argument, "rank",
                fmt::format("{} of the group has had its Comm; each rank has one, for as long as it takes part", rank));
  }
  seat(rank).taken = true;
}

void LocalGroup::Table::leave(int rank) {
  const std::lock_guard lock(mutex_);
  if (ended_ < 0) ended_ = rank;
  changed_.notify_all();
}

void LocalGroup::Table::meet(int rank, const LocalCall& call) {
  std::unique_lock lock(mutex_);
  const std::uint64_t number = meetings_;
  seat(rank).waiting = true;
  if (std::ranges::all_of(seats_, &Seat::waiting)) {
    for (Seat& each : seats_) each.waiting = false;
    ++meetings_;
    return changed_.notify_all();
  }
  changed_.wait(lock, [&] { return meetings_ != number || ended_ >= 0; });
  if (meetings_ != number) return;
  seat(rank).waiting = false;
  throw Error(ErrorCode::invalid_argument, std::string(call.name),
              fmt::format("rank {} has ended, and rank {} waits for it in {}; every rank must make the same calls",
                          ended_, rank, describe(call)));
}

template <class Work>
void LocalGroup::Table::run(int rank, const LocalCall& call, const Work& work) {
  seat(rank).call = &call;
  meet(rank, call);
  std::vector<const LocalCall*> calls;
  for (const Seat& each : seats_) calls.push_back(each.call);
  const std::string problem = difference(calls);
  if (problem.empty()) work(calls);
  meet(rank, call);
  if (!problem.empty()) throw Error(ErrorCode::invalid_argument, std::string(call.name), problem);
}

LocalGroup::LocalGroup(int size) {
  if (size < 1) {
    throw Error(ErrorCode::invalid_argument, "group", fmt::format("has {} ranks, but must have one or more", size));
  }
  table_ = std::make_unique<Table>(size);
}

LocalGroup::~LocalGroup() = default;
int LocalGroup::size() const { return table_->size(); }

class LocalTransport final : public Transport {
 public:
  LocalTransport(LocalGroup& group, int rank) : table_(group.table_.get()), rank_(rank) { table_->join(rank); }
  ~LocalTransport() override { table_->leave(rank_); }
  LocalTransport(LocalTransport&&) = delete;
  LocalTransport& operator=(LocalTransport&&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return table_->size(); }

  void all_gather(std::span<const GatherPiece> pieces, Stream& stream) override {
    run({.name = "all_gather", .gathered = pieces}, stream, [&](std::span<const LocalCall* const> calls) {
      for (std::size_t piece = 0; piece < pieces.size(); ++piece) {
        auto* to = static_cast<std::byte*>(pieces[piece].to);
        for (const LocalCall* each : calls) {
          const GatherPiece& from = each->gathered[piece];
          if (from.from != to) std::memcpy(to, from.from, from.bytes);
          to += from.bytes;
        }
      }
    });
  }

  void reduce_scatter(const ReducedPiece& piece, Stream& stream) override {
    run({.name = "reduce_scatter", .reduced = piece}, stream, [&](std::span<const LocalCall* const> calls) {
      visit_high_precision(piece.dtype, [&]<class T>(Type<T>) {
        add(calls, piece.count * static_cast<std::size_t>(rank_), static_cast<T*>(piece.to));
      });
    });
  }

  // The others read `from` until all are done.
  void all_reduce(const ReducedPiece& piece, Stream& stream) override {
    std::vector<std::byte> result(piece.count * static_cast<std::size_t>(size_of(piece.dtype)));
    const bool is_sum = piece.reduction == Reduction::sum;
    run({.name = is_sum ? "all_reduce_sum" : "all_reduce_max", .reduced = piece}, stream,
        [&](std::span<const LocalCall* const> calls) {
          if (!is_sum) return take_largest(calls, reinterpret_cast<u32*>(result.data()));
          visit_high_precision(piece.dtype,
                               [&]<class T>(Type<T>) { add(calls, 0, reinterpret_cast<T*>(result.data())); });
        });
    std::memcpy(piece.to, result.data(), result.size());
  }

 private:
  template <class Work>
  void run(LocalCall call, const Stream& stream, const Work& work) {
    call.capturing = stream.device_api().capturing(stream);
    table_->run(rank_, call, work);
  }

  LocalGroup::Table* table_;
  int rank_;
};

std::unique_ptr<Transport> make_local_transport(const DeviceApi& device_api, LocalGroup& group, int rank) {
  if (device_api.device().type != DeviceType::cpu) {
    throw Error(ErrorCode::invalid_argument, "group",
                fmt::format("is of threads that share the host's memory, but this context is on {}; give the Comm a "
                            "communicator of NCCL, or make the Context on the CPU",
                            print(device_api.device())));
  }
  return std::make_unique<LocalTransport>(group, rank);
}

}  // namespace ingot
