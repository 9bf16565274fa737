// FlashAttention backward for Hopper: the tile arithmetic, the order of tiles and the kernels. flash_bwd_sm90.cu builds them.
//
// A CTA owns a block of keys and walks the query blocks of every query head of its group. One thread of warpgroup 0 asks the tensor copy
// engine for Q and dO; the two other warpgroups hold 64 keys each, with their dK and dV in registers. They compute transposed scores, K Q^T
// and V dO^T, so that P^T and dS^T leave the products in the registers that the next products take them from; only dQ, which sums over the
// keys of both, sends dS through shared memory. A block's dQ is laid down in shared memory and added to fp32 sums by the copy engine,
// which a thread a warpgroup sees to.
#pragma once

#include "flash_sm90.cuh"

namespace flash90 {

// How shares of dQ are added: from shared memory by the copy engine, the same in the order of the key blocks so that every run gives the
// same bits, or from the registers.
enum Sums { kCopied = 0, kOrdered = 1, kAdded = 2 };
// Which product runs while a warpgroup takes exponentials: dP of the same queries, or dQ of those before.
enum Overlap { kSameQueries = 0, kFormerQueries = 1 };

// Mirrored field by field in the launcher. Tensor maps as in the forward kernel, of boxes of BlockQ, BlockK and, of dK and dV, 64 rows.
//
// The workspaces hold query blocks one after the other, `head_blocks` to a head: dense heads follow one another; where lengths vary, the
// blocks of a sequence that starts at row i are those from i / BlockQ + its number on.
struct BwdParams {
  TensorMap q, k, v, d_o, dk, dv;
  const void* o;          // as q
  const void* d_o_rows;   // dO again, for the row sums
  void* dq;
  const float* lse;       // [batch, heads, seq_q], or [heads, all rows] where lengths vary
  float* rows;            // a query block: BlockQ times the LSE in base 2 (+inf for a row without keys), then as often rowsum(dO * O)
  float* dq_sum;          // a query block: its dQ in the order in which warpgroups hold it
  int* turns;             // a query block: how many key blocks have been added, by each of the two warpgroups; where ordered
  const int* bounds_q;    // [batch + 1], where lengths vary
  const int* bounds_k;
  i64 row, head_stride, batch_stride;  // of o, dO and dQ, in elements; batch_stride is not used where lengths vary
  int batch, heads, group;             // group: query heads per key/value head
  int seq_q, seq_k;                    // the longest where lengths vary
  int window;                          // keep 0 <= i + (seq_k - seq_q) - j <= window
  int section;                         // key/value heads that share a section: 1 is key-fastest, all of them head-fastest
  int blocks;                          // order of the key blocks, enum Blocks; heavy first where ordered
  int direction;                       // in which a key block walks the query blocks
  int key_blocks;                      // of a head
  int head_blocks;
  int lse_head;                        // distance of heads in lse
  float scale;
  float scale2;                        // scale * log2(e)
};
static_assert(sizeof(BwdParams) == 960, "the launcher's structure is 960 bytes");

template <int HeadDim_, int BlockQ_, int Stages_, int ScoreStages_, int MaskKind, bool Bf16_, int Sums_,
          int Overlap_>
struct BwdTraits {
  static constexpr int HeadDim = HeadDim_, BlockQ = BlockQ_, Stages = Stages_, ScoreStages = ScoreStages_;
  static constexpr int MaskOf = MaskKind, SumsOf = Sums_, OverlapOf = Overlap_;
  static constexpr bool Bf16 = Bf16_;
  static constexpr int Consumers = 2, BlockK = 64 * Consumers, Threads = 128 * (Consumers + 1);
  static constexpr int Panes = HeadDim / 64;                     // of 64 columns, 128 bytes a row
  static constexpr int QuerySteps = BlockQ / 16, KeySteps = BlockK / 16;
  static constexpr int DqColumns = HeadDim * BlockQ / 128;       // of dQ, 64 rows a warpgroup: other rows, or else other columns
  static constexpr int KeyPane = BlockK * 128, QueryPane = BlockQ * 128;
  static constexpr int KBytes = BlockK * HeadDim * 2, QBytes = BlockQ * HeadDim * 2, ScoreBytes = BlockK * BlockQ * 2;
  static constexpr int DqBytes = 64 * DqColumns * 4;             // a warpgroup's share
  static constexpr int DqPane = BlockQ == 64 ? 0 : KeyPane;      // where the second one's dS lies
  static constexpr int DqKeys = BlockQ == 64 ? DqColumns / 64 * KeyPane : 0;  // and its columns of K
  static constexpr int RowBytes = BlockQ * 8;
  static constexpr int VOffset = KBytes, QOffset = 2 * KBytes, OOffset = QOffset + Stages * QBytes;
  static constexpr int ScoreOffset = OOffset + Stages * QBytes, DqOffset = ScoreOffset + ScoreStages * ScoreBytes;
  static constexpr int RowOffset = DqOffset + (SumsOf == kAdded ? 0 : Consumers * DqBytes);
  static constexpr int BarrierOffset = RowOffset + Stages * RowBytes;
  static constexpr int SharedBytes = BarrierOffset + 8 * (2 + 4 * Stages + 2 * ScoreStages + 2 * Consumers);
  static constexpr int ProducerRegisters = 24, ConsumerRegisters = 240;
  // fp32 registers a thread that live at once: dK, dV, scores and dP.
  static constexpr int LiveRegisters = HeadDim + BlockQ;

  static_assert(HeadDim == 64 || HeadDim == 128, "head_dim must be 64 or 128");
  static_assert(BlockQ == 64 || BlockQ == 128, "64 or 128 queries");
  static_assert(DqColumns % 64 == 0, "a warpgroup's share of dQ must be 64 columns or more");
  static_assert(Stages >= 1 && Stages <= 3, "1 to 3 stages of Q and dO");
  static_assert(OverlapOf == kSameQueries || Stages >= 2, "the next scores need their Q while this one is still in use");
  static_assert(ScoreStages >= 1 && ScoreStages <= 2, "1 or 2 stages of dS");
  static_assert(SharedBytes <= 227 * 1024, "no GPU has that much shared memory");
  static_assert(LiveRegisters + 28 <= ConsumerRegisters, "the warpgroup's registers do not hold its keys");
  static_assert(128 * ProducerRegisters + 128 * Consumers * ConsumerRegisters <= 65536, "more registers than an SM has");
};

// Shared addresses. `full` barriers end when data is there, `empty` ones when it has been used.
template <class T>
struct BwdPlaces {
  u32 base;
  __device__ __forceinline__ u32 k() const { return base; }
  __device__ __forceinline__ u32 v() const { return base + T::VOffset; }
  __device__ __forceinline__ u32 q(int i) const { return base + T::QOffset + i * T::QBytes; }
  __device__ __forceinline__ u32 o(int i) const { return base + T::OOffset + i * T::QBytes; }
  __device__ __forceinline__ u32 scores(int i) const { return base + T::ScoreOffset + i * T::ScoreBytes; }
  __device__ __forceinline__ u32 dq(int group) const { return base + T::DqOffset + group * T::DqBytes; }
  __device__ __forceinline__ u32 rows(int i) const { return base + T::RowOffset + i * T::RowBytes; }
  __device__ __forceinline__ u32 barrier(int i) const { return base + T::BarrierOffset + 8 * i; }
  __device__ __forceinline__ u32 k_full() const { return barrier(0); }
  __device__ __forceinline__ u32 v_full() const { return barrier(1); }
  __device__ __forceinline__ u32 dq_full(int group) const { return barrier(2 + group); }
  __device__ __forceinline__ u32 dq_empty(int group) const { return barrier(2 + T::Consumers + group); }
  __device__ __forceinline__ u32 q_full(int i) const { return barrier(2 + 2 * T::Consumers + i); }
  __device__ __forceinline__ u32 q_empty(int i) const { return q_full(T::Stages + i); }
  __device__ __forceinline__ u32 o_full(int i) const { return q_full(2 * T::Stages + i); }
  __device__ __forceinline__ u32 o_empty(int i) const { return o_full(T::Stages + i); }
  __device__ __forceinline__ u32 scores_full(int i) const { return o_full(2 * T::Stages + i); }
  __device__ __forceinline__ u32 scores_empty(int i) const { return scores_full(T::ScoreStages + i); }
};

// The CTA's keys, and the query blocks that it walks, of each head the t-th start + t * step.
struct Keys : Sequence {
  int key_block, key0, kv_head;  // the first key, inside its sequence
  int start, step, count;
  i64 slot;                      // in the workspaces, of the sequence's first query block of head 0
};

template <class T>
__device__ __forceinline__ i64 first_slot(const BwdParams& p, int batch) {
  if (p.bounds_q != nullptr) return p.bounds_q[batch] / T::BlockQ + batch;
  return static_cast<i64>(batch) * p.heads * p.head_blocks;
}

template <class T>
__device__ __forceinline__ Keys keys_at(const BwdParams& p, int index) {
  Keys w;
  const int kv_heads = p.heads / p.group;
  const Place place = place_at(index, p.section, p.batch * kv_heads, p.key_blocks, p.blocks);
  const int batch = place.head / kv_heads;
  locate(w, p, batch);
  w.kv_head = place.head % kv_heads, w.slot = first_slot<T>(p, batch);
  w.key_block = p.key_blocks - 1 - place.block, w.key0 = w.key_block * T::BlockK;
  const int offset = w.keys - w.rows;
  int first = 0, last = (w.rows + T::BlockQ - 1) / T::BlockQ;
  if constexpr (T::MaskOf != kNone) first = max(w.key0 - offset, 0) / T::BlockQ;
  if constexpr (T::MaskOf == kWindow) {
    const int row = min(w.key0 + T::BlockK, w.keys) - 1 + p.window - offset;  // the last that keeps a key of the block
    last = min(last, max(row + T::BlockQ, 0) / T::BlockQ);
  }
  const bool down = p.direction == kDescending || (p.direction == kAlternating && (w.key_block & 1));
  w.count = w.key0 < w.keys ? max(last - first, 0) : -1;  // -1: past the sequence's end, nothing to do
  w.start = down ? last - 1 : first, w.step = down ? -1 : 1;
  return w;
}

// One query block after the other, of one query head after the other.
struct Walk {
  const Keys& w;
  int head, t = 0;  // the query head
  __device__ __forceinline__ Walk(const BwdParams& p, const Keys& w) : w(w), head(w.kv_head * p.group) {}
  __device__ __forceinline__ int block() const { return w.start + t * w.step; }
  __device__ __forceinline__ i64 slot(const BwdParams& p) const { return w.slot + static_cast<i64>(head) * p.head_blocks + block(); }
  __device__ __forceinline__ void next() {
    if (++t == w.count) t = 0, ++head;
  }
};

// ---- The producer: one thread.

template <class T>
__device__ __forceinline__ void load_keys(const BwdParams& p, const TensorMap& map, const Keys& w, u32 dst, u32 full) {
  arrive_expecting(full, T::KBytes);
  UNROLL for (int pane = 0; pane < T::Panes; ++pane)
    copy_box(dst + pane * T::KeyPane, map, {pane * 64, w.key_shift + w.key0, w.kv_head, w.key_outer, w.wrap}, full);
}

template <class T>
__device__ __forceinline__ void load_queries(const TensorMap& map, const Walk& walk, u32 dst, u32 full) {
  const Keys& w = walk.w;
  UNROLL for (int pane = 0; pane < T::Panes; ++pane)
    copy_box(dst + pane * T::QueryPane, map, {pane * 64, w.row_shift + walk.block() * T::BlockQ, walk.head, w.row_outer, w.wrap}, full);
}

template <class T>
__device__ __forceinline__ void produce(const BwdParams& p, const BwdPlaces<T>& at, const Keys& w) {
  Ring<T::Stages> q;
  Walk walk(p, w);
  for (int i = 0; i < w.count * p.group; ++i, walk.next(), q.next()) {
    if (i == 0) load_keys<T>(p, p.k, w, at.k(), at.k_full());
    barrier_wait(at.q_empty(q.stage), q.parity ^ 1);
    arrive_expecting(at.q_full(q.stage), T::QBytes + T::RowBytes);
    load_queries<T>(p.q, walk, at.q(q.stage), at.q_full(q.stage));
    copy_bytes(at.rows(q.stage), p.rows + walk.slot(p) * (2 * T::BlockQ), T::RowBytes, at.q_full(q.stage));
    if (i == 0) load_keys<T>(p, p.v, w, at.v(), at.v_full());
    barrier_wait(at.o_empty(q.stage), q.parity ^ 1);
    arrive_expecting(at.o_full(q.stage), T::QBytes);
    load_queries<T>(p.d_o, walk, at.o(q.stage), at.o_full(q.stage));
  }
}

// ---- The adders: one thread a warpgroup, which has the copy engine add its shares of dQ.

// How many key blocks come before this one at a block of queries.
template <class T>
__device__ __forceinline__ int turn_of(const BwdParams& p, const Keys& w, int query_block) {
  int first = 0;
  if constexpr (T::MaskOf == kWindow) first = max(query_block * T::BlockQ + w.keys - w.rows - p.window, 0) / T::BlockK;
  return w.key_block - first;
}

template <class T>
__device__ __forceinline__ void add_shares(const BwdParams& p, const BwdPlaces<T>& at, const Keys& w, int group) {
  Walk walk(p, w);
  for (int i = 0; i < w.count * p.group; ++i, walk.next()) {
    const i64 slot = walk.slot(p);
    int* turn = p.turns + 2 * slot + group;
    if constexpr (T::SumsOf == kOrdered) {
      const int own = turn_of<T>(p, w, walk.block());
      while (load_counter(turn) != own) continue;
      async_fence_global();
    }
    barrier_wait(at.dq_full(group), i & 1);
    add_bytes(p.dq_sum + slot * (T::BlockQ * T::HeadDim) + group * (T::DqBytes / 4), at.dq(group), T::DqBytes);
    store_commit();
    store_wait_read();
    arrive(at.dq_empty(group));
    if constexpr (T::SumsOf == kOrdered) {
      store_wait();
      async_fence_global();
      raise_counter(turn);
    }
  }
}

// ---- The consumers: a warpgroup each.

// Lanes of a warp that arrive at a barrier for it: one, after a __syncwarp, or all 32, whose order racecheck can follow.
#ifndef RELEASING_LANES
#define RELEASING_LANES 1
#endif
constexpr int kReleasing = RELEASING_LANES;
static_assert(kReleasing == 1 || kReleasing == 32, "one lane or all");

constexpr int kConsumerBarrier = 1, kGroupBarrier = 2;  // numbers of the named barriers: 0 is __syncthreads

// Lane l of warp w holds keys 16 w + l / 4 and 8 more, r = 0 and 1; of each 8 queries 2 (l % 4) and the next. Of scores, element
// 4 n + 2 r + e is key r, query 8 n + 2 (l % 4) + e; of dK and dV that many columns instead of queries.
template <class T>
struct Gradients {
  float dk[T::HeadDim / 2] = {}, dv[T::HeadDim / 2] = {};
  float scores[T::BlockQ / 2], d_scores[T::BlockQ / 2];
  float dq[T::DqColumns / 2];
  u32 weights[T::QuerySteps][4], d_weights[T::QuerySteps][4];  // P and dS as operands
};

// d (64 keys x queries) = rows (64 x head_dim) queries^T.
template <class T>
__device__ __forceinline__ void start_scores(float (&d)[T::BlockQ / 2], u64 rows, u64 queries) {
  UNROLL for (int i = 0; i < T::HeadDim / 16; ++i)
    Wgmma<T::BlockQ>::template ss<T::Bf16>(d, rows + (i / 4 * T::KeyPane + i % 4 * 32) / 16, queries + (i / 4 * T::QueryPane + i % 4 * 32) / 16,
                                           i > 0);
}

// d (64 keys x head_dim) += a (64 x queries) queries.
template <class T>
__device__ __forceinline__ void start_keys(float (&d)[T::HeadDim / 2], const u32 (&a)[T::QuerySteps][4], u64 queries) {
  UNROLL for (int i = 0; i < T::QuerySteps; ++i) Wgmma<T::HeadDim>::template rs<T::Bf16>(d, a[i], queries + i * (16 * 128 / 16), true);
}

// dq (64 queries x DqColumns) = dS K, of all keys.
template <class T>
__device__ __forceinline__ void start_dq(float (&dq)[T::DqColumns / 2], u64 scores, u64 keys) {
  UNROLL for (int i = 0; i < T::KeySteps; ++i)
    Wgmma<T::DqColumns>::template ss_columns<T::Bf16>(dq, scores + i * (16 * 128 / 16), keys + i * (16 * 128 / 16), i > 0);
}

template <class T>
__device__ __forceinline__ void mask_scores(float (&scores)[T::BlockQ / 2], const BwdParams& p, const Keys& w, int key, int row) {
  const int offset = w.keys - w.rows;
  UNROLL for (int r = 0; r < 2; ++r) {
    int low = 0, high = T::BlockQ;  // of the queries that keep the key, counted from the lane's first
    if constexpr (T::MaskOf != kNone) low = key + 8 * r - offset - row;
    if constexpr (T::MaskOf == kWindow) high = low + p.window;
    if (key + 8 * r >= w.keys) low = T::BlockQ;
    UNROLL for (int n = 0; n < T::BlockQ / 8; ++n) UNROLL for (int e = 0; e < 2; ++e) {
      const int i = n * 8 + e;
      if (i < low || (T::MaskOf == kWindow && i > high)) scores[4 * n + 2 * r + e] = -INFINITY;
    }
  }
}

// P = 2^(scores - LSE), rounded to operands: accumulators of 16 columns have the layout of an A fragment.
template <class T>
__device__ __forceinline__ void take_weights(Gradients<T>& g, u32 lse, float scale2) {
  UNROLL for (int i = 0; i < T::QuerySteps; ++i) UNROLL for (int h = 0; h < 2; ++h) {
    const float2 shift = load_floats2(lse + (2 * i + h) * 32);
    UNROLL for (int r = 0; r < 2; ++r) {
      const float* x = g.scores + 8 * i + 4 * h + 2 * r;
      g.weights[i][2 * h + r] = pack<T::Bf16>(ex2(fmaf(x[0], scale2, -shift.x)), ex2(fmaf(x[1], scale2, -shift.y)));
    }
  }
}

// dS = P (dP - rowsum(dO * O)), likewise. P as rounded needs half the registers; its error is below dS's own rounding.
template <class T>
__device__ __forceinline__ void take_d_weights(Gradients<T>& g, u32 sums) {
  UNROLL for (int i = 0; i < T::QuerySteps; ++i) UNROLL for (int h = 0; h < 2; ++h) {
    const float2 sum = load_floats2(sums + (2 * i + h) * 32);
    UNROLL for (int r = 0; r < 2; ++r) {
      const float* x = g.d_scores + 8 * i + 4 * h + 2 * r;
      const float2 weight = unpack<T::Bf16>(g.weights[i][2 * h + r]);
      g.d_weights[i][2 * h + r] = pack<T::Bf16>(weight.x * (x[0] - sum.x), weight.y * (x[1] - sum.y));
    }
  }
}

// Writes rounded rows, 16 a warp, to a tile of panes in shared memory: chunks of 8 columns, from 16 columns' registers.
__device__ __forceinline__ void store_columns(u32 tile, int pane_bytes, int row, int step, const u32 (&x)[4]) {
  const int chunk = 2 * step + static_cast<int>(threadIdx.x) % 32 / 16;
  stmatrix4(tile + chunk / 8 * pane_bytes + row * 128 + ((chunk % 8) ^ (row % 8)) * 16, x[0], x[1], x[2], x[3]);
}

template <class T>
__device__ __forceinline__ void store_gradient(const float (&d)[T::HeadDim / 2], float scale, u32 tile, int row) {
  UNROLL for (int i = 0; i < T::HeadDim / 16; ++i) {
    const float* x = d + 8 * i;
    const u32 rounded[4] = {pack<T::Bf16>(x[0] * scale, x[1] * scale), pack<T::Bf16>(x[2] * scale, x[3] * scale),
                            pack<T::Bf16>(x[4] * scale, x[5] * scale), pack<T::Bf16>(x[6] * scale, x[7] * scale)};
    store_columns(tile, T::KeyPane, row, i, rounded);
  }
}

template <class T>
__device__ __forceinline__ void consume(const BwdParams& p, const BwdPlaces<T>& at, const Keys& w, int group) {
  const int thread = threadIdx.x % 128, lane = thread % 32, warp_row = thread / 32 * 16;
  const int own_row = 64 * group + warp_row + lane % 16;                  // where this lane points stmatrix
  const int key = w.key0 + 64 * group + warp_row + lane / 4;              // this lane's first
  Ring<T::Stages> q;
  Ring<T::ScoreStages> s;
  u32 dq_parity = 1;
  Walk walk(p, w);
  Gradients<T> g;

  // Pairs of these keys and the queries between are all kept.
  int whole_low = 0, whole_high = w.rows;
  if constexpr (T::MaskOf != kNone) whole_low = w.key0 + 64 * group + 63 - (w.keys - w.rows);
  if constexpr (T::MaskOf == kWindow) whole_high = w.key0 + 64 * group + p.window - (w.keys - w.rows) - (T::BlockQ - 1);
  if (w.key0 + 64 * group + 63 >= w.keys) whole_low = whole_high + 1;

  const auto start_next_scores = [&] {
    barrier_wait(at.q_full(q.stage), q.parity);
    wgmma_fence();
    start_scores<T>(g.scores, wgmma_operand(at.k() + group * (64 * 128), 0), wgmma_operand(at.q(q.stage), 0));
    wgmma_commit();
  };
  const auto release = [&](u32 barrier) {
    if (lane < kReleasing) arrive(barrier);
  };
  const auto hand_over = [&](u32 barrier) {  // what all lanes wrote, to the copy engine or wgmma
    async_fence();
    __syncwarp();
    release(barrier);
  };
  const auto start_next_d_scores = [&] {
    barrier_wait(at.o_full(q.stage), q.parity);
    wgmma_fence();
    start_scores<T>(g.d_scores, wgmma_operand(at.v() + group * (64 * 128), 0), wgmma_operand(at.o(q.stage), 0));
    wgmma_commit();
  };
  const auto weigh = [&] {
    pin(g.scores);
    const int row0 = walk.block() * T::BlockQ;
    if (row0 < whole_low || row0 > whole_high) mask_scores<T>(g.scores, p, w, key, row0 + 2 * (lane % 4));
    take_weights<T>(g, at.rows(q.stage) + lane % 4 * 8, p.scale2);
  };
  const auto start_gradients = [&] {  // of dV and dK
    if constexpr (T::OverlapOf == kFormerQueries) start_next_d_scores();
    wgmma_fence();
    start_keys<T>(g.dv, g.weights, wgmma_operand(at.o(q.stage), T::QueryPane));
    wgmma_commit();
    if constexpr (T::OverlapOf == kFormerQueries) wgmma_wait<1>();
    pin(g.d_scores);
    take_d_weights<T>(g, at.rows(q.stage) + 4 * T::BlockQ + lane % 4 * 8);
    barrier_wait(at.scores_empty(s.stage), s.parity ^ 1);
    UNROLL for (int i = 0; i < T::QuerySteps; ++i) store_columns(at.scores(s.stage), T::KeyPane, own_row, i, g.d_weights[i]);
    hand_over(at.scores_full(s.stage));
    wgmma_fence();
    start_keys<T>(g.dk, g.d_weights, wgmma_operand(at.q(q.stage), T::QueryPane));
    wgmma_commit();
  };
  const auto start_queries = [&] {
    barrier_wait(at.scores_full(s.stage), s.parity);
    wgmma_fence();
    start_dq<T>(g.dq, wgmma_operand(at.scores(s.stage) + T::DqPane * group, 0), wgmma_operand(at.k() + T::DqKeys * group, T::KeyPane));
    wgmma_commit();
  };
  const auto release_queries = [&](int stage) {
    __syncwarp();  // every lane has read its rows' statistics
    release(at.o_empty(stage)), release(at.q_empty(stage));
  };
  const auto add_dq = [&](i64 slot) {
    pin(g.dq);
    release(at.scores_empty(s.stage)), s.next();
    if constexpr (T::SumsOf == kAdded) {
      float* sum = p.dq_sum + slot * (T::BlockQ * T::HeadDim) + group * (T::DqBytes / 4) + thread * 4;
      UNROLL for (int n = 0; n < T::DqColumns / 8; ++n) add4(sum + n * 512, g.dq[4 * n], g.dq[4 * n + 1], g.dq[4 * n + 2], g.dq[4 * n + 3]);
    } else {
      barrier_wait(at.dq_empty(group), dq_parity);
      dq_parity ^= 1;
      UNROLL for (int n = 0; n < T::DqColumns / 8; ++n)
        store_floats4(at.dq(group) + n * 2048 + thread * 16, g.dq[4 * n], g.dq[4 * n + 1], g.dq[4 * n + 2], g.dq[4 * n + 3]);
      hand_over(at.dq_full(group));
    }
  };

  // No product is under way where the loop jumps back: no register of one may be read by what follows a jump.
  const int steps = w.count * p.group;
  if (steps > 0) {
    barrier_wait(at.k_full(), 0);
    start_next_scores();
    barrier_wait(at.v_full(), 0);
    if constexpr (T::OverlapOf == kSameQueries) {
      start_next_d_scores();
      wgmma_wait<1>();
      weigh();
    }
    wgmma_wait<0>();
    if constexpr (T::OverlapOf == kFormerQueries) weigh();
    for (int i = 1; i < steps; ++i) {
      start_gradients();
      const int stage = q.stage;
      const i64 slot = walk.slot(p);
      q.next(), walk.next();
      if constexpr (T::OverlapOf == kSameQueries) {
        start_queries();
        wgmma_wait<1>();
        release_queries(stage);
        start_next_scores();
        wgmma_wait<1>();
        add_dq(slot);
        start_next_d_scores();
        wgmma_wait<1>();
        weigh();
        wgmma_wait<0>();
      } else {
        start_next_scores();
        wgmma_wait<1>();
        release_queries(stage);
        start_queries();
        wgmma_wait<1>();
        weigh();
        wgmma_wait<0>();
        add_dq(slot);
      }
    }
    start_gradients();
    start_queries();
    wgmma_wait<0>();
    add_dq(walk.slot(p));
  }
  pin(g.dk), pin(g.dv);
  named_wait(kConsumerBarrier, 128 * T::Consumers);  // K and V are read no more; their places take dK and dV
  store_gradient<T>(g.dk, p.scale, at.k(), own_row);
  store_gradient<T>(g.dv, 1.f, at.v(), own_row);
  async_fence();
  named_wait(kGroupBarrier + group, 128);
  if (thread == 0) {
    UNROLL for (int pane = 0; pane < T::Panes; ++pane) {
      const Coordinates to = {pane * 64, w.key_shift + w.key0 + 64 * group, w.kv_head, w.key_outer, w.wrap};
      store_box(p.dk, to, at.k() + pane * T::KeyPane + group * (64 * 128));
      store_box(p.dv, to, at.v() + pane * T::KeyPane + group * (64 * 128));
    }
    store_commit();
    store_wait_read();
  }
}

template <class T>
__device__ __forceinline__ void backward(const BwdParams& p) {
  extern __shared__ __align__(1024) char shared[];
  const BwdPlaces<T> at{shared_address(shared)};
  const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  const Keys w = keys_at<T>(p, blockIdx.x);
  if (w.count < 0) return;
  if (threadIdx.x == 0) {
    constexpr int kGroup = 4 * kReleasing, kAll = kGroup * T::Consumers;  // arrivals of a warpgroup, and of all consumers
    barrier_init(at.k_full(), 1), barrier_init(at.v_full(), 1);
    UNROLL for (int i = 0; i < T::Consumers; ++i) barrier_init(at.dq_full(i), kGroup), barrier_init(at.dq_empty(i), 1);
    UNROLL for (int i = 0; i < T::Stages; ++i) {
      barrier_init(at.q_full(i), 1), barrier_init(at.q_empty(i), kAll);
      barrier_init(at.o_full(i), 1), barrier_init(at.o_empty(i), kAll);
    }
    UNROLL for (int i = 0; i < T::ScoreStages; ++i) barrier_init(at.scores_full(i), kAll), barrier_init(at.scores_empty(i), kAll);
    barrier_init_fence();
    prefetch_map(p.q), prefetch_map(p.k), prefetch_map(p.v), prefetch_map(p.d_o);
  }
  __syncthreads();
  if (warpgroup == 0) {
    give_registers<T::ProducerRegisters>();
    const int warp = threadIdx.x / 32;
    if (warp == 0 && elected()) produce<T>(p, at, w);
    if (T::SumsOf != kAdded && warp > 0 && warp <= T::Consumers && elected()) add_shares<T>(p, at, w, warp - 1);
  } else {
    take_registers<T::ConsumerRegisters>();
    consume<T>(p, at, w, warpgroup - 1);
  }
}

// ---- Before and after: a CTA a block of queries.

constexpr int kQueryThreads = 256;

// A block of queries of the launch: blockIdx is block, head, sequence.
template <class T>
struct Queries : Sequence {
  int row0, left;  // the first row, and how many follow in the sequence
  i64 slot, element, lse;
  __device__ __forceinline__ explicit Queries(const BwdParams& p) {
    const int head = blockIdx.y, batch = blockIdx.z;
    locate(*this, p, batch);
    row0 = blockIdx.x * T::BlockQ, left = rows - row0;
    slot = first_slot<T>(p, batch) + static_cast<i64>(head) * p.head_blocks + blockIdx.x;
    const bool ragged = p.bounds_q != nullptr;
    element = head * p.head_stride + row0 * p.row + (ragged ? p.bounds_q[batch] * p.row : batch * p.batch_stride);
    lse = static_cast<i64>(head) * p.lse_head + row0 + (ragged ? p.bounds_q[batch] : static_cast<i64>(batch) * p.heads * p.seq_q);
  }
};

// The LSE in base 2 and the sum of dO * O of each row; zeroes the sums of dQ.
template <class T>
__device__ __forceinline__ void row_sums(const BwdParams& p) {
  constexpr int kLanes = T::HeadDim / 8, kRows = kQueryThreads / kLanes;  // 8 elements a lane
  constexpr float kLog2E = 1.4426950408889634f;
  const Queries<T> w(p);
  if (w.left <= 0) return;
  float4* sums = reinterpret_cast<float4*>(p.dq_sum + w.slot * (T::BlockQ * T::HeadDim));
  for (int i = threadIdx.x; i < T::BlockQ * T::HeadDim / 4; i += kQueryThreads) sums[i] = make_float4(0.f, 0.f, 0.f, 0.f);
  if (T::SumsOf == kOrdered && threadIdx.x < 2) p.turns[2 * w.slot + threadIdx.x] = 0;
  const int lane = threadIdx.x % kLanes;
  UNROLL for (int row = threadIdx.x / kLanes; row < T::BlockQ; row += kRows) {
    uint4 o = {}, d_o = {};
    if (row < w.left) {
      const i64 at = (w.element + row * p.row) / 8 + lane;
      o = static_cast<const uint4*>(p.o)[at], d_o = static_cast<const uint4*>(p.d_o_rows)[at];
    }
    float sum = 0.f;
    const u32 x[4] = {o.x, o.y, o.z, o.w}, y[4] = {d_o.x, d_o.y, d_o.z, d_o.w};
    UNROLL for (int i = 0; i < 4; ++i) {
      const float2 a = unpack<T::Bf16>(x[i]), b = unpack<T::Bf16>(y[i]);
      sum += a.x * b.x + a.y * b.y;
    }
    UNROLL for (int d = kLanes / 2; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (lane == 0) {
      const float lse = row < w.left ? p.lse[w.lse + row] : -INFINITY;
      float* stats = p.rows + w.slot * (2 * T::BlockQ) + row;
      stats[0] = lse == -INFINITY ? INFINITY : lse * kLog2E, stats[T::BlockQ] = sum;
    }
  }
}

// dQ from its sums, which lie as the two warpgroups held them.
template <class T>
__device__ __forceinline__ void round_dq(const BwdParams& p) {
  constexpr int kStride = T::HeadDim + 8, kChunks = T::HeadDim / 8;  // rows are padded so that eight lie in different banks
  __shared__ __align__(16) u16 tile[T::BlockQ * kStride];
  const Queries<T> w(p);
  if (w.left <= 0) return;
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
  const int row = (T::BlockQ == 64 ? 0 : 64 * group) + thread / 32 * 16 + thread % 32 / 4;
  const int column = (T::BlockQ == 64 ? T::DqColumns * group : 0) + thread % 4 * 2;
  const float4* sums = reinterpret_cast<const float4*>(p.dq_sum + w.slot * (T::BlockQ * T::HeadDim) + group * (T::DqBytes / 4)) + thread;
  UNROLL for (int n = 0; n < T::DqColumns / 8; ++n) {
    const float4 x = sums[n * 128];
    u16* to = tile + row * kStride + column + n * 8;
    *reinterpret_cast<u32*>(to) = pack<T::Bf16>(x.x * p.scale, x.y * p.scale);
    *reinterpret_cast<u32*>(to + 8 * kStride) = pack<T::Bf16>(x.z * p.scale, x.w * p.scale);
  }
  __syncthreads();
  UNROLL for (int i = threadIdx.x; i < T::BlockQ * kChunks; i += kQueryThreads) {
    const int from = i / kChunks, chunk = i % kChunks;
    if (from < w.left)
      static_cast<uint4*>(p.dq)[(w.element + from * p.row) / 8 + chunk] = *reinterpret_cast<const uint4*>(tile + from * kStride + chunk * 8);
  }
}

}  // namespace flash90
