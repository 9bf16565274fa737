// What counters see of a box that TMA fetches past the end of a tensor.
//
// A tensor of 4 heads x 1,000 rows x 64 fp16 columns; each of 100 CTAs fetches one box of 128 rows x 64 columns, 16,384
// bytes, of head (CTA mod 4), from the row that the launch gives: whole inside, with its last rows past the end of the
// head, and past the end altogether. Rows past the end arrive as zeros.
//
//     nvcc -arch=sm_90 experiments/boxes.cu -o boxes -lcuda
//     ncu --csv --print-units base --clock-control none --metrics l1tex__m_xbar2l1tex_read_bytes.sum,lts__t_sectors_srcunit_tex_op_read.sum,dram__bytes_read.sum ./boxes
//
// Recorded on an H200: measurements/h200_boxes.csv.

#include <cstdio>
#include <cuda.h>
#include <cuda_runtime.h>

constexpr int Heads = 4, Rows = 1000, Columns = 64, BoxRows = 128;
constexpr int BoxBytes = BoxRows * Columns * 2;

__global__ void fetch_box(const __grid_constant__ CUtensorMap map, int row) {
  extern __shared__ __align__(1024) char box[];
  __shared__ unsigned long long arrived;
  const unsigned to = __cvta_generic_to_shared(box), barrier = __cvta_generic_to_shared(&arrived);
  if (threadIdx.x != 0) return;
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;" ::"r"(barrier) : "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(BoxBytes));
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(&map), "r"(0), "r"(row), "r"(int(blockIdx.x) % Heads), "r"(barrier)
      : "memory");
  for (int done = 0; !done;)
    asm volatile("{.reg .pred q; mbarrier.try_wait.parity.shared::cta.b64 q, [%1], 0; selp.b32 %0, 1, 0, q;}"
                 : "=r"(done)
                 : "r"(barrier)
                 : "memory");
}

int main() {
  void* tensor;
  cuInit(0);
  cudaMalloc(&tensor, Heads * Rows * Columns * 2);
  cudaMemset(tensor, 0, Heads * Rows * Columns * 2);
  CUtensorMap map;
  const cuuint64_t sizes[3] = {Columns, Rows, Heads}, strides[2] = {Columns * 2, Rows * Columns * 2};
  const cuuint32_t box[3] = {Columns, BoxRows, 1}, steps[3] = {1, 1, 1};
  if (cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3, tensor, sizes, strides, box, steps,
                             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE))
    return 1;
  for (int row : {0, 872, 896, 960, 1000, 2000}) {
    fetch_box<<<100, 32, BoxBytes>>>(map, row);
    const cudaError_t error = cudaDeviceSynchronize();
    std::printf("row %d: %s\n", row, cudaGetErrorString(error));
    if (error != cudaSuccess) return 1;
  }
}
