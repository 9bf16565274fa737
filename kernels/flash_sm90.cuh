// What the forward and the backward kernels for Hopper share: masks, orders of tiles, sequences of different lengths, rings of buffers.
#pragma once

#include "ptx_sm90.cuh"

namespace flash90 {

using namespace ptx;

enum Mask { kNone = 0, kCausal = 1, kWindow = 2 };
enum Direction { kAscending = 0, kDescending = 1, kAlternating = 2 };
enum Blocks { kLightFirst = 0, kHeavyFirst = 1, kFold = 2 };  // fold: the heaviest, the lightest, the second heaviest, ...

// Where lengths vary (bounds_q is set), row i of a sequence of L rows that ends before row E of all has the coordinates
// (kRagged - L + i, E, kRagged), in dimensions of strides `row`, `row` and 2^35 - row bytes, of which the first has kRagged rows: as
// addresses wrap at 2^64, that is row E - L + i, and the copy engine cuts off what lies past the sequence's end.
constexpr int kRagged = 1 << 30;

// One sequence: its lengths, and where it lies. Row i has the coordinates (row_shift + i, head, row_outer, wrap), key j likewise.
struct Sequence {
  int rows, keys;
  int row_shift, row_outer, key_shift, key_outer, wrap;
};

template <class Params>
__device__ __forceinline__ void locate(Sequence& s, const Params& p, int batch) {
  s.rows = p.seq_q, s.keys = p.seq_k, s.row_shift = s.key_shift = 0, s.row_outer = s.key_outer = batch, s.wrap = 0;
  if (p.bounds_q != nullptr) {
    s.row_outer = p.bounds_q[batch + 1], s.key_outer = p.bounds_k[batch + 1];
    s.rows = s.row_outer - p.bounds_q[batch], s.keys = s.key_outer - p.bounds_k[batch];
    s.row_shift = kRagged - s.rows, s.key_shift = kRagged - s.keys, s.wrap = kRagged;
  }
}

// A tile of a list: its head, and its block, counted from the end where blocks have least to do under a causal mask.
struct Place {
  int head, block;
};

// The index-th tile where `section` heads take turns: 1 is block-fastest, all heads is head-fastest.
__device__ __forceinline__ Place place_at(int index, int section, int heads, int blocks, int order) {
  const int first = index / (blocks * section) * section;
  const int width = min(section, heads - first), rest = index - first * blocks, u = rest / width;
  int block = order == kLightFirst ? u : blocks - 1 - u;
  if (order == kFold) block = u % 2 ? u / 2 : blocks - 1 - u / 2;
  return {first + rest % width, block};
}

// Which stage of a ring of buffers comes next, and the parity of its present phase.
template <int Stages>
struct Ring {
  int stage = 0;
  u32 parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == Stages) stage = 0, parity ^= 1;
  }
};

}  // namespace flash90
