"""A Triton forward of this project's own, to tune: grouped key heads, another grid order and other names than the
tutorial's. A program takes TILE_Q query rows of a head; heads are fastest in the grid; causal programs start with the
longest rows."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def grouped_forward(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    scale,
    seq,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    CAUSAL: tl.constexpr,
    TILE_Q: tl.constexpr,
    TILE_K: tl.constexpr,
):
    """q, o: [heads, seq, WIDTH]; k, v: [heads / GROUP, seq, WIDTH]; seq a multiple of the tiles."""
    head = tl.program_id(0)
    blocks = tl.num_programs(1)
    block = blocks - 1 - tl.program_id(1) if CAUSAL else tl.program_id(1)
    rows = block * TILE_Q + tl.arange(0, TILE_Q)
    keys = tl.arange(0, TILE_K)
    width = tl.arange(0, WIDTH)
    base_q = head.to(tl.int64) * seq * WIDTH
    base_k = (head // GROUP).to(tl.int64) * seq * WIDTH
    q = tl.load(q_ptr + base_q + rows[:, None] * WIDTH + width[None, :])
    acc = tl.zeros([TILE_Q, WIDTH], dtype=tl.float32)
    total = tl.zeros([TILE_Q], dtype=tl.float32)
    row_max = tl.full([TILE_Q], -float("inf"), dtype=tl.float32)
    end = (block + 1) * TILE_Q if CAUSAL else seq
    for start in range(0, end, TILE_K):
        at = base_k + (start + keys[:, None]) * WIDTH + width[None, :]
        k = tl.load(k_ptr + at)
        scores = tl.dot(q, tl.trans(k)) * (scale * 1.44269504)
        if CAUSAL:
            scores = tl.where(rows[:, None] >= start + keys[None, :], scores, -1.0e6)
        higher = tl.maximum(row_max, tl.max(scores, 1))
        p = tl.math.exp2(scores - higher[:, None])
        shrink = tl.math.exp2(row_max - higher)
        total = total * shrink + tl.sum(p, 1)
        v = tl.load(v_ptr + at)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None])
        row_max = higher
    out = acc / total[:, None]
    tl.store(o_ptr + base_q + rows[:, None] * WIDTH + width[None, :], out.to(o_ptr.type.element_ty))
