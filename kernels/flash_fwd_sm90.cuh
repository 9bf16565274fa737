// FlashAttention forward for Hopper: the tile arithmetic, the schedule and the kernel. flash_fwd_sm90.cu builds it.
//
// One thread of warpgroup 0 asks the tensor copy engine for Q, K and V; every other warpgroup holds 64 query rows and walks the key
// blocks with wgmma: Q K^T from shared memory, P V with P in registers. Tiles are handed from the one to the others with the Q that
// belongs to them, so that every schedule (one tile a CTA, a static list, a counter in memory) is known to the producer alone.
#pragma once

#include "flash_sm90.cuh"

namespace flash90 {

enum Schedule { kOneTile = 0, kStatic = 1, kDynamic = 2 };
// How a warpgroup overlaps its own products and exponentials. Sequential: Q K^T, softmax, then P V and the next Q K^T in one go.
// Interleaved: the same, each slice of P V started as soon as its 16 keys' exponentials are there. Overlapped: Q K^T of the next
// block and P V of this one run while the next block's softmax is taken (FlashAttention-3).
// Eager: sequential, exponentials under the former maxima at once while the new ones are looked for, and again where one grew too far.
enum Pipeline { kSequential = 0, kInterleaved = 1, kOverlapped = 2, kEager = 3 };
// What the warpgroups do in turns: nothing, starting products, or taking exponentials.
enum Turns { kFree = 0, kProducts = 1, kExponentials = 2 };

// Mirrored field by field in the launcher. Tensor maps have the dimensions columns, rows, heads, batch, and one of length 1. Where query
// heads are packed, those of Q and O have columns, heads of a group, rows, groups, batch; heads are then groups here, of one head each.
struct Params {
  TensorMap q, k, v, o;
  float* lse;             // [batch, heads, seq_q], or [heads, all rows] where lengths vary; null: not wanted
  const int* bounds_q;    // [batch + 1], where lengths vary
  const int* bounds_k;
  const int* remap;       // tile numbers in the order in which to take them, query blocks fastest; null: by the formula
  int* counter;           // 0 before the first dynamic launch; the launch leaves it 0
  int batch, heads, group;  // group: query heads per key/value head
  int seq_q, seq_k;         // the longest where lengths vary
  int window;               // keep 0 <= i + (seq_k - seq_q) - j <= window
  int section;              // heads that share a section: 1 is query-fastest, batch * heads is head-fastest
  int blocks;               // order of the query blocks, enum Blocks
  int direction;
  int query_blocks;  // of a head, each of Cluster * BlockQ rows
  int tiles;         // query_blocks * batch * heads
  int lse_head;      // distance of heads in lse
  float scale2;      // softmax scale * log2(e)
};
static_assert(sizeof(Params) == 640, "the launcher's structure is 640 bytes");

template <int HeadDim_, int Consumers_, int BlockK_, int Stages_, int QStages_, int MaskKind, bool Bf16_, int Schedule_, int Cluster_,
          int Pipeline_, int Turns_, int Poly_, int Pack_>
struct Traits {
  static constexpr int HeadDim = HeadDim_, Consumers = Consumers_, BlockK = BlockK_, Stages = Stages_, QStages = QStages_;
  static constexpr int MaskOf = MaskKind, ScheduleOf = Schedule_, Cluster = Cluster_, PipelineOf = Pipeline_, TurnsOf = Turns_;
  static constexpr int Poly = Poly_;  // of 8 exponentials, how many are taken by a polynomial
  static constexpr int Pack = Pack_;  // query heads of a key/value head that share a tile: row i is token i / Pack, head i % Pack
  static constexpr bool Bf16 = Bf16_;
  static constexpr int BlockQ = 64 * Consumers, Threads = 128 * (Consumers + 1);
  static constexpr int Panes = HeadDim / 64;       // of 64 columns, 128 bytes a row
  static constexpr int KeySteps = BlockK / 16;     // k16 steps of P V
  static constexpr int RowPane = 64 * 128;         // bytes of a pane of one warpgroup's rows
  static constexpr int KeyPane = BlockK * 128;
  static constexpr int QBytes = BlockQ * HeadDim * 2, KBytes = BlockK * HeadDim * 2;
  static constexpr int KOffset = QStages * QBytes, VOffset = KOffset + Stages * KBytes, BarrierOffset = VOffset + Stages * KBytes;
  static constexpr int SharedBytes = BarrierOffset + 8 * (2 * QStages + 4 * Stages + 2) + 4 * (QStages + 1);
  static constexpr int ProducerRegisters = Consumers == 2 ? 40 : Consumers == 3 ? 32 : 24;
  static constexpr int ConsumerRegisters = Consumers == 2 ? 232 : Consumers == 3 ? 160 : 112;
  // fp32 registers a thread that live through a key block: output, scores, and probabilities while the next scores come in.
  static constexpr int LiveRegisters = HeadDim / 2 + BlockK / 2 + BlockK / 4;

  static_assert(HeadDim == 64 || HeadDim == 128 || HeadDim == 256, "head_dim must be 64, 128 or 256");
  static_assert(Consumers >= 2 && Consumers <= 4, "2 to 4 warpgroups of 64 rows");
  static_assert(BlockK % 16 == 0, "block_k must be a multiple of 16");
  static_assert(Stages >= 2 && Stages <= 4 && QStages >= 1 && QStages <= 2, "2 to 4 stages of keys, 1 or 2 of queries");
  static_assert(Cluster == 1 || (Cluster == 2 && BlockK % 32 == 0), "clusters of 1 or 2; each CTA loads half of the keys");
  static_assert(64 % Pack == 0, "a warpgroup's rows must be whole tokens");
  static_assert(Poly >= 0 && Poly <= 8, "0 to 8 of 8 exponentials");
  static_assert(SharedBytes <= 227 * 1024, "no GPU has that much shared memory");
  static_assert(LiveRegisters + 28 <= ConsumerRegisters, "the warpgroup's registers do not hold its rows");
  static_assert(128 * ProducerRegisters + 128 * Consumers * ConsumerRegisters <= 65536, "more registers than an SM has");
};

// Shared addresses of the barriers; `full` ones end when data is there, `empty` ones when it has been used.
template <class T>
struct Places {
  u32 base;
  __device__ __forceinline__ u32 barrier(int i) const { return base + T::BarrierOffset + 8 * i; }
  __device__ __forceinline__ u32 q_full(int i) const { return barrier(i); }
  __device__ __forceinline__ u32 q_empty(int i) const { return barrier(T::QStages + i); }
  __device__ __forceinline__ u32 k_full(int i) const { return barrier(2 * T::QStages + i); }
  __device__ __forceinline__ u32 k_empty(int i) const { return barrier(2 * T::QStages + T::Stages + i); }
  __device__ __forceinline__ u32 v_full(int i) const { return barrier(2 * T::QStages + 2 * T::Stages + i); }
  __device__ __forceinline__ u32 v_empty(int i) const { return barrier(2 * T::QStages + 3 * T::Stages + i); }
  __device__ __forceinline__ u32 next_full() const { return barrier(2 * T::QStages + 4 * T::Stages); }
  __device__ __forceinline__ u32 next_empty() const { return barrier(2 * T::QStages + 4 * T::Stages + 1); }
  __device__ __forceinline__ u32 tile(int i) const { return barrier(2 * T::QStages + 4 * T::Stages + 2) + 4 * i; }
  __device__ __forceinline__ u32 next_tile() const { return tile(T::QStages); }
};

// One tile: its rows, the sequence that it belongs to, and its key blocks, of which the t-th is start + t * step.
struct Tile : Sequence {
  int row0, head, batch;  // the first row of this CTA, inside its sequence
  int lse;                // where the sequence's rows start in lse
  int start, step, count;
};

template <class T>
__device__ __forceinline__ Tile tile_at(const Params& p, int index, int rank) {
  Tile w;
  Place place;
  if (p.remap != nullptr) {
    const int number = p.remap[index];
    place = {number / p.query_blocks, number % p.query_blocks};
  } else {
    place = place_at(index, p.section, p.batch * p.heads, p.query_blocks, p.blocks);
  }
  const int query_block = place.block;
  w.batch = place.head / p.heads, w.head = place.head % p.heads;
  locate(w, p, w.batch);
  w.lse = p.bounds_q != nullptr ? w.row_outer - w.rows : w.batch * p.heads * T::Pack * p.seq_q;
  // Both CTAs of a cluster walk the key blocks that either needs.
  const int block0 = query_block * (T::Cluster * T::BlockQ), offset = w.keys - w.rows;
  int first = 0, last = (w.keys + T::BlockK - 1) / T::BlockK;
  if constexpr (T::MaskOf != kNone) {
    const int token1 = (min(block0 + T::Cluster * T::BlockQ, w.rows * T::Pack) - 1) / T::Pack;
    last = min(last, max(token1 + offset + T::BlockK, 0) / T::BlockK);
    if constexpr (T::MaskOf == kWindow) first = max(block0 / T::Pack + offset - p.window, 0) / T::BlockK;
  }
  const bool down = p.direction == kDescending || (p.direction == kAlternating && (query_block & 1));
  w.row0 = block0 + rank * T::BlockQ;
  w.count = block0 < w.rows * T::Pack ? max(last - first, 0) : -1;  // -1: past the sequence's end, nothing to do
  w.start = down ? last - 1 : first, w.step = down ? -1 : 1;
  return w;
}

// Where 64 rows of Q or O lie.
template <class T>
__device__ __forceinline__ Coordinates rows_at(const Tile& w, int pane, int row) {
  if constexpr (T::Pack > 1) return {pane * 64, 0, row / T::Pack, w.head, w.batch};
  return {pane * 64, w.row_shift + row, w.head, w.row_outer, w.wrap};
}

// ---- The producer: one thread.

// One tile after the other: the number of the next one, or a number past the last.
template <class T>
struct Scheduler {
  const Params& p;
  const Places<T> at;
  const int rank, clusters;
  int index;
  int fetched;
  u32 parity = 0;

  __device__ __forceinline__ Scheduler(const Params& p, const Places<T>& at, int rank)
      : p(p), at(at), rank(rank), clusters(gridDim.x / T::Cluster), index(blockIdx.x / T::Cluster), fetched(0) {}

  // Asks for the next number; the answer is there long before `next` needs it.
  __device__ __forceinline__ void fetch() {
    if constexpr (T::ScheduleOf == kDynamic) {
      if (rank == 0) fetched = atomicAdd(p.counter, 1);
    }
  }

  __device__ __forceinline__ void next() {
    if constexpr (T::ScheduleOf == kOneTile) index = p.tiles;
    if constexpr (T::ScheduleOf == kStatic) index += clusters;
    if constexpr (T::ScheduleOf == kDynamic) {
      if (rank == 0) {
        index = clusters + fetched;
        if (fetched == p.tiles - 1) *p.counter = 0;  // every tile asks once, so this was the last to ask
      }
      if constexpr (T::Cluster == 2) {  // rank 0 tells rank 1
        if (rank == 0) {
          barrier_wait_cluster(at.next_empty(), parity ^ 1);
          store_counted(map_to(at.next_tile(), 1), index, map_to(at.next_full(), 1));
        } else {
          arrive_expecting(at.next_full(), 4);
          barrier_wait_cluster(at.next_full(), parity);
          index = load_word(at.next_tile());
          arrive_in_cluster(map_to(at.next_empty(), 0));
        }
        parity ^= 1;
      }
    }
  }
};

// Starts the copy of one key block of K or V: this CTA's part of its rows, into every CTA of the cluster.
template <class T>
__device__ __forceinline__ void load_keys(const TensorMap& map, const Tile& w, int t, int kv_head, u32 dst, u32 full, int rank) {
  constexpr int kRows = T::BlockK / T::Cluster;
  const int row = w.key_shift + (w.start + t * w.step) * T::BlockK + rank * kRows;
  arrive_expecting(full, T::KBytes);
  UNROLL for (int pane = 0; pane < T::Panes; ++pane) {
    const u32 to = dst + pane * T::KeyPane + rank * (kRows * 128);
    if constexpr (T::Cluster == 1) {
      copy_box(to, map, {pane * 64, row, kv_head, w.key_outer, w.wrap}, full);
    } else {
      copy_box_to_all(to, map, {pane * 64, row, kv_head, w.key_outer, w.wrap}, full, 3);
    }
  }
}

template <class T>
__device__ __forceinline__ void produce(const Params& p, const Places<T>& at, int rank) {
  Scheduler<T> scheduler(p, at, rank);
  Ring<T::QStages> q;
  Ring<T::Stages> k, v;
  const auto hand_over = [&](int index) {  // a tile's number lies in shared memory before its Q counts as full
    barrier_wait(at.q_empty(q.stage), q.parity ^ 1);
    store_word(at.tile(q.stage), index);
  };
  for (; scheduler.index < p.tiles; scheduler.next()) {
    scheduler.fetch();
    const Tile w = tile_at<T>(p, scheduler.index, rank);
    if (w.count < 0) continue;
    const int kv_head = w.head / p.group;
    // In the order in which the consumers need them: K of the first block, Q, then K of each block before V of the one before.
    for (int t = 0; t <= w.count; ++t) {
      if (t < w.count) {
        barrier_wait(at.k_empty(k.stage), k.parity ^ 1);
        load_keys<T>(p.k, w, t, kv_head, at.base + T::KOffset + k.stage * T::KBytes, at.k_full(k.stage), rank);
        k.next();
      }
      if (t == 0) {
        hand_over(scheduler.index);
        arrive_expecting(at.q_full(q.stage), T::QBytes);
        UNROLL for (int g = 0; g < T::Consumers; ++g) UNROLL for (int pane = 0; pane < T::Panes; ++pane)
          copy_box(at.base + q.stage * T::QBytes + (g * T::Panes + pane) * T::RowPane, p.q,
                   rows_at<T>(w, pane, w.row0 + g * 64), at.q_full(q.stage));
        q.next();
      } else {
        barrier_wait(at.v_empty(v.stage), v.parity ^ 1);
        load_keys<T>(p.v, w, t - 1, kv_head, at.base + T::VOffset + v.stage * T::KBytes, at.v_full(v.stage), rank);
        v.next();
      }
    }
  }
  hand_over(-1);
  arrive(at.q_full(q.stage));
}

// ---- The consumers: a warpgroup each.

// The shift of a row that has met no key: finite, so that no difference of two shifts is undefined.
constexpr float kNoKey = 1e30f;
// Exponents may grow to 2^kSlack before the output is rescaled: sums stay exact in fp32, and rescaling becomes rare.
constexpr float kSlack = 8.f;

// Numbers of the named barriers: 0 is __syncthreads.
constexpr int kGroupBarrier = 1, kTurnBarrier = 5;

// Lane l of warp w holds rows 16 w + l / 4 and 8 more, r = 0 and 1; of each 8 columns 2 (l % 4) and the next. Of scores and output
// element 4 n + 2 r + e is row r, column 8 n + 2 (l % 4) + e.
template <class T>
struct Rows {
  float out[T::HeadDim / 2];
  float scores[T::BlockK / 2];
  u32 probabilities[T::KeySteps][4];
  float shift[2];   // minus the exponent that is taken as 0, in base 2
  float sum[2];     // this lane's share of the row sum
  float factor[2];  // by which the output is behind

  __device__ __forceinline__ void clear() {
    UNROLL for (int i = 0; i < T::HeadDim / 2; ++i) out[i] = 0.f;
    UNROLL for (int r = 0; r < 2; ++r) shift[r] = kNoKey, sum[r] = 0.f;
  }
};

// 2^x for x <= 8 without the special-function unit: 2^x = 2^n 2^f, n the nearest integer, 2^f by a cubic of relative error 1.0e-4 whose
// constant is 1, so that from -127 on the result is exactly 0.
__device__ __forceinline__ float ex2_polynomial(float x) {
  constexpr float kRound = 12582912.f;  // 1.5 * 2^23: the sum's last bits are the integer
  const float n = fmaxf(x, -127.f) + kRound, f = fmaxf(x, -127.f) - (n - kRound);
  const float y = fmaf(fmaf(fmaf(0.05500895f, f, 0.24221101f), f, 0.69328293f), f, 1.f);
  return __int_as_float((__float_as_int(n) << 23) + __float_as_int(y));
}

template <class T>
__device__ __forceinline__ void mask_scores(Rows<T>& rows, const Params& p, const Tile& w, int row, int key0) {
  const int lane_key = key0 + 2 * static_cast<int>(threadIdx.x % 4);
  UNROLL for (int r = 0; r < 2; ++r) {
    int high = w.keys - 1, low = 0;
    const int diagonal = (row + 8 * r) / T::Pack + w.keys - w.rows;
    if constexpr (T::MaskOf != kNone) high = min(high, diagonal);
    if constexpr (T::MaskOf == kWindow) low = diagonal - p.window - lane_key;
    high -= lane_key;
    UNROLL for (int n = 0; n < T::BlockK / 8; ++n) UNROLL for (int e = 0; e < 2; ++e) {
      const int j = n * 8 + e;
      if (j > high || (T::MaskOf == kWindow && j < low)) rows.scores[4 * n + 2 * r + e] = -INFINITY;
    }
  }
}

// Follows the row maxima; true where a row of the warp grew past the slack: sums are rescaled then, and the output must be.
template <class T>
__device__ __forceinline__ bool raise(Rows<T>& rows, float scale2) {
  float shift[2];
  bool grew = false;
  UNROLL for (int r = 0; r < 2; ++r) {
    float x = rows.scores[2 * r], y = rows.scores[2 * r + 1];
    UNROLL for (int n = 1; n < T::BlockK / 8; ++n) x = fmaxf(x, rows.scores[4 * n + 2 * r]), y = fmaxf(y, rows.scores[4 * n + 2 * r + 1]);
    x = fmaxf(x, y);
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
    shift[r] = fminf(-x * scale2, rows.shift[r]);
    grew |= rows.shift[r] - shift[r] > kSlack;
  }
  grew = __any_sync(0xffffffffu, grew);
  if (grew) {
    UNROLL for (int r = 0; r < 2; ++r) {
      rows.factor[r] = ex2(shift[r] - rows.shift[r]);
      rows.shift[r] = shift[r];
      rows.sum[r] *= rows.factor[r];
    }
  }
  return grew;
}

template <class T>
__device__ __forceinline__ void rescale(Rows<T>& rows) {
  UNROLL for (int i = 0; i < T::HeadDim / 2; ++i) rows.out[i] *= rows.factor[i / 2 % 2];
}

// The i-th of a lane's 8 exponentials of 16 keys, added to the sums. The polynomial's share is spread over the eight.
template <class T>
__device__ __forceinline__ float exponential(Rows<T>& rows, int step, int i, float scale2) {
  const float x = fmaf(rows.scores[8 * step + i], scale2, rows.shift[i / 2 % 2]);
  const float y = (i + 1) * T::Poly / 8 > i * T::Poly / 8 ? ex2_polynomial(x) : ex2(x);
  rows.sum[i / 2 % 2] += y;
  return y;
}

// Rounds 16 keys' probabilities to the operand of P V: accumulators of 16 columns have the layout of an A fragment.
template <class T>
__device__ __forceinline__ void convert(Rows<T>& rows, int step, const float* x) {
  UNROLL for (int i = 0; i < 4; ++i) rows.probabilities[step][i] = pack<T::Bf16>(x[2 * i], x[2 * i + 1]);
}

template <class T>
__device__ __forceinline__ void exponentials(Rows<T>& rows, int step, float scale2) {
  float x[8];
  UNROLL for (int i = 0; i < 8; ++i) x[i] = exponential<T>(rows, step, i, scale2);
  convert<T>(rows, step, x);
}

template <class T>
__device__ __forceinline__ void start_scores(Rows<T>& rows, u64 q, u64 k) {
  UNROLL for (int d = 0; d < T::HeadDim / 16; ++d)
    Wgmma<T::BlockK>::template ss<T::Bf16>(rows.scores, q + (d / 4 * T::RowPane + d % 4 * 32) / 16, k + (d / 4 * T::KeyPane + d % 4 * 32) / 16,
                                           d > 0);
}

template <class T>
__device__ __forceinline__ void start_values(Rows<T>& rows, u64 v, int step) {
  Wgmma<T::HeadDim>::template rs<T::Bf16>(rows.out, rows.probabilities[step], v + step * (16 * 128 / 16), true);
}

// Divides by the row sums, writes the LSE, and leaves the output to the copy engine in the warpgroup's own rows of Q, which nobody
// needs any more.
template <class T>
__device__ __forceinline__ void finish(Rows<T>& rows, const Params& p, const Tile& w, u32 own_q, int row0, int group) {
  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 % 4 * 16;
  UNROLL for (int r = 0; r < 2; ++r) {
    float sum = rows.sum[r];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    rows.factor[r] = sum > 0.f ? 1.f / sum : 0.f;
    const int row = row0 + warp_row + 8 * r + lane / 4;
    if (p.lse != nullptr && lane % 4 == 0 && row < w.rows * T::Pack)
      p.lse[w.lse + static_cast<i64>(w.head * T::Pack + row % T::Pack) * p.lse_head + row / T::Pack] =
          sum > 0.f ? __logf(sum) - rows.shift[r] * 0.6931471805599453f : -INFINITY;
  }
  rescale<T>(rows);
  named_wait(kGroupBarrier + group, 128);  // all four warps have read their Q
  const int row = warp_row + lane % 16;
  UNROLL for (int n = 0; n < T::HeadDim / 16; ++n) {
    const float* x = rows.out + 8 * n;
    const int chunk = 2 * n + lane / 16;
    stmatrix4(own_q + chunk / 8 * T::RowPane + row * 128 + ((chunk % 8) ^ (row % 8)) * 16, pack<T::Bf16>(x[0], x[1]), pack<T::Bf16>(x[2], x[3]),
              pack<T::Bf16>(x[4], x[5]), pack<T::Bf16>(x[6], x[7]));
  }
  async_fence();
  named_wait(kGroupBarrier + group, 128);
  if (threadIdx.x % 128 == 0) {
    UNROLL for (int pane = 0; pane < T::Panes; ++pane)
      store_box(p.o, rows_at<T>(w, pane, row0), own_q + pane * T::RowPane);
    store_commit();
  }
}

template <class T>
__device__ __forceinline__ void consume(const Params& p, const Places<T>& at, int rank, int group) {
  Ring<T::QStages> q;
  Ring<T::Stages> k, v;
  Rows<T> rows;
  const int lane = threadIdx.x % 32;
  const auto release = [&](u32 barrier) {  // one lane a warp, in each CTA that the block was copied into
    if constexpr (T::Cluster == 1) {
      if (lane == 0) arrive(barrier);
    } else {
      if (lane < T::Cluster) arrive_in_cluster_relaxed(map_to(barrier, lane));
    }
  };
  const auto begin_turn = [&](Turns kind) {
    if (T::TurnsOf == kind) named_wait(kTurnBarrier + group, 256);
  };
  const auto end_turn = [&](Turns kind) {
    if (T::TurnsOf == kind) named_arrive(kTurnBarrier + (group + 1) % T::Consumers, 256);
  };
  const auto release_q = [&](int stage) {  // once the output that lies there is written
    if (threadIdx.x % 128 == 0) store_wait_read();
    if (lane == 0) arrive(at.q_empty(stage));
  };
  if (T::TurnsOf != kFree && group == T::Consumers - 1) named_arrive(kTurnBarrier, 256);
  int stored = -1;  // the Q stage that the copy engine may still be writing from
  for (;; q.next()) {
    barrier_wait(at.q_full(q.stage), q.parity);
    int index = 0;
    if (lane == 0) index = load_word(at.tile(q.stage));
    index = __shfl_sync(0xffffffffu, index, 0);
    if (index < 0) break;
    const Tile w = tile_at<T>(p, index, rank);
    const int row0 = w.row0 + 64 * group, row = row0 + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
    // Blocks that start between these keys keep every pair of this warpgroup.
    int whole_low = 0, whole_high = w.keys - T::BlockK;
    if constexpr (T::MaskOf != kNone) whole_high = min(whole_high, row0 / T::Pack + w.keys - w.rows + 1 - T::BlockK);
    if constexpr (T::MaskOf == kWindow) whole_low = (row0 + 63) / T::Pack + w.keys - w.rows - p.window;
    const u32 own_q = at.base + q.stage * T::QBytes + group * (T::Panes * T::RowPane);
    const u64 q_operand = wgmma_operand(own_q, 0);
    const u64 k_operand = wgmma_operand(at.base + T::KOffset, 0), v_operand = wgmma_operand(at.base + T::VOffset, T::KeyPane);
    const auto mask = [&](int t) {
      const int key0 = (w.start + t * w.step) * T::BlockK;
      if (key0 < whole_low || key0 > whole_high) mask_scores<T>(rows, p, w, row, key0);
    };
    const auto start_next_scores = [&] {
      start_scores<T>(rows, q_operand, k_operand + k.stage * (T::KBytes / 16));
      wgmma_commit();
    };
    const auto scores_done = [&] {
      pin(rows.scores);
      release(at.k_empty(k.stage)), k.next();
    };
    const auto start_all_values = [&] {
      UNROLL for (int s = 0; s < T::KeySteps; ++s) start_values<T>(rows, v_operand + v.stage * (T::KBytes / 16), s);
      wgmma_commit();
    };
    const auto values_done = [&] {
      pin(rows.out);
      release(at.v_empty(v.stage)), v.next();
    };
    // Softmax of a block; P V is started where slices are interleaved.
    const auto softmax = [&](int t) {
      begin_turn(kExponentials);
      if constexpr (T::PipelineOf == kEager) {
        const float sum[2] = {rows.sum[0], rows.sum[1]};
        mask(t);
        UNROLL for (int s = 0; s < T::KeySteps; ++s) exponentials<T>(rows, s, p.scale2);
        const float eager_sum[2] = {rows.sum[0], rows.sum[1]};
        rows.sum[0] = sum[0], rows.sum[1] = sum[1];
        if (raise<T>(rows, p.scale2)) {
          rescale<T>(rows);
          UNROLL for (int s = 0; s < T::KeySteps; ++s) exponentials<T>(rows, s, p.scale2);
        } else {
          rows.sum[0] = eager_sum[0], rows.sum[1] = eager_sum[1];
        }
        end_turn(kExponentials);
        return;
      }
      mask(t);
      if (raise<T>(rows, p.scale2)) rescale<T>(rows);
      if constexpr (T::PipelineOf == kInterleaved) barrier_wait(at.v_full(v.stage), v.parity);
      UNROLL for (int s = 0; s < T::KeySteps; ++s) {
        exponentials<T>(rows, s, p.scale2);
        if constexpr (T::PipelineOf == kInterleaved) {
          wgmma_fence();
          start_values<T>(rows, v_operand + v.stage * (T::KBytes / 16), s);
        }
      }
      if constexpr (T::PipelineOf == kInterleaved) wgmma_commit();
      end_turn(kExponentials);
    };
    rows.clear();
    if (w.count > 0) {
      barrier_wait(at.k_full(k.stage), k.parity);
      wgmma_fence();
      start_next_scores();
      if (stored >= 0) release_q(stored), stored = -1;
      wgmma_wait<0>();
      scores_done();
      if constexpr (T::PipelineOf == kOverlapped) {
        softmax(0);
        barrier_wait(at.v_full(v.stage), v.parity);
      }
      for (int t = 1; t < w.count; ++t) {
        if constexpr (T::PipelineOf == kOverlapped) {
          barrier_wait(at.k_full(k.stage), k.parity);
          begin_turn(kProducts);
          wgmma_fence();
          start_next_scores();
          start_all_values();
          end_turn(kProducts);
          wgmma_wait<1>();
          scores_done();
          begin_turn(kExponentials);
          mask(t);
          const bool grew = raise<T>(rows, p.scale2);
          UNROLL for (int i = 0; i < T::BlockK / 2; ++i) rows.scores[i] = exponential<T>(rows, i / 8, i % 8, p.scale2);
          end_turn(kExponentials);
          // The next V is waited for here, since no instruction crosses that loop: wgmma_wait alone would be moved before the exponentials.
          pin(rows.scores);
          auto next_v = v;
          next_v.next();
          barrier_wait(at.v_full(next_v.stage), next_v.parity);
          wgmma_wait<0>();
          values_done();
          UNROLL for (int s = 0; s < T::KeySteps; ++s) convert<T>(rows, s, rows.scores + 8 * s);
          if (grew) rescale<T>(rows);
        } else {
          softmax(t - 1);
          barrier_wait(at.k_full(k.stage), k.parity);
          begin_turn(kProducts);
          if constexpr (T::PipelineOf != kInterleaved) {
            barrier_wait(at.v_full(v.stage), v.parity);
            wgmma_fence();
            start_all_values();
          }
          start_next_scores();
          end_turn(kProducts);
          wgmma_wait<1>();
          values_done();
          wgmma_wait<0>();
          scores_done();
        }
      }
      if constexpr (T::PipelineOf != kOverlapped) softmax(w.count - 1);
      if constexpr (T::PipelineOf == kSequential || T::PipelineOf == kEager) barrier_wait(at.v_full(v.stage), v.parity);
      if constexpr (T::PipelineOf != kInterleaved) {
        wgmma_fence();
        start_all_values();
      }
      wgmma_wait<0>();
      values_done();
    } else if (stored >= 0) {
      release_q(stored), stored = -1;
    }
    finish<T>(rows, p, w, own_q, row0, group);
    stored = q.stage;
    if (T::QStages == 1) release_q(stored), stored = -1;
  }
  if (threadIdx.x % 128 == 0) store_wait_read();
  if (T::TurnsOf != kFree && group == 0) named_wait(kTurnBarrier, 256);
}

template <class T>
__device__ __forceinline__ void forward(const Params& p) {
  extern __shared__ __align__(1024) char shared[];
  const Places<T> at{shared_address(shared)};
  const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  const int rank = T::Cluster == 1 ? 0 : cluster_rank();
  if (threadIdx.x == 0) {
    UNROLL for (int i = 0; i < T::QStages; ++i) barrier_init(at.q_full(i), 1), barrier_init(at.q_empty(i), 4 * T::Consumers);
    UNROLL for (int i = 0; i < T::Stages; ++i) {
      barrier_init(at.k_full(i), 1), barrier_init(at.k_empty(i), 4 * T::Consumers * T::Cluster);
      barrier_init(at.v_full(i), 1), barrier_init(at.v_empty(i), 4 * T::Consumers * T::Cluster);
    }
    barrier_init(at.next_full(), 1), barrier_init(at.next_empty(), 1);
    barrier_init_fence();
    prefetch_map(p.q), prefetch_map(p.k), prefetch_map(p.v), prefetch_map(p.o);
  }
  if constexpr (T::Cluster == 1) __syncthreads();
  if constexpr (T::Cluster == 2) cluster_wait();
  if (warpgroup == 0) {
    give_registers<T::ProducerRegisters>();
    if (threadIdx.x / 32 == 0 && elected()) produce<T>(p, at, rank);
  } else {
    take_registers<T::ConsumerRegisters>();
    consume<T>(p, at, rank, warpgroup - 1);
  }
  if constexpr (T::Cluster == 2) cluster_wait();  // a CTA stays while the other may signal it
}

}  // namespace flash90
