"""Attention in Triton whose programs can note when they come to which key block; `walks.toml` says how it is launched."""

import triton
import triton.language as tl


@triton.jit
def now():
    return tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit
def multiprocessor():
    return tl.inline_asm_elementwise(
        "mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def walk(
    q,
    k,
    v,
    out,
    stride_head,
    stride_row,
    tokens,
    scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEADS_FIRST: tl.constexpr,
    EARLY: tl.constexpr,
    times=None,
    places=None,
    EVERY: tl.constexpr = 0,
    MARKS: tl.constexpr = 1,
):
    """A program a (query block, head), or with HEADS_FIRST a (head, query block); with EARLY V is loaded beside K. With
    EVERY a program stores its SM in `places`, and in its row of `times`, MARKS long, when it begins, when it comes to
    each EVERY-th key block, and when it ends (nanoseconds)."""
    block, head = tl.program_id(0), tl.program_id(1)
    if HEADS_FIRST:
        block, head = head, block
    number = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    if EVERY > 0:
        tl.store(places + number, multiprocessor())
        tl.store(times + number * MARKS, now())
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, HEAD_DIM)
    q_rows = tl.load(q + head * stride_head + rows[:, None] * stride_row + columns[None, :])
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    sums = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for first in range(0, tokens, BLOCK_N):
        if EVERY > 0:  # noqa: SIM102 - a constant, which must be asked first
            if first % (EVERY * BLOCK_N) == 0:
                tl.store(times + number * MARKS + 1 + first // (EVERY * BLOCK_N), now())
        keys = first + tl.arange(0, BLOCK_N)
        at = head * stride_head + keys[:, None] * stride_row + columns[None, :]
        k_rows = tl.load(k + at)
        if EARLY:
            values = tl.load(v + at)
        scores = tl.dot(q_rows, tl.trans(k_rows)) * scale
        above = tl.maximum(row_max, tl.max(scores, 1))
        weights = tl.exp2(scores - above[:, None])
        shrunk = tl.exp2(row_max - above)
        total = total * shrunk + tl.sum(weights, 1)
        if not EARLY:
            values = tl.load(v + at)
        sums = sums * shrunk[:, None] + tl.dot(weights.to(values.dtype), values)
        row_max = above
    at = head * stride_head + rows[:, None] * stride_row + columns[None, :]
    tl.store(out + at, (sums / total[:, None]).to(out.dtype.element_ty))
    if EVERY > 0:
        tl.debug_barrier()
        tl.store(times + number * MARKS + MARKS - 1, now())
