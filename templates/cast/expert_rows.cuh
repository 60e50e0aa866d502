// Which rows of experts a slot has (expert_slots.cuh), and which slots an expert: from where experts end, as device
// memory says. Whatever it holds, rows are within the matrix.
#pragma once

#include "expert_slots.cuh"
#include "platform.cuh"

namespace ingot {

struct ExpertRowsParams {
  const i32* ends;  // [experts]
  u32 experts;
  i64 rows;  // of all
};

struct ExpertRows {
  i64 begin, end;

  // Of expert number `expert`; of number `experts` those that no expert has.
  INGOT_HOST_DEVICE static ExpertRows of(const ExpertRowsParams& p, u32 expert) {
    const auto end_of = [&](u32 e) { return min_of(max_of(i64{p.ends[e]}, i64{0}), p.rows); };
    const i64 begin = expert == 0 ? 0 : end_of(expert - 1);
    return {begin, expert == p.experts ? p.rows : max_of(end_of(expert), begin)};
  }
  // Its slots; nobody may have none.
  INGOT_HOST_DEVICE i64 slots(bool is_expert) const {
    return is_expert ? ExpertSlots::of_rows(end - begin) : ceil_div(end - begin, ExpertSlots::kRows);
  }
};

// Whose rows a slot has: those of an expert, or, of number ExpertRowsParams::experts, rows that no expert has.
struct SlotRows {
  static constexpr u32 kNobody = 0xffffffffU;
  i64 first;
  u32 count;
  u32 expert;
};

// Finds those of a slot. All `threads` threads of the block call it; `found` is in shared memory. Where ends decrease,
// several experts may claim a slot: it has the rows of the first of them.
INGOT_DEVICE void find_slot_rows(const ExpertRowsParams& p, i64 slot, u32 threads, SlotRows& found) {
  if (threadIdx.x == 0) found.expert = SlotRows::kNobody;
  __syncthreads();
  INGOT_UNROLL_BY(1)
  for (u32 e = threadIdx.x; e <= p.experts; e += threads) {
    const ExpertRows own = ExpertRows::of(p, e);
    const i64 index = slot - ExpertSlots::first(own.begin, e);
    if (index >= 0 && index < own.slots(e < p.experts)) atomicMin(&found.expert, e);
  }
  __syncthreads();
  if (threadIdx.x == 0 && found.expert != SlotRows::kNobody) {
    const ExpertRows own = ExpertRows::of(p, found.expert);
    found.first = own.begin + (slot - ExpertSlots::first(own.begin, found.expert)) * ExpertSlots::kRows;
    found.count = static_cast<u32>(min_of(own.end - found.first, ExpertSlots::kRows));
  }
  __syncthreads();
}

}  // namespace ingot
