"""Kernels in Triton as users write them: attention in one stage, with a score function, with a tile that spills; a
norm, a softmax, a matrix product. `cases.toml` says how each is launched; docs/from-machine-code.md reads them.
"""

import triton
import triton.language as tl


@triton.jit
def attention(
    q,
    k,
    v,
    out,
    stride_head,
    stride_row,
    tokens,
    scale,
    CAP: tl.constexpr,
    CAUSAL: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Flash attention, a program a (query block, head); with CAP scores pass through CAP * tanh(score / CAP)."""
    block = tl.program_id(0)
    head = tl.program_id(1)
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, HEAD_DIM)
    q_rows = tl.load(
        q + head * stride_head + rows[:, None] * stride_row + columns[None, :],
        rows[:, None] < tokens,
        0.0,
    )
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    sums = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    end = tl.minimum(tokens, (block + 1) * BLOCK_M) if CAUSAL else tokens
    for first in range(0, end, BLOCK_N):
        keys = first + tl.arange(0, BLOCK_N)
        inside = keys[:, None] < tokens
        at = head * stride_head + keys[:, None] * stride_row + columns[None, :]
        scores = tl.dot(q_rows, tl.trans(tl.load(k + at, inside, 0.0))) * scale
        if CAP > 0:
            scores = CAP * (1 - 2 / (tl.exp(2 * scores / CAP) + 1))
        in_range = keys[None, :] < tokens
        if CAUSAL:
            in_range = in_range & (keys[None, :] <= rows[:, None])
        scores = tl.where(in_range, scores * 1.44269504, float("-inf"))
        above = tl.maximum(row_max, tl.max(scores, 1))
        weights = tl.exp2(scores - above[:, None])
        shrunk = tl.exp2(row_max - above)
        total = total * shrunk + tl.sum(weights, 1)
        values = tl.load(v + at, inside, 0.0)
        sums = sums * shrunk[:, None] + tl.dot(weights.to(values.dtype), values)
        row_max = above
    at = head * stride_head + rows[:, None] * stride_row + columns[None, :]
    tl.store(out + at, (sums / total[:, None]).to(out.dtype.element_ty), rows[:, None] < tokens)


@triton.jit
def rms_norm(x, weight, out, columns, epsilon, BLOCK: tl.constexpr):
    """A row a program."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, at < columns, 0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / columns + epsilon)
    scaled = values * scale * tl.load(weight + at, at < columns, 0.0)
    tl.store(out + row * columns + at, scaled.to(out.dtype.element_ty), at < columns)


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    """A row a program."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, at < columns, float("-inf")).to(tl.float32)
    weights = tl.exp(values - tl.max(values, 0))
    tl.store(
        out + row * columns + at,
        (weights / tl.sum(weights, 0)).to(out.dtype.element_ty),
        at < columns,
    )


@triton.jit
def matrix_product(
    a, b, c, columns, depth, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """C = A B, a tile a program; sizes are multiples of the tile's."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    across = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, depth, BLOCK_K):
        deep = first + tl.arange(0, BLOCK_K)
        left_tile = tl.load(a + rows[:, None] * depth + deep[None, :])
        right = tl.load(b + deep[:, None] * columns + across[None, :])
        sums = tl.dot(left_tile, right, sums)
    tl.store(c + rows[:, None] * columns + across[None, :], sums.to(c.dtype.element_ty))
