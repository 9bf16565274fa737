"""From a kernel's name, a problem and a GPU to the Kernel that the library would launch there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from iosim.base.errors import InputError, refusing
from iosim.base.records import replace
from iosim.catalog.algorithms import algorithm_of, algorithms, options_for
from iosim.catalog.algorithms.registry import Packs
from iosim.catalog.libraries.builds import spills
from iosim.catalog.libraries.catalog_file import Place
from iosim.catalog.libraries.loader import (
    Entry,
    chosen,
    entry,
    entry_names,
    is_choice,
    on_gpu,
    overheads,
)
from iosim.catalog.libraries.rules import Rules, SplitGrid, rules_of
from iosim.catalog.libraries.support import check_support, runs
from iosim.hardware.profile import HardwareProfile, cc_text
from iosim.kernel.kernel import BACKWARD_PASSES, QUEUE, Kernel, PassSettings, RowPass, Spill, Tile
from iosim.kernel.launch import Edge, Fetch
from iosim.kernel.machine import Machine
from iosim.kernel.options import AlgorithmOptions, built, typed
from iosim.kernel.overrides import Overrides
from iosim.kernel.schedule import CLUSTER_CC, Schedule, Scheduler, Start
from iosim.kernel.tile_rules import ASYNC_COPY_CC, refuse_tile, retiled
from iosim.kernel.unit import MatrixUnit, Specialisation, stated_unit
from iosim.kernel.work import Fragments, Layout, Loop
from iosim.problem.attention import AttentionProblem

AS_STATED = ("writes_lse", "rereads_q", "clears_queue", "sm_spread", "hbm_share", "cta_shares")
"""Fields of a kernel that are keys of [kernel], too."""
AND = "+"
"""Between the kernels of the two passes of a call, where they are two."""
MAX_BLOCKS = 1 << 22
MAX_SPLIT_ROWS = 1 << 24


def _first(
    rows: Iterable[Mapping[str, Any]],
    problem: AttentionProblem,
    profile: HardwareProfile,
    width: int,
    **facts: Any,
) -> Mapping[str, Any]:
    """The first row whose conditions hold, empty where none's do; `facts` are more that a row may state."""
    window = problem.mask == "window"
    # A condition that a row leaves out holds for all: each default is the problem's own value.
    facts |= {"causal": problem.mask != "none", "window": window, "dropout": problem.dropout > 0}
    # Places are taken modulo the lengths, so that a compiler drops a limit which no two of them exceed.
    farthest = problem.longest_q + problem.longest_k - 2
    facts["window_binds"] = window and (problem.window or 0) < farthest
    facts["odd_keys"] = problem.longest_k % 2 == 1
    facts["paged"] = problem.page_size is not None
    facts["widened"] = problem.cache_dtype is not None
    facts["score_tensor"] = problem.bias != "none" or problem.mask_storage != "implicit"
    query_rows = problem.longest_q * problem.group
    optin = profile.shared_memory_per_block_optin_bytes or 0
    for row in rows:
        if (
            width <= row["head_dim"]
            and profile.cc in row.get("cc", (profile.cc,))
            and profile.cc < row.get("cc_below", 10_000)
            and problem.dtype in row.get("dtype", (problem.dtype,))
            and query_rows <= row.get("max_rows", query_rows)
            and problem.longest_q <= row.get("max_queries", problem.longest_q)
            and problem.longest_k <= row.get("max_keys", problem.longest_k)
            and optin >= row.get("min_shared_memory_per_block_bytes", 0)
            and all(row.get(name, fact) == fact for name, fact in facts.items())
        ):
            return row
    return {}


def tile_row(
    data: Entry, table: str, problem: AttentionProblem, profile: HardwareProfile, width: int
) -> Mapping[str, Any]:
    """The first row of the entry's `table` whose conditions hold. Raises InputError: none does."""
    if not (row := _first(data.get(table, ()), problem, profile, width)):
        known = {
            cc for candidate in data.get(table, ()) for cc in candidate.get("cc", (profile.cc,))
        }
        if profile.cc not in known:
            capabilities = ", ".join(cc_text(cc) for cc in sorted(known))
            raise InputError(
                f"`kernel` {data['name']}: it has no tile for {profile.name}; accepted: cc {capabilities}"
            )
        raise InputError(
            f"`head_dim` {width}: kernel {data['name']} has no {table.replace('_', ' ')} for it"
        )
    return row


def _schedule(data: Entry, table: str, problem: AttentionProblem) -> Schedule:
    # Keys of [kernel_masked] go over those of [kernel].
    masked = {} if problem.mask == "none" else data.get(f"{table}_masked", {})
    return built(Schedule, {**data.get(table, {}), **masked})


def _unit(settings: Mapping[str, Any]) -> MatrixUnit | None:
    if "matrix_unit" not in settings:
        return None
    return stated_unit(settings["matrix_unit"], settings.get("specialisation", Specialisation.NONE))


def _loop(settings: Mapping[str, Any]) -> Loop:
    in_registers, in_shared = (
        settings.get("q_in") == Place.REGISTERS,
        settings.get("p_in") == Place.SHARED,
    )
    return built(Loop, {**settings, "q_in_registers": in_registers, "p_in_shared": in_shared})


def _build(
    data: Entry,
    problem: AttentionProblem,
    profile: HardwareProfile,
    width: int,
    split: bool,
    tile: tuple[int, int],
    backward: bool = False,
) -> Mapping[str, Any]:
    """The row of what the build that runs spills, empty where none is known, and its `code`: as PyTorch's for cc 9.0
    has it on every GPU, whose source is the same. FlashAttention has a build for lengths that are whole tiles, one for
    others, packed ones among them, and one for rows of fewer columns than it has."""
    whole = (
        problem.seq_lens is None and problem.seq_q % tile[0] == 0 and problem.seq_k % tile[1] == 0
    )
    narrow = max(problem.head_dim, problem.head_dim_v) < width
    rows = [row for row in spills(data, backward) if row.get("split", False) == split]
    facts = {"whole_tiles": whole, "narrow": narrow, "block_q": tile[0], "block_k": tile[1]}
    # Spills are of the GPU that they were recorded on; how many instructions there are is taken from it
    # for all GPUs.
    anywhere = ({**row, "cc": [profile.cc]} for row in rows if "code" in row)
    code = _first(anywhere, problem, profile, width, **facts).get("code")
    return {**_first(rows, problem, profile, width, **facts), **({"code": code} if code else {})}


def resolve(
    name: str,
    problem: AttentionProblem,
    profile: HardwareProfile,
    overrides: Overrides | None = None,
) -> Kernel:
    """The kernel called `name` as it would run `problem` on `profile`.

    A name may stand for a choice among kernels, as `sdpa` for PyTorch's; its reason is in the kernel's notes. Of a call
    of both passes two names may stand for one each, as "ck+aiter". Raises InputError: an unknown name, or a kernel that
    cannot run the problem on that GPU.
    """
    notes: tuple[str, ...] = ()
    if is_choice(name):
        name, why = chosen(name, problem, profile)
        notes = (why,)
    overrides = overrides or Overrides()
    first, _, second = name.partition(AND)
    if problem.passes != "fwd+bwd":
        data, more = _running(name, problem, profile)
        compiled = check_support(data, problem, profile)
        return _resolved(data, compiled, problem, profile, overrides, notes + more)
    # Both passes: each resolved as it would be alone, then joined to a kernel and what follows it.
    if second:
        entries = [on_gpu(entry(direction), profile) for direction in (first, second)]
    else:
        data, more = _running(first, problem, profile)
        entries, notes = [data, data], notes + more
    passes = [
        (data, problem.with_(passes=which))
        for data, which in zip(entries, ("fwd", "bwd"), strict=True)
    ]
    with refusing(passes=problem.passes):
        forward, backward = (
            _resolved(
                data,
                check_support(data, direction, profile),
                direction,
                profile,
                overrides,
                notes,
                of_both=True,
            )
            for data, direction in passes
        )
    if overrides.pack_group is not None:
        _packs_by_hand(forward, problem, overrides.pack_group)
    return _followed(forward, backward)


def _running(
    name: str, problem: AttentionProblem, profile: HardwareProfile
) -> tuple[Entry, tuple[str, ...]]:
    """The entry of the kernel that a name means on a GPU, or of the one that stands in for it where it is not described
    for the problem (`stands_in`), with the reason in words. Raises InputError: none of them runs the problem."""
    data = on_gpu(entry(name), profile)
    other = entry(data["stands_in"]) if "stands_in" in data else None
    try:
        check_support(data, problem, profile)
    except InputError as reason:
        if other is None or not runs(other, problem, profile):
            raise
        return other, (f"{other['name']} stands in, another kernel: {reason}",)
    return data, ()


def _followed(forward: Kernel, backward: Kernel) -> Kernel:
    """The kernel of a call of both passes, each of which runs as it does alone but for what `Rules.leading` says."""
    tile = backward.tile_backward
    settings = replace(backward.backward, tile=None if tile == forward.tile else tile)
    both = replace(
        forward, backward=settings, notes=tuple(dict.fromkeys((*forward.notes, *backward.notes)))
    )
    # Where the two differ in nothing but what `backward` holds, one kernel stands for both.
    alike = replace(both, notes=(), splits=backward.splits, schedule=backward.schedule)
    is_one = alike == replace(backward, tile=forward.tile, backward=settings, notes=())
    if forward.name != backward.name:
        both = replace(both, name=f"{forward.name}{AND}{backward.name}")
    return both if is_one else replace(both, followed_by=backward)


def _resolved(
    data: Entry,
    compiled: int | None,
    problem: AttentionProblem,
    profile: HardwareProfile,
    overrides: Overrides,
    notes: tuple[str, ...],
    of_both: bool = False,
) -> Kernel:
    """The kernel of a catalog's entry for one pass, resolved in this order: (1) splits, by rule or by hand; (2) the
    tile's row, as the library sees the problem; (3) packing and the recorded build; (4) the kernel of the file's keys;
    (5) what the rule book decides at the end; (6) the user's overrides; (7) what a compiler makes of the tile.

    Args:
        compiled: the width of its build.
        of_both: whether it is one of the passes of a call of both.
    """
    rules, settings = rules_of(data.get("rules")), data["kernel"]
    width = compiled if compiled is not None else max(problem.head_dim, problem.head_dim_v)
    asked_splits = None if of_both and problem.backward else _asked_splits(data, overrides)
    splits, split_table = _splits(data, rules, problem, profile, asked_splits)
    seen = rules.as_launched(problem)
    row = tile_row(data, "split_tile" if split_table else "tile", seen, profile, width)
    block_q, block_k = row["block_q"], row["block_k"]
    if asked_splits is None and _may_split(rules, seen):
        splits = _splits_of_tile(rules, seen, profile, row) or splits
    packed = _packs_group(data, rules, problem, splits, block_q, block_k)
    build = _build(data, seen, profile, width, split_table, (block_q, block_k))
    beside = rules.split_overheads(problem, block_q) if split_table else overheads(data, "overhead")
    kernel = Kernel(
        name=data["name"],
        algorithm=data["algorithm"],
        tile=built(Tile, {"stages": settings.get("stages"), **row}),
        warp_size=profile.warp_size,
        schedule=rules.schedule(seen, _schedule(data, "kernel", seen), splits, packed),
        splits=splits,
        edge_q=Edge.EXACT if split_table else Edge(settings["edge_q"]),
        edge_k=Edge(row.get("edge_k", settings["edge_k"])),
        fetch=_fetch({**settings, **row}, profile),
        packs_group=packed,
        compiled_head_dim=compiled,
        threads=None if split_table else row.get("threads", settings.get("threads")),
        registers=row.get("registers", build.get("registers", settings.get("registers"))),
        shared_memory_bytes=row.get("shared_memory_bytes", settings.get("shared_memory_bytes")),
        persistent_ctas=_persistent_ctas(settings, profile),
        overheads=beside,
        backward=_backward(data, problem, profile, width),
        spill=built(Spill, build) if build else None,
        matrix_unit=_unit(row if "matrix_unit" in row else settings),
        fragments=_fragments(settings, row),
        loop=_loop({**settings, **row}),
        machine=_machine(data, overrides, profile),
        **{name: settings[name] for name in AS_STATED if name in settings},
        options=_options(data, row, rules, profile, split_table, overrides.append_kv),
        notes=notes + _notes(data, problem, compiled),
    )
    return _finished(asked_splits, kernel, of_both, overrides, problem, profile, rules, settings)


def _splits_of_tile(
    rules: Rules, seen: AttentionProblem, profile: HardwareProfile, row: Mapping[str, Any]
) -> int | None:
    """Splits of a library that chooses its tile first."""
    sms = profile.need_int("sm_count")
    return rules.splits_of_tile(seen, sms, row["block_q"], row["block_k"])


def _asked_splits(data: Entry, overrides: Overrides) -> int | None:
    """Splits that are given by hand; a kernel that was read from code has its grid's."""
    read: int | None = data.get("splits")
    return read if overrides.splits is None else overrides.splits


def _machine(data: Entry, overrides: Overrides, profile: HardwareProfile) -> Machine | None:
    """What an SM plays of a kernel that was read from code; None of another tile than the code's."""
    retiled = any(x is not None for x in (overrides.tile, overrides.warps, overrides.stages))
    read: Machine | None = data["machine"](profile) if "machine" in data and not retiled else None
    return read


def _fetch(keys: Mapping[str, Any], profile: HardwareProfile) -> Fetch:
    """How operands are fetched: the file's way needs asynchronous copies."""
    if profile.cc < ASYNC_COPY_CC:
        return Fetch.BYTES
    return Fetch(keys.get("fetch", Fetch.BYTES))


def _persistent_ctas(settings: Mapping[str, Any], profile: HardwareProfile) -> int | None:
    a_sm = settings.get("persistent_ctas_per_sm")
    return None if a_sm is None else int(a_sm * profile.need("sm_count"))


def _fragments(settings: Mapping[str, Any], row: Mapping[str, Any]) -> Fragments | None:
    """How fragments lie; not known where a tile has another unit, which may take another way."""
    if "fragments" not in settings or "matrix_unit" in row:
        return None
    return Fragments(Layout(settings["fragments"]))


def _finished(
    asked_splits: int | None,
    kernel: Kernel,
    of_both: bool,
    overrides: Overrides,
    problem: AttentionProblem,
    profile: HardwareProfile,
    rules: Rules,
    settings: Any,
) -> Kernel:
    """The kernel after the rule book's last word, the user's overrides, and what a compiler makes of the tile."""
    kernel = rules.finish(kernel, problem, profile)
    if of_both and problem.forward:
        kernel = rules.leading(kernel, problem, profile)
    kernel = _apply(kernel, rules, problem, overrides, profile, of_both)
    kernel = rules.compiled(kernel, problem, profile)
    if any(value is not None for value in (overrides.tile, overrides.warps, overrides.stages)):
        refuse_tile(settings.get("tile_rule"), kernel, problem, profile, overrides)
    if (
        asked_splits is None
        and kernel.splits > 1
        and not getattr(kernel.options, "empty_splits", False)
    ):
        kernel = replace(
            kernel, splits=min(kernel.splits, -(-problem.longest_k // kernel.tile.block_k))
        )
    return kernel


def split_alike(name: str) -> bool:
    """True where a catalog kernel gives all sequences of a call as many splits; else their splits have one length."""
    return rules_of(entry(name).get("rules")).splits_alike if name in entry_names() else False


def _may_split(rules: Rules, problem: AttentionProblem) -> bool:
    """True where rules of splits are asked; for sequences of different lengths only those that know them.

    NB: there FlashAttention-2 splits none where the cache has no pages (flash_api.cpp, mha_varlen_fwd: num_splits stays
    0); taken so for all others.
    """
    return (
        problem.forward
        and not problem.dropout
        and (problem.seq_lens is None or rules.splits_packed)
    )


def _splits(
    data: Entry,
    rules: Rules,
    problem: AttentionProblem,
    profile: HardwareProfile,
    requested: int | None,
) -> tuple[int, bool]:
    if requested is not None:
        _check_splits(data, problem, requested)
        return requested, (requested > 1 or problem.page_size is not None) and "split_tile" in data
    if "split_tile" not in data or not _may_split(rules, problem):
        return 1, False
    width = max(problem.head_dim, problem.head_dim_v)
    if not (row := _first(data["split_tile"], problem, profile, width)):
        return 1, False
    packed = _packs_group(data, rules, problem, 1, 1, 1)
    group, heads = (problem.group, problem.kv_heads) if packed else (1, problem.heads)
    # The grid that the library's own split rule sees: tiles and key blocks before any split.
    tiles = problem.sequence_count * heads * -(-problem.longest_q * group // row["block_q"])
    key_blocks = -(-problem.longest_k // row["block_k"])
    grid = SplitGrid(
        tiles, key_blocks, int(profile.need("sm_count")), row["block_q"], row["block_k"]
    )
    return rules.split_kernel(problem, grid)


def _check_splits(data: Entry, problem: AttentionProblem, requested: int) -> None:
    if isinstance(requested, bool) or requested < 1:
        raise InputError(f"`splits` {requested} is out of range; accepted: 1 or more")
    if requested == 1:
        return
    if not algorithm_of(data["algorithm"]).splits:
        raise InputError(
            f"`splits` {requested}: kernel {data['name']} does not split its keys; accepted: 1"
        )
    if not problem.forward:
        why = "only a forward splits its keys; accepted: 1"
        raise InputError(f"`splits` {requested} contradicts `passes` {problem.passes}: {why}")
    rows = problem.batch * problem.heads * problem.seq_q
    if rows > MAX_SPLIT_ROWS:
        accepted = f"up to {MAX_SPLIT_ROWS} rows (batch x heads x tokens)"
        raise InputError(
            f"`splits` {requested} with {rows} query rows is out of range; accepted: {accepted}"
        )


def _packs_group(
    data: Entry, rules: Rules, problem: AttentionProblem, splits: int, block_q: int, block_k: int
) -> bool:
    if not problem.forward or problem.dropout > 0 or not problem.shares_rows:
        return False
    return rules.packs_group(
        problem, bool(data["kernel"].get("packs_group")), splits, block_q, block_k
    )


def _packs_by_hand(kernel: Kernel, problem: AttentionProblem, requested: bool) -> bool:
    packs = algorithm_of(kernel.algorithm).packs
    if requested and (packs is not Packs.WHERE_ASKED or problem.passes != "fwd"):
        able = ", ".join(
            name for name in algorithms() if algorithm_of(name).packs is Packs.WHERE_ASKED
        )
        hint = f"accepted: kernels of algorithm {able}, pass fwd"
        raise InputError(
            f"`pack_group=True`: kernel {kernel.name}, pass {problem.passes}, has no rows to pack; {hint}"
        )
    if not requested and packs is Packs.ALWAYS:
        raise InputError(f"`pack_group=False`: kernel {kernel.name} always packs")
    return requested


def _options(
    data: Entry,
    row: Mapping[str, Any],
    rules: Rules,
    profile: HardwareProfile,
    split: bool,
    append_kv: bool,
) -> AlgorithmOptions:
    options = {
        **data["kernel"].get("options", {}),
        **row.get("options", {}),
        **rules.options(profile, split),
    }
    if append_kv:
        if not algorithm_of(data["algorithm"]).appends:
            able = ", ".join(name for name in algorithms() if algorithm_of(name).appends)
            hint = f"accepted: kernels of algorithm {able}"
            raise InputError(f"`append_kv=True`: kernel {data['name']} has no cache; {hint}")
        options["append_kv"] = True
    return options_for(data["algorithm"], options)


def _notes(data: Entry, problem: AttentionProblem, compiled: int | None) -> tuple[str, ...]:
    notes = []
    if data.get("inferred"):
        notes.append(
            f"{data['name']}: inferred from measurements, not published: {', '.join(data['inferred'])}"
        )
    if data.get("assumed"):
        notes.append(f"{data['name']}: assumed: {'; '.join(data['assumed'])}")
    widest = max(problem.head_dim, problem.head_dim_v)
    if compiled is not None and compiled != widest:
        notes.append(
            f"{data['name']}: head_dim {widest} runs on the kernel compiled for {compiled}; true columns only are read"
        )
    return tuple(notes)


def _backward(
    data: Entry, problem: AttentionProblem, profile: HardwareProfile, width: int
) -> PassSettings:
    passes = tuple(built(RowPass, row) for row in data.get("backward_pass", ())) or BACKWARD_PASSES
    stated = PassSettings(
        schedule=_schedule(data, "backward", problem),
        overheads=overheads(data, "backward_overhead"),
        passes=passes,
    )
    if not problem.backward or "backward_tile" not in data:
        return stated
    row = tile_row(data, "backward_tile", problem, profile, width)
    tile = built(Tile, {"stages": data.get("backward", {}).get("stages"), **row})
    build = _build(
        data, problem, profile, width, False, (tile.block_q, tile.block_k), backward=True
    )
    fragments = None
    if "warps_along" in row:
        holds_v = row.get("v_in") == Place.REGISTERS and not problem.dropout
        fragments = Fragments(
            Layout.GRADIENTS, warps_along=tuple(row["warps_along"]), holds_v=holds_v
        )
    plain = problem.mask == "none" and not problem.dropout and build.get("whole_tiles", False)
    return replace(
        stated,
        tile=tile,
        registers=row.get("registers", build.get("registers")),
        spill=built(Spill, build) if build else None,
        shared_memory_bytes=row.get("shared_memory_bytes"),
        fragments=fragments,
        interleaves=plain and profile.cc in row.get("interleaves", ()),
    )


def _start(chosen: Start, heavy_first: bool | None, fold: bool | None) -> Start:
    if fold:
        if heavy_first is not None:
            why = "both say which query blocks start first; accepted: one of them"
            raise InputError(f"`fold=True` contradicts `heavy_first={heavy_first}`: {why}")
        return Start.FOLD
    if heavy_first is None:
        return Start.LIGHT_FIRST if fold is False and chosen is Start.FOLD else chosen
    return Start.HEAVY_FIRST if heavy_first else Start.LIGHT_FIRST


def check_cluster(cluster: int, profile: HardwareProfile) -> int:
    """The number of CTAs of a cluster, as asked for; an InputError on a GPU that has none."""
    if cluster > 1 and (profile.cc < CLUSTER_CC or profile.is_amd):
        why = "has no clusters of CTAs, which cc 9.0 brought; accepted there: 1"
        raise InputError(f"`cluster` {cluster}: {profile.name} {why}")
    return cluster


def _check_blocks(problem: AttentionProblem, tile: Tile) -> None:
    """Refuse a tile by hand that cuts the queries into more blocks than are counted in fractions of a second."""
    least = -(-problem.seq_q // MAX_BLOCKS)
    if tile.block_q < least:
        raise InputError(
            f"`tile` {tile} is too small for {problem.seq_q} query tokens; accepted: block_q from {least}"
        )


def _apply(
    kernel: Kernel,
    rules: Rules,
    problem: AttentionProblem,
    over: Overrides,
    profile: HardwareProfile,
    of_both: bool,
) -> Kernel:
    # Overrides in turn: tile (with what then is not known any more), packing, order, what it takes.
    tile = replace(kernel.tile, **typed(Tile, vars(over)))
    if over.tile is not None:
        tile = replace(tile, block_q=over.tile[0], block_k=over.tile[1])
    if (over.tile, over.warps, over.stages) != (None, None, None):
        _check_blocks(problem, tile)
        kernel = rules.built(retiled(kernel, problem, tile, backward=False), problem, profile)
        if problem.backward:
            kernel = retiled(kernel, problem, tile, backward=True)
    if over.pack_group is not None and not of_both:
        kernel = replace(kernel, packs_group=_packs_by_hand(kernel, problem, over.pack_group))
    check_cluster(over.cluster or 1, profile)
    start = _start(kernel.schedule.start, over.heavy_first, over.fold)
    schedule = replace(kernel.schedule, start=start, **typed(Schedule, vars(over)))
    if schedule.scheduler is not Scheduler.DYNAMIC:  # no queue, and nothing that is asked of it
        schedule = replace(schedule, claims_ahead=False)
        kernel = replace(kernel, overheads=tuple(o for o in kernel.overheads if o.name != QUEUE))
    taken = typed(
        Kernel, {name: getattr(over, name) for name in ("registers", "shared_memory_bytes")}
    )
    kernel = replace(kernel, schedule=schedule, **taken)
    if schedule.scheduler is not Scheduler.STATIC and kernel.persistent_ctas is None:
        kernel = replace(kernel, persistent_ctas=int(profile.need("sm_count")))
    return kernel
