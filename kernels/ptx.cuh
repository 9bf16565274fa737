// The instructions that the tensor-core kernels are made of, one small function each.
//
// Sources: PTX ISA manual, sections on mma (fragment layouts of m16n8k16 and m16n8k8), ldmatrix, cp.async, red.
// cc 8.0 and later have cp.async, bf16 and m16n8k16. cc 7.5 has none of them: there a copy passes through registers and one
// k16 product is two k8 products over the two halves of the same fragments, so that the code above sees no difference.
// No header of the CUDA toolkit is needed: elements are handled as raw 16-bit values.
#pragma once

#define UNROLL _Pragma("unroll")

namespace ptx {

using u16 = unsigned short;
using u32 = unsigned int;
using i64 = long long;

__device__ __forceinline__ u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// threadIdx.x, read anew at each use: addresses that depend on it then need no register between uses.
__device__ __forceinline__ u32 thread_index() {
  u32 i;
  asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(i));
  return i;
}

// 16 bytes from global to shared memory, bypassing L1; zeros when `valid` is false (and then nothing is read).
__device__ __forceinline__ void copy16(u32 dst, const void* src, bool valid) {
#if __CUDA_ARCH__ >= 800
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
#else
  uint4 v = make_uint4(0, 0, 0, 0);
  if (valid) v = __ldcg(static_cast<const uint4*>(src));
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(dst), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
#endif
}

__device__ __forceinline__ void commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}

// Waits until at most `Pending` of this thread's newest copy groups are still under way.
template <int Pending>
__device__ __forceinline__ void wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;\n" ::"n"(Pending) : "memory");
#endif
}

// Four 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void ldmatrix4(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void ldmatrix4_trans(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// c (16x8, fp32) += a (16x16) * b (16x8). b0 holds rows 0-7 of b, b1 rows 8-15.
template <bool Bf16>
__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
  if constexpr (Bf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#else
  static_assert(!Bf16, "bf16 products need cc 8.0 or later");
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(b0));
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

// Two fp32 values rounded to 16 bits and packed, `lo` in the low half.
template <bool Bf16>
__device__ __forceinline__ u32 pack(float lo, float hi) {
  u32 r;
#if __CUDA_ARCH__ >= 800
  if constexpr (Bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(hi), "f"(lo));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(hi), "f"(lo));
  }
#else
  u16 l, h;
  asm("cvt.rn.f16.f32 %0, %1;\n" : "=h"(l) : "f"(lo));
  asm("cvt.rn.f16.f32 %0, %1;\n" : "=h"(h) : "f"(hi));
  r = static_cast<u32>(l) | (static_cast<u32>(h) << 16);
#endif
  return r;
}

template <bool Bf16>
__device__ __forceinline__ float2 unpack(u32 v) {
  float2 r;
  if constexpr (Bf16) {
    r.x = __uint_as_float(v << 16);
    r.y = __uint_as_float(v & 0xffff0000u);
  } else {
    const u16 l = static_cast<u16>(v & 0xffffu), h = static_cast<u16>(v >> 16);
    asm("cvt.f32.f16 %0, %1;\n" : "=f"(r.x) : "h"(l));
    asm("cvt.f32.f16 %0, %1;\n" : "=f"(r.y) : "h"(h));
  }
  return r;
}

__device__ __forceinline__ float ex2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(r) : "f"(x));
  return r;
}

// Adds two neighbouring fp32 values in global memory, order undefined.
__device__ __forceinline__ void add2(float* p, float x, float y) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};\n" ::"l"(p), "f"(x), "f"(y) : "memory");
#else
  atomicAdd(p, x);
  atomicAdd(p + 1, y);
#endif
}

// A tile of 16-bit elements in shared memory, `Width` a row, its 16-byte chunks permuted so that eight rows of one chunk column lie
// in eight different groups of banks: the chunk number is XORed with the row, over eight chunks (rows of 128 bytes and their
// multiples) or over four (rows of 192 bytes, where neighbouring rows already differ by half a turn).
template <int Width>
struct Tile {
  static constexpr int kRowBytes = Width * 2;
  static constexpr int kChunks = Width / 8;
  static constexpr int kGroup = (kRowBytes % 128 == 0) ? 8 : 4;
  static_assert(Width % 32 == 0, "a row must be whole groups of four chunks");
  static_assert(kGroup == 8 || kRowBytes % 128 == 64, "the four-chunk swizzle assumes rows of an odd number of 64-byte halves");

  static __device__ __forceinline__ u32 key(u32 row) { return kGroup == 8 ? (row & 7) : ((row >> 1) & 3); }
  // Byte offset of a chunk.
  static __device__ __forceinline__ u32 at(u32 row, u32 chunk) { return row * kRowBytes + ((chunk ^ key(row)) << 4); }
  // Moves an address of chunk 0 or 1 (as `at` gave it, tile base aligned to 128 bytes) by `2 * pair` chunks.
  static __device__ __forceinline__ u32 shift(u32 address, int pair) {
    constexpr int kPairs = kGroup / 2;
    return (address ^ ((pair % kPairs) * 32)) + (pair / kPairs) * (kGroup * 16);
  }

  // Starts the copy of `Rows` rows; rows from `limit` on are filled with zeros. `row_bytes` is the distance of rows in global memory.
  template <int Rows, int Threads>
  static __device__ __forceinline__ void load(u32 tile, const char* src, i64 row_bytes, int limit, u32 thread) {
    constexpr int kTotal = Rows * kChunks;
    if constexpr (Threads % kChunks == 0 && kTotal % Threads == 0) {
      constexpr int kStep = Threads / kChunks;
      const u32 row = thread / kChunks, chunk = thread % kChunks;
      const char* p = src + row * row_bytes + chunk * 16;
      UNROLL for (int i = 0; i < kTotal / Threads; ++i)
        copy16(tile + at(row + i * kStep, chunk), p + i * (kStep * row_bytes), static_cast<int>(row) + i * kStep < limit);
    } else {
      UNROLL for (int i = 0; i < (kTotal + Threads - 1) / Threads; ++i) {
        const u32 index = i * Threads + thread, row = index / kChunks, chunk = index % kChunks;
        if (index < kTotal) copy16(tile + at(row, chunk), src + row * row_bytes + chunk * 16, static_cast<int>(row) < limit);
      }
    }
  }
};

}  // namespace ptx
