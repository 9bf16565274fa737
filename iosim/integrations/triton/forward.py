"""A flash forward in Triton with the arguments of the tutorial's kernel, to be compiled where Triton is installed: what
a configuration takes of an SM is then the compiler's word. Imports Triton, and nothing else does.

A program takes BLOCK_M query rows of a head and walks the keys BLOCK_N at a time: STAGE 1 walks all of them, STAGE 3
those before the diagonal unmasked and those on it masked.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _walk(
    acc,
    l_i,
    m_i,
    q,
    k_ptrs,
    v_ptrs,
    rows,
    columns,
    first,
    last,
    qk_scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):
    """The rows' sums after the keys from `first` to `last`."""
    k_ptrs += first * HEAD_DIM
    v_ptrs += first * HEAD_DIM
    for start in range(first, last, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        scores = tl.dot(q, tl.load(k_ptrs))
        if MASKED:
            scores = scores * qk_scale + tl.where(
                rows[:, None] >= start + columns[None, :], 0, -1.0e6
            )
            row_max = tl.maximum(m_i, tl.max(scores, 1))
            scores -= row_max[:, None]
        else:
            row_max = tl.maximum(m_i, tl.max(scores, 1) * qk_scale)
            scores = scores * qk_scale - row_max[:, None]
        p = tl.math.exp2(scores)
        shrink = tl.math.exp2(m_i - row_max)
        l_i = l_i * shrink + tl.sum(p, 1)
        v = tl.load(v_ptrs)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None])
        m_i = row_max
        k_ptrs += BLOCK_N * HEAD_DIM
        v_ptrs += BLOCK_N * HEAD_DIM
    return acc, l_i, m_i


@triton.jit
def flash_forward(
    sm_scale,
    M,
    Z,
    H,
    Q,
    K,
    V,
    Out,
    N_CTX,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGE: tl.constexpr,
):
    """Tensors are [Z, H, N_CTX, HEAD_DIM] and contiguous, N_CTX a multiple of the blocks."""
    block = tl.program_id(0)
    head = tl.program_id(1)
    base = head.to(tl.int64) * N_CTX * HEAD_DIM
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_N)
    width = tl.arange(0, HEAD_DIM)
    q = tl.load(Q + base + rows[:, None] * HEAD_DIM + width[None, :])
    k_ptrs = K + base + cols[None, :] * HEAD_DIM + width[:, None]
    v_ptrs = V + base + cols[:, None] * HEAD_DIM + width[None, :]
    acc = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    m_i = tl.full([BLOCK_M], -float("inf"), dtype=tl.float32)
    scale = sm_scale * 1.44269504
    edge = block * BLOCK_M if STAGE == 3 else N_CTX
    if STAGE == 3:
        edge = edge // BLOCK_N * BLOCK_N
    # Blocks of keys that all of the tile's queries see, then those on the diagonal.
    acc, l_i, m_i = _walk(
        acc, l_i, m_i, q, k_ptrs, v_ptrs, rows, cols, 0, edge, scale, HEAD_DIM, BLOCK_N, 0
    )
    if STAGE == 3:
        end = (block + 1) * BLOCK_M
        acc, l_i, m_i = _walk(
            acc, l_i, m_i, q, k_ptrs, v_ptrs, rows, cols, edge, end, scale, HEAD_DIM, BLOCK_N, 1
        )
    tl.store(M + head * N_CTX + rows, m_i + tl.math.log2(l_i))
    out = (acc / l_i[:, None]).to(Out.type.element_ty)
    tl.store(Out + base + rows[:, None] * HEAD_DIM + width[None, :], out)
