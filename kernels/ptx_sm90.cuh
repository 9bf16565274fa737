// Hopper's own instructions (sm_90a), one small function each: barriers in shared memory, the tensor copy engine, wgmma.
//
// Sources: PTX ISA manual, sections on mbarrier, cp.async.bulk.tensor, wgmma (matrix descriptors, fragments of m64nNk16), setmaxnreg,
// barrier.cluster. Addresses are 32-bit shared addresses. What cc 8.0 has, too, is in ptx.cuh.
#pragma once

#include "ptx.cuh"

namespace ptx {

using u64 = unsigned long long;

// A CUtensorMap, filled in by the driver (cuTensorMapEncodeTiled) and passed inside a __grid_constant__ parameter.
struct alignas(64) TensorMap {
  char bits[128];
};

// ---- Barriers and words in shared memory. A barrier's phase ends when all arrivals and all announced bytes are there.

__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine and to the other CTA of the cluster.
__device__ __forceinline__ void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory"); }

__device__ __forceinline__ void arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}

// Arrives and announces bytes that copies will bring.
__device__ __forceinline__ void arrive_expecting(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}

// The address of the same place in the shared memory of another CTA of the cluster.
__device__ __forceinline__ u32 map_to(u32 address, u32 cta) {
  u32 r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(r) : "r"(address), "r"(cta));
  return r;
}

// Arrives at a barrier that may lie in another CTA of the cluster (address from map_to).
__device__ __forceinline__ void arrive_in_cluster(u32 barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}

// The same without ordering ordinary accesses before it: a release at the cluster's scope waits for all of them at the L2. Enough after
// wgmma_wait for what wgmma read.
__device__ __forceinline__ void arrive_in_cluster_relaxed(u32 barrier) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}

// Waits until the phase of this parity has ended; a fresh barrier counts as having ended one of parity 1.
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n .reg .pred done;\n"
      "again:\n mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      " @!done bra again;\n}\n" ::"r"(barrier), "r"(parity)
      : "memory");
}

// The same, seeing what other CTAs of the cluster wrote before they arrived.
__device__ __forceinline__ void barrier_wait_cluster(u32 barrier, u32 parity) {
  asm volatile(
      "{\n .reg .pred done;\n"
      "again:\n mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      " @!done bra again;\n}\n" ::"r"(barrier), "r"(parity)
      : "memory");
}

__device__ __forceinline__ void store_word(u32 address, int value) {
  asm volatile("st.shared.s32 [%0], %1;\n" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ int load_word(u32 address) {
  int r;
  asm volatile("ld.shared.s32 %0, [%1];\n" : "=r"(r) : "r"(address) : "memory");
  return r;
}

__device__ __forceinline__ float2 load_floats2(u32 address) {
  float2 r;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];\n" : "=f"(r.x), "=f"(r.y) : "r"(address) : "memory");
  return r;
}
__device__ __forceinline__ void store_floats4(u32 address, float x, float y, float z, float w) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}

// Stores a word into the shared memory of a CTA of the cluster and counts its 4 bytes at a barrier there (both from map_to).
__device__ __forceinline__ void store_counted(u32 address, u32 value, u32 barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];\n" ::"r"(address), "r"(value), "r"(barrier)
               : "memory");
}

// ---- Sums and counters in global memory.

// Adds four neighbouring fp32 values, order undefined.
__device__ __forceinline__ void add4(float* p, float x, float y, float z, float w) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(p), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}

// A counter that CTAs hand on: whoever sees a number sees all that was written before it was reached.
__device__ __forceinline__ int load_counter(const int* counter) {
  int r;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n" : "=r"(r) : "l"(counter) : "memory");
  return r;
}
__device__ __forceinline__ void raise_counter(int* counter) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;\n" ::"l"(counter) : "memory");
}

// ---- Barriers by number, over some of the threads of a CTA.

__device__ __forceinline__ void named_wait(u32 id, u32 threads) { asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory"); }
__device__ __forceinline__ void named_arrive(u32 id, u32 threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

// ---- Clusters, warps, registers.

__device__ __forceinline__ u32 cluster_rank() {
  u32 r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(r));
  return r;
}

__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}

// True in one lane of the warp.
__device__ __forceinline__ bool elected() {
  u32 r;
  asm volatile("{\n .reg .pred p;\n elect.sync _|p, 0xffffffff;\n selp.u32 %0, 1, 0, p;\n}\n" : "=r"(r));
  return r != 0;
}

template <int Registers>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(Registers));
}
template <int Registers>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(Registers));
}

// ---- The tensor copy engine. Coordinates are elements, innermost first; what lies outside the tensor reads as zero and is not written.

__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(&map) : "memory");
}

// A place in a tensor of five dimensions.
struct Coordinates {
  int c0, c1, c2, c3, c4;
};

// A box at a place of a tensor into shared memory, its bytes counted at a barrier.
__device__ __forceinline__ void copy_box(u32 dst, const TensorMap& map, const Coordinates& c, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], [%7];\n" ::"r"(dst),
      "l"(&map), "r"(c.c0), "r"(c.c1), "r"(c.c2), "r"(c.c3), "r"(c.c4), "r"(barrier)
      : "memory");
}

// The same into the shared memory of every CTA whose bit is set in `ctas`, at the same offset, each counted at its own barrier.
__device__ __forceinline__ void copy_box_to_all(u32 dst, const TensorMap& map, const Coordinates& c, u32 barrier, u16 ctas) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3, %4, %5, %6}], [%7], %8;\n" ::"r"(dst),
      "l"(&map), "r"(c.c0), "r"(c.c1), "r"(c.c2), "r"(c.c3), "r"(c.c4), "r"(barrier), "h"(ctas)
      : "memory");
}

__device__ __forceinline__ void store_box(const TensorMap& map, const Coordinates& c, u32 src) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];\n" ::"l"(&map), "r"(c.c0),
               "r"(c.c1), "r"(c.c2), "r"(c.c3), "r"(c.c4), "r"(src)
               : "memory");
}

// Bytes from global into shared memory, counted at a barrier; addresses and their number are multiples of 16.
__device__ __forceinline__ void copy_bytes(u32 dst, const void* src, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(dst), "l"(src), "r"(bytes),
               "r"(barrier)
               : "memory");
}

// Adds fp32 values in shared memory to those in global memory.
__device__ __forceinline__ void add_bytes(float* dst, u32 src, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n" ::"l"(dst), "r"(src), "r"(bytes) : "memory");
}

__device__ __forceinline__ void store_commit() { asm volatile("cp.async.bulk.commit_group;\n" ::: "memory"); }

// Waits until the copy engine has read the shared memory of all of this thread's stores.
__device__ __forceinline__ void store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory"); }

// Waits until all of this thread's stores and sums are in global memory.
__device__ __forceinline__ void store_wait() { asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory"); }

// Orders this thread's accesses to global memory, ordinary and of the copy engine, with each other.
__device__ __forceinline__ void async_fence_global() { asm volatile("fence.proxy.async.global;\n" ::: "memory"); }

// Orders this thread's ordinary accesses to shared memory before later ones of the copy engine and of wgmma.
__device__ __forceinline__ void async_fence() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

// Four 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void stmatrix4(u32 address, u32 r0, u32 r1, u32 r2, u32 r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

// ---- wgmma: 64 rows of D a warpgroup, fp32. It runs on its own; registers that it uses must not be touched before wgmma_wait.

// Describes an operand in shared memory, tiles of 8 rows x 128 bytes under the 128-byte swizzle; 1024 bytes from one such tile to the
// next along the rows, `pane_bytes` to the next 64 columns where the columns are not the summed ones. Both ends on 16 bytes.
__device__ __forceinline__ u64 wgmma_operand(u32 address, u32 pane_bytes) {
  return (1ull << 62) | (static_cast<u64>(1024 >> 4) << 32) | (static_cast<u64>(pane_bytes >> 4) << 16) | ((address & 0x3ffff) >> 4);
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }

// Keeps the compiler from moving uses of registers across this point.
template <int N>
__device__ __forceinline__ void pin(float (&r)[N]) {
  UNROLL for (int i = 0; i < N; ++i) asm volatile("" : "+f"(r[i])::"memory");
}

// Waits until at most `Pending` of the newest groups are under way.
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(Pending) : "memory");
}

// d[64 x N] (+)= a[64 x 16] b[16 x N]: `ss` takes a and b from shared memory as 64 and N rows of summed columns, `ss_columns` as 16
// summed rows of 64 and N columns; `rs` takes a from registers and b as 16 summed rows of N columns. `add` false starts anew.
template <int N>
struct Wgmma;

#define R8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define R32(d) R8(d, 0), R8(d, 8), R8(d, 16), R8(d, 24)
#define R40(d) R32(d), R8(d, 32)
#define R48(d) R40(d), R8(d, 40)
#define R64(d) R48(d), R8(d, 48), R8(d, 56)
#define R80(d) R64(d), R8(d, 64), R8(d, 72)
#define R88(d) R80(d), R8(d, 80)
#define R96(d) R88(d), R8(d, 88)
#define R128(d) R96(d), R8(d, 96), R8(d, 104), R8(d, 112), R8(d, 120)
#define NAMES32 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES40 NAMES32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define NAMES48 NAMES40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define NAMES64 NAMES48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES80 NAMES64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define NAMES88 NAMES80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define NAMES96 NAMES88 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define NAMES128                                                                                                                   \
  NAMES96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119," \
      "%120,%121,%122,%123,%124,%125,%126,%127"

#define WGMMA_SS(N, TYPE, REGISTERS, A, B, ADD, TURNED)                                                                             \
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #ADD ", 0;\n wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE \
               " {" NAMES##REGISTERS "}, %" #A ", %" #B ", p, 1, 1, " TURNED ", " TURNED ";\n}\n"                                   \
               : R##REGISTERS(d)                                                                                                  \
               : "l"(a), "l"(b), "r"(static_cast<int>(add)))
#define WGMMA_RS(N, TYPE, REGISTERS, A0, A1, A2, A3, B, ADD)                                                                        \
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #ADD ", 0;\n wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE \
               " {" NAMES##REGISTERS "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, 1;\n}\n"                          \
               : R##REGISTERS(d)                                                                                                  \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)))
// The numbers that follow a count of registers are those of the operands after them.
#define WGMMA(N, REGISTERS, O0, O1, O2, O3, O4, O5)                                                        \
  template <>                                                                                              \
  struct Wgmma<N> {                                                                                        \
    template <bool Bf16>                                                                                   \
    static __device__ __forceinline__ void ss(float (&d)[REGISTERS], u64 a, u64 b, bool add) {             \
      if constexpr (Bf16) WGMMA_SS(N, "bf16", REGISTERS, O0, O1, O2, "0");                                 \
      if constexpr (!Bf16) WGMMA_SS(N, "f16", REGISTERS, O0, O1, O2, "0");                                 \
    }                                                                                                      \
    template <bool Bf16>                                                                                   \
    static __device__ __forceinline__ void ss_columns(float (&d)[REGISTERS], u64 a, u64 b, bool add) {     \
      if constexpr (Bf16) WGMMA_SS(N, "bf16", REGISTERS, O0, O1, O2, "1");                                 \
      if constexpr (!Bf16) WGMMA_SS(N, "f16", REGISTERS, O0, O1, O2, "1");                                 \
    }                                                                                                      \
    template <bool Bf16>                                                                                   \
    static __device__ __forceinline__ void rs(float (&d)[REGISTERS], const u32 (&a)[4], u64 b, bool add) { \
      if constexpr (Bf16) WGMMA_RS(N, "bf16", REGISTERS, O0, O1, O2, O3, O4, O5);                          \
      if constexpr (!Bf16) WGMMA_RS(N, "f16", REGISTERS, O0, O1, O2, O3, O4, O5);                          \
    }                                                                                                      \
  };

WGMMA(64, 32, 32, 33, 34, 35, 36, 37)
WGMMA(80, 40, 40, 41, 42, 43, 44, 45)
WGMMA(96, 48, 48, 49, 50, 51, 52, 53)
WGMMA(128, 64, 64, 65, 66, 67, 68, 69)
WGMMA(160, 80, 80, 81, 82, 83, 84, 85)
WGMMA(176, 88, 88, 89, 90, 91, 92, 93)
WGMMA(192, 96, 96, 97, 98, 99, 100, 101)
WGMMA(256, 128, 128, 129, 130, 131, 132, 133)

}  // namespace ptx
