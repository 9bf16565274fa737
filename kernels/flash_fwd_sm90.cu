#include "flash_fwd_sm90.cuh"

using Traits = flash90::Traits<HEAD_DIM, CONSUMERS, BLOCK_K, STAGES, Q_STAGES, MASK, BF16, SCHEDULE, CLUSTER, PIPELINE, TURNS, POLY>;

extern "C" __global__ void __launch_bounds__(Traits::Threads, 1) __cluster_dims__(CLUSTER, 1, 1)
    flash_fwd_sm90(const __grid_constant__ flash90::Params p) {
  flash90::forward<Traits>(p);
}
