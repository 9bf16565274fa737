// Naive attention: three launches with the N x N matrices in memory between them.
//
// What it computes: naive_scores S = scale Q K^T (masked entries -inf), naive_softmax P = softmax of each row of S (a row with no key
//   gives zeros), naive_values O = P V. Q, O are [batch, heads, seq_q, head_dim], K, V [batch, kv_heads, seq_k, head_dim], S and P
//   [batch, heads, seq_q, seq_k], all contiguous, stored as ELEMENT (0 fp16, 1 bf16, 2 fp32) and accumulated in fp32.
// Build: nvcc -std=c++17 -O3 -arch=sm_80 -cubin -DHEAD_DIM=64 -DELEMENT=1 naive.cu (any cc from 7.5 on).
//   With -DBYPASS_L1=1 all tensors are read with ld.global.cg, past L1, so that no CTA finds there what another on its SM has read.
// CPU reference: softmax in float64, `reference` in harness.py.
// Speed: 64x64 tiles of fp32 multiply-adds without tensor cores; made for exact traffic (each operand tile once per CTA, each row of
//   S once), not for time; on an H200 1.3 to 2 times PyTorch's eager chain in fp32 at 512 tokens.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define UNROLL _Pragma("unroll")
#ifndef BYPASS_L1
#define BYPASS_L1 0
#endif

#if ELEMENT == 0
using Element = __half;
__device__ __forceinline__ float load(Element x) { return __half2float(x); }
__device__ __forceinline__ Element store(float x) { return __float2half_rn(x); }
#elif ELEMENT == 1
using Element = __nv_bfloat16;
__device__ __forceinline__ float load(Element x) { return __bfloat162float(x); }
__device__ __forceinline__ Element store(float x) { return __float2bfloat16_rn(x); }
#else
using Element = float;
__device__ __forceinline__ float load(Element x) { return x; }
__device__ __forceinline__ Element store(float x) { return x; }
#endif

// One element of a tensor in memory, through L1 or past it.
__device__ __forceinline__ float fetch(const Element* x) { return load(BYPASS_L1 ? __ldcg(x) : *x); }

struct NaiveParams {
  const Element* q;
  const Element* k;
  const Element* v;
  Element* s;
  Element* p;
  Element* o;
  int heads, group, seq_q, seq_k;
  int causal;  // keep j <= i + seq_k - seq_q
  float scale;
};

struct NaiveTraits {
  static constexpr int HeadDim = HEAD_DIM, Tile = 64, Depth = 32, Threads = 256;
  static constexpr int Side = 16, Each = Tile / Side;  // 16 x 16 threads, 4 x 4 results each
  static_assert(Side * Side == Threads && HeadDim % Depth == 0, "whole tiles only");
};
using T = NaiveTraits;

// c[4][4] += a[depth][rows] * b[depth][columns] over one depth of shared memory.
__device__ __forceinline__ void multiply(float (&c)[T::Each][T::Each], const float (*a)[T::Tile + 1], const float (*b)[T::Tile + 1]) {
  const int x = threadIdx.x % T::Side, y = threadIdx.x / T::Side;
  for (int d = 0; d < T::Depth; ++d)
    UNROLL for (int i = 0; i < T::Each; ++i)
      UNROLL for (int j = 0; j < T::Each; ++j) c[i][j] += a[d][y + i * T::Side] * b[d][x + j * T::Side];
}

// Head blockIdx.z of a tensor whose heads are shared by `group` query heads.
__device__ __forceinline__ long long head_of(int heads, int group, int rows) {
  const int batch = blockIdx.z / heads, head = blockIdx.z % heads;
  return (static_cast<long long>(batch) * (heads / group) + head / group) * rows;
}

extern "C" __global__ void __launch_bounds__(T::Threads) naive_scores(const __grid_constant__ NaiveParams p) {
  __shared__ float a[T::Depth][T::Tile + 1], b[T::Depth][T::Tile + 1];
  const int j0 = blockIdx.x * T::Tile, i0 = blockIdx.y * T::Tile;
  const Element* q = p.q + head_of(p.heads, 1, p.seq_q) * T::HeadDim;
  const Element* k = p.k + head_of(p.heads, p.group, p.seq_k) * T::HeadDim;
  float c[T::Each][T::Each] = {};
  for (int d0 = 0; d0 < T::HeadDim; d0 += T::Depth) {
    for (int n = threadIdx.x; n < T::Tile * T::Depth; n += T::Threads) {
      const int d = n % T::Depth, r = n / T::Depth;
      a[d][r] = i0 + r < p.seq_q ? fetch(q + static_cast<long long>(i0 + r) * T::HeadDim + d0 + d) : 0.f;
      b[d][r] = j0 + r < p.seq_k ? fetch(k + static_cast<long long>(j0 + r) * T::HeadDim + d0 + d) : 0.f;
    }
    __syncthreads();
    multiply(c, a, b);
    __syncthreads();
  }
  Element* s = p.s + head_of(p.heads, 1, p.seq_q) * p.seq_k;
  UNROLL for (int y = 0; y < T::Each; ++y) UNROLL for (int x = 0; x < T::Each; ++x) {
    const int i = i0 + threadIdx.x / T::Side + y * T::Side, j = j0 + threadIdx.x % T::Side + x * T::Side;
    const bool kept = !p.causal || j <= i + p.seq_k - p.seq_q;
    if (i < p.seq_q && j < p.seq_k) s[static_cast<long long>(i) * p.seq_k + j] = store(kept ? c[y][x] * p.scale : -INFINITY);
  }
}

// The reduction of one value a thread over the CTA.
template <class Op>
__device__ __forceinline__ float reduce(float x, Op op) {
  __shared__ float part[T::Threads / 32];
  UNROLL for (int lane = 16; lane > 0; lane /= 2) x = op(x, __shfl_xor_sync(0xffffffffu, x, lane));
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  x = part[0];
  for (int w = 1; w < T::Threads / 32; ++w) x = op(x, part[w]);
  __syncthreads();
  return x;
}

extern "C" __global__ void __launch_bounds__(T::Threads) naive_softmax(const __grid_constant__ NaiveParams p) {
  extern __shared__ float row[];  // seq_k scores: each is read from memory once
  const long long at = (static_cast<long long>(blockIdx.y) * p.seq_q + blockIdx.x) * p.seq_k;
  float top = -INFINITY, sum = 0.f;
  for (int j = threadIdx.x; j < p.seq_k; j += T::Threads) {
    row[j] = fetch(p.s + at + j);
    top = fmaxf(top, row[j]);
  }
  top = reduce(top, [](float x, float y) { return fmaxf(x, y); });
  if (top == -INFINITY) top = 0.f;
  for (int j = threadIdx.x; j < p.seq_k; j += T::Threads) {
    row[j] = __expf(row[j] - top);
    sum += row[j];
  }
  sum = reduce(sum, [](float x, float y) { return x + y; });
  const float inverse = sum > 0.f ? 1.f / sum : 0.f;
  for (int j = threadIdx.x; j < p.seq_k; j += T::Threads) p.p[at + j] = store(row[j] * inverse);
}

extern "C" __global__ void __launch_bounds__(T::Threads) naive_values(const __grid_constant__ NaiveParams p) {
  __shared__ float a[T::Depth][T::Tile + 1], b[T::Depth][T::Tile + 1];
  const int x0 = blockIdx.x * T::Tile, i0 = blockIdx.y * T::Tile;
  const Element* w = p.p + head_of(p.heads, 1, p.seq_q) * p.seq_k;
  const Element* v = p.v + head_of(p.heads, p.group, p.seq_k) * T::HeadDim;
  float c[T::Each][T::Each] = {};
  for (int j0 = 0; j0 < p.seq_k; j0 += T::Depth) {
    for (int n = threadIdx.x; n < T::Tile * T::Depth; n += T::Threads) {
      const int d = n % T::Depth, r = n / T::Depth, j = n / T::Tile, x = n % T::Tile;
      a[d][r] = i0 + r < p.seq_q && j0 + d < p.seq_k ? fetch(w + static_cast<long long>(i0 + r) * p.seq_k + j0 + d) : 0.f;
      b[j][x] = j0 + j < p.seq_k && x0 + x < T::HeadDim ? fetch(v + static_cast<long long>(j0 + j) * T::HeadDim + x0 + x) : 0.f;
    }
    __syncthreads();
    multiply(c, a, b);
    __syncthreads();
  }
  Element* o = p.o + head_of(p.heads, 1, p.seq_q) * T::HeadDim;
  UNROLL for (int y = 0; y < T::Each; ++y) UNROLL for (int x = 0; x < T::Each; ++x) {
    const int i = i0 + threadIdx.x / T::Side + y * T::Side, d = x0 + threadIdx.x % T::Side + x * T::Side;
    if (i < p.seq_q && d < T::HeadDim) o[static_cast<long long>(i) * T::HeadDim + d] = store(c[y][x]);
  }
}
