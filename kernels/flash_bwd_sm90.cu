// flash_bwd_sm90, flash_bwd_sm90_rows, flash_bwd_sm90_query: FlashAttention backward for Hopper (wgmma, the tensor copy engine).
//
// What they compute: dQ, dK, dV of O = softmax(scale Q K^T) V from Q, K, V, O, dO and the forward's LSE, masks, layouts and sequences of
//   different lengths as in flash_fwd_sm90, fp16 or bf16 with fp32 accumulation. P is computed again from Q, K and the LSE;
//   dS = P * (dO V^T - rowsum(dO * O)).
//   1. flash_bwd_sm90_rows: the LSE in base 2 and rowsum(dO * O) of each row; zeroes the sums of dQ.
//   2. flash_bwd_sm90: a CTA a block of 128 keys of a key/value head; walks the query blocks of all query heads of its group; dK and dV
//      stay in registers and are written once; shares of dQ are added to fp32 sums (SUMS=0: by the copy engine from shared memory; 1: the
//      same in the order of the key blocks, so that every run gives the same bits; 2: from the registers).
//   3. flash_bwd_sm90_query: rounds the sums to dQ.
// Method: Dao, FlashAttention-2 (arXiv 2307.08691) for the recomputation with key blocks outside; Shah et al., FlashAttention-3
//   (arXiv 2407.08608) for a producing warp, scores computed transposed, and a warp of its own that adds dQ. Written from these and from
//   the PTX manual. OVERLAP=0 has dP computed while a warpgroup takes exponentials, 1 dQ of the queries before.
// Traffic of a CTA between L2 and SM: its K and V rows once; Q and dO rows and 8 bytes a row (whole blocks) of every query block that it
//   walks; 4 head_dim bytes a query row (whole blocks) of shares of dQ; its dK and dV rows once. Rows past the end are neither fetched nor
//   written.
// Build: nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -cubin -Xptxas -v -DHEAD_DIM=128 -DBLOCK_Q=64 -DSTAGES=2
//   -DSCORE_STAGES=1 -DMASK=1 -DBF16=1 -DSUMS=0 -DOVERLAP=0 -DSHARED_BYTES=181376 flash_bwd_sm90.cu
//   (experiments/sm90_bwd.py knows the macros; wgmma must not be reported as serialised.)
// CPU reference: gradients in float64, `gradients` in bench_bwd_sm90.py.
// Speed on an H200: README.md has the tables.
#include "flash_bwd_sm90.cuh"

using Traits = flash90::BwdTraits<HEAD_DIM, BLOCK_Q, STAGES, SCORE_STAGES, MASK, BF16, SUMS, OVERLAP>;
static_assert(Traits::SharedBytes == SHARED_BYTES, "the launcher asks for another amount of shared memory");

extern "C" __global__ void __launch_bounds__(Traits::Threads, 1) flash_bwd_sm90(const __grid_constant__ flash90::BwdParams p) {
  flash90::backward<Traits>(p);
}

extern "C" __global__ void __launch_bounds__(flash90::kQueryThreads) flash_bwd_sm90_rows(const __grid_constant__ flash90::BwdParams p) {
  flash90::row_sums<Traits>(p);
}

extern "C" __global__ void __launch_bounds__(flash90::kQueryThreads) flash_bwd_sm90_query(const __grid_constant__ flash90::BwdParams p) {
  flash90::round_dq<Traits>(p);
}
