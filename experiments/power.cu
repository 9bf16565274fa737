// Kernels that load one unit of a GPU each, for its energy: experiments/power.py runs them for seconds and reads NVML.
//
// Every kernel repeats one kind of work `passes` times on all CTAs. Operands are random numbers: energy depends on how
// many bits change.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

struct Work {
    uint4* data;        // random bits; as bf16 they are numbers around 1
    float* out;         // never written in practice; keeps the compiler from dropping work
    int64_t bytes;      // footprint
    int64_t passes;
    int64_t* clock;     // SM cycles and nanoseconds of the last launch, as CTA 0 saw them
};

// Cycles and time of a CTA's whole life: the clock that the SM truly ran at.
struct Stopwatch {
    int64_t cycles, ns;
    __device__ Stopwatch() : cycles(clock64()) { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns)); }
    __device__ void stop(const Work& w) const {
        int64_t now;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        if (blockIdx.x == 0 && threadIdx.x == 0) w.clock[0] = clock64() - cycles, w.clock[1] = now - ns;
    }
};

__device__ __forceinline__ float random_normal(uint32_t seed) {
    seed = seed * 747796405u + 2891336453u;
    uint32_t word = ((seed >> ((seed >> 28) + 4)) ^ seed) * 277803737u;
    word = (word >> 22) ^ word;
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += ((word >> (8 * i)) & 255) / 255.f - 0.5f;
    return sum * 1.7f;
}

__device__ __forceinline__ uint32_t random_pair(uint32_t seed) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(random_normal(seed), random_normal(seed ^ 0x9e3779b9u));
    return *reinterpret_cast<uint32_t*>(&pair);
}

__device__ __forceinline__ uint32_t thread_id() { return blockIdx.x * blockDim.x + threadIdx.x; }

// fused multiply-adds in fp32, 16 independent chains a thread
extern "C" __global__ void power_ffma(Work w) {
    Stopwatch watch;
    float a[16], x = 0.999f + 1e-6f * threadIdx.x, y = 1e-3f * random_normal(thread_id());
    for (int i = 0; i < 16; i++) a[i] = random_normal(thread_id() * 16 + i);
    for (int64_t p = 0; p < w.passes; p++)
#pragma unroll 8
        for (int r = 0; r < 64; r++)
#pragma unroll
            for (int i = 0; i < 16; i++) a[i] = fmaf(a[i], x, y);
    float sum = 0;
    for (int i = 0; i < 16; i++) sum += a[i];
    if (sum == 1.2345f) w.out[0] = sum;
    watch.stop(w);
}

// integer logic, 16 chains: issue and register file with the cheapest arithmetic
extern "C" __global__ void power_integer(Work w) {
    Stopwatch watch;
    uint32_t a[16], x = thread_id() * 2654435761u;
    for (int i = 0; i < 16; i++) a[i] = thread_id() * 40503u + i * 2654435761u;
    for (int64_t p = 0; p < w.passes; p++)
#pragma unroll 8
        for (int r = 0; r < 64; r++)
#pragma unroll
            for (int i = 0; i < 16; i++) asm volatile("lop3.b32 %0, %0, %1, %2, 0x96;" : "+r"(a[i]) : "r"(x), "r"(a[(i + 1) & 15]));
    uint32_t sum = 0;
    for (int i = 0; i < 16; i++) sum += a[i];
    if (sum == 12345u) w.out[0] = sum;
    watch.stop(w);
}

// exp2 on the special function units, 8 chains, and a multiply-add that keeps the numbers changing
extern "C" __global__ void power_exp(Work w) {
    Stopwatch watch;
    float a[8];
    for (int i = 0; i < 8; i++) a[i] = random_normal(thread_id() * 8 + i);
    for (int64_t p = 0; p < w.passes; p++)
#pragma unroll 8
        for (int r = 0; r < 32; r++)
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float e;
                asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(a[i]));
                a[i] = fmaf(e, -1.9f, 0.9f);
            }
    float sum = 0;
    for (int i = 0; i < 8; i++) sum += a[i];
    if (sum == 1.2345f) w.out[0] = sum;
    watch.stop(w);
}

// 16-byte loads from shared memory, free of bank conflicts; 48 KiB of random numbers a CTA
extern "C" __global__ void power_shared(Work w) {
    Stopwatch watch;
    extern __shared__ uint4 tile[];
    const int n = 48 * 1024 / 16;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        tile[i] = make_uint4(random_pair(i * 4), random_pair(i * 4 + 1), random_pair(i * 4 + 2), random_pair(i * 4 + 3));
    __syncthreads();
    uint4 sum = make_uint4(0, 0, 0, 0);
    uint32_t base = (uint32_t)__cvta_generic_to_shared(tile);
    for (int64_t p = 0; p < w.passes; p++)
#pragma unroll 4
        for (int i = threadIdx.x; i < n; i += blockDim.x) {
            uint4 v;
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(base + i * 16));
            sum.x ^= v.x, sum.y ^= v.y, sum.z ^= v.z, sum.w ^= v.w;
        }
    if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 12345u) w.out[0] = 1;
    watch.stop(w);
}

// loads that bypass L1; each CTA walks its own slice of the footprint: L2 where it fits, else HBM
extern "C" __global__ void power_load(Work w) {
    Stopwatch watch;
    const int64_t n = w.bytes / 16 / gridDim.x;
    const uint4* slice = w.data + n * blockIdx.x;
    uint4 sum = make_uint4(0, 0, 0, 0);
    for (int64_t p = 0; p < w.passes; p++)
        for (int64_t i = threadIdx.x; i + 3 * blockDim.x < n; i += 4 * blockDim.x) {
            uint4 v[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v[k].x), "=r"(v[k].y), "=r"(v[k].z), "=r"(v[k].w) : "l"(slice + i + k * blockDim.x));
#pragma unroll
            for (int k = 0; k < 4; k++) sum.x ^= v[k].x, sum.y ^= v[k].y, sum.z ^= v[k].z, sum.w ^= v[k].w;
        }
    if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 12345u) w.out[0] = 1;
    watch.stop(w);
}

// stores of random numbers, each CTA to its own slice
extern "C" __global__ void power_store(Work w) {
    Stopwatch watch;
    const int64_t n = w.bytes / 16 / gridDim.x;
    uint4* slice = w.data + n * blockIdx.x;
    uint4 v = make_uint4(random_pair(thread_id()), random_pair(thread_id() + 1), random_pair(thread_id() + 2), random_pair(thread_id() + 3));
    for (int64_t p = 0; p < w.passes; p++)
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
            v.x = v.x * 1664525u + 1013904223u;
            slice[i] = v;
        }
    watch.stop(w);
}

// mma.sync m16n8k16 in bf16 on registers, 8 accumulators a warp
template <bool ZEROS>
__device__ void mma_loop(Work w) {
    Stopwatch watch;
    uint32_t a[4][4], b[8][2];
    float c[8][4] = {};
    for (int i = 0; i < 4; i++)  // the second half takes away what the first added: the same with other signs
        for (int k = 0; k < 4; k++)
            a[i][k] = ZEROS ? 0 : i < 2 ? random_pair(thread_id() * 64 + i * 4 + k) : a[i - 2][k] ^ 0x80008000u;
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 2; k++) b[i][k] = ZEROS ? 0 : random_pair(thread_id() * 64 + 32 + i * 2 + k);
    for (int64_t p = 0; p < w.passes; p++)
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                asm volatile(
                    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                    : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
                    : "r"(a[r][0]), "r"(a[r][1]), "r"(a[r][2]), "r"(a[r][3]), "r"(b[i][0]), "r"(b[i][1]));
    float sum = 0;
    for (int i = 0; i < 8; i++) sum += c[i][0] + c[i][1] + c[i][2] + c[i][3];
    if (sum == 1.2345f) w.out[0] = sum;
    watch.stop(w);
}
extern "C" __global__ void power_mma(Work w) { mma_loop<false>(w); }
extern "C" __global__ void power_mma_zeros(Work w) { mma_loop<true>(w); }

// wgmma m64n128k16 in bf16: both operands from shared memory, or the first from registers. One warpgroup a 64 rows.
__device__ __forceinline__ uint64_t descriptor(uint32_t address) {
    uint64_t d = (uint64_t)((address & 0x3ffff) >> 4);
    d |= (uint64_t)1 << 16;               // leading offset, unused with a swizzle
    d |= (uint64_t)(1024 >> 4) << 32;     // stride between groups of 8 rows
    return d | ((uint64_t)1 << 62);       // 128-byte swizzle
}

template <bool ZEROS, bool A_IN_REGISTERS>
__device__ void wgmma_loop(Work w) {
    Stopwatch watch;
    extern __shared__ __align__(1024) uint4 wide[];
    uint32_t base = ((uint32_t)__cvta_generic_to_shared(wide) + 1023) & ~1023u;
    const int n = (24 * 1024) / 4;        // A: 64 x 64 (8 KiB); B: 128 x 64 (16 KiB), each warpgroup its own
    uint32_t mine = base + (threadIdx.x / 128) * 24 * 1024;
    for (int i = threadIdx.x % 128; i < n; i += 128) {
        uint32_t value = ZEROS ? 0 : random_pair(thread_id() * 131 + i);
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(mine + i * 4), "r"(value));
    }
    __syncthreads();
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    float c[64] = {};
    uint32_t a[4];
    for (int k = 0; k < 4; k++) a[k] = ZEROS ? 0 : random_pair(thread_id() * 64 + k);
    for (int64_t p = 0; p < w.passes; p++) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint64_t da = descriptor(mine + k % 2 * 32), db = descriptor(mine + 8 * 1024 + k % 2 * 32);
#define C8(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), "+f"(c[i + 7])
#define ACC                                                                                                       \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28," \
    "%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55," \
    "%56,%57,%58,%59,%60,%61,%62,%63}"
#define PRODUCT(OPERAND, SIGN, TRANSPOSES, ...)                                                                       \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " ACC ", " OPERAND ", 1, " SIGN ", 1, " TRANSPOSES ";" \
                 : C8(0), C8(8), C8(16), C8(24), C8(32), C8(40), C8(48), C8(56)                                     \
                 : __VA_ARGS__)
            // the second half takes away what the first added, so that sums stay as small as in a real product
            if (A_IN_REGISTERS && k < 2)
                PRODUCT("{%64,%65,%66,%67}, %68", "1", "0", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(db));
            else if (A_IN_REGISTERS)
                PRODUCT("{%64,%65,%66,%67}, %68", "-1", "0", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(db));
            else if (k < 2)
                PRODUCT("%64, %65", "1", "0, 0", "l"(da), "l"(db));
            else
                PRODUCT("%64, %65", "-1", "0, 0", "l"(da), "l"(db));
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    float sum = 0;
    for (int i = 0; i < 64; i++) sum += c[i];
    if (sum == 1.2345f) w.out[0] = sum;
    watch.stop(w);
}
extern "C" __global__ void __launch_bounds__(256) power_wgmma(Work w) { wgmma_loop<false, false>(w); }
extern "C" __global__ void __launch_bounds__(256) power_wgmma_registers(Work w) { wgmma_loop<false, true>(w); }
extern "C" __global__ void __launch_bounds__(256) power_wgmma_zeros(Work w) { wgmma_loop<true, false>(w); }

// fills a buffer with random numbers
extern "C" __global__ void power_fill(Work w) {
    int64_t n = w.bytes / 16;
    for (int64_t i = thread_id(); i < n; i += (int64_t)gridDim.x * blockDim.x)
        w.data[i] = make_uint4(random_pair(i * 4), random_pair(i * 4 + 1), random_pair(i * 4 + 2), random_pair(i * 4 + 3));
}

// keeps every SM awake and idle: one warp that sleeps
extern "C" __global__ void power_sleep(Work w) {
    Stopwatch watch;
    for (int64_t p = 0; p < w.passes; p++) __nanosleep(1000);
    watch.stop(w);
}
