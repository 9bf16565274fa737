// Where the GPU puts the CTAs of packed sequences, some of which find no rows and exit at once.
//
//     nvcc -arch=sm_90 -O3 -o absent absent.cu && ./absent > absent.csv
//
// The grid is (blocks, sequences, heads), as FlashAttention-2's varlen forward has it: a sequence has CTAs for as many
// blocks as the longest. CTAs with rows stay for half a millisecond, others for `life_cycles`. A row is one launch:
// the SM of each CTA with rows, in the order of the grid, and how many SMs have one of them, two and so on.
#include <algorithm>
#include <cstdio>
#include <cuda_runtime.h>
#include <string>
#include <vector>

#define CHECK(call)                                                                          \
    do {                                                                                     \
        cudaError_t code = call;                                                             \
        if (code != cudaSuccess) { fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(code)); exit(1); } \
    } while (0)

__global__ void __launch_bounds__(128) work(const int* blocks, int* sms, long long stay, long long life) {
    extern __shared__ float4 tile[];
    long long begin = clock64();
    int mine = blocks[blockIdx.y];
    bool there = (int)blockIdx.x < mine;
    if (there && threadIdx.x == 0) {
        int sm;
        asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
        sms[(blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x] = sm;
    }
    long long until = begin + (there ? stay : life);
    while (clock64() < until) {}
    if (stay < 0) sms[0] = (int)tile[threadIdx.x].x;
}

int main() {
    std::vector<std::vector<int>> packed;
    for (int n : {48, 64, 68, 72, 80, 90, 108, 124, 132}) {
        packed.push_back({n});
        packed.push_back({1, n});
        packed.push_back({n, 1});
        packed.push_back({n / 2, 1, n});
        packed.push_back({1, 1, 1, 1, n, 1, 1, 1, 1});
    }
    packed.push_back({38, 1, 90});
    packed.push_back({9, 1});
    packed.push_back({1, 1, 1, 107, 1, 24, 4, 23, 3, 43, 1});
    packed.push_back({3, 3, 1, 1, 1, 1, 3, 1, 72, 1, 18, 2, 1, 1, 1, 1, 3, 1, 49, 5, 6, 1, 1, 105});
    int *blocks, *sms, count = 0;
    CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
    CHECK(cudaMalloc(&blocks, 4096));
    CHECK(cudaMalloc(&sms, 1 << 20));
    CHECK(cudaFuncSetAttribute(work, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024));
    printf("blocks,heads,ctas_per_sm,life_cycles,run,ctas,with_rows,sms_by_ctas,sm_of_each\n");
    for (auto& each : packed)
        for (int heads : {1, 8})
            for (int per_sm : {1, 2, 3})
                for (long long life : {0ll, 1000ll, 4000ll})
                    for (int run = 0; run < 2; run++) {
                        int most = *std::max_element(each.begin(), each.end());
                        int grid = most * (int)each.size() * heads, there = 0;
                        for (int n : each) there += n * heads;
                        if (there > count * per_sm || (heads > 1 && most > 16)) continue;
                        CHECK(cudaMemcpy(blocks, each.data(), each.size() * sizeof(int), cudaMemcpyHostToDevice));
                        CHECK(cudaMemset(sms, 0xff, grid * sizeof(int)));
                        work<<<dim3(most, each.size(), heads), 128, (227 / per_sm - 1) * 1024>>>(blocks, sms, 1000000, life);
                        CHECK(cudaGetLastError());
                        std::vector<int> found(grid);
                        CHECK(cudaMemcpy(found.data(), sms, grid * sizeof(int), cudaMemcpyDeviceToHost));
                        std::vector<int> on(count), by(per_sm + 1);
                        std::string text, of;
                        for (int sm : found)
                            if (sm >= 0) on[sm]++, text += std::to_string(sm) + " ";
                        for (int n : on) by[n]++;
                        for (int n : each) of += std::to_string(n) + " ";
                        printf("%s,%d,%d,%lld,%d,%d,%d,", of.c_str(), heads, per_sm, life, run, grid, there);
                        for (int n = 1; n <= per_sm; n++) printf("%d%s", by[n], n < per_sm ? " " : ",");
                        printf("%s\n", text.c_str());
                    }
    CHECK(cudaDeviceSynchronize());
}
