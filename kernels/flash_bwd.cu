// flash_bwd, flash_bwd_rows, flash_bwd_query: FlashAttention backward by recomputation.
//
// What they compute: dQ, dK, dV of O = softmax(scale Q K^T) V from Q, K, V, O, dO and the forward's LSE, masks as in flash_fwd, fp16 or
//   bf16 with fp32 accumulation. P is computed again from Q, K and the LSE; dS = P * (dO V^T - rowsum(dO * O)).
//   1. flash_bwd_rows: rowsum(dO * O) and the LSE in base 2, one pair a row.
//   2. flash_bwd: one CTA a key block and key/value head; walks the query blocks of all query heads of its group; dK and dV stay in
//      registers and are written once; dQ goes to fp32 sums by atomic adds (DETERMINISTIC=0; the sums are zeroed before).
//   3. flash_bwd_query: converts the sums; or, with DETERMINISTIC=1, computes dQ by itself, one CTA a query block, recomputing P and dP
//      (seven products in all instead of five), and every run gives the same bits.
// Build: nvcc -std=c++17 -O3 -arch=sm_90 -cubin -Xptxas -v -DHEAD_DIM=128 -DBLOCK_Q=64 -DBLOCK_K=128 -DWARPS=8 -DMASK=1 -DBF16=1
//   -DDETERMINISTIC=0 -DMIN_CTAS=1 flash_bwd.cu (cc 8.0 and later).
// CPU reference: gradients in float64, `gradients` in harness.py.
// Speed on an H200, head_dim 64 and 128, 4096 and 16384 tokens: 205 to 265 TFLOP/s, 0.85 to 0.97 of PyTorch's flash backward
//   (README.md has the table). Shared memory feeds it: a warp owns 16 keys, so each fragment of Q or dO serves one product.
#include "flash_bwd.cuh"

using Traits = flash::BwdTraits<HEAD_DIM, BLOCK_Q, BLOCK_K, WARPS, MASK, BF16, DETERMINISTIC, MIN_CTAS>;

extern "C" __global__ void __launch_bounds__(Traits::Threads, Traits::MinCtas) flash_bwd(const __grid_constant__ flash::BwdParams p) {
  flash::backward_keys<Traits>(p);
}

extern "C" __global__ void __launch_bounds__(128) flash_bwd_rows(const __grid_constant__ flash::BwdParams p) {
  flash::row_sums<HEAD_DIM, BF16>(p);
}

#if DETERMINISTIC
extern "C" __global__ void __launch_bounds__(Traits::Threads, Traits::MinCtas) flash_bwd_query(const __grid_constant__ flash::BwdParams p) {
  flash::backward_queries<Traits>(p);
}
#else
extern "C" __global__ void __launch_bounds__(256) flash_bwd_query(const __grid_constant__ flash::BwdParams p) {
  flash::convert<HEAD_DIM, BF16>(p);
}
#endif
