// Microbenchmarks that fill a hardware profile: each kernel keeps one resource busy and nothing else.
//
// What they do: micro_scan reads a footprint again and again, every CTA all of it (shared) or its own slice (private), past L1: its rate against
//   the footprint shows L2 bandwidth, capacity and partitions, and HBM's read bandwidth far beyond the L2. micro_fill writes. micro_link and
//   micro_chase follow a pseudo-random chain of lines with one thread: latency. micro_exp and micro_tensor issue nothing but ex2 and mma.sync.
//   micro_empty does nothing: the cost of a launch. The kernels of one unit also say how many clocks they took in how many nanoseconds.
// Build: nvcc -std=c++17 -O3 -arch=sm_75 -cubin microbench.cu (any cc from 7.5 on).
// CPU reference: none; `iosim/evidence/cuda/microbench.py` runs them and turns times into rates.
#include "ptx.cuh"

using ptx::i64;
using ptx::u32;

struct MicroParams {
  void* data;
  u32* out;  // written only if a sum takes one value in 2^32: it keeps the loads alive
  i64 bytes;
  int passes;      // over the footprint, or steps of the chase, or iterations of arithmetic
  int all_by_all;  // every CTA reads everything
  long long* clock;  // two numbers of CTA 0: SM clocks, nanoseconds
};

constexpr int kThreads = 1024, kMathThreads = 512, kInFlight = 4, kLineBytes = 128, kChains = 8;

__device__ __forceinline__ uint4 load_past_l1(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];\n" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

// What thread 0 of CTA 0 writes at its end: how long it lived, by the SM's clock and by the GPU's timer.
struct Stopwatch {
  long long clocks = clock64(), ns = timer();

  __device__ static long long timer() {
    long long t;
    asm volatile("mov.u64 %0, %globaltimer;\n" : "=l"(t));
    return t;
  }

  __device__ void write(long long* out) const {
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    out[0] = clock64() - clocks;
    out[1] = timer() - ns;
  }
};

// Where CTA n's slice begins, in 16 bytes: at a line. In slices that begin inside a sector the stores of two warps share one, and HBM is read for
// the rest of a sector that is written back half full.
__device__ __forceinline__ i64 slice_begin(i64 bytes, i64 n) { return bytes / kLineBytes * n / gridDim.x * (kLineBytes / 16); }

extern "C" __global__ void __launch_bounds__(kThreads) micro_scan(const __grid_constant__ MicroParams p) {
  const uint4* data = static_cast<const uint4*>(p.data);
  const i64 begin = p.all_by_all ? 0 : slice_begin(p.bytes, blockIdx.x), end = p.all_by_all ? p.bytes / 16 : slice_begin(p.bytes, blockIdx.x + 1);
  u32 sum = 0;
  for (int pass = 0; pass < p.passes; ++pass)
    _Pragma("unroll 1") for (i64 i = begin + threadIdx.x; i < end; i += kInFlight * kThreads) {
      uint4 v[kInFlight] = {};
      UNROLL for (int n = 0; n < kInFlight; ++n)
        if (i + n * kThreads < end) v[n] = load_past_l1(data + i + n * kThreads);
      UNROLL for (int n = 0; n < kInFlight; ++n) sum += v[n].x ^ v[n].y ^ v[n].z ^ v[n].w;
    }
  if (sum == 0x9e3779b9u) *p.out = sum;
}

extern "C" __global__ void __launch_bounds__(kThreads) micro_fill(const __grid_constant__ MicroParams p) {
  uint4* data = static_cast<uint4*>(p.data);
  const i64 begin = slice_begin(p.bytes, blockIdx.x), end = slice_begin(p.bytes, blockIdx.x + 1);
  for (i64 i = begin + threadIdx.x; i < end; i += kThreads) data[i] = make_uint4(1, 2, 3, 4);
}

// Line i points to a line that a full-period linear congruence chooses (the number of lines is a power of two): no stride to follow.
extern "C" __global__ void __launch_bounds__(kThreads) micro_link(const __grid_constant__ MicroParams p) {
  const u32 lines = static_cast<u32>(p.bytes / kLineBytes);
  for (u32 i = blockIdx.x * kThreads + threadIdx.x; i < lines; i += gridDim.x * kThreads)
    static_cast<u32*>(p.data)[i * (kLineBytes / 4)] = (1664525u * i + 1013904223u) % lines;
}

extern "C" __global__ void __launch_bounds__(kThreads) micro_chase(const __grid_constant__ MicroParams p) {
  const Stopwatch watch;
  const u32* data = static_cast<const u32*>(p.data);
  u32 line = 0;
  for (int step = 0; step < p.passes; ++step)
    asm volatile("ld.global.cg.u32 %0, [%1];\n" : "=r"(line) : "l"(data + static_cast<i64>(line) * (kLineBytes / 4)));
  if (line == 0xffffffffu) *p.out = line;
  watch.write(p.clock);
}

extern "C" __global__ void __launch_bounds__(kMathThreads) micro_exp(const __grid_constant__ MicroParams p) {
  const Stopwatch watch;
  float x[kChains];
  UNROLL for (int n = 0; n < kChains; ++n) x[n] = -0.01f * (threadIdx.x + n);
  for (int i = 0; i < p.passes; ++i) UNROLL for (int n = 0; n < kChains; ++n) x[n] = ptx::ex2(x[n]);
  float sum = 0.f;
  UNROLL for (int n = 0; n < kChains; ++n) sum += x[n];
  if (sum == -1.f) *p.out = 1;
  watch.write(p.clock);
}

extern "C" __global__ void __launch_bounds__(kMathThreads) micro_tensor(const __grid_constant__ MicroParams p) {
  const Stopwatch watch;
  float c[kChains][4] = {};
  const u32 seed = 0x2c002c00u + threadIdx.x;  // small fp16 numbers that differ between lanes
  const u32 a[4] = {seed, seed + 3, seed + 5, seed + 7};
  for (int i = 0; i < p.passes; ++i) UNROLL for (int n = 0; n < kChains; ++n) ptx::mma<false>(c[n], a, seed + n, seed + 2 * n);
  float sum = 0.f;
  UNROLL for (int n = 0; n < kChains; ++n) UNROLL for (int e = 0; e < 4; ++e) sum += c[n][e];
  if (sum == -1.f) *p.out = 1;
  watch.write(p.clock);
}

extern "C" __global__ void micro_empty(const __grid_constant__ MicroParams p) {}
