// What a branch that is taken costs a warp, and what copies from the L2 do to stores and loads of shared memory beside them.
// `nvcc -O3 -std=c++17 -arch=sm_90 branches.cu -o branches; ./branches > h200_branches.csv`: cycles of SM clock an element, by
// the longest of the warps of a CTA an SM. `ncu --profile-from-start off --metrics ... ./branches beside`: h200_beside.csv,
// whose launches stand in the order in which the program prints (op, kind, pause, fill_pause).
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <cuda_profiler_api.h>

// ---- branches ----
// KIND 0: tanhf as libdevice has it (two ways); 1: the polynomial alone; 3: exp and reciprocal alone.
// UNROLL elements stand one after the other in the code, `turns` times.
template <int KIND> __device__ __forceinline__ float one(float x) {
    if (KIND == 0) {  // as Triton's compiler writes libdevice's tanh
        float y;
        asm volatile("{\n .reg .pred p, q;\n .reg .f32 b, s;\n abs.ftz.f32 b, %1;\n setp.ltu.f32 p, b, 0f3F19999A;\n @p bra SHORT;\n bra.uni LONG;\nSHORT:\n"
            " mul.f32 s, %1, %1;\n fma.rn.ftz.f32 %0, s, 0f3C80F082, 0fBD563CAE;\n fma.rn.ftz.f32 %0, %0, s, 0f3E085941;\n fma.rn.ftz.f32 %0, %0, s, 0fBEAAA9ED;\n"
            " fma.rn.ftz.f32 %0, %0, s, 0f00000000;\n fma.rn.ftz.f32 %0, %0, %1, %1;\n bra.uni DONE;\nLONG:\n mul.f32 s, b, 0f4038AA3B;\n ex2.approx.ftz.f32 s, s;\n add.f32 s, s, 0f3F800000;\n"
            " rcp.approx.ftz.f32 s, s;\n fma.rn.ftz.f32 s, s, 0fC0000000, 0f3F800000;\n setp.ge.f32 q, b, 0f41102CB4;\n selp.f32 s, 0f3F800000, s, q;\n copysign.f32 %0, %1, s;\nDONE:\n}\n" : "=f"(y) : "f"(x));
        return y;
    }
    if (KIND == 1) { float s = x * x, p = fmaf(s, 0.0157f, -0.0523f); p = fmaf(s, p, 0.1331f); p = fmaf(s, p, -0.3333f); p = fmaf(s, p, 0.f); return fmaf(x, p, x); }
    if (KIND == 3) { float e, r; asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x)); e = e + 1.f; asm volatile("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(e)); return fmaf(r, -2.f, 1.f); }
    return x;
}

template <int KIND, int UNROLL> __global__ void branches(const float* in, float* out, long long* cycles, int turns, float scale) {
    float x[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) x[i] = in[threadIdx.x * UNROLL + i] * scale;
    float m = in[1 << 20] + (threadIdx.x % 2 ? 0.f : in[(1 << 20) + 1]);
    long long begin = 0;
    for (int t = 0; t <= turns; ++t) {
        if (t == 1) { __syncthreads(); begin = clock64(); }  // the first turn fetches the code
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) x[i] = one<KIND>(x[i]) * m;
    }
    long long end = clock64();
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) sum += x[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
    if (threadIdx.x % 32 == 0) cycles[blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32] = end - begin;
}

static float *in, *out; static long long* cycles;

template <int KIND, int UNROLL> void run(const char* data, float scale) {
    for (int warps : {1, 4, 8, 16}) {
        branches<KIND, UNROLL><<<132, warps * 32>>>(in, out, cycles, 1024 / UNROLL, scale);
        branches<KIND, UNROLL><<<132, warps * 32>>>(in, out, cycles, 1024 / UNROLL, scale);
        cudaDeviceSynchronize();
        long long most = 0;
        for (int i = 0; i < warps; ++i) most = cycles[i] > most ? cycles[i] : most;
        printf("branches,%d,%d,%s,%d,%.2f\n", KIND, UNROLL, data, warps, most / 1024.0);
        cudaError_t e = cudaGetLastError(); if (e) { printf("error %s\n", cudaGetErrorString(e)); exit(1); }
    }
}

// ---- shared memory beside copies ----
__device__ __forceinline__ void fill(int kind, const float4* from, unsigned to, float4& sum) {
    if (kind == 1) { float4 v; asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from)); sum.x += v.x + v.y + v.z + v.w; }
    if (kind == 2) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from));
    if (kind == 3) { float v; asm volatile("ld.global.ca.f32 %0, [%1];" : "=f"(v) : "l"((const float*)from)); sum.x += v; }
}

// Half the warps store to (op 0, 1: 4, 16 bytes a lane) or load from (2, 3) shared memory, the others fill from L2.
__global__ void beside(int op, int kind, int pause, int fill_pause, const float4* in, float* out, int span) {
    extern __shared__ float4 place[];
    unsigned at = (unsigned)__cvta_generic_to_shared(place) + (threadIdx.x % 128) * 16;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float4 sum = make_float4(0, 0, 0, 0);
    long long begin = clock64();
    if (warp < 4) {
        unsigned mine = at - (threadIdx.x % 128) * 16 + warp * 512 + lane * (op % 2 ? 16 : 4);
        while (clock64() - begin < 60000) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (op == 0) asm volatile("st.shared.f32 [%0], %1;" :: "r"(mine + 2048 * i), "f"(sum.x));
                if (op == 1) asm volatile("st.shared.v4.f32 [%0], {%1,%1,%1,%1};" :: "r"(mine + 2048 * i), "f"(sum.x));
                if (op == 2) { float v; asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(mine + 2048 * i)); sum.x += v; }
                if (op == 3) { float4 v; asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(mine + 2048 * i)); sum.x += v.x + v.y + v.z + v.w; }
            }
            if (pause) { long long until = clock64() + pause; while (clock64() < until); }
        }
    } else {
        unsigned n = 0;
        while (clock64() - begin < 60000 && kind) {
            const float4* p = in + (size_t)(blockIdx.x % 64) * 8192;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                unsigned line = (n + i * 4 + (warp - 4)) % 256;
                const float4* q = kind == 3 ? (const float4*)((const float*)(p + line * 32) + lane) : p + line * 32 + lane;
                fill(kind, q, at + 8192 + 2048 * i, sum);
            }
            n += 16;
            if (kind == 2) { asm volatile("cp.async.commit_group;"); asm volatile("cp.async.wait_group 1;"); }
            if (fill_pause) { long long until = clock64() + fill_pause; while (clock64() < until); }
        }
    }
    asm volatile("cp.async.wait_all;");
    out[(blockIdx.x * blockDim.x + threadIdx.x) % 65536] = sum.x + sum.y;
}

int main(int argc, char** argv) {
    cudaMallocManaged(&in, 16 << 20); cudaMallocManaged(&out, 1 << 20); cudaMallocManaged(&cycles, 1 << 16);
    for (int i = 0; i < (16 << 20) / 4; ++i) in[i] = (i % 2) ? 0.25f : -0.2f;
    if (argc == 1) {
        printf("what,kind,unroll,data,warps,cycles_per_element\n");
        auto factors = [](float all, float even) { cudaDeviceSynchronize(); in[1 << 20] = all, in[(1 << 20) + 1] = even; };
        factors(1.f, 0.f);
        run<0, 32>("small", 1.f); run<0, 8>("small", 1.f); run<0, 1>("small", 1.f);
        run<1, 32>("small", 1.f); run<1, 8>("small", 1.f); run<1, 1>("small", 1.f);
        run<3, 32>("small", 1.f); run<3, 1>("small", 1.f);
        factors(50.f, 0.f);
        run<0, 32>("large", 100.f); run<0, 8>("large", 100.f); run<0, 1>("large", 100.f);
        factors(1.f, 49.f);
        run<0, 32>("both", 1.f); run<0, 8>("both", 1.f); run<0, 1>("both", 1.f);
        return 0;
    }
    cudaFuncSetAttribute(beside, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536);
    beside<<<132, 256, 65536>>>(0, 1, 0, 0, (const float4*)in, out, 0);
    cudaDeviceSynchronize();
    cudaProfilerStart();
    for (int op = 0; op < 4; ++op)
        for (int kind = 0; kind < 4; ++kind)
            for (int pause : {0, 200})
                for (int fill_pause : {0, 150, 600}) {
                    if ((kind == 0 && fill_pause) || (kind == 3 && fill_pause == 150)) continue;
                    beside<<<132, 256, 65536>>>(op, kind, pause, fill_pause, (const float4*)in, out, 0);
                    printf("%d,%d,%d,%d\n", op, kind, pause, fill_pause);
                }
    cudaDeviceSynchronize(); cudaProfilerStop();
    printf("%s\n", cudaGetErrorString(cudaGetLastError()));
}
