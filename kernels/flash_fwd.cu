// flash_fwd: FlashAttention forward on tensor cores, every choice of tile and schedule open; flash_combine: sums up split keys.
//
// What it computes: O = softmax(scale Q K^T) V and LSE = log sum exp(scale Q K^T) per query row, for Q, O [batch, heads, seq_q,
//   head_dim] and K, V [batch, kv_heads, seq_k, head_dim] in fp16 or bf16, any strides with contiguous rows; fp32 accumulation, online
//   softmax in base 2. Masks keep key j of row i where 0 <= i + (seq_k - seq_q) - j (causal) and that is <= window (window).
//   A row without keys gives O = 0 and LSE = -inf. Sizes need not be multiples of the tile.
// Method: Dao, FlashAttention-2 (arXiv 2307.08691): queries outside, one CTA a query tile, each warp whole rows; rescaling only when a
//   maximum grows by more than 2^8, as FlashAttention-4 does, which changes no result beyond rounding.
// Traffic of a CTA between L2 and SM: its Q rows once, the K and V rows of its key blocks once each (rows past the end are not
//   fetched), its O rows and 4 bytes of LSE a row written once.
// Build: nvcc -std=c++17 -O3 -arch=sm_90 -cubin -Xptxas -v -DHEAD_DIM=128 -DBLOCK_Q=128 -DBLOCK_K=64 -DWARPS=4 -DSTAGES=2 -DMASK=1
//   -DBF16=1 -DPERSISTENT=0 -DSPLIT=0 -DQ_IN_REGISTERS=0 -DMIN_CTAS=2 flash_fwd.cu
//   (cc 7.5: no cp.async and no bf16; registers and spills of every tile: resources.csv).
// CPU reference: softmax in float64, `reference` in harness.py.
// Speed on an H200, bf16, 32 heads x 4096 tokens, 128x64 tile of 4 warps at head_dim 128 and 128x128 at 64: about 400 and 350 TFLOP/s
//   (README.md has the table): the rate of mma.sync, about 60 % of what wgmma reaches there.
#include "flash_fwd.cuh"

using Traits = flash::FwdTraits<HEAD_DIM, BLOCK_Q, BLOCK_K, WARPS, STAGES, MASK, BF16, PERSISTENT, SPLIT, Q_IN_REGISTERS, MIN_CTAS>;

extern "C" __global__ void __launch_bounds__(Traits::Threads, Traits::MinCtas) flash_fwd(const __grid_constant__ flash::FwdParams p) {
  flash::forward<Traits>(p);
}

extern "C" __global__ void __launch_bounds__(128) flash_combine(const __grid_constant__ flash::FwdParams p) {
  flash::combine<HEAD_DIM, BF16>(p);
}
