// Kernels as users write them, each with one thing that costs time, and two with nothing odd; iosim reads what they cost
// from their machine code (docs/from-machine-code.md).
//
//     nvcc -O3 -std=c++17 -arch=sm_90 -lineinfo -cubin examples/kernels/plain.cu -o plain.cubin
//     python -m iosim explain --code plain.cubin --entry column_store
//
// column_store     a transpose that stores columns: 32 lanes write 32 sectors, half or less of each
// column_read      a transpose through shared memory whose columns lie in one bank
// spilling_tile    a tile of fp32 products that wants more registers than it may have
// rms_norm         a row a CTA: x / sqrt(mean(x^2)) * weight
// matrix_product   C = A B in fp32, tiles of 32 x 32 through shared memory

constexpr int SIDE = 32;

// out[c][r] = in[r][c] for a matrix of rows x columns; a CTA of 32 x 8 threads moves a tile of 32 x 32.
extern "C" __global__ void column_store(const float* in, float* out, int rows, int columns) {
    const int column = blockIdx.x * SIDE + threadIdx.x;
    for (int row = blockIdx.y * SIDE + threadIdx.y; row < (blockIdx.y + 1) * SIDE; row += blockDim.y) {
        if (row < rows && column < columns) out[(size_t)column * rows + row] = in[(size_t)row * columns + column];
    }
}

// The same through shared memory: stores are whole sectors, but the column of a tile of 32 words lies in one bank.
extern "C" __global__ void column_read(const float* in, float* out, int rows, int columns) {
    __shared__ float tile[SIDE][SIDE];
    const int column = blockIdx.x * SIDE + threadIdx.x, first = blockIdx.y * SIDE;
    for (int y = threadIdx.y; y < SIDE; y += blockDim.y) {
        tile[y][threadIdx.x] = in[(size_t)(first + y) * columns + column];
    }
    __syncthreads();
    const int row = first + threadIdx.x;
    for (int y = threadIdx.y; y < SIDE; y += blockDim.y) {
        out[(size_t)(blockIdx.x * SIDE + y) * rows + row] = tile[threadIdx.x][y];
    }
}

// Each of 128 threads sums 96 products of columns; eight CTAs an SM leave it 64 registers.
constexpr int SUMS = 96;

extern "C" __global__ void __launch_bounds__(128, 8) spilling_tile(const float* a, const float* b, float* out, int depth) {
    float sums[SUMS] = {};
    const float* row = a + (size_t)(blockIdx.x * 128 + threadIdx.x) * depth;
    for (int k = 0; k < depth; ++k) {
        const float x = row[k];
#pragma unroll
        for (int n = 0; n < SUMS; ++n) sums[n] = fmaf(x, b[(size_t)k * SUMS + n], sums[n]);
    }
#pragma unroll
    for (int n = 0; n < SUMS; ++n) out[((size_t)blockIdx.x * SUMS + n) * 128 + threadIdx.x] = sums[n];
}

extern "C" __global__ void rms_norm(const float* x, const float* weight, float* out, int columns, float epsilon) {
    __shared__ float parts[SIDE];
    const float* row = x + (size_t)blockIdx.x * columns;
    float sum = 0.f;
    for (int c = threadIdx.x; c < columns; c += blockDim.x) sum += row[c] * row[c];
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    if (threadIdx.x % SIDE == 0) parts[threadIdx.x / SIDE] = sum;
    __syncthreads();
    float total = 0.f;
    for (int n = 0; n < (int)blockDim.x / SIDE; ++n) total += parts[n];
    const float scale = rsqrtf(total / columns + epsilon);
    for (int c = threadIdx.x; c < columns; c += blockDim.x) out[(size_t)blockIdx.x * columns + c] = row[c] * scale * weight[c];
}

// A CTA of 32 x 32 threads makes a tile of C; sizes are multiples of 32.
extern "C" __global__ void matrix_product(const float* a, const float* b, float* c, int columns, int depth) {
    __shared__ float left[SIDE][SIDE], right[SIDE][SIDE];
    const int row = blockIdx.y * SIDE + threadIdx.y, column = blockIdx.x * SIDE + threadIdx.x;
    float sum = 0.f;
    for (int k = 0; k < depth; k += SIDE) {
        left[threadIdx.y][threadIdx.x] = a[(size_t)row * depth + k + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[(size_t)(k + threadIdx.y) * columns + column];
        __syncthreads();
#pragma unroll
        for (int n = 0; n < SIDE; ++n) sum = fmaf(left[threadIdx.y][n], right[n][threadIdx.x], sum);
        __syncthreads();
    }
    c[(size_t)row * columns + column] = sum;
}
