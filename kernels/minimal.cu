// minimal_fwd: the shortest FlashAttention forward that still tiles, in fp32, kept for what it teaches about traffic.
//
// What it computes: O = softmax(scale Q K^T) V per head, Q, K, V, O of shape [batch, heads, n, head_dim], n a multiple of 32.
//   One CTA of 32 threads owns a head; thread r owns row r of a 32x32 tile. Key blocks are the outer loop, so the running output and
//   its statistics cannot stay on the SM: each (key block, query block) pair reads O, sum and top from memory and writes them back.
//   Before the launch O and sum are zero and top is -inf.
// Traffic of a head, in elements, with T = n / 32: reads 2 n d + T (2 n d + 2 n), writes T (n d + 2 n).
// Build: nvcc -std=c++17 -O3 -arch=sm_75 -cubin -DHEAD_DIM=64 minimal.cu (any cc from 7.5 on).
// CPU reference: softmax in float64, `reference` in harness.py.
// Speed on an H200: 4.9 ms at 512 tokens and head_dim 64 for any number of heads up to 64, since one warp walks all tiles of a head one
//   after the other: 5 to 120 times slower than the naive chain there (README.md has the table).

struct MinimalParams {
  const float* q;
  const float* k;
  const float* v;
  float* o;
  float* sum;  // [batch, heads, n]
  float* top;
  int heads, n;
  float scale;
};

struct MinimalTraits {
  static constexpr int Side = 32, HeadDim = HEAD_DIM;
  static constexpr int QStride = HeadDim + 1, ScoreStride = Side + 1;  // odd: a column of 32 rows lies in 32 banks
  static constexpr int TileFloats = Side * HeadDim;
  static constexpr int SharedBytes = (2 * TileFloats + Side * QStride + Side * ScoreStride) * 4;
  static_assert(HeadDim % 32 == 0 && HeadDim <= 128, "head_dim must be 32, 64, 96 or 128");
  static_assert(SharedBytes <= 64 * 1024, "a CTA of cc 7.5 has 64 KB");
};

extern "C" __global__ void __launch_bounds__(32) minimal_fwd(const __grid_constant__ MinimalParams p) {
  using T = MinimalTraits;
  extern __shared__ float shared[];
  const int r = threadIdx.x;
  float* k = shared;
  float* v = k + T::TileFloats;
  float* q = v + T::TileFloats + r * T::QStride;                            // this thread's query row
  float* s = v + T::TileFloats + T::Side * T::QStride + r * T::ScoreStride;  // and its row of scores

  const long long head = static_cast<long long>(blockIdx.x) * p.heads + blockIdx.y;
  const float* heads_q = p.q + head * p.n * T::HeadDim;
  const float* heads_k = p.k + head * p.n * T::HeadDim;
  const float* heads_v = p.v + head * p.n * T::HeadDim;
  float* heads_o = p.o + head * p.n * T::HeadDim;
  float* sums = p.sum + head * p.n;
  float* tops = p.top + head * p.n;

  for (int j = 0; j < p.n; j += T::Side) {
    for (int x = 0; x < T::HeadDim; ++x) {
      k[r * T::HeadDim + x] = heads_k[(j + r) * T::HeadDim + x];
      v[r * T::HeadDim + x] = heads_v[(j + r) * T::HeadDim + x];
    }
    __syncwarp();
    for (int i = 0; i < p.n; i += T::Side) {
      const int row = i + r;
      for (int x = 0; x < T::HeadDim; ++x) q[x] = heads_q[row * T::HeadDim + x];
      const float old_top = tops[row], old_sum = sums[row];

      float tile_top = -INFINITY;
      for (int y = 0; y < T::Side; ++y) {
        float dot = 0.f;
        for (int x = 0; x < T::HeadDim; ++x) dot += q[x] * k[y * T::HeadDim + x];
        s[y] = dot * p.scale;
        tile_top = fmaxf(tile_top, s[y]);
      }
      float tile_sum = 0.f;
      for (int y = 0; y < T::Side; ++y) {
        s[y] = __expf(s[y] - tile_top);
        tile_sum += s[y];
      }

      const float top = fmaxf(old_top, tile_top);
      const float keep = __expf(old_top - top) * old_sum, add = __expf(tile_top - top);
      const float sum = keep + add * tile_sum;
      for (int x = 0; x < T::HeadDim; ++x) {
        float dot = 0.f;
        for (int y = 0; y < T::Side; ++y) dot += s[y] * v[y * T::HeadDim + x];
        float* o = heads_o + row * T::HeadDim + x;
        *o = (keep * *o + add * dot) / sum;
      }
      tops[row] = top;
      sums[row] = sum;
    }
    __syncwarp();
  }
}
