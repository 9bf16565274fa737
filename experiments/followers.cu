// Groups of CTAs that read what a table tells them, step by step, all in step: what does the L2 still hold at which distance?
//
// What it does: one CTA an SM. At every step each group reads (writes, adds to) one chunk of a buffer, or rests; then all groups wait for each other. The
//   host's table says which chunk: followers of a leader at a distance, a hot set read again beside a stream, a scan. A chunk is shared out over the
//   group's CTAs, or taken by each of them.
// Build: nvcc -std=c++17 -O3 -arch=sm_90 -cubin followers.cu
// CPU reference: none; `followers.py` runs it under the profiler and replays the same table through the model of the L2.
#include "ptx.cuh"

using ptx::i64;
using ptx::u32;

struct FollowParams {
  const uint4* data;
  const int* table;   // [step][group]: chunk, with kStore or kReduce, or -1
  const int* member;  // [SM][3]: group or -1, rank, size of what shares a chunk
  u32* barrier;
  u32* out;
  i64 chunk;  // 16-byte words
  int steps, groups;
  int load;  // 0 ld.cg, 1 cp.async.cg, 2 the same with L2::128B, 3 bulk copy, 4 to 6 bulk copy with evict_last, evict_first, evict_unchanged
};

constexpr int kThreads = 1024, kBulk = 16384, kStore = 1 << 30, kReduce = 1 << 29;

__device__ __forceinline__ u32 load_word(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];\n" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v.x ^ v.y ^ v.z ^ v.w;
}

__device__ __forceinline__ void reduce_word(const uint4* p) {
  asm volatile("red.global.add.u32 [%0], 1;\nred.global.add.u32 [%0 + 4], 1;\nred.global.add.u32 [%0 + 8], 1;\nred.global.add.u32 [%0 + 12], 1;\n" ::"l"(p)
               : "memory");
}

__device__ __forceinline__ void copy_word(u32 to, const uint4* p, bool wide) {
  if (wide) asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n" ::"r"(to), "l"(p) : "memory");
  else asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(p) : "memory");
}

__device__ __forceinline__ i64 policy(int load) {
  i64 made = 0;
  if (load == 4) asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;\n" : "=l"(made));
  if (load == 5) asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(made));
  if (load == 6) asm volatile("createpolicy.fractional.L2::evict_unchanged.b64 %0, 1.0;\n" : "=l"(made));
  return made;
}

__device__ __forceinline__ void bulk(u32 to, u32 bar, const uint4* p, int bytes, int load, i64 hint) {
#if __CUDA_ARCH__ >= 900
  if (load == 3)
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to), "l"(p), "r"(bytes), "r"(bar) : "memory");
  else
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;\n" ::"r"(to), "l"(p), "r"(bytes),
                 "r"(bar), "l"(hint)
                 : "memory");
#endif
}

__device__ __forceinline__ void wait_parity(u32 bar, u32 parity) {
#if __CUDA_ARCH__ >= 900
  u32 done = 0;
  while (!done)
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}\n" : "=r"(done) : "r"(bar), "r"(parity) : "memory");
#endif
}

extern "C" __global__ void __launch_bounds__(kThreads) follow(const __grid_constant__ FollowParams p) {
  extern __shared__ __align__(128) uint4 held[];
  __shared__ __align__(8) unsigned long long arrived;
  u32 sm;
  asm volatile("mov.u32 %0, %smid;\n" : "=r"(sm));
  const int group = p.member[3 * sm], rank = p.member[3 * sm + 1], size = p.member[3 * sm + 2];
  const u32 bar = ptx::shared_address(&arrived), to = ptx::shared_address(held);
  const i64 hint = policy(p.load);
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;\n" ::"r"(bar) : "memory");
  __syncthreads();
  u32 sum = 0, parity = 0;
  for (int step = 0; step < p.steps; ++step) {
    const int entry = group < 0 ? -1 : p.table[step * p.groups + group];
    if (entry >= 0) {
      const uint4* from = p.data + (entry & (kReduce - 1)) * p.chunk;
      if (entry & (kStore | kReduce)) {
        for (i64 i = rank * kThreads + threadIdx.x; i < p.chunk; i += static_cast<i64>(size) * kThreads) {
          if (entry & kStore) const_cast<uint4*>(from)[i] = make_uint4(step, 2, 3, 4);
          else reduce_word(from + i);
        }
      } else if (p.load >= 3) {
        if (threadIdx.x == 0)
          for (i64 at = static_cast<i64>(rank) * kBulk; at < p.chunk * 16; at += static_cast<i64>(size) * kBulk) {
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;\n" ::"r"(bar), "r"(kBulk) : "memory");
            bulk(to, bar, from + at / 16, kBulk, p.load, hint);
            wait_parity(bar, parity);
            parity ^= 1;
          }
      } else {
        for (i64 i = rank * kThreads + threadIdx.x; i < p.chunk; i += static_cast<i64>(size) * kThreads) {
          if (p.load == 0) sum += load_word(from + i);
          else copy_word(to + threadIdx.x * 16, from + i, p.load == 2);
        }
        if (p.load) {
          ptx::commit();
          ptx::wait<0>();
        }
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      atomicAdd(p.barrier, 1u);
      u32 seen;
      do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(seen) : "l"(p.barrier) : "memory");
      while (seen < (step + 1) * gridDim.x);
    }
    __syncthreads();
  }
  if (sum == 0x9e3779b9u) *p.out = sum;
}
