// Kernels whose accesses are known by hand. accesses.ptx beside it is what CUDA 13.0 makes of them:
//     nvcc -arch=sm_80 -ptx -lineinfo accesses.cu
extern "C" __global__ void column_store(const float *in, float *out, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    for (int c = 0; c < cols; c++) out[(long long)row * cols + c] = in[(long long)c * rows + row];
}
extern "C" __global__ void transpose(const float *in, float *out, int n) {
    __shared__ float tile[32][32];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) tile[threadIdx.y + j][threadIdx.x] = in[(long long)(y + j) * n + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x; y = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) out[(long long)(y + j) * n + x] = tile[threadIdx.x][threadIdx.y + j];
}
extern "C" __global__ void row_norm(const float *in, float *out, const float *weight, int cols) {
    const float *row = in + (long long)blockIdx.x * cols;
    float sum = 0;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) sum += row[c] * row[c];
    __shared__ float part[32];
    for (int s = 16; s; s /= 2) sum += __shfl_xor_sync(~0u, sum, s);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < blockDim.x / 32; w++) sum += part[w];
    float scale = rsqrtf(sum / cols);
    for (int c = threadIdx.x; c < cols; c += blockDim.x) out[(long long)blockIdx.x * cols + c] = row[c] * scale * weight[c];
}
extern "C" __global__ void causal_loads(const float4 *keys, float *out, const int *starts, int tokens, int tile) {
    int first = starts[blockIdx.y], end = min(tokens, ((int)blockIdx.x + 1) * tile);
    float sum = 0;
    for (int block = 0; block < end; block += tile)
        for (int r = threadIdx.x / 16; r < tile; r += blockDim.x / 16)
            if (block + r < end) sum += keys[(long long)(first + block + r) * 16 + threadIdx.x % 16].x;
    out[((long long)blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x] = sum;
}
