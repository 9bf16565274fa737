// What a fill reads from HBM where the slices of its CTAs begin inside a sector.
//
//     nvcc -arch=sm_90 -O3 -o partial experiments/partial_sectors.cu
//     ncu --clock-control none --cache-control all --metrics dram__bytes_read.sum,dram__bytes_write.sum,lts__t_sectors_srcunit_tex_op_write.sum ./partial
//
// Launches, in order: for 256 MiB, 800 MiB and 1.5 GiB, slices that begin at a line (16 bytes x an even number), then at every 16 bytes.
#include <cstdio>
#include <cuda_runtime.h>

__global__ void __launch_bounds__(1024) fill(uint4* data, long long each) {
    const long long begin = each * blockIdx.x;
    for (long long i = begin + threadIdx.x; i < begin + each; i += 1024) data[i] = make_uint4(1, 2, 3, 4);
}

int main() {
    const int ctas = 264;
    uint4* data;
    if (cudaMalloc(&data, 1600ll << 20) != cudaSuccess) return 1;
    for (long long mib : {256ll, 800ll, 1536ll})
        for (int odd = 0; odd < 2; odd++) {
            long long each = (mib << 20) / 16 / ctas / 8 * 8 + odd;
            fill<<<ctas, 1024>>>(data, each);
            printf("%lld MiB, slices of %lld x 16 bytes: %s\n", mib, each, cudaGetErrorString(cudaDeviceSynchronize()));
        }
    return 0;
}
