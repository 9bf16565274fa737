// FlashAttention forward on tensor cores: the tile arithmetic, the schedule and the kernel. flash_fwd.cu builds it.
//
// One CTA holds block_q query rows and walks the key blocks that its mask leaves. Each warp owns block_q / warps whole rows, so row
// statistics need only the four lanes that share a row. K and V tiles come in by cp.async, `stages` deep.
#pragma once

#include "flash.cuh"

namespace flash {

enum Direction { kAscending = 0, kDescending = 1, kAlternating = 2 };

// Strides in elements; the innermost one is 1. Mirrored field by field in iosim/evidence/cuda/launch.py.
struct FwdParams {
  const void* q;
  const void* k;
  const void* v;
  void* o;
  float* lse;          // [batch, heads, seq_q], natural logarithm; -inf where no key is kept
  float* o_partial;    // [splits, batch, heads, seq_q, head_dim], split-KV only
  float* lse_partial;  // [splits, batch, heads, seq_q], split-KV only
  i64 q_row, q_head, q_batch;
  i64 k_row, k_head, k_batch;
  i64 v_row, v_head, v_batch;
  i64 o_row, o_head, o_batch;
  int batch, heads, group;  // group: query heads per key/value head
  int seq_q, seq_k;
  int window;       // keep 0 <= i + (seq_k - seq_q) - j <= window
  int section;      // heads that share a section: 1 is query-fastest, batch * heads is head-fastest
  int heavy_first;  // query blocks in descending order
  int direction;
  int splits;
  int tiles;  // query blocks * splits * batch * heads
  float scale2;  // softmax scale * log2(e)
};

template <int HeadDim_, int BlockQ_, int BlockK_, int Warps_, int Stages_, int MaskKind, bool Bf16_, bool Persistent_, bool Split_,
          bool QInRegisters_, int MinCtas_>
struct FwdTraits {
  static constexpr int HeadDim = HeadDim_, BlockQ = BlockQ_, BlockK = BlockK_, Warps = Warps_, Stages = Stages_, MaskOf = MaskKind;
  static constexpr bool Bf16 = Bf16_, Persistent = Persistent_, Split = Split_, QInRegisters = QInRegisters_;
  static constexpr int MinCtas = MinCtas_;
  static constexpr int Threads = Warps * 32;
  static constexpr int WarpRows = BlockQ / Warps;
  static constexpr int RowTiles = WarpRows / 16;  // m16 tiles a warp
  static constexpr int KeyTiles = BlockK / 8;     // n8 tiles of scores
  static constexpr int DimTiles = HeadDim / 8;    // n8 tiles of output
  static constexpr int DimSteps = HeadDim / 16;   // k16 steps of Q K^T
  static constexpr int KeySteps = BlockK / 16;    // k16 steps of P V
  using Pane = Tile<HeadDim>;  // rows of Q, K or V in shared memory
  static constexpr int QBytes = BlockQ * HeadDim * 2;
  static constexpr int KBytes = BlockK * HeadDim * 2;
  static constexpr int SharedBytes = QBytes + 2 * Stages * KBytes;
  // fp32 registers a thread that live through a key block: output, scores, and Q where it stays.
  static constexpr int LiveRegisters = RowTiles * (DimTiles * 4 + KeyTiles * 4 + (QInRegisters ? DimSteps * 4 : 0));

  static_assert(HeadDim == 64 || HeadDim == 96 || HeadDim == 128 || HeadDim == 256, "head_dim must be 64, 96, 128 or 256");
  static_assert(Warps == 2 || Warps == 4 || Warps == 8, "2, 4 or 8 warps");
  static_assert(BlockQ % (16 * Warps) == 0, "block_q must be a multiple of 16 * warps");
  static_assert(BlockK % 16 == 0 && BlockK >= 16, "block_k must be a multiple of 16");
  static_assert(Stages >= 1 && Stages <= 4, "1 to 4 stages");
  static_assert(KBytes % 128 == 0 && QBytes % 128 == 0, "tiles must start on 128 bytes");
  static_assert(SharedBytes <= 227 * 1024, "no GPU has that much shared memory");
};

struct Work {
  int query_block, split, head, batch;
};

// The i-th tile of the list: inside a section of heads the head is fastest, then the query block, then the split.
__device__ __forceinline__ Work work_of(const FwdParams& p, int index, int query_blocks) {
  const int column = query_blocks * p.splits, heads = p.batch * p.heads;
  const int section = index / (column * p.section), first = section * p.section;
  const int width = min(p.section, heads - first), rest = index - section * column * p.section;
  const int u = rest / width, head = first + rest % width;
  Work w;
  w.split = u / query_blocks;
  w.query_block = u % query_blocks;
  if (p.heavy_first) w.query_block = query_blocks - 1 - w.query_block;
  w.batch = head / p.heads;
  w.head = head % p.heads;
  return w;
}

// What the key loop of a tile needs and every thread shares. It waits in shared memory, because 255 registers have no room for it
// beside 128 of output and 64 of scores: each use reads it anew.
struct Walk {
  const char* k;
  const char* v;
  int start, step, count;  // the t-th of `count` key blocks is start + t * step
  int row0;
  int split, head, batch;
  int index;  // of this tile in the list
};

// Key blocks [first, last) that a query block needs.
template <class T>
__device__ __forceinline__ int2 key_blocks(const FwdParams& p, int row0) {
  int first = 0, last = (p.seq_k + T::BlockK - 1) / T::BlockK;
  if constexpr (T::MaskOf != kNone) {
    const int offset = p.seq_k - p.seq_q, row1 = min(row0 + T::BlockQ, p.seq_q) - 1;
    last = min(last, max(row1 + offset + T::BlockK, 0) / T::BlockK);
    if constexpr (T::MaskOf == kWindow) first = max(row0 + offset - p.window, 0) / T::BlockK;
  }
  return make_int2(first, max(first, last));
}

// The shift of a row that has met no key: finite, so that no difference of two shifts is undefined.
constexpr float kNoKey = 1e30f;

// The state of one warp's rows. Lane l holds rows l / 4 and l / 4 + 8 of each m16 tile, columns 2 (l % 4) and the next of each n8.
template <class T>
struct Rows {
  float out[T::RowTiles][T::DimTiles][4];
  float shift[T::RowTiles][2];  // minus the exponent that is taken as 0, in base 2
  float sum[T::RowTiles][2];    // this lane's share of the row sum

  __device__ __forceinline__ void clear() {
    UNROLL for (int m = 0; m < T::RowTiles; ++m) {
      UNROLL for (int n = 0; n < T::DimTiles; ++n) UNROLL for (int e = 0; e < 4; ++e) out[m][n][e] = 0.f;
      UNROLL for (int r = 0; r < 2; ++r) shift[m][r] = kNoKey, sum[m][r] = 0.f;
    }
  }
};

// Exponents may grow to 2^kSlack before the output is rescaled: sums stay exact in fp32, and rescaling becomes rare.
constexpr float kSlack = 8.f;

template <class T>
__device__ __forceinline__ void mask_scores(float (&s)[T::RowTiles][T::KeyTiles][4], const FwdParams& p, int row0, int key0) {
  const u32 thread = thread_index();
  const int row = row0 + thread / 32 * T::WarpRows + thread % 32 / 4, key = key0 + 2 * (thread % 4);
  const int offset = p.seq_k - p.seq_q;
  UNROLL for (int m = 0; m < T::RowTiles; ++m) UNROLL for (int r = 0; r < 2; ++r) {
    int high = p.seq_k - 1, low = 0;
    if constexpr (T::MaskOf != kNone) high = min(high, row + m * 16 + r * 8 + offset);
    if constexpr (T::MaskOf == kWindow) low = row + m * 16 + r * 8 + offset - p.window;
    UNROLL for (int n = 0; n < T::KeyTiles; ++n) UNROLL for (int e = 0; e < 2; ++e) {
      const int j = key + n * 8 + e;
      if (j > high || (T::MaskOf == kWindow && j < low)) s[m][n][2 * r + e] = -INFINITY;
    }
  }
}

// Follows the row maxima and, where one grew past the slack, rescales sums and output.
template <class T>
__device__ __forceinline__ void raise(Rows<T>& rows, const float (&s)[T::RowTiles][T::KeyTiles][4], const float& scale2) {
  float shift[T::RowTiles][2];
  bool grew = false;
  UNROLL for (int m = 0; m < T::RowTiles; ++m) UNROLL for (int r = 0; r < 2; ++r) {
    float x = fmaxf(s[m][0][2 * r], s[m][0][2 * r + 1]);
    UNROLL for (int n = 1; n < T::KeyTiles; ++n) x = fmaxf(x, fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
    shift[m][r] = fminf(-x * scale2, rows.shift[m][r]);
    grew |= rows.shift[m][r] - shift[m][r] > kSlack;
  }
  if (__any_sync(0xffffffffu, grew)) {
    UNROLL for (int m = 0; m < T::RowTiles; ++m) UNROLL for (int r = 0; r < 2; ++r) {
      const float factor = ex2(shift[m][r] - rows.shift[m][r]);
      rows.shift[m][r] = shift[m][r];
      rows.sum[m][r] *= factor;
      UNROLL for (int n = 0; n < T::DimTiles; ++n) UNROLL for (int e = 0; e < 2; ++e) rows.out[m][n][2 * r + e] *= factor;
    }
  }
}

// s = Q K^T for this warp's rows and one key block.
template <class T>
__device__ __forceinline__ void scores(float (&s)[T::RowTiles][T::KeyTiles][4], const u32 (&q_regs)[T::RowTiles][T::QInRegisters ? T::DimSteps : 1][4],
                                       u32 q_tile, u32 k_tile) {
  const u32 q_lane = q_tile + lane_a<typename T::Pane>() + thread_index() / 32 * (T::WarpRows * T::Pane::kRowBytes);
  const u32 k_lane = k_tile + lane_b<typename T::Pane>();
  UNROLL for (int m = 0; m < T::RowTiles; ++m)
    UNROLL for (int n = 0; n < T::KeyTiles; ++n) UNROLL for (int e = 0; e < 4; ++e) s[m][n][e] = 0.f;
  UNROLL for (int d = 0; d < T::DimSteps; ++d) {
    u32 q[T::RowTiles][4];
    UNROLL for (int m = 0; m < T::RowTiles; ++m) {
      if constexpr (T::QInRegisters) {
        UNROLL for (int e = 0; e < 4; ++e) q[m][e] = q_regs[m][d][e];
      } else {
        ldmatrix4(q[m], T::Pane::shift(q_lane, d) + m * 16 * T::Pane::kRowBytes);
      }
    }
    const u32 k_step = T::Pane::shift(k_lane, d);
    UNROLL for (int n = 0; n < T::KeyTiles / 2; ++n) {
      u32 k[4];
      ldmatrix4(k, k_step + n * 16 * T::Pane::kRowBytes);
      UNROLL for (int m = 0; m < T::RowTiles; ++m) {
        mma<T::Bf16>(s[m][2 * n], q[m], k[0], k[1]);
        mma<T::Bf16>(s[m][2 * n + 1], q[m], k[2], k[3]);
      }
    }
  }
}

// out += exp2(s * scale2 + shift) V. Exponentials are taken 16 keys at a time, between products.
template <class T>
__device__ __forceinline__ void values(Rows<T>& rows, const float (&s)[T::RowTiles][T::KeyTiles][4], u32 v_tile, const float& scale2) {
  const u32 v_lane = v_tile + lane_a<typename T::Pane>();
  UNROLL for (int k = 0; k < T::KeySteps; ++k) {
    u32 p[T::RowTiles][4];
    UNROLL for (int m = 0; m < T::RowTiles; ++m) UNROLL for (int h = 0; h < 2; ++h) UNROLL for (int r = 0; r < 2; ++r) {
      const float x = ex2(fmaf(s[m][2 * k + h][2 * r], scale2, rows.shift[m][r]));
      const float y = ex2(fmaf(s[m][2 * k + h][2 * r + 1], scale2, rows.shift[m][r]));
      rows.sum[m][r] += x + y;
      p[m][2 * h + r] = pack<T::Bf16>(x, y);
    }
    UNROLL for (int n = 0; n < T::DimTiles / 2; ++n) {
      u32 v[4];
      ldmatrix4_trans(v, T::Pane::shift(v_lane, n) + k * 16 * T::Pane::kRowBytes);
      UNROLL for (int m = 0; m < T::RowTiles; ++m) {
        mma<T::Bf16>(rows.out[m][2 * n], p[m], v[0], v[1]);
        mma<T::Bf16>(rows.out[m][2 * n + 1], p[m], v[2], v[3]);
      }
    }
  }
}

// Divides by the row sums and writes the output (through this warp's own rows of the Q tile, in whole sectors) and the LSE.
template <class T>
__device__ __forceinline__ void finish(Rows<T>& rows, const FwdParams& p, const volatile Walk& walk, char* shared_q) {
  const Work w{0, walk.split, walk.head, walk.batch};
  const int row0 = walk.row0;
  const u32 lane = thread_index() % 32, warp_row = thread_index() / 32 * T::WarpRows;
  const i64 head = static_cast<i64>(w.batch) * p.heads + w.head;
  const i64 part = (static_cast<i64>(w.split) * p.batch * p.heads + head) * p.seq_q;
  float* lse = T::Split ? p.lse_partial + part : p.lse + head * p.seq_q;
  UNROLL for (int m = 0; m < T::RowTiles; ++m) UNROLL for (int r = 0; r < 2; ++r) {
    float sum = rows.sum[m][r];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const float inverse = sum > 0.f ? 1.f / sum : 0.f;
    UNROLL for (int n = 0; n < T::DimTiles; ++n) UNROLL for (int e = 0; e < 2; ++e) rows.out[m][n][2 * r + e] *= inverse;
    const int i = row0 + static_cast<int>(warp_row + m * 16 + r * 8 + lane / 4);
    if (lane % 4 == 0 && i < p.seq_q) lse[i] = sum > 0.f ? __logf(sum) - rows.shift[m][r] * 0.6931471805599453f : -INFINITY;
    if constexpr (T::Split) {
      if (i < p.seq_q) {
        float* o = p.o_partial + (part + i) * T::HeadDim + 2 * (lane % 4);
        UNROLL for (int n = 0; n < T::DimTiles; ++n)
          *reinterpret_cast<float2*>(o + n * 8) = make_float2(rows.out[m][n][2 * r], rows.out[m][n][2 * r + 1]);
      }
    }
  }
  if constexpr (!T::Split) {
    __syncwarp();
    UNROLL for (int m = 0; m < T::RowTiles; ++m) UNROLL for (int r = 0; r < 2; ++r) UNROLL for (int n = 0; n < T::DimTiles; ++n) {
      const u32 at = T::Pane::at(warp_row + m * 16 + r * 8 + lane / 4, n) + 4 * (lane % 4);
      *reinterpret_cast<u32*>(shared_q + at) = pack<T::Bf16>(rows.out[m][n][2 * r], rows.out[m][n][2 * r + 1]);
    }
    __syncwarp();
    char* o = static_cast<char*>(p.o) + 2 * (w.batch * p.o_batch + w.head * p.o_head + static_cast<i64>(row0 + warp_row) * p.o_row);
    UNROLL for (int i = 0; i < T::WarpRows * T::Pane::kChunks / 32; ++i) {
      const u32 index = i * 32 + lane, row = index / T::Pane::kChunks, chunk = index % T::Pane::kChunks;
      if (row0 + static_cast<int>(warp_row + row) < p.seq_q)
        *reinterpret_cast<uint4*>(o + row * (2 * p.o_row) + chunk * 16) =
            *reinterpret_cast<const uint4*>(shared_q + T::Pane::at(warp_row + row, chunk));
    }
  }
}

template <class T>
__device__ __forceinline__ void load_keys(const FwdParams& p, const volatile Walk& walk, u32 tiles, int t) {
  const int block = walk.start + t * walk.step;
  T::Pane::template load<T::BlockK, T::Threads>(tiles + (t % T::Stages) * T::KBytes, walk.k + block * (T::BlockK * 2) * p.k_row,
                                                2 * p.k_row, p.seq_k - block * T::BlockK, thread_index());
}

template <class T>
__device__ __forceinline__ void load_values(const FwdParams& p, const volatile Walk& walk, u32 tiles, int t) {
  const int block = walk.start + t * walk.step;
  T::Pane::template load<T::BlockK, T::Threads>(tiles + (t % T::Stages) * T::KBytes, walk.v + block * (T::BlockK * 2) * p.v_row,
                                                2 * p.v_row, p.seq_k - block * T::BlockK, thread_index());
}

// Writes the walk of a tile; a barrier must follow.
template <class T>
__device__ __forceinline__ void plan(const FwdParams& p, const Work& w, volatile Walk& walk) {
  const int row0 = w.query_block * T::BlockQ, kv_head = w.head / p.group;
  int2 blocks = key_blocks<T>(p, row0);
  if constexpr (T::Split) {
    const int each = (blocks.y - blocks.x + p.splits - 1) / p.splits;
    blocks.x = min(blocks.x + w.split * each, blocks.y);
    blocks.y = min(blocks.x + each, blocks.y);
  }
  const bool down = p.direction == kDescending || (p.direction == kAlternating && (w.query_block & 1));
  if (threadIdx.x == 0) {
    walk.k = static_cast<const char*>(p.k) + 2 * (w.batch * p.k_batch + kv_head * p.k_head);
    walk.v = static_cast<const char*>(p.v) + 2 * (w.batch * p.v_batch + kv_head * p.v_head);
    walk.start = down ? blocks.y - 1 : blocks.x;
    walk.step = down ? -1 : 1;
    walk.count = blocks.y - blocks.x;
    walk.row0 = row0;
    walk.split = w.split;
    walk.head = w.head;
    walk.batch = w.batch;
  }
}

// What a warp has to do with a key block. A block that the mask takes whole from the warp's rows costs it only the barriers.
struct Need {
  bool any, masked;
};
template <class T>
__device__ __forceinline__ Need need(const FwdParams& p, int row0, int key0) {
  Need n{true, key0 + T::BlockK > p.seq_k};
  if constexpr (T::MaskOf != kNone) {
    const int first = row0 + static_cast<int>(thread_index() / 32 * T::WarpRows) + p.seq_k - p.seq_q;  // the last key of the warp's first row
    n.any = key0 < first + T::WarpRows;
    n.masked |= key0 + T::BlockK - 1 > first;
    if constexpr (T::MaskOf == kWindow) {
      n.any &= key0 + T::BlockK - 1 >= first - p.window;
      n.masked |= key0 < first + T::WarpRows - 1 - p.window;
    }
  }
  return n;
}

template <class T>
__device__ __forceinline__ void forward_tile(const FwdParams& p, const Work& w, volatile Walk& walk, char* shared) {
  const u32 base = shared_address(shared), k_base = base + T::QBytes, v_base = k_base + T::Stages * T::KBytes;
  plan<T>(p, w, walk);
  const int row0 = w.query_block * T::BlockQ;
  const char* q = static_cast<const char*>(p.q) + 2 * (w.batch * p.q_batch + w.head * p.q_head + row0 * p.q_row);
  T::Pane::template load<T::BlockQ, T::Threads>(base, q, 2 * p.q_row, p.seq_q - row0, thread_index());
  if constexpr (T::QInRegisters) commit();
  __syncthreads();
  if constexpr (T::Stages == 1) {
    if (walk.count > 0) load_keys<T>(p, walk, k_base, 0);
    commit();
  } else {
    UNROLL for (int t = 0; t < T::Stages - 1; ++t) {
      if (t < walk.count) load_keys<T>(p, walk, k_base, t), load_values<T>(p, walk, v_base, t);
      commit();
    }
  }
  u32 q_regs[T::RowTiles][T::QInRegisters ? T::DimSteps : 1][4];
  if constexpr (T::QInRegisters) {
    wait<(T::Stages == 1 ? 1 : T::Stages - 1)>();
    __syncthreads();
    const u32 q_lane = base + lane_a<typename T::Pane>() + thread_index() / 32 * (T::WarpRows * T::Pane::kRowBytes);
    UNROLL for (int m = 0; m < T::RowTiles; ++m) UNROLL for (int d = 0; d < T::DimSteps; ++d)
      ldmatrix4(q_regs[m][d], T::Pane::shift(q_lane, d) + m * 16 * T::Pane::kRowBytes);
  }

  Rows<T> rows;
  rows.clear();
  float s[T::RowTiles][T::KeyTiles][4];
  _Pragma("unroll 1") for (int t = 0; t < walk.count; ++t) {
    const u32 stage = (t % T::Stages) * T::KBytes;
    const int key0 = (walk.start + t * walk.step) * T::BlockK;
    const Need n = need<T>(p, walk.row0, key0);
    wait<(T::Stages == 1 ? 0 : T::Stages - 2)>();
    __syncthreads();
    if constexpr (T::Stages == 1) {
      load_values<T>(p, walk, v_base, t);
      commit();
      if (n.any) scores<T>(s, q_regs, base, k_base);
      wait<0>();
      __syncthreads();
      if (t + 1 < walk.count) load_keys<T>(p, walk, k_base, t + 1);
      commit();
    } else {
      const int next = t + T::Stages - 1;
      if (next < walk.count) load_keys<T>(p, walk, k_base, next), load_values<T>(p, walk, v_base, next);
      commit();
      if (n.any) scores<T>(s, q_regs, base, k_base + stage);
    }
    if (n.any) {
      if (n.masked) mask_scores<T>(s, p, walk.row0, key0);
      raise<T>(rows, s, p.scale2);
      values<T>(rows, s, v_base + stage, p.scale2);
    }
  }
  wait<0>();
  if (walk.count == 0) __syncthreads();
  finish<T>(rows, p, walk, shared);
}

template <class T>
__device__ __forceinline__ void forward(const FwdParams& p) {
  extern __shared__ __align__(128) char shared[];
  __shared__ volatile Walk walk;
  const int query_blocks = (p.seq_q + T::BlockQ - 1) / T::BlockQ;
  if constexpr (!T::Persistent) {
    forward_tile<T>(p, work_of(p, blockIdx.x, query_blocks), walk, shared);
  } else {
    if (threadIdx.x == 0) walk.index = blockIdx.x;
    __syncthreads();
    while (walk.index < p.tiles) {
      const Work w = work_of(p, walk.index, query_blocks);
      __syncthreads();
      forward_tile<T>(p, w, walk, shared);
      if (threadIdx.x == 0) walk.index += gridDim.x;
      __syncthreads();
    }
  }
}

// One warp a row: O = sum_i exp(LSE_i - LSE) O_i over the splits, LSE their log-sum-exp.
template <int HeadDim, bool Bf16>
__device__ __forceinline__ void combine(const FwdParams& p) {
  const int rows = p.batch * p.heads * p.seq_q;
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  float top = -INFINITY, sum = 0.f;
  for (int i = 0; i < p.splits; ++i) top = fmaxf(top, p.lse_partial[static_cast<i64>(i) * rows + row]);
  const float origin = top == -INFINITY ? 0.f : top;
  float2 out[HeadDim / 64 + 1] = {};
  for (int i = 0; i < p.splits; ++i) {
    const i64 at = static_cast<i64>(i) * rows + row;
    const float weight = ex2((p.lse_partial[at] - origin) * 1.4426950408889634f);
    sum += weight;
    UNROLL for (int n = 0; n < (HeadDim + 63) / 64; ++n) {
      const int column = n * 64 + lane * 2;
      if (column < HeadDim) {
        const float2 x = *reinterpret_cast<const float2*>(p.o_partial + at * HeadDim + column);
        out[n].x += weight * x.x;
        out[n].y += weight * x.y;
      }
    }
  }
  const float inverse = sum > 0.f ? 1.f / sum : 0.f;
  const int head = row / p.seq_q, i = row % p.seq_q;
  char* o = static_cast<char*>(p.o) + 2 * ((head / p.heads) * p.o_batch + (head % p.heads) * p.o_head + i * p.o_row);
  UNROLL for (int n = 0; n < (HeadDim + 63) / 64; ++n) {
    const int column = n * 64 + lane * 2;
    if (column < HeadDim) *reinterpret_cast<u32*>(o + 2 * column) = pack<Bf16>(out[n].x * inverse, out[n].y * inverse);
  }
  if (lane == 0) p.lse[row] = sum > 0.f ? origin + __logf(sum) : -INFINITY;
}

}  // namespace flash
