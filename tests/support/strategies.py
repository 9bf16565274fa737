"""Random problems and kernels, small enough to execute, and the check that the readers agree on one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from counter import count
from executor import ExecutionError, execute, reference
from executor.reference import dense_mask
from hypothesis import strategies as st

from iosim.catalog.algorithms import options_for, plan
from iosim.catalog.algorithms.flash_options import Workspace
from iosim.kernel.kernel import BACKWARD_PASSES, Kernel, PassSettings, RowPass, Spill, Tile
from iosim.kernel.launch import Chain, Edge, Mode, Overhead
from iosim.kernel.schedule import Direction, Schedule, Scheduler
from iosim.kernel.traffic import Traffic
from iosim.problem.attention import AttentionProblem
from iosim.readers.formula.closed_form import closed_form
from iosim.readers.formula.dual import ArrayKind, lifted
from iosim.readers.formula.lifting import lifted_chain

DTYPES = {
    "flash": ("fp32", "tf32", "fp16", "bf16", "fp8"),
    "efficient": ("fp32", "tf32", "fp16", "bf16"),
    "flash1": ("fp32", "tf32", "fp16", "bf16"),
    "naive": ("fp32", "tf32", "fp16", "bf16"),
    "math": ("fp32", "tf32", "fp16", "bf16"),
    "minimal": ("fp32", "tf32"),
}
ALGORITHMS = tuple(DTYPES)
FORWARD_ONLY = ("math", "minimal")

TOLERANCE = {"fp32": 1e-6, "tf32": 4e-3, "fp16": 4e-3, "bf16": 3e-2, "fp8": 1e-2}
"""Largest error of O and LSE, relative to max(1, largest reference value), by the problem's dtype.

About 8 units of rounding (2^-24, 2^-11, 2^-11, 2^-8): scores pass memory in naive, and O in flash1 once a key block.
fp8 problems write bf16 and are checked with flash alone, which stores nothing in fp8 but its inputs. What is seen on
20,000 random cases is a third to a half of it.
"""

GRADIENT_FACTOR = 6
"""Gradients may be that much further off: sums over queries and a group's heads, of differences that may cancel."""

MOST_TILES = 300
"""Tiles of one launch, over all heads."""

BLOCKS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 32)


@st.composite
def tiles(draw: st.DrawFn, problem: AttentionProblem) -> Tile:
    """A tile that keeps the number of tiles low."""
    block_q = draw(st.sampled_from(BLOCKS))
    block_k = draw(st.sampled_from(BLOCKS))
    heads = problem.batch * problem.heads

    def count_tiles() -> int:
        return -(-problem.seq_q // block_q) * -(-problem.seq_k // block_k) * heads

    while count_tiles() > MOST_TILES:
        if block_q <= block_k:
            block_q *= 2
        else:
            block_k *= 2
    return Tile(block_q, block_k)


@st.composite
def problems(draw: st.DrawFn, algorithm: str, passes: str) -> AttentionProblem:
    """Ragged lengths, grouped heads, masks with offsets, both layouts, dropout: what the algorithm takes."""
    values: dict[str, Any] = {
        "passes": passes,
        "dtype": draw(st.sampled_from(DTYPES[algorithm])),
        "batch": draw(st.integers(1, 2)),
        "head_dim": draw(st.sampled_from((1, 3, 4, 8, 10, 16))),
        "head_dim_v": draw(st.sampled_from((None, 1, 5, 8, 16))),
        "layout": draw(st.sampled_from(("bhsd", "bshd"))),
        "output": draw(st.sampled_from((None, None, "fp32"))),
    }
    if algorithm == "minimal":
        heads = draw(st.integers(1, 3))
        return AttentionProblem(
            heads=heads,
            seq_q=8 * draw(st.integers(1, 6)),
            seq_k=8 * draw(st.integers(1, 6)),
            **values,
        )
    kv_heads = draw(st.integers(1, 2))
    group = draw(st.sampled_from((1, 1, 2, 3)))
    seq_q = draw(st.one_of(st.just(1), st.integers(1, 70)))
    seq_k = draw(st.one_of(st.just(1), st.just(seq_q), st.integers(1, 70)))
    mask = draw(st.sampled_from(("none", "causal", "causal", "window")))
    if mask == "window":
        values["window"] = draw(st.none() | st.integers(0, 80))
        values["window_right"] = (
            draw(st.integers(0, 80))
            if values["window"] is None
            else draw(st.none() | st.integers(-1, 80))
        )
    if mask != "none":
        values["offset"] = draw(st.one_of(st.none(), st.integers(-40, 40)))
    return AttentionProblem(
        heads=kv_heads * group,
        kv_heads=kv_heads,
        seq_q=seq_q,
        seq_k=seq_k,
        mask=mask,
        dropout=draw(st.sampled_from((0.0, 0.0, 0.2, 0.5))),
        **values,
    )


def _schedule(draw: st.DrawFn) -> Schedule:
    return Schedule(
        direction=draw(st.sampled_from(tuple(Direction))),
        scheduler=draw(st.sampled_from(tuple(Scheduler))),
    )


OVERHEADS = (
    Overhead("counter", Mode.LOAD, per_tile_fetch=32),
    Overhead("counter", Mode.REDUCE, per_tile_fetch=32),
    Overhead("descriptor", Mode.LOAD, per_cta=64, per_tile=4),
    Overhead("scratch", Mode.STORE, per_pair=12, per_tile=8),
)


def copying_passes(copies: int, packet_rows: int) -> tuple[RowPass, ...]:
    """FlashAttention-2's passes around a backward, after copies of dO, or of dO and O."""
    passes = (
        RowPass(f"copy{n}", (name,), (f"{name}_copy",))
        for n, name in enumerate(("dO", "O")[:copies])
    )
    dot, *rest = BACKWARD_PASSES
    return (*passes, replace(dot, packet_rows=packet_rows), *rest)


@st.composite
def flash_cases(draw: st.DrawFn, passes: str) -> tuple[AttentionProblem, Kernel]:
    """Every edge, splits with one or two statistics, packed decode, overheads, persistent grids."""
    problem = draw(problems("flash", passes))
    if draw(st.integers(0, 3)) == 0:
        problem = problem.with_(
            seq_q=1, heads=problem.kv_heads * draw(st.sampled_from((1, 2, 5, 8)))
        )
    tile = draw(tiles(problem))
    backward = draw(st.none() | tiles(problem))
    key_blocks = -(-problem.seq_k // tile.block_k)
    options = {
        "statistics_per_row": draw(st.integers(1, 2)),
        "combine_rows": draw(st.sampled_from((None, 1, 3, 4))),
        "workspace": draw(st.sampled_from((Workspace.ROWS, Workspace.BLOCKS))),
    }
    passes = copying_passes(draw(st.integers(0, 2)), draw(st.sampled_from((0, 1, 4, 8))))
    return problem, Kernel(
        "flash",
        "flash",
        tile,
        schedule=_schedule(draw),
        backward=PassSettings(backward, _schedule(draw), passes=passes),
        splits=draw(st.one_of(st.just(1), st.integers(1, min(key_blocks, 5)))),
        writes_lse=draw(st.booleans()),
        rereads_q=draw(st.booleans()),
        packs_group=draw(st.booleans()),
        edge_q=draw(st.sampled_from((Edge.EXACT, Edge.WHOLE))),
        edge_k=draw(st.sampled_from(tuple(Edge))),
        persistent_ctas=draw(st.sampled_from((None, 1, 7))),
        overheads=draw(st.sampled_from(((), OVERHEADS))),
        spill=draw(st.sampled_from((None, Spill(1.5, 0.25, 1.0, 2.0)))),
        options=options_for("flash", options),
    )


@st.composite
def efficient_cases(draw: st.DrawFn, passes: str) -> tuple[AttentionProblem, Kernel]:
    """dK and dV in registers, through buffers, or in place; as many CTAs a head as key blocks, fewer, or one."""
    problem = draw(problems("efficient", passes))
    tile = draw(tiles(problem))
    backward = draw(tiles(problem))
    options = {"key_splits": draw(st.none() | st.integers(1, 4)), "keeps_keys": draw(st.booleans())}
    return problem, Kernel(
        "efficient",
        "efficient",
        tile,
        backward=PassSettings(backward, overheads=draw(st.sampled_from(((), OVERHEADS)))),
        rereads_q=True,
        edge_k=draw(st.sampled_from(tuple(Edge))),
        options=options_for("efficient", options),
    )


@st.composite
def flash1_cases(draw: st.DrawFn, passes: str) -> tuple[AttentionProblem, Kernel]:
    """To the letter and as the kernel does it, O and dQ between key blocks in the output's type or fp32.

    The real kernel fills nothing beforehand, so it has no masks that leave a query without keys.
    """
    problem = draw(problems("flash1", passes))
    every_row = bool(dense_mask(problem).any(axis=1).all())
    options: dict[str, Any] = {
        "to_the_letter": draw(st.booleans()) or not every_row,
        "output_read_once": draw(st.booleans()),
    }
    if draw(st.booleans()):
        options["intermediate_bytes"] = draw(st.sampled_from((problem.output_type.bytes, 4)))
    return problem, Kernel(
        "flash1",
        "flash1",
        draw(tiles(problem)),
        backward=PassSettings(draw(st.none() | tiles(problem))),
        schedule=_schedule(draw),
        edge_q=draw(st.sampled_from((Edge.EXACT, Edge.WHOLE))),
        edge_k=draw(st.sampled_from(tuple(Edge))),
        overheads=draw(st.sampled_from(((), OVERHEADS))),
        options=options_for("flash1", options),
    )


@st.composite
def naive_cases(draw: st.DrawFn, passes: str) -> tuple[AttentionProblem, Kernel]:
    """Any set of optional passes, any tile of the products."""
    problem = draw(problems("naive", passes))
    tile = draw(tiles(problem))
    options: dict[str, Any] = {"softmax_backward_product": draw(st.booleans())}
    if draw(st.booleans()):
        options["gemm_tile"] = (tile.block_q, tile.block_k)
    if draw(st.booleans()):
        options["passes"] = tuple(
            n for n in ("scale_q", "scale", "mask", "dropout") if draw(st.booleans())
        )
    if draw(st.booleans()):
        options["score_bytes"] = 4
    return problem, Kernel("naive", "naive", tile, options=options_for("naive", options))


@st.composite
def cases(draw: st.DrawFn, algorithm: str, passes: str = "fwd") -> tuple[AttentionProblem, Kernel]:
    """A problem and a kernel of `algorithm` for it."""
    if algorithm == "flash":
        return draw(flash_cases(passes))
    if algorithm == "efficient":
        return draw(efficient_cases(passes))
    if algorithm == "flash1":
        return draw(flash1_cases(passes))
    if algorithm == "naive":
        return draw(naive_cases(passes))
    problem = draw(problems(algorithm, "fwd"))
    tile = Tile(draw(st.sampled_from((4, 8))), draw(st.sampled_from((4, 8))))
    return problem, Kernel(
        algorithm, algorithm, tile if algorithm == "minimal" else draw(tiles(problem))
    )


def table(traffic: Traffic) -> dict[tuple[str, str, str], int]:
    """(launch, tensor, direction) -> bytes."""
    out: dict[tuple[str, str, str], int] = {}
    for row in traffic:
        key = (row.launch, row.tensor, row.direction)
        out[key] = out.get(key, 0) + row.bytes
    return out


def bytes_apart(chain: Chain, moved_by: Traffic) -> list[str]:
    """Where the bytes that are counted, those of the formula and those that were moved are not the same."""
    counted = table(count(chain))
    closed = table(closed_form(chain))
    executed = table(moved_by)
    return [
        f"{' '.join(key)}: counted {counted.get(key)}, by formula {closed.get(key)}, moved {executed.get(key)}"
        for key in sorted(counted.keys() | closed.keys() | executed.keys())
        if not counted.get(key) == closed.get(key) == executed.get(key)
    ]


def output_errors(
    problem: AttentionProblem, outputs: dict[str, Any], right: dict[str, Any]
) -> list[str]:
    """Outputs that are missing or further from `right` than the dtype's tolerance."""
    faults = [
        f"{n} is never written"
        for n, output in outputs.items()
        if n not in right and np.isnan(output).any()
    ]
    values = dict(outputs)
    if "l" in values:
        with np.errstate(divide="ignore"):
            values["LSE"] = values["m"] + np.log(values["l"])
    wanted = {"O"} if problem.forward else set()
    wanted |= {"dQ", "dK", "dV"} if problem.backward else set()
    wanted |= {"dBias"} if problem.backward and problem.bias_grad else set()
    for name in sorted(wanted | ({"LSE"} & set(values))):
        if name not in values:
            faults.append(f"{name} is no output")
            continue
        got, expected = values[name], right[name]
        finite = np.isfinite(expected)
        tolerance = TOLERANCE[problem.dtype] * (GRADIENT_FACTOR if name.startswith("d") else 1)
        limit = tolerance * max(1.0, np.abs(expected[finite]).max(initial=0.0))
        same_infinities = np.array_equal(got[~finite], expected[~finite])
        worst = np.abs(got[finite] - expected[finite]).max(initial=0.0)
        if not same_infinities or not worst <= limit:
            faults.append(f"{name} is off by {worst}, more than {limit}")
    return faults


def disagreements(
    problem: AttentionProblem, kernel: Kernel, seed: int = 0, chain: Chain | None = None
) -> list[str]:
    """What the three readers of `chain` and dense attention do not agree on; empty when all is well."""
    chain = plan(problem, kernel) if chain is None else chain
    try:
        done = execute(problem, kernel, seed=seed, chain=chain)
    except ExecutionError as error:
        return [str(error)]
    return bytes_apart(chain, done.traffic) + output_errors(
        problem, done.outputs, reference(problem, done.inputs, seed)
    )


def altered(chain: Chain, launch: str, **changes: Any) -> Chain:
    """The chain with some fields of one launch changed."""
    return replace(
        chain,
        launches=tuple(replace(x, **changes) if x.name == launch else x for x in chain.launches),
    )


def on_arrays(
    problem: AttentionProblem, kernel: Kernel, **values: Any
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Bytes read and written by the closed form on arrays of sizes, planned for the problem, and where they hold."""
    kind = ArrayKind()
    with np.errstate(all="ignore"):
        traffic = closed_form(lifted_chain(problem, kernel, values, kind))
        read, write = (lifted(traffic.total("l2", way)) for way in ("read", "write"))
    read, write, holds = np.broadcast_arrays(read, write, kind.holds)
    return read, write, holds
