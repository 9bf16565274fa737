// Small kernels that each ask one question of an L1 or an L2; cache_edges.toml launches them.
//
//     python experiments/user_kernels.py --cases experiments/cache_edges.toml --out h100_cache_edges.csv --seconds 150
//
// columns   stores of 4 bytes that fill a sector in eight turns, with `blocks` x 32 sectors of the warp between two of
//           them: which sectors does the L2 read before it has them whole, and how many such stores does it take a cycle?
// frame_N   a frame of N words a thread, stored whole and loaded whole in turn: what of it does L1 serve, and from how
//           many bytes on are dirty lines driven out of the L2? frame_N_shared does so beside 48 KiB of shared memory a CTA.
// twice     a row that a CTA reads twice, the second time with or without storing beside: what is still in L1?
// shifted   rows of stores that begin inside a sector: are the halves of two warps' stores put together?

extern "C" __global__ void columns(float* out, int warp_words, int column_words, int blocks, int groups, int step) {
    const int lane = threadIdx.x % 32, warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    float* own = out + (size_t)warp * warp_words;
    for (int group = 0; group < groups; ++group)
        for (int row = 0; row < 32; row += step)
            for (int block = 0; block < blocks; ++block)
                own[(size_t)((group * blocks + block) * 32 + lane) * column_words + row] = row;
}

template <int WORDS>
__device__ void frame(float* out, int turns) {
    volatile float words[WORDS];
    float sum = threadIdx.x;
    for (int turn = 0; turn < turns; ++turn) {
#pragma unroll 8
        for (int n = 0; n < WORDS; ++n) words[n] = sum + n;
#pragma unroll 8
        for (int n = 0; n < WORDS; ++n) sum += words[n];
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

template <int WORDS>
__device__ void frame_shared(float* out, int turns) {
    __shared__ volatile float taken[12288];
    taken[threadIdx.x] = turns;
    __syncthreads();
    frame<WORDS>(out, turns + (taken[0] < 0));
}

#define FRAME(N)                                                                                       \
    extern "C" __global__ void __launch_bounds__(64) frame_##N(float* out, int turns) { frame<N>(out, turns); } \
    extern "C" __global__ void __launch_bounds__(64) frame_##N##_shared(float* out, int turns) { frame_shared<N>(out, turns); }

FRAME(16)
FRAME(32)
FRAME(64)
FRAME(96)
FRAME(128)
FRAME(160)
FRAME(192)
FRAME(224)
FRAME(256)
FRAME(384)

extern "C" __global__ void twice(const float* x, float* out, int width, int stores) {
    __shared__ float parts[32];
    const float* row = x + (size_t)blockIdx.x * width;
    float sum = 0.f;
    for (int c = threadIdx.x; c < width; c += blockDim.x) sum += row[c];
    parts[threadIdx.x / 32] = sum;
    __syncthreads();
    const float first = parts[0];
    for (int c = threadIdx.x; c < width; c += blockDim.x) {
        sum += row[c] * first;
        if (stores) out[(size_t)blockIdx.x * width + c] = sum;
    }
    if (sum == 12345.f) out[0] = sum;
}

template <class T>
__device__ void shift(char* out, int bytes, int first) {
    T* row = (T*)(out + (size_t)blockIdx.x * bytes + first);
    for (int c = threadIdx.x; c < bytes / (int)sizeof(T) - 64 / (int)sizeof(T); c += blockDim.x) row[c] = T();
}

extern "C" __global__ void shifted_2(float* out, int bytes, int first) { shift<short>((char*)out, bytes, first); }
extern "C" __global__ void shifted_4(float* out, int bytes, int first) { shift<int>((char*)out, bytes, first); }
extern "C" __global__ void shifted_16(float* out, int bytes, int first) { shift<int4>((char*)out, bytes, first); }
