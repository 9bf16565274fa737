"""Exact counts of small problems, worked out by hand, and of large ones against published figures."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from counter import count, visited_splits
from strategies import copying_passes, table

from iosim.catalog.algorithms import options_for, plan
from iosim.kernel.kernel import Kernel, PassSettings, Schedule, Spill, Tile
from iosim.kernel.launch import Chain, Domain, Edge, Launch, Mode, Overhead
from iosim.kernel.schedule import Scheduler
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks.mask import IntervalMask

Bytes = dict[str, int]


def kernel(
    algorithm: str, tile: tuple[int, int], options: dict[str, Any] | None = None, **changes: Any
) -> Kernel:
    return Kernel(
        algorithm, algorithm, Tile(*tile), options=options_for(algorithm, options or {}), **changes
    )


def counted(problem: AttentionProblem, chosen: Kernel) -> Bytes:
    return {
        f"{launch} {way} {tensor}": n
        for (launch, tensor, way), n in table(count(plan(problem, chosen))).items()
    }


# One head of 256 queries and keys, head_dim 64, fp16: u bytes a tensor, s bytes a row statistic, n an N x N tensor.
u = 256 * 64 * 2
s = 256 * 4
n = 256 * 256 * 2
square: dict[str, Any] = {"seq_q": 256, "head_dim": 64, "dtype": "fp16"}
# One head of 5 queries and keys, head_dim 4, fp16: 8 bytes a row, tiles of 2 rows and one ragged row.
ragged: dict[str, Any] = {"seq_q": 5, "head_dim": 4, "dtype": "fp16"}

TABLE: dict[str, tuple[dict[str, Any], Kernel, Bytes]] = {
    "flash": (
        square,
        kernel("flash", (128, 64)),
        # 2 query blocks: K and V twice; the rest once
        {
            "main read Q": u,
            "main read K": 2 * u,
            "main read V": 2 * u,
            "main write O": u,
            "main write LSE": s,
        },
    ),
    "flash without LSE, Q read at each of 4 key blocks": (
        square,
        kernel("flash", (128, 64), writes_lse=False, rereads_q=True),
        {"main read Q": 4 * u, "main read K": 2 * u, "main read V": 2 * u, "main write O": u},
    ),
    "flash, heads and sequences multiply": (
        square | {"batch": 3, "heads": 4, "kv_heads": 2},
        kernel("flash", (128, 64)),
        # 12 query heads; each reads its key head's K and V for itself
        {
            "main read Q": 12 * u,
            "main read K": 24 * u,
            "main read V": 24 * u,
            "main write O": 12 * u,
            "main write LSE": 12 * s,
        },
    ),
    "flash, d_v twice d, fp32 output": (
        square | {"head_dim_v": 128, "output": "fp32"},
        kernel("flash", (128, 64)),
        {
            "main read Q": u,
            "main read K": 2 * u,
            "main read V": 4 * u,
            "main write O": 4 * u,
            "main write LSE": s,
        },
    ),
    "flash causal, diagonal blocks whole": (
        square | {"mask": "causal"},
        kernel("flash", (64, 64)),
        # 4 query blocks visit 1 + 2 + 3 + 4 = 10 of 16 key blocks of u / 4 bytes
        {
            "main read Q": u,
            "main read K": 10 * u // 4,
            "main read V": 10 * u // 4,
            "main write O": u,
            "main write LSE": s,
        },
    ),
    "flash causal ragged": (
        ragged | {"mask": "causal"},
        kernel("flash", (2, 2)),
        # rows 0-1 see 2 keys, rows 2-3 see 4, row 4 sees 5: 11 rows of 8 bytes; LSE: 3 tiles of one 32-byte sector
        {
            "main read Q": 40,
            "main read K": 88,
            "main read V": 88,
            "main write O": 40,
            "main write LSE": 96,
        },
    ),
    "flash causal ragged, whole tiles fetched": (
        ragged | {"mask": "causal"},
        kernel("flash", (2, 2), edge_q=Edge.WHOLE, edge_k=Edge.WHOLE),
        # Q: 3 tiles of 2 rows; K: (1 + 2 + 3) tiles of 2 rows; stores are never past the end
        {
            "main read Q": 48,
            "main read K": 96,
            "main read V": 96,
            "main write O": 40,
            "main write LSE": 96,
        },
    ),
    "flash causal ragged, key blocks of 3": (
        ragged | {"mask": "causal"},
        kernel("flash", (2, 3)),
        # blocks visited 1, 2, 2; rows 3 + 5 + 5 = 13
        {
            "main read Q": 40,
            "main read K": 104,
            "main read V": 104,
            "main write O": 40,
            "main write LSE": 96,
        },
    ),
    "flash causal ragged, key blocks of 3 cut where the mask ends": (
        ragged | {"mask": "causal"},
        kernel("flash", (2, 3), edge_k=Edge.NEEDED),
        # rows 2 + 4 + 5 = 11
        {
            "main read Q": 40,
            "main read K": 88,
            "main read V": 88,
            "main write O": 40,
            "main write LSE": 96,
        },
    ),
    "flash window of one key before": (
        ragged | {"seq_q": 6, "mask": "window", "window": 1},
        kernel("flash", (2, 2)),
        # rows 0-1 keep keys 0-1, rows 2-3 keys 1-3, rows 4-5 keys 3-5: 1 + 2 + 2 blocks of 16 bytes
        {
            "main read Q": 48,
            "main read K": 80,
            "main read V": 80,
            "main write O": 48,
            "main write LSE": 96,
        },
    ),
    "flash causal, offset -3: the first three rows keep nothing": (
        ragged | {"mask": "causal", "offset": -3},
        kernel("flash", (2, 2)),
        # rows 0-1: no visit, Q not read; rows 2-3 keep key 0; row 4 keeps keys 0-1
        {
            "main read Q": 24,
            "main read K": 32,
            "main read V": 32,
            "main write O": 40,
            "main write LSE": 96,
        },
    ),
    "flash causal, 3 queries facing the last of 7 keys": (
        ragged | {"seq_q": 3, "seq_k": 7, "mask": "causal"},
        kernel("flash", (2, 4)),
        # rows 0-1 keep keys 0-5, row 2 keys 0-6: both visit 4 + 3 rows
        {
            "main read Q": 24,
            "main read K": 112,
            "main read V": 112,
            "main write O": 24,
            "main write LSE": 64,
        },
    ),
    "flash, heads within the sequence: rows of 10 x 2 bytes move as a sector": (
        ragged | {"head_dim": 10, "layout": "bshd"},
        kernel("flash", (5, 5)),
        {
            "main read Q": 160,
            "main read K": 160,
            "main read V": 160,
            "main write O": 160,
            "main write LSE": 32,
        },
    ),
    "flash decode": (
        {"heads": 8, "kv_heads": 2, "seq_q": 1, "seq_k": 10, "head_dim": 4},
        kernel("flash", (16, 2)),
        # 8 heads x 10 rows x 8 bytes; 8 LSE values in sectors of their own
        {
            "main read Q": 64,
            "main read K": 640,
            "main read V": 640,
            "main write O": 64,
            "main write LSE": 256,
        },
    ),
    "flash decode, 4 heads of a group in a tile": (
        {"heads": 8, "kv_heads": 2, "seq_q": 1, "seq_k": 10, "head_dim": 4},
        kernel("flash", (16, 2), packs_group=True),
        # K and V for 2 key heads; LSE: 2 tiles of 4 values
        {
            "main read Q": 64,
            "main read K": 160,
            "main read V": 160,
            "main write O": 64,
            "main write LSE": 64,
        },
    ),
    "flash split in 3, of which 2 hold key blocks": (
        {"heads": 2, "seq_q": 1, "seq_k": 8, "head_dim": 4},
        kernel("flash", (16, 2), splits=3),
        # 4 key blocks, 2 a split; every split writes partial results, Q is read where there are keys; fp32 partials
        {
            "main read Q": 2 * 2 * 8,
            "main read K": 2 * 64,
            "main read V": 2 * 64,
            "main write O_partial": 2 * 3 * 16,
            "main write LSE_partial": 2 * 3 * 32,
            # the combine's one tile holds both heads' rows: 2 values a sector
            "combine read O_partial": 3 * 2 * 16,
            "combine read LSE_partial": 3 * 32,
            "combine write O": 16,
            "combine write LSE": 32,
        },
    ),
    "flash split, a max and a sum a row, 1 row a combining CTA": (
        {"heads": 2, "seq_q": 1, "seq_k": 8, "head_dim": 4},
        kernel(
            "flash",
            (16, 4),
            {"statistics_per_row": 2, "combine_rows": 1},
            splits=2,
            writes_lse=False,
        ),
        {
            "main read Q": 32,
            "main read K": 128,
            "main read V": 128,
            "main write O_partial": 64,
            "main write max_partial": 128,
            "main write sum_partial": 128,
            "combine read O_partial": 64,
            "combine read max_partial": 128,
            "combine read sum_partial": 128,
            "combine write O": 16,
        },
    ),
    "flash backward": (
        square | {"passes": "bwd"},
        kernel("flash", (128, 64), backward=PassSettings(Tile(64, 128))),
        # 2 key blocks: Q, dO, LSE and D twice, dQ added to twice in fp32
        {
            "bwd.dot read O": u,
            "bwd.dot read dO": u,
            "bwd.dot write D": s,
            "bwd.dot write dQ_acc": 2 * u,
            "bwd.main read K": u,
            "bwd.main read V": u,
            "bwd.main read Q": 2 * u,
            "bwd.main read dO": 2 * u,
            "bwd.main read LSE": 2 * s,
            "bwd.main read D": 2 * s,
            "bwd.main write dQ_acc": 2 * 2 * u,
            "bwd.main write dK": u,
            "bwd.main write dV": u,
            "bwd.convert read dQ_acc": 2 * u,
            "bwd.convert write dQ": u,
        },
    ),
    "flash backward causal, grouped, dO copied first, D stored 4 rows at a time": (
        square | {"passes": "bwd", "heads": 2, "kv_heads": 1, "mask": "causal"},
        kernel("flash", (64, 64), backward=PassSettings(passes=copying_passes(1, 4))),
        # per query head 4 + 3 + 2 + 1 = 10 pairs of u / 4; D: 64 packets of a sector
        {
            "bwd.copy0 read dO": 2 * u,
            "bwd.copy0 write dO_copy": 2 * u,
            "bwd.dot read O": 2 * u,
            "bwd.dot read dO_copy": 2 * u,
            "bwd.dot write D": 2 * 64 * 32,
            "bwd.dot write dQ_acc": 2 * 2 * u,
            "bwd.main read K": 2 * u,
            "bwd.main read V": 2 * u,
            "bwd.main read Q": 2 * 10 * u // 4,
            "bwd.main read dO_copy": 2 * 10 * u // 4,
            "bwd.main read LSE": 2 * 10 * s // 4,
            "bwd.main read D": 2 * 10 * s // 4,
            "bwd.main write dQ_acc": 2 * 10 * 2 * u // 4,
            "bwd.main write dK_heads": 2 * u,
            "bwd.main write dV_heads": 2 * u,
            "bwd.convert read dQ_acc": 2 * 2 * u,
            "bwd.convert write dQ": 2 * u,
            "bwd.sum_groups read dK_heads": 2 * u,
            "bwd.sum_groups read dV_heads": 2 * u,
            "bwd.sum_groups write dK": u,
            "bwd.sum_groups write dV": u,
        },
    ),
    "flash1 to the letter": (
        square,
        kernel("flash1", (64, 128)),
        # 2 key blocks: Q in, O, l, m in and out at each
        {
            "fill write O": u,
            "fill write l": s,
            "fill write m": s,
            "main read K": u,
            "main read V": u,
            "main read Q": 2 * u,
            "main read O": 2 * u,
            "main read l": 2 * s,
            "main read m": 2 * s,
            "main write O": 2 * u,
            "main write l": 2 * s,
            "main write m": 2 * s,
        },
    ),
    "flash1 as its kernel does it": (
        square,
        kernel("flash1", (64, 64), {"to_the_letter": False}),
        # 4 key blocks: running O in fp32 out and in between them, 3 times; the last one goes to O
        {
            "main read K": u,
            "main read V": u,
            "main read Q": 4 * u,
            "main read O_acc": 3 * 2 * u,
            "main read l": 3 * s,
            "main read m": 3 * s,
            "main write O_acc": 3 * 2 * u,
            "main write O": u,
            "main write l": 4 * s,
            "main write m": 4 * s,
        },
    ),
    "flash1 causal": (
        square | {"mask": "causal"},
        kernel("flash1", (64, 64)),
        # 10 of 16 pairs
        {
            "fill write O": u,
            "fill write l": s,
            "fill write m": s,
            "main read K": u,
            "main read V": u,
            "main read Q": 10 * u // 4,
            "main read O": 10 * u // 4,
            "main read l": 10 * s // 4,
            "main read m": 10 * s // 4,
            "main write O": 10 * u // 4,
            "main write l": 10 * s // 4,
            "main write m": 10 * s // 4,
        },
    ),
    "flash1 backward to the letter": (
        square | {"passes": "bwd"},
        kernel("flash1", (64, 128)),
        {
            "bwd.fill write dQ": u,
            "bwd.main read K": u,
            "bwd.main read V": u,
            "bwd.main read Q": 2 * u,
            "bwd.main read O": 2 * u,
            "bwd.main read dO": 2 * u,
            "bwd.main read dQ": 2 * u,
            "bwd.main read l": 2 * s,
            "bwd.main read m": 2 * s,
            "bwd.main write dQ": 2 * u,
            "bwd.main write dK": u,
            "bwd.main write dV": u,
        },
    ),
    "flash1 backward as its kernel does it": (
        square | {"passes": "bwd"},
        kernel("flash1", (64, 64), {"to_the_letter": False, "output_read_once": True}),
        {
            "bwd.main read K": u,
            "bwd.main read V": u,
            "bwd.main read Q": 4 * u,
            "bwd.main read O": u,
            "bwd.main read dO": 4 * u,
            "bwd.main read dQ_acc": 3 * 2 * u,
            "bwd.main read l": 4 * s,
            "bwd.main read m": 4 * s,
            "bwd.main write dQ_acc": 3 * 2 * u,
            "bwd.main write dQ": u,
            "bwd.main write dK": u,
            "bwd.main write dV": u,
        },
    ),
    "naive, one tile a product": (
        square,
        kernel("naive", (64, 64), {"gemm_tile": (256, 256)}),
        {
            "scores read Q": u,
            "scores read K": u,
            "scores write S": n,
            "softmax read S": n,
            "softmax write P": n,
            "values read P": n,
            "values read V": u,
            "values write O": u,
        },
    ),
    "naive, products of 128 x 32, every pass": (
        square | {"heads": 2, "mask": "causal", "dropout": 0.1},
        kernel(
            "naive",
            (64, 64),
            {"gemm_tile": (128, 32), "passes": ("scale_q", "scale", "mask", "dropout")},
        ),
        # scores: Q at each of 8 key blocks, K at each of 2 query blocks; values: P for each of 2 column tiles;
        # the mask has one byte a pair and no heads of its own, but every head reads it
        {
            "scale_q read Q": 2 * u,
            "scale_q write Q_scaled": 2 * u,
            "scores read Q_scaled": 2 * 8 * u,
            "scores read K": 2 * 2 * u,
            "scores write S": 2 * n,
            "scale read S": 2 * n,
            "scale write S_scaled": 2 * n,
            "mask read S_scaled": 2 * n,
            "mask read mask": 2 * n // 2,
            "mask write S_masked": 2 * n,
            "softmax read S_masked": 2 * n,
            "softmax write P": 2 * n,
            "dropout read P": 2 * n,
            "dropout write P_dropped": 2 * n,
            "dropout write dropout_mask": 2 * n // 2,
            "values read P_dropped": 2 * 2 * n,
            "values read V": 2 * 2 * u,
            "values write O": 2 * u,
        },
    ),
    "naive backward": (
        square | {"passes": "bwd"},
        kernel("naive", (64, 64), {"gemm_tile": (256, 256)}),
        {
            "bwd.dv read P": n,
            "bwd.dv read dO": u,
            "bwd.dv write dV": u,
            "bwd.dp read dO": u,
            "bwd.dp read V": u,
            "bwd.dp write dP": n,
            "bwd.softmax read P": n,
            "bwd.softmax read dP": n,
            "bwd.softmax write dS": n,
            "bwd.dq read dS": n,
            "bwd.dq read K": u,
            "bwd.dq write dQ": u,
            "bwd.dk read dS": n,
            "bwd.dk read Q": u,
            "bwd.dk write dK": u,
        },
    ),
    "math": (
        square,
        kernel("math", (64, 64), {"gemm_tile": (256, 256)}),
        # fp32 inside (2 u, 2 n); writes of N x N: 4 + 4 + 1 + 4 + 2 = 15 bytes an element, 7.5 n
        {
            "cast_Q read Q": u,
            "cast_Q write Q_fp32": 2 * u,
            "cast_K read K": u,
            "cast_K write K_fp32": 2 * u,
            "cast_V read V": u,
            "cast_V write V_fp32": 2 * u,
            "scale_Q read Q_fp32": 2 * u,
            "scale_Q write Q_scaled": 2 * u,
            "scale_K read K_fp32": 2 * u,
            "scale_K write K_scaled": 2 * u,
            "scores read Q_scaled": 2 * u,
            "scores read K_scaled": 2 * u,
            "scores write S": 2 * n,
            "softmax read S": 2 * n,
            "softmax write P": 2 * n,
            "is_masked read S": 2 * n,
            "is_masked write is_masked": n // 2,
            "all_masked read is_masked": n // 2,
            # a packet for the flags of 4 rows; a sector of 32 flags for each of 32 x 256 / 256 CTAs
            "all_masked write masked_rows": 256 // 4 * 32,
            "zero write zero": 32,
            "select read masked_rows": 256 // 32 * 32 * 32,
            "select read zero": 32,
            "select read P": 2 * n,
            "select write P": 2 * n,
            "values read P": 2 * n,
            "values read V_fp32": 2 * u,
            "values write O_fp32": 2 * u,
            "cast_O read O_fp32": 2 * u,
            "cast_O write O": u,
            "cast_P read P": 2 * n,
            "cast_P write P_out": n,
        },
    ),
    "minimal": (
        square | {"dtype": "fp32", "heads": 2},
        kernel("minimal", (32, 32)),
        # 2 heads of 2 u (fp32); T = 256 / 32 = 8 key blocks
        {
            "fill write O": 4 * u,
            "fill write l": 2 * s,
            "fill write m": 2 * s,
            "main read K": 4 * u,
            "main read V": 4 * u,
            "main read Q": 8 * 4 * u,
            "main read O": 8 * 4 * u,
            "main read l": 8 * 2 * s,
            "main read m": 8 * 2 * s,
            "main write O": 8 * 4 * u,
            "main write l": 8 * 2 * s,
            "main write m": 8 * 2 * s,
            "main write store packets": 7 * 8 * 4 * u,
        },  # 4 bytes a lane: of each sector of 32, 28 more pass
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_exact_bytes(name: str) -> None:
    values, chosen, expected = TABLE[name]
    assert counted(AttentionProblem(**values), chosen) == expected


def test_forward_and_backward_add_up() -> None:
    for algorithm in ("flash", "flash1", "naive"):
        chosen = kernel(algorithm, (64, 32))
        problem = AttentionProblem(**square, heads=4, kv_heads=2, mask="causal")
        both = counted(problem.with_(passes="fwd+bwd"), chosen)
        assert both == counted(problem, chosen) | counted(problem.with_(passes="bwd"), chosen)


@pytest.mark.parametrize(("length", "d"), [(64, 32), (1024, 64), (4096, 96)])
def test_minimal_is_its_formula(length: int, d: int) -> None:
    """Per head, in elements, T = N / 32: reads 2 N d + T (2 N d + 2 N), writes T (8 N d + 2 N), a sector for each word
    of O, and the zero fills."""
    heads, steps = 3, length // 32
    problem = AttentionProblem(heads=heads, seq_q=length, head_dim=d, dtype="fp32")
    traffic = count(plan(problem, kernel("minimal", (32, 32))))
    reads = 2 * length * d + steps * (2 * length * d + 2 * length)
    writes = steps * (8 * length * d + 2 * length)
    assert traffic.total("l2", "read") == 4 * heads * reads
    assert traffic.total("l2", "write", launch="main") == 4 * heads * writes
    assert traffic.total("l2", "write", launch="fill") == 4 * heads * (length * d + 2 * length)


def test_naive_is_the_papers_count() -> None:
    """Forward and backward move 11 N^2 + 12 N d elements a head where one tile covers a product.

    Forward 4 N^2 (S out and in, P out and in) and Q, K, V, O. Backward 7 N^2: P in; dP out; P, dP in, dS out; dS in
    twice; and dO, dV; dO, V; K, dQ; Q, dK.
    """
    length, d, heads = 2048, 64, 2
    problem = AttentionProblem(
        heads=heads, seq_q=length, head_dim=d, dtype="fp16", passes="fwd+bwd"
    )
    traffic = count(plan(problem, kernel("naive", (128, 128), {"gemm_tile": (2048, 2048)})))
    total = traffic.total("l2", "read") + traffic.total("l2", "write")
    assert total == 2 * heads * (11 * length**2 + 12 * length * d)


@pytest.mark.parametrize(
    ("block_q", "megabytes"),
    [
        # 2 tensors (Q, O) + 2 (K, V) x N / block_q, each of 32 heads x N x 128 x 2 bytes = N x 8,192 bytes.
        # A buffer of 96 KiB holds tiles of 128 query rows: (2 + 2 x 8) x 8,388,608 = 150,994,944 at N = 1024
        (128, {1024: 151.0, 4096: 2215, 16384: 34628}),
        # and one of 164 KiB tiles of 256: (2 + 2 x 4) x 8,388,608 = 83,886,080
        (256, {1024: 83.9, 4096: 1141, 16384: 17448}),
    ],
)
def test_flash_is_the_optimal_fused_mapping_of_accelforge(
    block_q: int, megabytes: dict[int, float]
) -> None:
    """AccelForge's figures for an A100, 32 heads, head_dim 128, fp16: between SM and L2, in MB of 10^6, no LSE."""
    for length, published in megabytes.items():
        problem = AttentionProblem(heads=32, seq_q=length, head_dim=128, dtype="fp16")
        traffic = count(plan(problem, kernel("flash", (block_q, 64), writes_lse=False)))
        total = traffic.total("l2", "read") + traffic.total("l2", "write")
        assert total == (2 + 2 * length // block_q) * length * 8192
        assert round(total / 1e6, 1 if published < 1000 else 0) == published


def test_a_million_tokens_cost_one_array_of_query_blocks() -> None:
    length, block = 1 << 20, 128
    problem = AttentionProblem(
        heads=8, seq_q=length, head_dim=64, dtype="fp16", mask="causal", passes="fwd+bwd"
    )
    chain = plan(problem, kernel("flash", (block, block)))
    tracemalloc.start()
    traffic = count(chain)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    blocks = length // block
    assert (
        peak < 400 * blocks
    )  # bytes: some dozens of int64 arrays of one entry a query block; N^2 / 8 would be 137 GB
    pairs = blocks * (blocks + 1) // 2
    assert traffic.total("l2", "read", tensor="K", launch="main") == 8 * pairs * block * 64 * 2
    assert (
        traffic.total("l2", "write", tensor="dQ_acc", launch="bwd.main")
        == 8 * pairs * block * 64 * 4
    )


def test_overheads() -> None:
    """4 query heads x 4 query blocks = 16 tiles, 4 x (1 + 2 + 3 + 4) = 40 visited pairs, 5 persistent CTAs."""
    overheads = (
        Overhead("queue", Mode.LOAD, per_tile_fetch=32),
        Overhead("queue", Mode.REDUCE, per_tile_fetch=32),
        Overhead("descriptor", Mode.LOAD, per_cta=128),
        Overhead("scratch", Mode.STORE, per_tile=8, per_pair=2),
    )
    problem = AttentionProblem(**square, heads=4, mask="causal")
    chosen = kernel(
        "flash",
        (64, 64),
        overheads=overheads,
        persistent_ctas=5,
        schedule=Schedule(scheduler=Scheduler.DYNAMIC),
        spill=Spill(write_per_pair=0.5, source="measured"),
    )
    got = counted(problem, chosen)
    assert got["main read queue"] == 32 * (16 + 5)  # every CTA fetches once more, and finds nothing
    assert got["main write queue"] == 32 * (16 + 5)
    assert got["main read descriptor"] == 128 * 5
    assert got["main write scratch"] == 8 * 16 + 2 * 40
    assert got["main write spill"] == 64 * 40  # half a byte for each of 128 threads
    static = counted(problem, chosen.with_(schedule=Schedule(), persistent_ctas=5))
    assert static["main read descriptor"] == 128 * 16  # one CTA a tile


@pytest.mark.parametrize(
    ("splits", "visited"),
    [
        # rows 0-3 keep 1 to 4 of 8 key blocks of one key
        (1, [1, 1, 1, 1]),
        (2, [1, 1, 1, 1]),  # 4 blocks a split
        (4, [1, 1, 2, 2]),  # 2 blocks a split
        (8, [1, 2, 3, 4]),
    ],
)
def test_visited_splits(splits: int, visited: list[int]) -> None:
    domain = Domain(1, 1, 4, 8, 1, 1, mask=IntervalMask(None, 0, 0), splits=splits)
    assert visited_splits(domain).tolist() == visited


@pytest.mark.parametrize(
    ("mask", "first", "end", "end_row"),
    [
        # 5 queries in blocks of 2, 7 keys in blocks of 3
        (IntervalMask(), [0, 0, 0], [3, 3, 3], [7, 7, 7]),
        (IntervalMask(None, 0, 0), [0, 0, 0], [1, 2, 2], [2, 4, 5]),
        (IntervalMask(None, 0, 2), [0, 0, 0], [2, 2, 3], [4, 6, 7]),
        (IntervalMask(None, 0, -2), [0, 0, 0], [0, 1, 1], [0, 2, 3]),  # rows 0-1 keep nothing
        (
            IntervalMask(1, 0, 2),
            [0, 1, 1],
            [2, 2, 3],
            [4, 6, 7],
        ),  # rows keep keys 1-2, 2-3, 3-4, 4-5, 5-6
        (IntervalMask(0, 0, 4), [1, 2, 3], [2, 3, 3], [6, 7, 9]),  # key 8 of row 4 is past the end
    ],
)
def test_key_blocks(
    mask: IntervalMask, first: list[int], end: list[int], end_row: list[int]
) -> None:
    got = mask.key_blocks(5, 7, 2, 3)
    assert got.first.tolist() == first
    assert got.end.tolist() == end
    assert [r for r, c in zip(got.end_row.tolist(), got.count.tolist(), strict=True) if c] == [
        r for r, a, b in zip(end_row, first, end, strict=True) if b > a
    ]


def test_a_chain_names_its_tensors() -> None:
    launch = plan(AttentionProblem(**ragged), kernel("flash", (2, 2))).launches[0]
    assert isinstance(launch, Launch)
    with pytest.raises(KeyError, match="launch main accesses Q, which the chain does not hold"):
        Chain({}, (launch,))
