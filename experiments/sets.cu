// Is a line still in the L2 after others were used? The question that `sets.py` asks: `sets`, to find the lines of one set;
// `orders`, of lines of one set that were read and written in some order.
//
// What `sets` does: one CTA, many tests one after the other. A test reads its target line, then the kept lines, then its segments of neighbouring lines, each group
//   of loads complete before the next; then one thread times a load of the target. Just before, it reads the target's neighbour, so that the time holds no
//   look-up of the page's address. All loads pass L1 by.
// What `orders` does: one warp loads and stores whole lines, one after the other, each complete before the next; loads that are asked for are timed, after one of
//   a line of the same page and another set. After a store it waits.
// Build: nvcc -std=c++17 -O3 -arch=sm_90 -cubin sets.cu
// CPU reference: none; `sets.py` repeats what decides.
#include "ptx.cuh"

using ptx::i64;
using ptx::u32;

struct SetsParams {
  const u32* data;
  const int* target;   // [test]: a line
  const int* keep;     // lines that are read after the target, at most kThreads
  const int* begin;    // [test + 1]: its segments
  const int* first;    // [segment]: first line
  const int* lines;    // [segment]: how many
  int* cycles;         // [test]: what the load of the target took
  int tests, keeps;
};

constexpr int kThreads = 1024, kWords = 32, kAtATime = 8;

__device__ __forceinline__ u32 load_word(const u32* p) {
  u32 v;
  asm volatile("ld.global.cg.u32 %0, [%1];\n" : "=r"(v) : "l"(p) : "memory");
  return v;
}

// Waits for a loaded value: the buffer holds zeros, and nobody knows it here.
__device__ __forceinline__ void use(u32 value, int* out) {
  if (value == 0x9e3779b9u) *out = 1;
}

extern "C" __global__ void __launch_bounds__(kThreads) sets(const __grid_constant__ SetsParams p) {
  const auto line = [&](i64 number) { return p.data + number * kWords; };
  for (int test = 0; test < p.tests; ++test) {
    const int target = p.target[test];
    if (threadIdx.x == 0) use(load_word(line(target)), p.cycles);
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < p.keeps) use(load_word(line(p.keep[threadIdx.x])), p.cycles);
    __syncthreads();
    u32 sum = 0;
    for (int s = p.begin[test]; s < p.begin[test + 1]; ++s) {
      const int first = p.first[s], end = p.lines[s];
      int i = threadIdx.x;
      for (; i + (kAtATime - 1) * kThreads < end; i += kAtATime * kThreads) {
        UNROLL for (int u = 0; u < kAtATime; ++u) sum += load_word(line(first + i + u * kThreads));
      }
      for (; i < end; i += kThreads) sum += load_word(line(first + i));
    }
    use(sum, p.cycles);
    __syncthreads();
    if (threadIdx.x == 0) {
      use(load_word(line(target ^ 1)), p.cycles);
      const long long before = clock64();
      use(load_word(line(target)), p.cycles);
      p.cycles[test] = static_cast<int>(clock64() - before);
    }
    __syncthreads();
  }
}

struct OrdersParams {
  u32* data;
  const int* steps;  // a line, plus what is done with it: Step << kStepAt
  int* cycles;       // [step]: what a timed load took
  int count;
};

enum Step { kLoad, kStore, kTimed };
constexpr int kStepAt = 28, kWarp = 32, kWait = 3000;
static_assert(kWarp == kWords, "a lane takes a word of a line");

extern "C" __global__ void __launch_bounds__(kWarp) orders(const __grid_constant__ OrdersParams p) {
  for (int i = 0; i < p.count; ++i) {
    const int line = p.steps[i] & ((1 << kStepAt) - 1), step = p.steps[i] >> kStepAt;
    u32* word = p.data + i64{line} * kWords + threadIdx.x;
    if (step == kStore) {
      asm volatile("st.global.u32 [%0], %1;\n" ::"l"(word), "r"(0u) : "memory");
      __threadfence();
      const long long before = clock64();
      while (clock64() - before < kWait) {
      }
    } else {
      if (step == kTimed) {
        use(load_word(p.data + i64{line ^ 4} * kWords + threadIdx.x), p.cycles);
        __syncwarp();
      }
      const long long before = clock64();
      use(load_word(word), p.cycles);
      __syncwarp();
      if (step == kTimed && threadIdx.x == 0) p.cycles[i] = static_cast<int>(clock64() - before);
    }
    __syncwarp();
  }
}
