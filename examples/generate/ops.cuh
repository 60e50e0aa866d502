// The decoder's operations other than its linear layers, written for the CPU and the GPU (common/rows.cuh says how).
// They read the position from device memory, so that one CUDA graph serves every token.
//
// Activations are bf16, sums f32, matrices contiguous, every width a multiple of 8.
#pragma once

#include "rows.cuh"

namespace generate {

using namespace examples;  // NOLINT(google-build-using-namespace): ops.cuh is the rest of one text with rows.cuh

using ingot::i32;

// values = mean + N(0, deviation^2), by the Box-Muller transform.
struct InitNormal {
  static constexpr const char* kName = "InitNormal";
  bf16* values;
  i64 count;
  float mean, deviation;
  u64 seed;

  INGOT_HOST_DEVICE i64 rows() const { return ingot::ceil_div(count, kRowOfVectors); }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64 row) const {
    const i64 end = ingot::min_of(count, (row + 1) * kRowOfVectors);
    for (i64 i = row * kRowOfVectors + group.lane(); i < end; i += group.lanes()) {
      const u64 bits = hash_of(seed ^ hash_of(static_cast<u64>(i)));
      const float radius = sqrtf(-2.0F * logf(uniform(bits)));
      values[i] = ingot::from_float<bf16>(mean + deviation * radius * cosf(6.2831853F * uniform(hash_of(bits))));
    }
  }
};

// ---- Where the sequences are ------------------------------------------------------------------------------------

// All sequences are at the same position. The first `given` of the tokens are the prompt; the rest are generated.
struct Sequences {
  i32* state;   // position, given
  i32* tokens;  // [count, capacity]
  i32* chosen;  // [count, capacity]: the model's choice after each position, even where the prompt has another token
  i64 count, capacity;

  INGOT_HOST_DEVICE i64 position() const { return state[0]; }
  INGOT_HOST_DEVICE i64 given() const { return state[1]; }
};

// x[s] = the embedding of the sequence's token.
struct Embed {
  static constexpr const char* kName = "Embed";
  Sequences sequences;
  const bf16* table;  // [vocabulary, width]
  i64 width;
  bf16* x;  // [count, width]

  INGOT_HOST_DEVICE i64 rows() const { return sequences.count; }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64 row) const {
    const i64 token = sequences.tokens[row * sequences.capacity + sequences.position()];
    for_each_vector(group, width, [&](i64 col) { store(x + row * width + col, load(table + token * width + col)); });
  }
};

// ---- Residual and normalisation ---------------------------------------------------------------------------------

// x += delta (if there is one); normed = x / sqrt(mean(x^2) + eps) * gamma: RMSNorm.
struct AddNorm {
  static constexpr const char* kName = "AddNorm";
  bf16* x;            // [count, width]
  const bf16* delta;  // the same shape, or null
  const bf16* gamma;  // [width]
  bf16* normed;
  i64 count, width;
  float eps;

  INGOT_HOST_DEVICE i64 rows() const { return count; }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64 row) const {
    // A lane keeps its part of a row (of up to 8192) in registers and loads all of it at once: each load's latency adds
    // to the token's time.
    constexpr i64 kKept = 4;
    if (width <= group.lanes() * kVector * kKept) {
      Eight v[kKept]{};
      Eight g[kKept]{};
      float squares = 0.0F;
      INGOT_UNROLL
      for (i64 a = 0; a < kKept; ++a) {
        const i64 col = (a * group.lanes() + group.lane()) * kVector;
        if (col >= width) continue;
        v[a] = load(x + row * width + col);
        if (delta != nullptr) add(v[a], load(delta + row * width + col));
        g[a] = load(gamma + col);
      }
      INGOT_UNROLL
      for (i64 a = 0; a < kKept; ++a) squares += squares_of(v[a]);
      const float inverse = inverse_of(group.sum(squares));
      INGOT_UNROLL
      for (i64 a = 0; a < kKept; ++a) {
        const i64 col = (a * group.lanes() + group.lane()) * kVector;
        if (col >= width) continue;
        if (delta != nullptr) store(x + row * width + col, v[a]);
        store(normed + row * width + col, scaled(v[a], g[a], inverse));
      }
      return;
    }
    float squares = 0.0F;
    for_each_vector(group, width, [&](i64 col) {
      Eight v = load(x + row * width + col);
      if (delta != nullptr) {
        add(v, load(delta + row * width + col));
        store(x + row * width + col, v);
      }
      squares += squares_of(v);
    });
    const float inverse = inverse_of(group.sum(squares));
    for_each_vector(group, width, [&](i64 col) {
      store(normed + row * width + col, scaled(load(x + row * width + col), load(gamma + col), inverse));
    });
  }

 private:
  INGOT_HOST_DEVICE static void add(Eight& v, const Eight& d) {
    for (i64 i = 0; i < kVector; ++i) v.x[i] = round_to_bf16(v.x[i] + d.x[i]);
  }
  INGOT_HOST_DEVICE static float squares_of(const Eight& v) {
    float squares = 0.0F;
    for (i64 i = 0; i < kVector; ++i) squares += v.x[i] * v.x[i];
    return squares;
  }
  INGOT_HOST_DEVICE float inverse_of(float squares) const {
    return 1.0F / sqrtf(squares / static_cast<float>(width) + eps);
  }
  INGOT_HOST_DEVICE static Eight scaled(Eight v, const Eight& g, float inverse) {
    for (i64 i = 0; i < kVector; ++i) v.x[i] *= inverse * g.x[i];
    return v;
  }
};

// ---- Attention --------------------------------------------------------------------------------------------------

inline constexpr i64 kMaxHeadDims = 256;
inline constexpr i64 kPositionsOfASplit = 256;  // the fewest, where a head's positions are split over blocks
inline constexpr float kLowest = -1e30F;        // below every score

// One new token of each sequence against all before it and itself. kQueries query heads share a head of keys and values
// (grouped queries). Within the same launch, queries and the new key are turned by their position (rotary embedding:
// element i of a head's first half and element i of its second are a pair), and the new key and value are appended to
// the cache.
//
//   out = softmax(turned query . turned keys / sqrt(dims)) @ values
//
// A row is a sequence's head of keys and values, or one of `splits` parts of its positions: the longer the context, the
// more parts are used. Each part stores its largest score, sum and weighted values; the block that ends last combines
// them, in the order of the parts.
template <i64 kQueries>
struct DecodeAttention {
  static constexpr const char* kName = kQueries == 1   ? "DecodeAttention<1>"
                                       : kQueries == 2 ? "DecodeAttention<2>"
                                       : kQueries == 4 ? "DecodeAttention<4>"
                                                       : "DecodeAttention<8>";
  static_assert(kQueries == 1 || kQueries == 2 || kQueries == 4 || kQueries == 8);

  Sequences sequences;
  const bf16* qkv;       // [count, (heads + 2 * kv_heads) * dims]: queries, keys, values; heads = kQueries * kv_heads
  bf16* keys;            // [count, kv_heads, capacity, dims], turned
  bf16* values;          // the same
  const float* cosines;  // [capacity, dims / 2]
  const float* sines;
  bf16* out;        // [count, heads * dims]
  float* partials;  // [count * kv_heads, splits, kQueries, dims + 2]
  u32* counters;    // [count * kv_heads]: zeros before and after the launch
  i64 kv_heads;
  i64 dims;  // a power of two, 16 .. kMaxHeadDims
  i64 splits;

  INGOT_HOST_DEVICE i64 rows() const { return sequences.count * kv_heads * splits; }

  // Query, key or value of the token: head 0 is the sequence's first query.
  INGOT_HOST_DEVICE const bf16* head_of(i64 sequence, i64 head) const {
    return qkv + (sequence * (kQueries + 2) * kv_heads + head) * dims;
  }
  INGOT_HOST_DEVICE i64 query_head(i64 kv_head, i64 query) const { return kv_head * kQueries + query; }
  INGOT_HOST_DEVICE i64 key_head(i64 kv_head) const { return kQueries * kv_heads + kv_head; }
  INGOT_HOST_DEVICE i64 value_head(i64 kv_head) const { return (kQueries + 1) * kv_heads + kv_head; }
  INGOT_HOST_DEVICE i64 cache_row(i64 head, i64 position) const {
    return (head * sequences.capacity + position) * dims;
  }

  // Elements first .. first + 7 of a head, turned.
  INGOT_HOST_DEVICE Eight turned(const bf16* head, i64 first, i64 position) const {
    const i64 half = dims / 2;
    const i64 pair = first % half;
    const Eight a = load(head + pair);
    const Eight b = load(head + pair + half);
    const Eight c = load(cosines + position * half + pair);
    const Eight s = load(sines + position * half + pair);
    Eight result;
    for (i64 i = 0; i < kVector; ++i) {
      result.x[i] = first < half ? a.x[i] * c.x[i] - b.x[i] * s.x[i] : b.x[i] * c.x[i] + a.x[i] * s.x[i];
    }
    return result;
  }

  // On the CPU the first part computes the whole head.
  INGOT_HOST_DEVICE void operator()(OneLane, i64 row) const {
    if (row % splits != 0) return;
    const i64 head = row / splits;
    const i64 sequence = head / kv_heads;
    const i64 kv_head = head % kv_heads;
    const i64 newest = sequences.position();
    for (i64 d = 0; d < dims; d += kVector) {
      store(keys + cache_row(head, newest) + d, turned(head_of(sequence, key_head(kv_head)), d, newest));
      store(values + cache_row(head, newest) + d, load(head_of(sequence, value_head(kv_head)) + d));
    }
    for (i64 query = 0; query < kQueries; ++query) {
      float q[kMaxHeadDims];
      float sum[kMaxHeadDims];
      const i64 query_head_index = query_head(kv_head, query);
      for (i64 d = 0; d < dims; d += kVector) {
        const Eight part = turned(head_of(sequence, query_head_index), d, newest);
        for (i64 i = 0; i < kVector; ++i) {
          q[d + i] = part.x[i] / sqrtf(static_cast<float>(dims));
          sum[d + i] = 0.0F;
        }
      }
      float largest = kLowest;
      float total = 0.0F;
      for (i64 position = 0; position <= newest; ++position) {
        const bf16* key = keys + cache_row(head, position);
        const bf16* value = values + cache_row(head, position);
        float score = 0.0F;
        for (i64 d = 0; d < dims; ++d) score += q[d] * ingot::to_float(key[d]);
        const float larger = ingot::max_of(largest, score);
        const float kept = expf(largest - larger);
        const float weight = expf(score - larger);
        total = total * kept + weight;
        for (i64 d = 0; d < dims; ++d) sum[d] = sum[d] * kept + weight * ingot::to_float(value[d]);
        largest = larger;
      }
      bf16* target = out + (sequence * kQueries * kv_heads + query_head_index) * dims;
      for (i64 d = 0; d < dims; ++d) target[d] = ingot::from_float<bf16>(sum[d] / total);
    }
  }

#if INGOT_ON_DEVICE || defined(INGOT_EMULATED)
  static constexpr i64 kAhead = kQueries == 8 ? 2 : 4;  // positions that a thread loads at once

  // The attention of one query over some of the positions: eight dims of it where a thread has them.
  struct Part {
    float largest = kLowest;
    float total = 0.0F;
    Eight sum{};
  };

  // What a thread works on. A position's row is `lanes` = dims / 8 threads side by side ("a worker"), 16 bytes each.
  struct Work {
    i64 head;
    i64 sequence;
    i64 kv_head;
    i64 newest;  // position
    i64 end;     // of the split's positions
    i64 first;   // of the thread's eight dims
    u32 lanes;
    u32 worker;
    u32 workers;

    INGOT_DEVICE i64 position(i64 base, i64 a) const { return base + a * workers + worker; }
  };

  INGOT_DEVICE void operator()(BlockOfThreads group, i64 row) const {
    const i64 newest = sequences.position();
    const i64 length = newest + 1;
    const i64 active = ingot::min_of(splits, ingot::ceil_div(length, kPositionsOfASplit));
    const i64 split = row % splits;
    if (split >= active) return;
    const i64 head = row / splits;
    const auto lanes = static_cast<u32>(dims / kVector);
    const Work work{head,
                    head / kv_heads,
                    head % kv_heads,
                    newest,
                    length * (split + 1) / active,
                    threadIdx.x % lanes * kVector,
                    lanes,
                    threadIdx.x / lanes,
                    kThreads / lanes};

    Eight query[kQueries];
    const float scale = 1.0F / sqrtf(static_cast<float>(dims));
    INGOT_UNROLL
    for (i64 g = 0; g < kQueries; ++g) {
      query[g] = turned(head_of(work.sequence, query_head(work.kv_head, g)), work.first, newest);
      for (i64 i = 0; i < kVector; ++i) query[g].x[i] *= scale;
    }

    Part parts[kQueries];
    for (i64 base = length * split / active; base < work.end; base += work.workers * kAhead) {
      ingot::U32x4 key[kAhead];
      ingot::U32x4 value[kAhead];
      fetch(work, base, key, value);
      INGOT_UNROLL
      for (i64 g = 0; g < kQueries; ++g) attend(work, base, query[g], key, value, parts[g]);
    }
    INGOT_UNROLL
    for (i64 g = 0; g < kQueries; ++g) {
      combine_workers_of_warp(parts[g], lanes);
      combine_warps(group, parts[g], lanes, work.first, g, head, split, active);
    }
    if (active > 1) combine_splits(group, head, active);
  }

 private:
  // Keys and values of the next kAhead positions. The newest one's come from the token, and are stored; those beyond
  // the end are zeros. All loads come first: in place of what is not in the cache, they read what the token brought.
  INGOT_DEVICE void fetch(const Work& work, i64 base, ingot::U32x4 (&key)[kAhead],
                          ingot::U32x4 (&value)[kAhead]) const {
    const bf16* const new_key = head_of(work.sequence, key_head(work.kv_head)) + work.first;
    const bf16* const new_value = head_of(work.sequence, value_head(work.kv_head)) + work.first;
    INGOT_UNROLL
    for (i64 a = 0; a < kAhead; ++a) {
      const i64 position = work.position(base, a);
      const i64 at = cache_row(work.head, position) + work.first;
      key[a] = *reinterpret_cast<const ingot::U32x4*>(position < work.newest ? keys + at : new_key);
      value[a] = *reinterpret_cast<const ingot::U32x4*>(position < work.newest ? values + at : new_value);
    }
    INGOT_UNROLL
    for (i64 a = 0; a < kAhead; ++a) {
      const i64 position = work.position(base, a);
      if (position >= work.end) {
        key[a] = {};
        value[a] = {};
      } else if (position == work.newest) {
        const i64 at = cache_row(work.head, work.newest) + work.first;
        key[a] = packed(turned(head_of(work.sequence, key_head(work.kv_head)), work.first, work.newest));
        *reinterpret_cast<ingot::U32x4*>(keys + at) = key[a];
        *reinterpret_cast<ingot::U32x4*>(values + at) = value[a];
      }
    }
  }

  // Adds those positions to one query's part.
  INGOT_DEVICE static void attend(const Work& work, i64 base, const Eight& query, const ingot::U32x4 (&key)[kAhead],
                                  const ingot::U32x4 (&value)[kAhead], Part& part) {
    float scores[kAhead];
    float larger = part.largest;
    INGOT_UNROLL
    for (i64 a = 0; a < kAhead; ++a) {
      const Eight k = unpacked(key[a]);
      float score = 0.0F;
      INGOT_UNROLL
      for (i64 i = 0; i < kVector; ++i) score = ingot::fused_multiply_add(query.x[i], k.x[i], score);
      for (u32 offset = work.lanes / 2; offset > 0; offset /= 2) score += exchanged(score, offset);
      scores[a] = work.position(base, a) < work.end ? score : kLowest;
      larger = ingot::max_of(larger, scores[a]);
    }
    rescale(part, larger);
    INGOT_UNROLL
    for (i64 a = 0; a < kAhead; ++a) {
      // A worker without any position keeps a total of 0.
      const float weight = scores[a] == kLowest ? 0.0F : expf(scores[a] - larger);
      const Eight v = unpacked(value[a]);
      part.total += weight;
      INGOT_UNROLL
      for (i64 i = 0; i < kVector; ++i) part.sum.x[i] = ingot::fused_multiply_add(weight, v.x[i], part.sum.x[i]);
    }
  }

  INGOT_DEVICE static void rescale(Part& part, float larger) {
    const float kept = expf(part.largest - larger);
    part.largest = larger;
    part.total *= kept;
    INGOT_UNROLL
    for (i64 i = 0; i < kVector; ++i) part.sum.x[i] *= kept;
  }

  INGOT_DEVICE static void combine_workers_of_warp(Part& part, u32 lanes) {
    for (u32 offset = lanes; offset < 32; offset *= 2) {
      rescale(part, ingot::max_of(part.largest, exchanged(part.largest, offset)));
      part.total += exchanged(part.total, offset);
      INGOT_UNROLL
      for (i64 i = 0; i < kVector; ++i) part.sum.x[i] += exchanged(part.sum.x[i], offset);
    }
  }

  INGOT_DEVICE void combine_warps(BlockOfThreads group, const Part& part, u32 lanes, i64 first, i64 query, i64 head,
                                  i64 split, i64 active) const {
    constexpr u32 kWarps = kThreads / 32;
    float* const mine = group.shared + threadIdx.x / 32 * (kMaxHeadDims + 2);
    __syncthreads();
    if (threadIdx.x % 32 < lanes) {
      for (i64 i = 0; i < kVector; ++i) mine[2 + first + i] = part.sum.x[i];
    }
    if (threadIdx.x % 32 == 0) {
      mine[0] = part.largest;
      mine[1] = part.total;
    }
    __syncthreads();
    if (threadIdx.x >= dims) return;
    float largest = kLowest;
    for (u32 warp = 0; warp < kWarps; ++warp) {
      largest = ingot::max_of(largest, group.shared[warp * (kMaxHeadDims + 2)]);
    }
    float total = 0.0F;
    float sum = 0.0F;
    for (u32 warp = 0; warp < kWarps; ++warp) {
      const float* const other = group.shared + warp * (kMaxHeadDims + 2);
      const float weight = expf(other[0] - largest);
      total += weight * other[1];
      sum += weight * other[2 + threadIdx.x];
    }
    if (active == 1) {
      *target(head, query) = ingot::from_float<bf16>(sum / total);
      return;
    }
    float* const left = partial(head, split, query);
    left[2 + threadIdx.x] = sum;
    if (threadIdx.x == 0) {
      left[0] = largest;
      left[1] = total;
    }
  }

  // Done by the block that finds all others of the head finished.
  INGOT_DEVICE void combine_splits(BlockOfThreads group, i64 head, i64 active) const {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      const u32 last = static_cast<u32>(active) - 1;
      group.shared[0] = atomicInc(counters + head, last) == last ? 1.0F : 0.0F;
    }
    __syncthreads();
    if (group.shared[0] == 0.0F || threadIdx.x >= dims) return;
    __threadfence();
    for (i64 query = 0; query < kQueries; ++query) {
      float largest = kLowest;
      // volatile: the L1 cache may hold older values of these lines.
      for (i64 split = 0; split < active; ++split) {
        const volatile float* const part = partial(head, split, query);
        largest = ingot::max_of<float>(largest, part[0]);
      }
      float total = 0.0F;
      float sum = 0.0F;
      for (i64 split = 0; split < active; ++split) {
        const volatile float* const part = partial(head, split, query);
        const float weight = expf(part[0] - largest);
        total += weight * part[1];
        sum += weight * part[2 + threadIdx.x];
      }
      *target(head, query) = ingot::from_float<bf16>(sum / total);
    }
  }

  INGOT_DEVICE float* partial(i64 head, i64 split, i64 query) const {
    return partials + ((head * splits + split) * kQueries + query) * (dims + 2);
  }
  INGOT_DEVICE bf16* target(i64 head, i64 query) const {
    const i64 sequence = head / kv_heads;
    return out + (sequence * kQueries * kv_heads + query_head(head % kv_heads, query)) * dims + threadIdx.x;
  }
#endif
};

// ---- Activation -------------------------------------------------------------------------------------------------

// out = silu(gate) * up
struct GatedSilu {
  static constexpr const char* kName = "GatedSilu";
  const bf16* gate_up;  // [count, 2 * width]: gate, up
  bf16* out;            // [count, width]
  i64 count, width;

  INGOT_HOST_DEVICE i64 parts() const { return ingot::ceil_div(width, kRowOfVectors); }
  INGOT_HOST_DEVICE i64 rows() const { return count * parts(); }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64 row) const {
    const i64 index = row / parts();
    const i64 start = row % parts() * kRowOfVectors;
    const bf16* const gate = gate_up + index * 2 * width + start;
    for_each_vector(group, ingot::min_of(kRowOfVectors, width - start), [&](i64 col) {
      Eight g = load(gate + col);
      const Eight up = load(gate + width + col);
      for (i64 i = 0; i < kVector; ++i) g.x[i] = g.x[i] / (1.0F + expf(-g.x[i])) * up.x[i];
      store(out + index * width + start + col, g);
    });
  }
};

// ---- The next token ---------------------------------------------------------------------------------------------

inline constexpr i64 kArgmaxParts = 32;              // of a row of logits
inline constexpr i64 kMaxVocabulary = i64{1} << 24;  // token ids up to here are exact in f32

// The largest logit of each part of a row, and the first token that has it.
struct PartialArgmax {
  static constexpr const char* kName = "PartialArgmax";
  const float* logits;  // [count, classes]
  i64 count, classes;
  float* largest;  // [count, kArgmaxParts]
  i32* where;      // the same

  INGOT_HOST_DEVICE i64 rows() const { return count * kArgmaxParts; }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64 row) const {
    const i64 part = row % kArgmaxParts;
    const float* const line = logits + row / kArgmaxParts * classes;
    const i64 begin = classes * part / kArgmaxParts;
    const i64 end = classes * (part + 1) / kArgmaxParts;
    float mine = -3e38F;
    i64 at = begin;
    for (i64 i = begin + group.lane(); i < end; i += group.lanes()) {
      if (line[i] > mine) {
        mine = line[i];
        at = i;
      }
    }
    const float best = group.max(mine);
    const float first = -group.max(mine == best ? -static_cast<float>(at) : -3e38F);
    if (group.lane() == 0) {
      largest[row] = best;
      where[row] = static_cast<i32>(first);
    }
  }
};

// Combines those parts: each sequence continues with the token of the largest logit, unless the prompt gives the next
// one. Then all sequences advance by one position.
struct ChooseTokens {
  static constexpr const char* kName = "ChooseTokens";
  Sequences sequences;
  const float* largest;
  const i32* where;

  INGOT_HOST_DEVICE i64 rows() const { return 1; }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64) const {
    const i64 position = sequences.position();
    const i64 given = sequences.given();
    for (i64 sequence = group.lane(); sequence < sequences.count; sequence += group.lanes()) {
      float best = -3.2e38F;
      i32 token = 0;
      INGOT_UNROLL_BY(8)
      for (i64 part = 0; part < kArgmaxParts; ++part) {
        const float value = largest[sequence * kArgmaxParts + part];
        token = value > best ? where[sequence * kArgmaxParts + part] : token;
        best = ingot::max_of(best, value);
      }
      const i64 at = sequence * sequences.capacity + position;
      sequences.chosen[at] = token;
      if (position + 1 < sequences.capacity && position + 1 >= given) sequences.tokens[at + 1] = token;
    }
    group.sum(0.0F);  // waits until every thread has read the position
    if (group.lane() == 0) sequences.state[0] = static_cast<i32>(position + 1);
  }
};

}  // namespace generate
