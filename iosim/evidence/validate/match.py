"""From a measured row to the problem, the kernel and the launches that stand for it. Uses a row's facts only.

Implementations are catalog names or aliases (`pytorch_flash`, `cudnn_backward`, `flash_fwd_sm90`, ...); the catalog
makes the kernel, and the row's tile, order and schedule go over it as a user's would. `naive` and `minimal` are this
project's sources, `naive-cu` and `minimal-cu`. What the host fills is no row.

In a table of chains `naive` is the catalog's `eager` and `flash` its `fa2`; `_fwdbwd` after a name is both passes. What
a note says of a build (`bypass L1`) changes no count: reads are arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby, takewhile
from math import prod
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import dataclass, replace
from iosim.catalog.algorithms import plan
from iosim.catalog.algorithms.cuda_sources import CudaOptions
from iosim.catalog.libraries import Overrides, resolve
from iosim.catalog.libraries.loader import entry_name
from iosim.evidence.columns import CHAIN, KNOBS, PROBLEM, TILE
from iosim.evidence.validate.rows import LAUNCH_COLUMNS, OPTION, Row
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel, Spill
from iosim.kernel.launch import Chain, Launch, LaunchRole, Mode, Overhead, Resources
from iosim.kernel.schedule import Direction, Order, Schedule, Scheduler, Start
from iosim.problem.attention import AttentionProblem

CHAIN_NAMES = {"naive": "eager", "flash": "fa2"}
OWN = {
    "naive": "naive-cu",
    "minimal": "minimal-cu",
    "flash_fwd": "flash-cu",
    "flash_bwd": "flash-cu",
    "flash_fwd_sm90": "flash-sm90",
    "flash_bwd_sm90": "flash-sm90",
}
"""This project's kernels: implementation -> catalog name."""
BACKWARD, SM90 = ("flash_bwd", "flash_bwd_sm90"), ("flash_fwd_sm90", "flash_bwd_sm90")
HOST_FILLS = ("fill", "bwd.fill")
BLOCKS_FIRST = {"light_first": (None, None), "heavy_first": (True, None), "fold": (None, True)}
"""A row's `blocks` as settings (heavy first, fold)."""
BACKWARD_STARTS = {"heavy_first": Start.LIGHT_FIRST, "light_first": Start.HEAVY_FIRST}
"""Key blocks in ascending order: under a causal mask the first one has most queries."""
SCHEDULERS = {"one_tile": "static", "static": "persistent", "dynamic": "dynamic"}
TURNS_BYTES = 2 * 32
"""What the two warpgroups' counters take of a pair of blocks whose share of dQ waits for its turn, a packet each
(kernels/flash_bwd_sm90.cuh)."""
BOTH = "_fwdbwd"
WINDOW = re.compile(r"sliding window, (\d{1,9}) keys back, causal")
"""A note that names the window of a flex row, whose `causal` is empty."""
MASK_WORDS = ("window", "global_tokens", "mask_block", "mask_stride")
BLOCKS = re.compile(r"mask ([a-z+]{1,20})((?:, [a-z_]{1,20} \d{1,9})*)")
"""A note that names a flex row's mask in a problem's words: mask window+global, window 1024, global_tokens 256."""
NOTES = re.compile(
    rf"(repeat( \d+)?|sweep|packed, \d+ query heads|{WINDOW.pattern}|{BLOCKS.pattern})?"
)
MAIN_ALONE = re.compile(r"flash_bwd_dq_dk_dv|fmha_cutlassB_|triton_tem_fused")
"""Kernels that a profiler was told to keep, without the launches around them: a call of one row."""
OWN_NOTES = {"naive": "bypass L1", "flash_bwd": "deterministic"}
"""Notes of the project's own kernels that say how they were built."""
SAME_PASS = re.compile(r"(\d|_d[KV])$")
"""What tells launches of one kernel apart in the model's names: bwd.copy0, bwd.sum_dV."""
DRIVER_SHARED_BYTES = 1024
"""Shared memory that the driver keeps for every CTA; `smem_bytes` of a row counts it."""
VARIANT = {
    "tile": ("{}", ""),
    "sums": ("{} sums", ""),
    "warps": ("{} warps", ""),
    "stages": ("{} stages", ""),
    "order": ("{}", ""),
    "heavy_first": ("heavy first", "0"),
    "blocks": ("{}", ""),
    "section": ("sections of {}", "0"),
    "direction": ("{}", ""),
    "persistent": ("persistent", "0"),
    "schedule": ("{}", ""),
    "cluster": ("clusters of {}", "1"),
    "splits": ("{} splits", "1"),
}
"""A row's settings in words, in order, and the value of which nothing is said."""
MAX_PAIRS = 200_000_000
"""Visited tile pairs of a row: more are not replayed here."""
MAX_CTAS, MAX_THREADS, MAX_REGISTERS, MAX_SPILLED_BYTES = (1 << 31) - 1, 1024, 255, 1 << 19
"""What CUDA lets a launch have: CTAs, threads per CTA, registers and local memory a thread."""


class NoModel(Exception):
    """No model covers a row; the text is the reason."""


@dataclass(frozen=True)
class Case:
    """What one call, or one chain, is predicted as. `chains` holds one chain for each row: the row's launch by itself,
    since such rows were measured with the L2 flushed before each launch; or all launches of a row that is a whole
    chain. `rows` are the measured ones, those of a pass that PyTorch launches in pieces as one."""

    problem: AttentionProblem
    kernel: Kernel
    chains: tuple[Chain, ...]
    variant: str
    rows: tuple[Row, ...]


def problem_of(row: Row) -> AttentionProblem:
    """The attention problem of a row. Raises InputError where its sizes make no sense; NoModel where the row leaves
    one empty."""
    name, facts = row.implementation, row.facts
    # a flex row states its mask in its note: the column of a causal flag is empty there
    noted = _noted_mask(facts.get("note", ""))
    needed = CHAIN if row.chain else LAUNCH_COLUMNS
    if missing := [n for n in needed if not facts[n] and not (noted and n == "causal")]:
        raise NoModel(
            f"no model for '{name}' without {', '.join(missing)}, which the row leaves empty"
        )
    backward = name in BACKWARD or name.endswith("_backward")
    values: dict[str, Any] = {n: row.number(n) for n in ("batch", "heads", "head_dim")}
    if row.chain:
        values |= {
            "seq_q": row.number("seq"),
            "passes": "fwd+bwd" if name.endswith(BOTH) else "fwd",
        }
    else:
        window = row.number("window")
        mask = "window" if window is not None else "causal" if row.flag("causal") else "none"
        values |= {"kv_heads": row.number("kv_heads"), "passes": "bwd" if backward else "fwd"}
        values |= noted or {"mask": mask, "window": window}
        # lengths of a packed batch stand for both sequences
        if lengths := facts.get("seq_lens"):
            values["seq_lens"] = tuple(map(int, lengths.split()))
        else:
            values |= {n: row.number(n) for n in ("seq_q", "seq_k")}
    try:
        return AttentionProblem(dtype=facts["dtype"], **values)
    except InputError as error:
        raise InputError(f"{OPTION} {row.source} call {row.call}: {error}") from None


def _noted_mask(note: str) -> dict[str, Any]:
    window, blocks = WINDOW.fullmatch(note), BLOCKS.fullmatch(note)
    if window:
        return {"mask": "window", "window": int(window[1])}
    if not blocks:
        return {}
    words = (part.split() for part in blocks[2].split(", ") if part)
    return {"mask": blocks[1], **{name: int(value) for name, value in words if name in MASK_WORDS}}


def match(rows: Sequence[Row], profile: HardwareProfile) -> Case:
    """The case of one call's rows, in order of their launches, or of one chain. Raises InputError where sizes make
    no sense; NoModel where no catalog kernel stands for the rows."""
    first = rows[0]
    try:
        # a name that the catalog does not have is reported before the row's sizes are looked at
        entry_name(_catalog_name(first))
    except InputError:
        raise NoModel(f"no model for '{first.implementation}'") from None
    problem = problem_of(first)
    _check_call(rows)
    try:
        if not first.chain:
            return _call_case(rows, problem, profile)
        kernel = resolve(_catalog_name(first), problem, profile)
        chain = plan(problem, kernel)
        _check_size(chain)
        return Case(problem, kernel, (chain,), "", (first,))
    except InputError as error:
        raise NoModel(str(error)) from None


def _catalog_name(row: Row) -> str:
    name = row.implementation
    short = name.removesuffix(BOTH)
    return CHAIN_NAMES.get(short, short) if row.chain else OWN.get(name, name)


def _check_call(rows: Sequence[Row]) -> None:
    first = rows[0]
    if first.chain:
        return
    if refused := first.facts.get("left_out"):
        raise NoModel(f"not measured: {refused}")
    # a profiler that was stopped midway leaves a call without its first or last launches
    if [r.launch for r in rows] != list(range(1, len(rows) + 1)):
        raise NoModel(
            f"launches {', '.join(str(r.launch) for r in rows)} of the call are there, not 1 to {len(rows)}"
        )
    for name in (*PROBLEM, *TILE, *KNOBS):
        if len({r.facts.get(name) for r in rows}) > 1:
            raise NoModel(f"the call's rows differ in {name}")
    note = first.facts.get("note", "")
    # a note that is not understood may change the launch: such rows are left out, not compared
    if not NOTES.fullmatch(note) and OWN_NOTES.get(first.implementation) != note:
        raise NoModel(
            f"no model for '{first.implementation}' with the note '{first.facts['note']}'"
        )


def _call_case(rows: Sequence[Row], problem: AttentionProblem, profile: HardwareProfile) -> Case:
    row = rows[0]
    kernel = kernel_of(rows, problem, profile)
    chain = plan(problem, kernel)
    # its settings are those of the backward: the chain is changed where the rows say so
    if row.implementation == "flash_bwd_sm90":
        # the backward has settings of its own, which no override of the catalog carries
        chain = _as_described(rows, chain)
    _check_size(chain)
    is_own = row.implementation in OWN
    # the model's launches that rows stand for: no joined CTAs, no fills that the host makes
    launches = [n for n in chain.launches if not n.joins and not (is_own and n.name in HOST_FILLS)]
    # rows of some stages alone: the others of the chain were not measured
    if row.facts.get("stage"):
        launches = [n for n in launches if n.name in [r.facts["stage"] for r in rows]]
    if len(rows) == 1 < len(launches) and MAIN_ALONE.search(row.facts.get("kernel", "")):
        launches = [
            n for n in chain.launches if n.role in (LaunchRole.MAIN, LaunchRole.MAIN_BACKWARD)
        ]
    rows = _joined(rows, [n.name for n in launches])
    if len(launches) != len(rows):
        more = f"the call has {len(rows)}"
        raise NoModel(
            f"the model has {len(launches)} launches ({', '.join(n.name for n in chain.launches)}), {more}"
        )
    # rows that say what their kernel was built as have its resources
    described = is_own or bool(row.facts.get("block_q"))
    chains = tuple(
        replace(chain, launches=(_with_facts(n, r) if described else n, *_joining(chain, n)))
        for n, r in zip(launches, rows, strict=True)
    )
    return Case(problem, kernel, chains, _variant(row), tuple(rows))


def _joining(chain: Chain, launch: Launch) -> tuple[Launch, ...]:
    """The launches whose CTAs are of a launch's grid, behind its own: one row has them all."""
    return tuple(
        takewhile(lambda other: other.joins, chain.launches[chain.launches.index(launch) + 1 :])
    )


def _joined(rows: Sequence[Row], launches: Sequence[str]) -> list[Row]:
    """Rows in which a pass over a tensor of 2 GiB and more is one: PyTorch launches it in pieces whose offsets fit into
    32 bits (TensorIterator's with_32bit_indexing), one after the other, each pass in as many."""
    # runs of rows with one kernel name, and runs of the model's launches of one kind, side by side
    pieces = [
        list(run) for _, run in groupby(rows, key=lambda row: row.facts.get("kernel") or row.launch)
    ]
    passes = [
        len(list(run)) for _, run in groupby(launches, key=lambda name: SAME_PASS.sub("", name))
    ]
    # as many rows as launches, or no pairing of the runs: nothing is joined
    if len(rows) <= len(launches) or len(pieces) != len(passes):
        return list(rows)
    merged: list[Row] = []
    for run, several in zip(pieces, passes, strict=True):
        # each of several passes takes as many pieces as the others
        length, over = divmod(len(run), several)
        if over:
            return list(rows)
        for part in (run[n * length : (n + 1) * length] for n in range(several)):
            # bytes and seconds of pieces add up; a quantity that one of them lacks is left out
            quantities = [q for q in part[0].measured if all(q in row.measured for row in part)]
            merged.append(
                replace(
                    part[0], measured={q: sum(row.measured[q] for row in part) for q in quantities}
                )
            )
    return merged


def _check_size(chain: Chain) -> None:
    for launch in chain.launches:
        pairs = int(launch.domain.visited.count.sum()) * launch.domain.grid_heads
        if pairs > MAX_PAIRS:
            raise NoModel(
                f"launch {launch.name} visits {pairs} pairs of tiles; up to {MAX_PAIRS} are replayed here"
            )


def kernel_of(rows: Sequence[Row], problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
    """The catalog's kernel of a call, with the settings that its rows state. Raises NoModel where settings are not
    modelled."""
    row = rows[0]
    # the catalog's choice, with what the row states over it
    kernel = resolve(_catalog_name(row), problem, profile, overrides_of(row))
    if row.implementation == "flash_bwd":
        tile = replace(kernel.tile, stages=kernel.tile_backward.stages)
        kernel = kernel.with_(backward=replace(kernel.backward, tile=tile))
    if row.implementation == "flash_bwd_sm90":
        kernel = _backward_in_order(row, kernel)
    if isinstance(kernel.options, CudaOptions):
        # two launches with one split: the build combines even a single part
        alone = len(rows) == 2 and kernel.splits == 1
        options = replace(
            kernel.options,
            combines_one=alone,
            deterministic=row.facts.get("note") == "deterministic",
        )
        kernel = kernel.with_(options=options)
    return _with_spills(row, kernel)


def overrides_of(row: Row) -> Overrides | None:
    """The settings that a row states over the catalog's own choice. Raises NoModel where the blocks' order is not
    modelled, or a tile is missing."""
    if row.implementation == "flash_bwd_sm90":
        return None  # of its backward alone
    facts, sides = row.facts, (row.number("block_q"), row.number("block_k"))
    if sides[0] is None or sides[1] is None:
        if row.implementation in ("flash_fwd", "flash_bwd"):
            raise NoModel(
                f"'{row.implementation}' needs block_q and block_k, which the row does not state"
            )
        if row.implementation != "flash_fwd_sm90":
            return None
    # `blocks` is the later column and goes before the flag
    heavy, fold = row.flag("heavy_first"), None
    if blocks := facts.get("blocks"):
        if blocks not in BLOCKS_FIRST:
            raise NoModel(
                f"{OPTION}: blocks {blocks} is not modelled; accepted: {', '.join(BLOCKS_FIRST)}"
            )
        heavy, fold = BLOCKS_FIRST[blocks]
        heavy = None if fold else bool(heavy)
    by_head = facts.get("order") == "head"
    # one setting under two column names: of the kernels for compute capability 9.0, and of the others
    section = row.number("section_heads" if row.implementation in SM90 else "section")
    scheduler = SCHEDULERS.get(
        facts.get("schedule", ""), "persistent" if row.flag("persistent") else None
    )
    tile, stages = (
        ((sides[0], sides[1]), row.number("stages")) if sides[0] and sides[1] else (None, None)
    )
    stated: dict[str, Any] = {name: row.number(name) for name in ("warps", "cluster", "splits")}
    stated |= {name: facts.get(name) or None for name in ("order", "direction")}
    stated |= {"section_heads": section if by_head else None, "scheduler": scheduler}
    return Overrides(tile=tile, stages=stages, heavy_first=heavy, fold=fold, **stated)


def _backward_in_order(row: Row, kernel: Kernel) -> Kernel:
    facts, tile = row.facts, kernel.tile_backward
    blocks = facts.get("blocks") or "heavy_first"
    if blocks not in BACKWARD_STARTS:
        raise NoModel(
            f"{OPTION}: {row.implementation} with blocks {blocks}; accepted: {', '.join(BACKWARD_STARTS)}"
        )
    # orders and directions of the backward run over key blocks, as those of the forward over query blocks
    order, direction = (
        Order(facts.get("order") or Order.QUERY),
        Direction(facts.get("direction") or "ascending"),
    )
    section = row.number("section_heads") or 0 if order is Order.HEAD else 0
    schedule = Schedule(
        order=order, start=BACKWARD_STARTS[blocks], direction=direction, section_heads=section
    )
    tile = replace(tile, block_q=row.number("block_q") or tile.block_q)
    return kernel.with_(backward=replace(kernel.backward, tile=tile, schedule=schedule))


def _as_described(rows: Sequence[Row], chain: Chain) -> Chain:
    launches = chain.launches[: len(rows)]
    # ordered sums: pairs wait for their turn at a counter in memory, a packet a warpgroup
    if rows[0].facts.get("sums") == "ordered":
        turns = Overhead(
            "turns", Mode.STORE, per_pair=TURNS_BYTES, inferred_from="kernels/flash_bwd_sm90.cuh"
        )
        launches = tuple(
            replace(n, overheads=(*n.overheads, turns)) if n.role is LaunchRole.MAIN_BACKWARD else n
            for n in launches
        )
    return replace(chain, launches=launches)


def _with_spills(row: Row, kernel: Kernel) -> Kernel:
    spilled = _within(
        "spill_store_bytes", row.number("spill_store_bytes") or 0, 0, MAX_SPILLED_BYTES
    )
    # a persistent CTA stores what it spills once, ahead of its list of tiles; else it is taken per tile pair
    if kernel.schedule.scheduler is Scheduler.PERSISTENT and row.implementation == "flash_fwd":
        source = "the compiler's report, taken to lie before the list of tiles"
        once = Overhead(
            "spill", Mode.STORE, per_cta=spilled * kernel.cta_threads, inferred_from=source
        )
        ctas = _product(row, "grid", MAX_CTAS)
        return kernel.with_(
            persistent_ctas=ctas, overheads=(*kernel.overheads, *((once,) if spilled else ()))
        )
    if spilled:
        report = Spill(
            write_per_pair=spilled,
            source="the compiler's report, all of it taken to lie in the key loop",
        )
        return kernel.with_(spill=report)
    return kernel


def _with_facts(launch: Launch, row: Row) -> Launch:
    registers, shared = row.number("registers"), row.number("smem_bytes")
    # resources of a row are taken whole or not at all
    if not row.facts.get("block") or not registers or shared is None:
        return launch
    _within("registers", registers, 1, MAX_REGISTERS)
    threads, shared_bytes = (
        _product(row, "block", MAX_THREADS),
        max(0, shared - DRIVER_SHARED_BYTES),
    )
    return replace(launch, resources=Resources(threads, registers, shared_bytes))


def _product(row: Row, name: str, limit: int) -> int:
    """CTAs of a grid, or threads of a block, written "(8, 2, 8)"."""
    text = row.facts.get(name, "")
    match = re.fullmatch(r"\((\d{1,10}), (\d{1,10}), (\d{1,10})\)", text)
    if not match:
        raise NoModel(f"{name} '{text[:40]}' is not of the form (x, y, z)")
    return _within(name, prod(map(int, match.groups())), 1, limit)


def _within(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise NoModel(f"{name} {value} is out of range; accepted: {low} to {high}")
    return value


def _variant(row: Row) -> str:
    f = dict(row.facts)
    if f.get("block_q"):
        f["tile"] = f"{f['block_q']}x{f.get('block_k') or 128}"
    if row.implementation in SM90:
        f |= {"warps": "", "stages": "", "section": f.get("section_heads", "")}
    elif "tile" in f:
        f |= {"warps": str(f.get("warps")), "stages": f.get("stages") or "1"}
    else:
        return ""
    settings = (
        (text, silent, f.get(name, "").replace("_", " "))
        for name, (text, silent) in VARIANT.items()
    )
    return ", ".join(
        text.format(value) for text, silent, value in settings if value not in ("", silent)
    )
