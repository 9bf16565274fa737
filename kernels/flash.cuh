// What the forward and the backward kernels share: the kinds of masks, and where lanes point ldmatrix.
#pragma once

#include "ptx.cuh"

namespace flash {

using namespace ptx;

enum Mask { kNone = 0, kCausal = 1, kWindow = 2 };

// Where this lane points ldmatrix4 in a Tile: 16 rows by 2 chunks, row fastest (the A operand, and B transposed).
template <class Pane>
__device__ __forceinline__ u32 lane_a() {
  const u32 lane = thread_index() % 32;
  return Pane::at(lane % 16, lane / 16);
}

// Likewise 8 rows by 2 chunks, then the next 8 rows (the B operand).
template <class Pane>
__device__ __forceinline__ u32 lane_b() {
  const u32 lane = thread_index() % 32;
  return Pane::at(lane % 8 + lane / 16 * 8, lane / 8 % 2);
}

}  // namespace flash
