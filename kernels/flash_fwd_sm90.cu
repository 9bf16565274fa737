// flash_fwd_sm90: FlashAttention forward for Hopper (wgmma, the tensor copy engine), every choice of tile, overlap and schedule open.
//
// What it computes: O = softmax(scale Q K^T) V and, where wanted, LSE = log sum exp(scale Q K^T) per query row, in fp16 or bf16 with fp32
//   accumulation, online softmax in base 2; Q, O [batch, heads, seq_q, head_dim] and K, V [batch, kv_heads, seq_k, head_dim], or
//   sequences of different lengths one after the other, [all rows, heads, head_dim]. Masks keep key j of row i where
//   0 <= i + (seq_k - seq_q) - j (causal) and that is <= window (window). A row without keys gives O = 0 and LSE = -inf.
// Method: Dao, FlashAttention-2 (arXiv 2307.08691) for the algorithm; Shah et al., FlashAttention-3 (arXiv 2407.08608) for a producing
//   warp with its registers given away, products and exponentials of two warpgroups in turns, and overlap inside one; rescaling only when
//   a maximum grows by more than 2^8, and a share of the exponentials by a polynomial, as FlashAttention-4 has them. Written from these
//   and from the PTX manual.
// Traffic of a CTA between L2 and SM: its Q rows once a tile, the K and V rows of the tile's key blocks once each (rows past the end are
//   not fetched; a cluster of two fetches each once for both), its O rows and 4 bytes of LSE a row written once.
// Build: nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -cubin -Xptxas -v -DHEAD_DIM=128 -DCONSUMERS=2 -DBLOCK_K=128 -DSTAGES=2
//   -DQ_STAGES=2 -DMASK=1 -DBF16=1 -DSCHEDULE=2 -DCLUSTER=1 -DPIPELINE=0 -DTURNS=0 -DPOLY=0 -DPACK=1 -DSHARED_BYTES=196732 flash_fwd_sm90.cu
//   (experiments/sm90.py knows the macros; wgmma must not be reported as serialised.)
// CPU reference: softmax in float64, `reference` in bench_sm90.py.
// Speed on an H200: README.md has the tables.
#include "flash_fwd_sm90.cuh"

using Traits = flash90::Traits<HEAD_DIM, CONSUMERS, BLOCK_K, STAGES, Q_STAGES, MASK, BF16, SCHEDULE, CLUSTER, PIPELINE, TURNS, POLY, PACK>;
static_assert(Traits::SharedBytes == SHARED_BYTES, "the launcher asks for another amount of shared memory");

extern "C" __global__ void __launch_bounds__(Traits::Threads, 1) __cluster_dims__(CLUSTER, 1, 1)
    flash_fwd_sm90(const __grid_constant__ flash90::Params p) {
  flash90::forward<Traits>(p);
}
