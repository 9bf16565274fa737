// FlashAttention backward on tensor cores: tile arithmetic and kernels. flash_bwd.cu builds them.
//
// Every warp owns 16 rows of its CTA's tile. `flash_bwd` owns keys: it holds K and V, walks the query blocks, and computes transposed
// scores, so that P^T and dS^T leave the products in the registers that the next products take them from; only dQ, which sums over the
// keys of all warps, sends dS through shared memory. The deterministic dQ kernel owns queries and walks the key blocks instead.
#pragma once

#include "flash.cuh"

namespace flash {

// All tensors contiguous: [batch, heads or kv_heads, seq, head_dim]. Mirrored in iosim/evidence/cuda/launch.py.
struct BwdParams {
  const void* q;
  const void* k;
  const void* v;
  const void* o;
  const void* d_o;
  const float* lse;
  float2* rows;   // [batch, heads, seq_q]: LSE in base 2 (+inf for a row without keys) and rowsum(dO * O)
  float* dq_sum;  // zeroed before the call; unused where deterministic
  void* dq;
  void* dk;
  void* dv;
  int batch, heads, group, seq_q, seq_k;
  int window;  // keep 0 <= i + (seq_k - seq_q) - j <= window
  float scale;
  float scale2;  // scale * log2(e)
};

constexpr float kLog2E = 1.4426950408889634f;

template <int HeadDim_, int BlockQ_, int BlockK_, int Warps_, int MaskKind, bool Bf16_, bool Deterministic_, int MinCtas_>
struct BwdTraits {
  static constexpr int HeadDim = HeadDim_, BlockQ = BlockQ_, BlockK = BlockK_, Warps = Warps_, MaskOf = MaskKind, MinCtas = MinCtas_;
  static constexpr bool Bf16 = Bf16_, Deterministic = Deterministic_;
  static constexpr int Threads = Warps * 32;
  static constexpr int DimTiles = HeadDim / 8, DimSteps = HeadDim / 16;
  static constexpr int WalkTiles = BlockQ / 8, WalkSteps = BlockQ / 16;  // of the walked side: n8 tiles of scores, k16 steps
  static constexpr int RowWarps = BlockQ / 16;                           // dQ: warps along the queries,
  static constexpr int DimWarps = Warps / RowWarps;                      //     and along head_dim
  static constexpr int DqTiles = DimTiles / DimWarps;                    // n8 tiles of dQ a warp
  using Pane = Tile<HeadDim>;                                            // rows of Q, K, V or dO
  using Scores = Tile<BlockQ>;                                           // dS^T, one row a key
  static constexpr int OwnBytes = BlockK * HeadDim * 2, WalkBytes = BlockQ * HeadDim * 2;
  static constexpr int ScoreBytes = BlockK * BlockQ * 2, RowBytes = BlockQ * 8;
  static constexpr int SharedBytes = 2 * OwnBytes + 4 * WalkBytes + ScoreBytes + 2 * RowBytes;

  static_assert(HeadDim == 64 || HeadDim == 128, "head_dim must be 64 or 128");
  static_assert(BlockK == 16 * Warps, "a warp owns 16 keys");
  static_assert(BlockQ % 32 == 0 && Warps % RowWarps == 0, "dQ must split evenly over the warps");
  static_assert(DqTiles % 2 == 0 && (DqTiles & (DqTiles - 1)) == 0, "a warp's part of dQ must be a power of two of n8 pairs");
  static_assert(SharedBytes <= 227 * 1024, "no GPU has that much shared memory");
};

// 8 bytes from global to shared memory; zeros when `valid` is false.
__device__ __forceinline__ void copy8(u32 dst, const void* src, bool valid) {
  const int bytes = valid ? 8 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;\n" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}

__device__ __forceinline__ void load_shared4(float2& a, float2& b, u32 address) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n" : "=f"(a.x), "=f"(a.y), "=f"(b.x), "=f"(b.y) : "r"(address) : "memory");
}

__device__ __forceinline__ void store_shared(u32 address, u32 value) {
  asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(address), "r"(value) : "memory");
}

// c (16 x walked rows) = own (16 x head_dim, at this warp's rows) * walked^T.
template <class T>
__device__ __forceinline__ void multiply_own(float (&c)[T::WalkTiles][4], u32 own, u32 walked) {
  using P = typename T::Pane;
  const u32 a_lane = own + lane_a<P>() + thread_index() / 32 * (16 * P::kRowBytes), b_lane = walked + lane_b<P>();
  UNROLL for (int n = 0; n < T::WalkTiles; ++n) UNROLL for (int e = 0; e < 4; ++e) c[n][e] = 0.f;
  UNROLL for (int d = 0; d < T::DimSteps; ++d) {
    u32 a[4];
    ldmatrix4(a, P::shift(a_lane, d));
    const u32 b_step = P::shift(b_lane, d);
    UNROLL for (int n = 0; n < T::WalkTiles / 2; ++n) {
      u32 b[4];
      ldmatrix4(b, b_step + n * 16 * P::kRowBytes);
      mma<T::Bf16>(c[2 * n], a, b[0], b[1]);
      mma<T::Bf16>(c[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// c (16 x head_dim) += a (16 x walked rows, packed) * walked.
template <class T>
__device__ __forceinline__ void multiply_walked(float (&c)[T::DimTiles][4], const u32 (&a)[T::WalkSteps][4], u32 walked) {
  using P = typename T::Pane;
  const u32 b_lane = walked + lane_a<P>();
  UNROLL for (int k = 0; k < T::WalkSteps; ++k) UNROLL for (int n = 0; n < T::DimTiles / 2; ++n) {
    u32 b[4];
    ldmatrix4_trans(b, P::shift(b_lane, n) + k * 16 * P::kRowBytes);
    mma<T::Bf16>(c[2 * n], a[k], b[0], b[1]);
    mma<T::Bf16>(c[2 * n + 1], a[k], b[2], b[3]);
  }
}

template <class T>
__device__ __forceinline__ void pack_all(u32 (&a)[T::WalkSteps][4], const float (&c)[T::WalkTiles][4]) {
  UNROLL for (int k = 0; k < T::WalkSteps; ++k) UNROLL for (int h = 0; h < 2; ++h) UNROLL for (int r = 0; r < 2; ++r)
    a[k][2 * h + r] = pack<T::Bf16>(c[2 * k + h][2 * r], c[2 * k + h][2 * r + 1]);
}

template <class T>
__device__ __forceinline__ bool kept(const BwdParams& p, int row, int key) {
  const int back = row + p.seq_k - p.seq_q - key;
  if constexpr (T::MaskOf == kNone) return key < p.seq_k;
  if constexpr (T::MaskOf == kCausal) return key < p.seq_k && back >= 0;
  return key < p.seq_k && back >= 0 && back <= p.window;
}

// Whether some pair of these rows and keys is dropped, so that the mask has to be looked at.
template <class T>
__device__ __forceinline__ bool partly_masked(const BwdParams& p, int row0, int rows, int key0, int keys) {
  const int offset = p.seq_k - p.seq_q;
  bool masked = key0 + keys > p.seq_k;
  if constexpr (T::MaskOf != kNone) masked |= key0 + keys - 1 > row0 + offset;
  if constexpr (T::MaskOf == kWindow) masked |= row0 + rows - 1 + offset - key0 > p.window;
  return masked;
}

// Writes this warp's 16 rows of `c`, scaled, through its rows of a shared tile, in whole sectors.
template <class T>
__device__ __forceinline__ void store_rows(const float (&c)[T::DimTiles][4], float scale, char* tile, char* out, int row0, int limit) {
  using P = typename T::Pane;
  const u32 lane = thread_index() % 32, own = thread_index() / 32 * 16;
  UNROLL for (int n = 0; n < T::DimTiles; ++n) UNROLL for (int r = 0; r < 2; ++r)
    *reinterpret_cast<u32*>(tile + P::at(own + r * 8 + lane / 4, n) + 4 * (lane % 4)) =
        pack<T::Bf16>(c[n][2 * r] * scale, c[n][2 * r + 1] * scale);
  __syncwarp();
  UNROLL for (int i = 0; i < 16 * P::kChunks / 32; ++i) {
    const u32 index = i * 32 + lane, row = own + index / P::kChunks, chunk = index % P::kChunks;
    if (row0 + static_cast<int>(row) < limit)
      *reinterpret_cast<uint4*>(out + (row0 + static_cast<i64>(row)) * P::kRowBytes + chunk * 16) =
          *reinterpret_cast<const uint4*>(tile + P::at(row, chunk));
  }
}

// The walked block of a step, kept in shared memory: registers are short, and every thread needs it only in passing.
struct Step {
  i64 row;   // of its first query in [batch, heads, seq_q]
  int row0;  // the same within its head
};

// dK and dV of one key block, and its share of dQ unless deterministic.
template <class T>
__device__ __forceinline__ void backward_keys(const BwdParams& p) {
  using P = typename T::Pane;
  extern __shared__ __align__(128) char shared[];
  __shared__ volatile Step steps[2];
  const u32 k_tile = shared_address(shared), v_tile = k_tile + T::OwnBytes, q_tile = v_tile + T::OwnBytes;
  const u32 o_tile = q_tile + 2 * T::WalkBytes, s_tile = o_tile + 2 * T::WalkBytes, row_tile = s_tile + T::ScoreBytes;
  const int key0 = blockIdx.x * T::BlockK, kv_heads = p.heads / p.group, offset = p.seq_k - p.seq_q;
  const i64 kv = (static_cast<i64>(blockIdx.z) * kv_heads + blockIdx.y) * p.seq_k * P::kRowBytes;
  const i64 first_head = static_cast<i64>(blockIdx.z) * p.heads + blockIdx.y * p.group;

  int first = 0, last = (p.seq_q + T::BlockQ - 1) / T::BlockQ;
  if constexpr (T::MaskOf != kNone) first = min(max(key0 - offset, 0) / T::BlockQ, last);
  if constexpr (T::MaskOf == kWindow) {
    const int row = min(key0 + T::BlockK, p.seq_k) - 1 + p.window - offset;  // the last row that keeps a key of the block
    last = max(first, min(last, row < 0 ? 0 : row / T::BlockQ + 1));
  }
  const int blocks = last - first, count = blocks * p.group;

  auto load_walked = [&](int t) {
    const int row0 = (first + t % blocks) * T::BlockQ, limit = p.seq_q - row0;
    const u32 thread = thread_index();
    const i64 at = (first_head + t / blocks) * p.seq_q + row0;
    const u32 stage = t % 2;
    if (thread == 0) steps[stage].row = at, steps[stage].row0 = row0;
    P::template load<T::BlockQ, T::Threads>(q_tile + stage * T::WalkBytes, static_cast<const char*>(p.q) + at * P::kRowBytes, P::kRowBytes,
                                            limit, thread);
    P::template load<T::BlockQ, T::Threads>(o_tile + stage * T::WalkBytes, static_cast<const char*>(p.d_o) + at * P::kRowBytes,
                                            P::kRowBytes, limit, thread);
    if (thread < T::BlockQ) copy8(row_tile + stage * T::RowBytes + thread * 8, p.rows + at + thread, static_cast<int>(thread) < limit);
  };

  P::template load<T::BlockK, T::Threads>(k_tile, static_cast<const char*>(p.k) + kv + key0 * P::kRowBytes, P::kRowBytes, p.seq_k - key0,
                                          thread_index());
  P::template load<T::BlockK, T::Threads>(v_tile, static_cast<const char*>(p.v) + kv + key0 * P::kRowBytes, P::kRowBytes, p.seq_k - key0,
                                          thread_index());
  if (count > 0) load_walked(0);
  commit();

  float dk[T::DimTiles][4] = {}, dv[T::DimTiles][4] = {};
  _Pragma("unroll 1") for (int t = 0; t < count; ++t) {
    wait<0>();
    __syncthreads();
    if (t + 1 < count) load_walked(t + 1);
    commit();
    const u32 q = q_tile + (t % 2) * T::WalkBytes, o = o_tile + (t % 2) * T::WalkBytes;
    const u32 rows = row_tile + (t % 2) * T::RowBytes + thread_index() % 4 * 16;

    float s[T::WalkTiles][4], d_s[T::WalkTiles][4];
    u32 packed[T::WalkSteps][4];
    multiply_own<T>(s, k_tile, q);
    if (const int row0 = steps[t % 2].row0; partly_masked<T>(p, row0, T::BlockQ, key0, T::BlockK)) {
      const u32 lane = thread_index() % 32;
      const int key = key0 + static_cast<int>(thread_index() / 32 * 16 + lane / 4), row = row0 + static_cast<int>(lane % 4 * 2);
      UNROLL for (int n = 0; n < T::WalkTiles; ++n) UNROLL for (int e = 0; e < 4; ++e)
        if (!kept<T>(p, row + n * 8 + e % 2, key + e / 2 * 8)) s[n][e] = -INFINITY;
    }
    UNROLL for (int n = 0; n < T::WalkTiles; ++n) {
      float2 low, high;
      load_shared4(low, high, rows + n * 64);
      UNROLL for (int r = 0; r < 2; ++r) {
        s[n][2 * r] = ex2(fmaf(s[n][2 * r], p.scale2, -low.x));
        s[n][2 * r + 1] = ex2(fmaf(s[n][2 * r + 1], p.scale2, -high.x));
      }
    }
    pack_all<T>(packed, s);
    multiply_walked<T>(dv, packed, o);

    multiply_own<T>(d_s, v_tile, o);
    const u32 rows_again = row_tile + (t % 2) * T::RowBytes + thread_index() % 4 * 16;
    // dS takes P as rounded for the product above: half the registers, and an error below dS's own rounding.
    UNROLL for (int k = 0; k < T::WalkSteps; ++k) UNROLL for (int h = 0; h < 2; ++h) {
      const int n = 2 * k + h;
      float2 low, high;
      load_shared4(low, high, rows_again + n * 64);
      UNROLL for (int r = 0; r < 2; ++r) {
        const float2 weight = unpack<T::Bf16>(packed[k][2 * h + r]);
        packed[k][2 * h + r] = pack<T::Bf16>(weight.x * (d_s[n][2 * r] - low.y), weight.y * (d_s[n][2 * r + 1] - high.y));
      }
    }
    if constexpr (!T::Deterministic) {
      const u32 lane = thread_index() % 32, own = thread_index() / 32 * 16 + lane / 4;
      UNROLL for (int k = 0; k < T::WalkSteps; ++k) UNROLL for (int h = 0; h < 2; ++h) UNROLL for (int r = 0; r < 2; ++r)
        store_shared(s_tile + T::Scores::at(own + r * 8, 2 * k + h) + lane % 4 * 4, packed[k][2 * h + r]);
    }
    multiply_walked<T>(dk, packed, q);

    if constexpr (!T::Deterministic) {
      __syncthreads();
      const u32 lane = thread_index() % 32, warp = thread_index() / 32, row_warp = warp % T::RowWarps, dim_warp = warp / T::RowWarps;
      const u32 a_lane = T::Scores::shift(s_tile + lane_b<typename T::Scores>(), row_warp);
      const u32 b_lane = P::shift(k_tile + lane_a<P>(), dim_warp * (T::DqTiles / 2));
      float dq[T::DqTiles][4] = {};
      UNROLL for (int k = 0; k < T::BlockK / 16; ++k) {
        u32 a[4];
        ldmatrix4_trans(a, a_lane + k * 16 * T::Scores::kRowBytes);
        UNROLL for (int n = 0; n < T::DqTiles / 2; ++n) {
          u32 b[4];
          ldmatrix4_trans(b, P::shift(b_lane, n) + k * 16 * P::kRowBytes);
          mma<T::Bf16>(dq[2 * n], a, b[0], b[1]);
          mma<T::Bf16>(dq[2 * n + 1], a, b[2], b[3]);
        }
      }
      const int left = p.seq_q - steps[t % 2].row0;
      UNROLL for (int r = 0; r < 2; ++r) {
        const int row = row_warp * 16 + r * 8 + lane / 4;
        if (row < left) {
          float* sum = p.dq_sum + (steps[t % 2].row + row) * T::HeadDim + dim_warp * (T::DqTiles * 8) + lane % 4 * 2;
          UNROLL for (int n = 0; n < T::DqTiles; ++n) add2(sum + n * 8, dq[n][2 * r], dq[n][2 * r + 1]);
        }
      }
    }
  }
  wait<0>();
  __syncthreads();
  store_rows<T>(dk, p.scale, shared, static_cast<char*>(p.dk) + kv, key0, p.seq_k);
  store_rows<T>(dv, 1.f, shared + T::OwnBytes, static_cast<char*>(p.dv) + kv, key0, p.seq_k);
}

// dQ of one block of BlockK queries, the keys walked in blocks of BlockQ: no atomics, the same sum each time.
template <class T>
__device__ __forceinline__ void backward_queries(const BwdParams& p) {
  using P = typename T::Pane;
  extern __shared__ __align__(128) char shared[];
  const u32 q_tile = shared_address(shared), o_tile = q_tile + T::OwnBytes, k_tile = o_tile + T::OwnBytes;
  const u32 v_tile = k_tile + 2 * T::WalkBytes;
  const int row0 = blockIdx.x * T::BlockK, offset = p.seq_k - p.seq_q;
  const i64 head = static_cast<i64>(blockIdx.z) * p.heads + blockIdx.y, head_rows = head * p.seq_q;
  const i64 kv = (static_cast<i64>(blockIdx.z) * (p.heads / p.group) + blockIdx.y / p.group) * p.seq_k * P::kRowBytes;
  const i64 own = (head_rows + row0) * P::kRowBytes;

  int first = 0, last = (p.seq_k + T::BlockQ - 1) / T::BlockQ;
  if constexpr (T::MaskOf != kNone) last = min(last, max(min(row0 + T::BlockK, p.seq_q) - 1 + offset + T::BlockQ, 0) / T::BlockQ);
  if constexpr (T::MaskOf == kWindow) first = min(max(row0 + offset - p.window, 0) / T::BlockQ, last);

  auto load_walked = [&](int block) {
    const i64 at = kv + block * (T::BlockQ * P::kRowBytes);
    const u32 stage = block % 2 * T::WalkBytes;
    const int limit = p.seq_k - block * T::BlockQ;
    P::template load<T::BlockQ, T::Threads>(k_tile + stage, static_cast<const char*>(p.k) + at, P::kRowBytes, limit, thread_index());
    P::template load<T::BlockQ, T::Threads>(v_tile + stage, static_cast<const char*>(p.v) + at, P::kRowBytes, limit, thread_index());
  };
  P::template load<T::BlockK, T::Threads>(q_tile, static_cast<const char*>(p.q) + own, P::kRowBytes, p.seq_q - row0, thread_index());
  P::template load<T::BlockK, T::Threads>(o_tile, static_cast<const char*>(p.d_o) + own, P::kRowBytes, p.seq_q - row0, thread_index());
  if (first < last) load_walked(first);
  commit();

  const u32 lane = thread_index() % 32;
  const int row = row0 + static_cast<int>(thread_index() / 32 * 16 + lane / 4);
  float2 stats[2];
  UNROLL for (int r = 0; r < 2; ++r) stats[r] = row + r * 8 < p.seq_q ? p.rows[head_rows + row + r * 8] : make_float2(INFINITY, 0.f);

  float dq[T::DimTiles][4] = {};
  _Pragma("unroll 1") for (int block = first; block < last; ++block) {
    wait<0>();
    __syncthreads();
    if (block + 1 < last) load_walked(block + 1);
    commit();
    const u32 stage = block % 2 * T::WalkBytes;
    float s[T::WalkTiles][4], d_s[T::WalkTiles][4];
    multiply_own<T>(s, q_tile, k_tile + stage);
    multiply_own<T>(d_s, o_tile, v_tile + stage);
    const bool masked = partly_masked<T>(p, row0, T::BlockK, block * T::BlockQ, T::BlockQ);
    UNROLL for (int n = 0; n < T::WalkTiles; ++n) UNROLL for (int e = 0; e < 4; ++e) {
      float weight = ex2(fmaf(s[n][e], p.scale2, -stats[e / 2].x));
      if (masked && !kept<T>(p, row + e / 2 * 8, block * T::BlockQ + n * 8 + static_cast<int>(lane % 4) * 2 + e % 2)) weight = 0.f;
      d_s[n][e] = weight * (d_s[n][e] - stats[e / 2].y);
    }
    u32 packed[T::WalkSteps][4];
    pack_all<T>(packed, d_s);
    multiply_walked<T>(dq, packed, k_tile + stage);
  }
  wait<0>();
  __syncthreads();
  store_rows<T>(dq, p.scale, shared, static_cast<char*>(p.dq) + head_rows * P::kRowBytes, row0, p.seq_q);
}

// One warp a query row: its LSE in base 2 and the sum of dO * O.
template <int HeadDim, bool Bf16>
__device__ __forceinline__ void row_sums(const BwdParams& p) {
  const i64 row = static_cast<i64>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= static_cast<i64>(p.batch) * p.heads * p.seq_q) return;
  const u32* o = static_cast<const u32*>(p.o) + row * (HeadDim / 2);
  const u32* d_o = static_cast<const u32*>(p.d_o) + row * (HeadDim / 2);
  float sum = 0.f;
  for (int i = threadIdx.x % 32; i < HeadDim / 2; i += 32) {
    const float2 x = unpack<Bf16>(o[i]), y = unpack<Bf16>(d_o[i]);
    sum += x.x * y.x + x.y * y.y;
  }
  UNROLL for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
  if (threadIdx.x % 32 == 0) {
    const float lse = p.lse[row];
    p.rows[row] = make_float2(lse == -INFINITY ? INFINITY : lse * kLog2E, sum);
  }
}

// dQ from its fp32 sums, eight elements a thread.
template <int HeadDim, bool Bf16>
__device__ __forceinline__ void convert(const BwdParams& p) {
  const i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= static_cast<i64>(p.batch) * p.heads * p.seq_q * (HeadDim / 8)) return;
  const float4 x = reinterpret_cast<const float4*>(p.dq_sum)[2 * i], y = reinterpret_cast<const float4*>(p.dq_sum)[2 * i + 1];
  const float s = p.scale;
  static_cast<uint4*>(p.dq)[i] = make_uint4(pack<Bf16>(x.x * s, x.y * s), pack<Bf16>(x.z * s, x.w * s), pack<Bf16>(y.x * s, y.y * s),
                                            pack<Bf16>(y.z * s, y.w * s));
}

}  // namespace flash
