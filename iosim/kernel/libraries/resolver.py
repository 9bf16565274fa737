"""From a kernel's name, a problem and a GPU to the Kernel that the library would launch there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from iosim.base.errors import InputError
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel, MatrixUnit, Spill, Tile
from iosim.kernel.launch import Edge, Mode, Overhead
from iosim.kernel.libraries import choices, inference
from iosim.kernel.libraries.features import check_features
from iosim.kernel.libraries.loader import Entry, entry
from iosim.kernel.overrides import Overrides
from iosim.kernel.schedule import Direction, Order, Schedule, Scheduler, Start
from iosim.kernel.tile_rules import refuse_tile
from iosim.problem.attention import AttentionProblem

MAX_BLOCKS = 1 << 22


def check_support(data: Entry, problem: AttentionProblem, profile: HardwareProfile) -> int | None:
    """The compiled head dimension (None: any), once the kernel is known to run there.

    Raises:
        InputError: the GPU, the dtype or the head dimension is one that the kernel is not made for.
    """
    requires, name = data["requires"], data["name"]
    needs = f"{data['title'].split(',')[0]} needs"
    if profile.cc < requires.get("min_cc", 0):
        raise InputError(f"`kernel` {name}: {needs} cc {_cc(requires['min_cc'])} or later; {profile.name} has "
                         f"cc {_cc(profile.cc)}")  # fmt: skip
    if "max_cc" in requires and profile.cc > requires["max_cc"]:
        raise InputError(f"`kernel` {name}: {needs} cc {_cc(requires['max_cc'])}; {profile.name} has "
                         f"cc {_cc(profile.cc)}")  # fmt: skip
    if problem.dtype not in requires["dtypes"]:
        raise InputError(f"`dtype` {problem.dtype}: not supported by kernel {name}; accepted: "
                         f"{', '.join(requires['dtypes'])}")  # fmt: skip
    check_features(data, problem)
    if problem.passes not in requires.get("passes", (problem.passes,)):
        raise InputError(f"`passes` {problem.passes}: kernel {name} has no model of it; accepted: "
                         f"{', '.join(requires['passes'])}")  # fmt: skip
    dtype_cc = requires.get("dtype_min_cc", {}).get(problem.dtype, 0)
    if profile.cc < dtype_cc:
        raise InputError(f"`dtype` {problem.dtype}: kernel {name} needs cc {_cc(dtype_cc)} or later for it; "
                         f"{profile.name} has cc {_cc(profile.cc)}")  # fmt: skip
    if requires.get("rows_need_keys") and leaves_rows_without_keys(problem):
        raise InputError(f"`offset` {problem.offset}: the mask leaves queries without keys, for which "
                         f"kernel {name} writes nothing")  # fmt: skip
    inference.check_cache(data, problem)
    widest = max(problem.head_dim, problem.head_dim_v)
    compiled: list[int] | None = requires.get("head_dims")
    if compiled is None:
        if widest > requires["max_head_dim"]:
            raise InputError(f"`head_dim` {widest}: kernel {name} goes up to {requires['max_head_dim']}")
        return None
    fitting = [d for d in compiled if d >= widest]
    if not fitting:
        raise InputError(f"`head_dim` {widest}: kernel {name} is compiled for {', '.join(map(str, compiled))}")
    return min(fitting)


def leaves_rows_without_keys(problem: AttentionProblem) -> bool:
    """Whether some query keeps no key."""
    return problem.pair_mask.leaves_rows_empty(problem.seq_q, problem.seq_k)


def _cc(cc: int) -> str:
    return f"{cc // 10}.{cc % 10}"


def _matches(row: Mapping[str, Any], problem: AttentionProblem, profile: HardwareProfile, width: int) -> bool:
    shared = row.get("min_shared_memory_per_block_bytes", 0)
    return (
        width <= row["head_dim"]
        and profile.cc in row.get("cc", (profile.cc,))
        and profile.cc < row.get("cc_below", 10_000)
        and row.get("causal", problem.mask != "none") == (problem.mask != "none")
        and row.get("dropout", problem.dropout > 0) == (problem.dropout > 0)
        and problem.dtype in row.get("dtype", (problem.dtype,))
        and row.get("paged", problem.page_size is not None) == (problem.page_size is not None)
        and problem.seq_q * problem.group <= row.get("max_rows", problem.seq_q * problem.group)
        and (not shared or (profile.shared_memory_per_block_optin_bytes or 0) >= shared)
    )


def tile_row(
    data: Entry, table: str, problem: AttentionProblem, profile: HardwareProfile, width: int
) -> Mapping[str, Any]:
    """The first row of the entry's `table` whose conditions hold.

    Raises:
        InputError: none does.
    """
    for row in data.get(table, ()):
        if _matches(row, problem, profile, width):
            return dict(row)
    raise InputError(f"`head_dim` {width}: kernel {data['name']} has no {table.replace('_', ' ')} for it")


def _tile(row: Mapping[str, Any], kernel: Mapping[str, Any]) -> Tile:
    return Tile(row["block_q"], row["block_k"], row["warps"], row.get("stages", kernel.get("stages", 1)))


def _schedule(values: Mapping[str, Any]) -> Schedule:
    return Schedule(
        order=Order(values.get("order", "query")),
        start=Start(values.get("start", "light-first")),
        direction=Direction(values.get("direction", "ascending")),
        scheduler=Scheduler(values.get("scheduler", "static")),
    )


def _spill(
    data: Entry, problem: AttentionProblem, profile: HardwareProfile, width: int, split: bool, table: str = "spill"
) -> Spill | None:
    for row in data.get(table, ()):
        if row.get("split", False) == split and _matches(row, problem, profile, width):
            return Spill(row.get("write_per_tile", 0.0), row.get("write_per_pair", 0.0),
                         row.get("read_per_tile", 0.0), row.get("read_per_pair", 0.0), row["source"])  # fmt: skip
    return None


def resolve(
    name: str, problem: AttentionProblem, profile: HardwareProfile, overrides: Overrides | None = None
) -> Kernel:
    """The kernel called `name` as it would run `problem` on `profile`.

    `sdpa` is what PyTorch's scaled_dot_product_attention would choose; the choice is in the kernel's notes.

    Raises:
        InputError: an unknown name, or a kernel that cannot run the problem on that GPU.
    """
    notes: tuple[str, ...] = ()
    if name.strip().lower() in ("sdpa", "pytorch", "scaled-dot-product-attention", "scaled_dot_product_attention"):
        name, why = choices.sdpa(problem, profile)
        notes = (why,)
    data = entry(name)
    overrides = overrides or Overrides()
    compiled = check_support(data, problem, profile)
    width = compiled if compiled is not None else max(problem.head_dim, problem.head_dim_v)
    settings = data["kernel"]
    splits, split_table = choices.splits(data, problem, profile, overrides.splits)
    seen = inference.as_launched(data, problem)
    row = tile_row(data, "split_tile" if split_table else "tile", seen, profile, width)
    block_q, block_k = row["block_q"], row["block_k"]
    if overrides.splits is None:
        splits = inference.splits_of_tile(data, seen, profile, block_q, block_k) or splits
    kernel = Kernel(
        name=data["name"],
        algorithm=data["algorithm"],
        tile=_tile(row, settings),
        backward_tile=_backward_tile(data, problem, profile, width),
        schedule=choices.schedule(data, seen, _schedule(settings), splits),
        backward_schedule=_schedule(data.get("backward", {})),
        splits=splits,
        writes_lse=settings["writes_lse"],
        edge_q=Edge.EXACT if split_table else Edge(settings["edge_q"]),
        edge_k=Edge(row.get("edge_k", settings["edge_k"])),
        rereads_q=settings.get("rereads_q", False),
        packs_group=inference.packs_group(data, problem, splits, block_q, block_k),
        compiled_head_dim=compiled,
        threads=None if split_table else row.get("threads", settings.get("threads")),
        registers=row.get("registers", settings.get("registers")),
        shared_memory_bytes=row.get("shared_memory_bytes"),
        overheads=inference.overheads(data, problem) if split_table else _overheads(data, "overhead"),
        backward_overheads=_backward_overheads(data, problem, profile, width),
        spill=_spill(data, seen, profile, width, split_table),
        matrix_unit=MatrixUnit(settings["matrix_unit"]) if "matrix_unit" in settings else None,
        sm_spread=settings.get("sm_spread"),
        options=choices.options(data, profile, split_table, overrides.append_kv),
        notes=notes + choices.notes(data, problem, compiled),
    )
    kernel = _apply(choices.tile(data, kernel, problem, profile), problem, overrides, profile)
    if any(value is not None for value in (overrides.tile, overrides.warps, overrides.stages)):
        refuse_tile(settings.get("tile_rule"), kernel, problem, profile)
    if overrides.splits is None and kernel.splits > 1:
        kernel = replace(kernel, splits=min(kernel.splits, -(-problem.seq_k // kernel.tile.block_k)))
    return kernel


def _overheads(data: Entry, table: str) -> tuple[Overhead, ...]:
    return tuple(
        Overhead(o["name"], Mode(o["mode"]), per_cta=o.get("per_cta", 0), per_tile=o.get("per_tile", 0),
                 per_pair=o.get("per_pair", 0), per_tile_fetch=o.get("per_tile_fetch", 0),
                 inferred_from=data["source"])
        for o in data.get(table, ())
    )  # fmt: skip


def _backward_overheads(
    data: Entry, problem: AttentionProblem, profile: HardwareProfile, width: int
) -> tuple[Overhead, ...]:
    """What the backward's main launch moves beside its tensors: by rule, and spilled registers.

    Spills have a name of their own there, which the replay does not lay out in memory: a CTA writes a few lines once,
    which the next one overwrites, and recorded HBM writes have no room for them (h200_library_kernels.csv, 149 to 151).
    """
    tile = _backward_tile(data, problem, profile, width)
    spill = _spill(data, problem, profile, width, split=False, table="backward_spill") if tile else None
    spilled = spill.overheads(32 * tile.warps) if spill and tile else ()
    return _overheads(data, "backward_overhead") + tuple(replace(o, name="backward_spill") for o in spilled)


def _backward_tile(data: Entry, problem: AttentionProblem, profile: HardwareProfile, width: int) -> Tile | None:
    if not problem.backward or "backward_tile" not in data:
        return None
    return _tile(tile_row(data, "backward_tile", problem, profile, width), data.get("backward", {}))


def _start(chosen: Start, heavy_first: bool | None) -> Start:
    if heavy_first is None:
        return chosen
    return Start.HEAVY_FIRST if heavy_first else Start.LIGHT_FIRST


def _check_blocks(problem: AttentionProblem, tile: Tile) -> None:
    """Refuse a tile by hand that cuts the queries into more blocks than are counted in fractions of a second."""
    least = -(-problem.seq_q // MAX_BLOCKS)
    if tile.block_q < least:
        raise InputError(f"`tile` {tile} is too small for {problem.seq_q} query tokens; accepted: block_q from {least}")


def _apply(kernel: Kernel, problem: AttentionProblem, over: Overrides, profile: HardwareProfile) -> Kernel:
    """The kernel with the user's settings, and its persistent grid."""
    tile = kernel.tile
    by_hand = over.tile is not None or over.warps is not None or over.stages is not None
    if by_hand:
        block_q, block_k = over.tile or (tile.block_q, tile.block_k)
        warps = tile.warps if over.warps is None else over.warps
        tile = Tile(block_q, block_k, warps, tile.stages if over.stages is None else over.stages)
        _check_blocks(problem, tile)
        kernel = replace(kernel, tile=tile, shared_memory_bytes=None, registers=None, spill=None)
        if kernel.threads is not None and over.warps is not None:
            kernel = replace(kernel, threads=None)
    if over.pack_group is not None:
        kernel = replace(kernel, packs_group=inference.packs_by_hand(kernel, problem, over.pack_group))
    schedule = kernel.schedule
    schedule = replace(
        schedule,
        order=schedule.order if over.order is None else Order(over.order),
        start=_start(schedule.start, over.heavy_first),
        section_heads=schedule.section_heads if over.section_heads is None else over.section_heads,
        direction=schedule.direction if over.direction is None else Direction(over.direction),
        scheduler=schedule.scheduler if over.scheduler is None else Scheduler(over.scheduler),
    )
    kernel = replace(
        kernel,
        schedule=schedule,
        registers=kernel.registers if over.registers is None else over.registers,
        shared_memory_bytes=(
            kernel.shared_memory_bytes if over.shared_memory_bytes is None else over.shared_memory_bytes
        ),
    )
    if schedule.scheduler is not Scheduler.STATIC and kernel.persistent_ctas is None:
        kernel = replace(kernel, persistent_ctas=int(profile.need("sm_count")))
    return kernel
