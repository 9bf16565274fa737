// Time from one small launch to the next: in a stream, in a graph, and in a graph of programmatic launches.
//
//     nvcc -arch=sm_90 -O3 -o gaps gaps.cu && ./gaps > gaps.csv
//
// A row is a chain of launches of one kind. `us_each` is the device's time a launch: the median of nine runs.
#include <algorithm>
#include <cstdio>
#include <cuda_runtime.h>
#include <vector>

#define CHECK(call)                                                                          \
    do {                                                                                     \
        cudaError_t code = call;                                                             \
        if (code != cudaSuccess) { fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(code)); exit(1); } \
    } while (0)

struct Work {
    float4* from;
    float4* to;
    long long elements;  // of 16 bytes; 0: nothing
    int sleep_ns;
    int depend;          // waits for the launch before it (programmatic launches)
};

__global__ void work(Work w) {
    if (w.depend) {
        asm volatile("griddepcontrol.launch_dependents;");
        asm volatile("griddepcontrol.wait;" ::: "memory");
    }
    extern __shared__ float4 tile[];
    if (w.sleep_ns) __nanosleep(w.sleep_ns);
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < w.elements; i += (long long)gridDim.x * blockDim.x)
        w.to[i] = w.from[i];
    if (w.elements < 0) w.to[0] = tile[threadIdx.x];
}

static void start(cudaStream_t stream, Work w, int ctas, int threads, int shared, bool programmatic) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(ctas), config.blockDim = dim3(threads), config.dynamicSmemBytes = shared, config.stream = stream;
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute, config.numAttrs = programmatic;
    w.depend = programmatic;
    CHECK(cudaLaunchKernelEx(&config, work, w));
}

static float median_us(std::vector<float> ms, int launches) {
    std::sort(ms.begin(), ms.end());
    return ms[ms.size() / 2] * 1e3f / launches;
}

int main() {
    const long long most = 512ll << 20;
    float4 *a, *b;
    CHECK(cudaMalloc(&a, most));
    CHECK(cudaMalloc(&b, most));
    CHECK(cudaMemset(a, 1, most));
    CHECK(cudaMemset(b, 2, most));
    CHECK(cudaFuncSetAttribute(work, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024));
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    cudaEvent_t before, after;
    CHECK(cudaEventCreate(&before));
    CHECK(cudaEventCreate(&after));
    printf("mode,ctas,threads,shared_bytes,copied_bytes,launches,us_each\n");
    struct Kind { int ctas, threads, shared; long long bytes; };
    std::vector<Kind> kinds;
    for (int ctas : {1, 32, 132, 264, 1056, 4224, 16896})
        for (int threads : {128, 256, 384}) kinds.push_back({ctas, threads, 0, 0});
    for (int ctas : {132, 1056, 4224})
        for (int shared : {48, 96, 160, 220}) kinds.push_back({ctas, 256, shared * 1024, 0});
    for (long long bytes = 4096; bytes <= most; bytes *= 2)
        for (int per_sm : {4, 8}) {
            long long needed = (bytes / 16 + 255) / 256;
            int ctas = (int)std::min<long long>(needed, per_sm == 4 ? 132 * 4 : 1 << 24);
            if (per_sm == 4 && needed < ctas) continue;
            kinds.push_back({ctas, 256, 0, bytes});
        }
    for (Kind k : kinds) {
        Work w = {a, b, k.bytes / 16, 0, 0};
        const int launches = k.bytes > (32 << 20) ? 8 : 100;
        for (const char* mode : {"stream", "graph", "graph_programmatic"}) {
            bool programmatic = mode[5] == '_';
            cudaGraphExec_t executable = nullptr;
            if (mode[0] == 'g') {
                cudaGraph_t graph;
                CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
                for (int i = 0; i < launches; i++) start(stream, w, k.ctas, k.threads, k.shared, programmatic && i);
                CHECK(cudaStreamEndCapture(stream, &graph));
                CHECK(cudaGraphInstantiate(&executable, graph, 0));
                CHECK(cudaGraphDestroy(graph));
            }
            std::vector<float> ms;
            for (int run = 0; run < 11; run++) {
                CHECK(cudaEventRecord(before, stream));
                if (executable) CHECK(cudaGraphLaunch(executable, stream));
                else for (int i = 0; i < launches; i++) start(stream, w, k.ctas, k.threads, k.shared, false);
                CHECK(cudaEventRecord(after, stream));
                CHECK(cudaEventSynchronize(after));
                float once;
                CHECK(cudaEventElapsedTime(&once, before, after));
                if (run > 1) ms.push_back(once);
            }
            printf("%s,%d,%d,%d,%lld,%d,%.4f\n", mode, k.ctas, k.threads, k.shared, k.bytes, launches, median_us(ms, launches));
            if (executable) CHECK(cudaGraphExecDestroy(executable));
        }
    }
    return 0;
}
