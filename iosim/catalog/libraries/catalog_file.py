"""What a catalog file may hold: every key with its form and meaning, and what cannot hold at once.

One file describes one library kernel. This module only checks: `iosim.catalog.libraries.loader` reads the files,
`iosim.catalog.libraries.resolver` makes kernels of them, `iosim.catalog.libraries.new_file` writes new ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from iosim.base.records import fields
from iosim.base.schema import (
    Flag,
    ListOf,
    MapOf,
    OneOrMany,
    Problem,
    Real,
    Spec,
    Table,
    Text,
    Whole,
)
from iosim.catalog.algorithms import algorithm_of, algorithms
from iosim.catalog.libraries.builds import build_names
from iosim.catalog.libraries.rules import rule_books
from iosim.kernel.kernel import RowPass
from iosim.kernel.launch import Edge, Fetch, Mode
from iosim.kernel.overrides import MAX_BLOCK, MAX_CLUSTER
from iosim.kernel.schedule import CLUSTER_CC, Direction, Order, Scheduler, Start
from iosim.kernel.tile_rules import TRITON, WHOLE_ROWS
from iosim.kernel.unit import FMA, SPECIALISED_UNITS, MatrixUnit, Specialisation, stated_unit
from iosim.kernel.work import Layout
from iosim.problem.attention import TERMS
from iosim.problem.dtypes import INPUT_DTYPES
from iosim.problem.fields import FIELDS, INTERVAL_MASKS

SCHEMA = 1
VENDORS = ("nvidia", "amd")


class Key(NamedTuple):
    """What stands under a key: its form, what it means as a new file says it, and what holds where it is left out."""

    form: Spec
    means: str = ""
    unsaid: str = "..."


class Place(StrEnum):
    """Where a CTA keeps an operand."""

    SHARED = "shared"
    REGISTERS = "registers"


def _words(kind: type[StrEnum]) -> Text:
    return Text(tuple(kind))


NAME = "[a-z0-9][a-z0-9-]*"
MAX_WIDTH = 1 << 16

_CC = Whole(30, 999, "a compute capability without its point, such as 90")
_WIDTH = Whole(1, MAX_WIDTH)
_SHARED = Whole(0, 1 << 20)
_DTYPES = ListOf(Text(INPUT_DTYPES), unique=True)
_BYTES = Real(-1e6, 1e6)
"""Bytes of a work tile may be below 0: where the loop's first or last turn moves less than the others."""


REQUIRES: Mapping[str, Key] = {
    "takes": Key(
        ListOf(Text(tuple(sorted(TERMS))), least=0, unique=True),
        "biases, masks, pages, packed sequences it has a place for",
    ),
    "one_score_tensor": Key(Flag(), "whether a bias and a mask share one tensor"),
    "vendors": Key(ListOf(Text(VENDORS), unique=True), "whose GPUs it runs on", '["nvidia"]'),
    "min_cc": Key(_CC, "first compute capability; AMD's targets are 942, 950"),
    "max_cc": Key(_CC, "last compute capability"),
    "runs_elsewhere": Key(
        Flag(), "whether the library has kernels for others, which are not described"
    ),
    "dtypes": Key(_DTYPES, "types of Q, K and V"),
    "dtype_min_cc": Key(MapOf(_CC, INPUT_DTYPES), "first compute capability of a type"),
    "head_dims": Key(
        ListOf(_WIDTH, ascending=True), "widths it is compiled for; others run on the next one"
    ),
    "max_head_dim": Key(_WIDTH, "any width up to this"),
    "widths": Key(ListOf(_WIDTH, exactly=2), "the widths of Q, K and of V, where they differ"),
    "rows_need_keys": Key(Flag(), "whether every query must have a key"),
    "dropout": Key(Flag(), "whether it has dropout (true without this)"),
    "passes": Key(ListOf(Text(("fwd", "bwd", "fwd+bwd")), unique=True), "fwd, bwd, fwd+bwd"),
    "latent_only": Key(Flag(), "whether K and V are one latent cache"),
    "page_multiple": Key(Whole(1), "pages of a cache are multiples of so many rows"),
    "page_sizes": Key(ListOf(Whole(1), ascending=True), "rows of a page"),
    "masks": Key(ListOf(Text(INTERVAL_MASKS), unique=True), "masks it has; all without this"),
}
"""What the kernel runs, and where."""
KERNEL: Mapping[str, Key] = {
    "matrix_unit": Key(Text((FMA, *MatrixUnit)), "fma, mma.sync, wgmma or tcgen05"),
    "specialisation": Key(
        _words(Specialisation),
        "none; producer: some warps only load; ping-pong: and the others take turns",
        '"none"',
    ),
    "producer_warps": Key(Whole(1, 16), "warps that load, of a ping-pong kernel"),
    "loads_ahead": Key(
        Flag(), "whether a step's K and V are fetched during the step before", "true"
    ),
    "copy_waits": Key(
        Whole(0, 2), "places of a step at which all warps wait for copies together (Triton)", "0"
    ),
    "q_in": Key(_words(Place), "shared or registers: where products take Q from", '"shared"'),
    "p_in": Key(
        _words(Place), "registers or shared: where P waits for the second product", '"registers"'
    ),
    "rereads_q": Key(Flag(), "whether Q is fetched again at every key block", "false"),
    "fragments": Key(
        _words(Layout), "how operands pass through shared memory; bytes there are unknown without"
    ),
    "score_operations": Key(
        Real(0, 100), "instructions a score beside those of every softmax", "0"
    ),
    "list_cycles": Key(
        Real(0, 1e5), "cycles in which a step waits for its list of blocks, under a mask", "0"
    ),
    "order": Key(
        _words(Order),
        "query: blocks fastest, then heads; head: heads fastest; batch: blocks, batch, heads",
        '"query"',
    ),
    "start": Key(
        _words(Start), "light-first, heavy-first or fold: which blocks start first", '"light-first"'
    ),
    "section_heads": Key(Whole(0, 1 << 20), "heads of a section of the grid; 0: none", "0"),
    "chiplets": Key(
        Whole(1, 64), "L2s of their own among which heads are shared out; 1: they are not", "1"
    ),
    "direction": Key(_words(Direction), "of the key loop", '"ascending"'),
    "scheduler": Key(
        _words(Scheduler),
        "static: a CTA a tile; persistent: tiles in turn; dynamic: tiles from a counter",
        '"static"',
    ),
    "persistent_ctas_per_sm": Key(Whole(1, 32), "CTAs an SM of a persistent or dynamic grid"),
    "clears_queue": Key(
        Flag(), "whether a memset clears its queue's counter before each launch", "false"
    ),
    "claims_ahead": Key(Flag(), "whether a CTA claims its next tile as it begins one", "false"),
    "overlaps_tiles": Key(Flag(), "whether a CTA begins its next tile while it ends one", "false"),
    "cluster": Key(
        Whole(1, MAX_CLUSTER), "CTAs that fetch K and V once for all of them (multicast)", "1"
    ),
    "writes_lse": Key(Flag(), "whether the log-sum-exp of every row is written"),
    "fetch": Key(_words(Fetch), "how rows are asked for: bytes, sectors, ..."),
    "edge_q": Key(_words(Edge), "rows moved of a ragged block of queries: exact, whole, needed"),
    "edge_k": Key(_words(Edge), "the same of keys"),
    "packs_group": Key(Flag(), "whether query heads that share keys share a tile, when decoding"),
    "threads": Key(Whole(32, 1024), "threads a CTA, where not 32 x warps"),
    "registers": Key(Whole(1, 512), "registers a thread (cuobjdump -res-usage); estimated without"),
    "shared_memory_bytes": Key(_SHARED, "bytes per CTA; from the tile without"),
    "stages": Key(Whole(1, 16), "key/value buffers", "1"),
    "sm_spread": Key(Real(0, 0.5), "share by which SMs differ in speed"),
    "hbm_share": Key(
        Real(0.01, 1), "share of a stream's rate at which HBM gives tiles, where many loads miss"
    ),
    "cta_shares": Key(Text(), "name in the table of measured shares of CTAs on one SM"),
    "tile_rule": Key(Text((WHOLE_ROWS, TRITON)), "which tiles by hand are refused"),
    "options": Key(MapOf(OneOrMany(Text())), "of the algorithm"),
}
"""How the forward runs."""
ROW: Mapping[str, Key] = {
    "head_dim": Key(_WIDTH, "up to this width"),
    "cc": Key(ListOf(_CC, unique=True), "on these compute capabilities"),
    "cc_below": Key(_CC, "below this one"),
    "causal": Key(Flag(), "with a mask, or without"),
    "window": Key(Flag(), "with a window, or without"),
    "window_binds": Key(Flag(), "with a window that some places of the lengths exceed, or without"),
    "odd_keys": Key(Flag(), "with an odd number of key tokens, or an even one"),
    "dropout": Key(Flag(), "with dropout, or without"),
    "dtype": Key(_DTYPES, "of these types"),
    "paged": Key(Flag(), "with a paged cache, or without"),
    "widened": Key(Flag(), "with a cache in a type of its own (--cache-dtype), or without"),
    "score_tensor": Key(Flag(), "with a bias or a mask that is a tensor, or without"),
    "max_rows": Key(Whole(1), "up to so many query rows of a group"),
    "max_queries": Key(Whole(1), "up to so many query tokens"),
    "max_keys": Key(Whole(1), "up to so many keys"),
    "min_shared_memory_per_block_bytes": Key(_SHARED, "where a CTA may have so much"),
    "split": Key(Flag(), "of a kernel that splits the keys"),
    "whole_tiles": Key(Flag(), "where lengths are whole tiles"),
    "narrow": Key(Flag(), "where heads have fewer columns than the build"),
    "block_q": Key(Whole(1, MAX_BLOCK), "query rows"),
    "block_k": Key(Whole(1, MAX_BLOCK), "key rows"),
    "warps": Key(Whole(1, 32), "warps per CTA, producers with them"),
    "stages": Key(Whole(1, 16), "key/value buffers"),
    "threads": Key(Whole(32, 1024), "threads a CTA"),
    "registers": Key(Whole(1, 512), "registers a thread"),
    "shared_memory_bytes": Key(_SHARED, "bytes per CTA"),
    "warps_along": Key(
        ListOf(Whole(1, 32), exactly=3),
        "warps along the first side of a backward's products: scores, dK and dV, dQ",
    ),
    "v_in": Key(_words(Place), "where a backward's products without dropout take V from"),
    "interleaves": Key(
        ListOf(Whole(10, 200)),
        "compute capabilities on which a backward of whole tiles, without a mask or dropout, begins its exponentials "
        "among the products before them",
    ),
    "edge_k": Key(_words(Edge), "rows moved of a ragged block of keys"),
    "fetch": Key(_words(Fetch), "how rows are asked for"),
    "matrix_unit": Key(
        Text((FMA, *MatrixUnit)), "what computes its products, where not as in [kernel]"
    ),
    "score_operations": Key(Real(0, 100), "instructions a score beside those of every softmax"),
    "instructions_per_score": Key(
        Real(0, 100),
        "instructions a thread executes for each score, products aside, as counted in its build",
    ),
    "serial_cycles": Key(
        Real(0, 1e5), "cycles of a step in which its instructions wait for one another"
    ),
    "loads_ahead": Key(Flag(), "whether a step's K and V are fetched during the step before"),
    "options": Key(MapOf(OneOrMany(Text())), "of the algorithm, over those of [kernel]"),
    "key_warps": Key(
        Whole(1, 32), "warps that divide a tile's keys, where they do not divide its rows alone"
    ),
    "write_per_tile": Key(_BYTES, "bytes of spilled registers a thread writes a work tile"),
    "write_per_pair": Key(_BYTES, "and a visited key block"),
    "read_per_tile": Key(_BYTES, "bytes it reads that miss L1, a work tile"),
    "read_per_pair": Key(_BYTES, "and a visited key block"),
    "accesses_per_pair": Key(Real(0, 1e5), "loads and stores of them a visited key block"),
    "accesses_per_tile": Key(Real(0, 1e5), "the same a work tile, outside its loop"),
    "frame": Key(Whole(0, 1 << 16), "bytes of a thread's stack frame"),
    "source": Key(Text(), "where it was counted"),
    "name": Key(Text(pattern="[A-Za-z_]+"), "of what is moved beside the tensors"),
    "mode": Key(_words(Mode), "load, store or reduce"),
    "per_cta": Key(Whole(0, 1 << 20), "bytes per CTA"),
    "per_tile": Key(Whole(0, 1 << 20), "bytes a work tile"),
    "per_pair": Key(Whole(0, 1 << 20), "bytes a visited key block"),
    "per_tile_fetch": Key(Whole(0, 1 << 20), "bytes per tile fetched from a queue"),
}
"""Keys of a row of tiles, spills or further bytes.

Those up to `min_shared_memory_per_block_bytes` are its conditions: head_dim is the widest that it holds for, the others
are true of the problem or the GPU. `causal` is true of any mask, `window` of a window alone."""
_PASS_NAME = Text(pattern="fill[01]?|copy[01]|dot|convert|sum_(groups|dK|dV)")
_FORMS = Table.of(RowPass, name=_PASS_NAME).keys
PASS: Mapping[str, Key] = {
    f.name: Key(_FORMS[f.name], f.metadata["means"]) for f in fields(RowPass)
}
"""Keys of a launch beside the backward's main one."""
_SIDES = ListOf(Whole(1, MAX_BLOCK), ascending=True)
CONFIGURATIONS: Mapping[str, Key] = {
    "block_q": Key(_SIDES, "query rows"),
    "block_k": Key(_SIDES, "key rows"),
    "stages": Key(_SIDES, "buffers"),
    "warps": Key(_SIDES, "warps"),
    "eight_warps_from": Key(Whole(1), "scores of a tile from which eight warps are tried"),
}
"""What is tuned over."""


def _table(
    keys: Mapping[str, Key], only: Sequence[str] = (), required: Sequence[str] = ()
) -> Table:
    return Table({name: keys[name].form for name in only or keys}, required)


_SCHEDULE = (
    "order",
    "start",
    "direction",
    "scheduler",
    "claims_ahead",
    "overlaps_tiles",
    "section_heads",
    "chiplets",
)
_WHEN = tuple(ROW)[: tuple(ROW).index("split")]
_TILE = (
    "block_q",
    "block_k",
    "warps",
    "stages",
    "edge_k",
    "fetch",
    "matrix_unit",
    "key_warps",
    "threads",
    "registers",
    "shared_memory_bytes",
    "warps_along",
    "v_in",
    "interleaves",
    "score_operations",
    "instructions_per_score",
    "serial_cycles",
    "loads_ahead",
    "options",
)
_SPILL = (
    "split",
    "whole_tiles",
    "narrow",
    "block_q",
    "block_k",
    "registers",
    "write_per_tile",
    "write_per_pair",
    "read_per_tile",
    "read_per_pair",
    "accesses_per_pair",
    "accesses_per_tile",
    "frame",
    "source",
)
_TILE_NEEDS = ("head_dim", "block_q", "block_k", "warps")
_OVERHEAD = ("name", "mode", "per_cta", "per_tile", "per_pair", "per_tile_fetch")
_ROWS = {
    "tile": ListOf(_table(ROW, (*_WHEN, *_TILE), _TILE_NEEDS)),
    "spill": ListOf(_table(ROW, (*_WHEN, *_SPILL), ("head_dim", "source"))),
    "overhead": ListOf(_table(ROW, _OVERHEAD, ("name", "mode"))),
}
TABLES: Mapping[str, Key] = {
    "requires": Key(_table(REQUIRES, required=("dtypes",)), "What it runs, and where."),
    "kernel": Key(_table(KERNEL), "How the forward runs."),
    "kernel_masked": Key(_table(KERNEL, _SCHEDULE), "How the forward runs otherwise under a mask."),
    "backward": Key(_table(KERNEL, _SCHEDULE), "How the backward runs, where it has one."),
    "backward_masked": Key(
        _table(KERNEL, _SCHEDULE), "How the backward runs otherwise under a mask."
    ),
    "tile": Key(_ROWS["tile"], "Tiles: the first row whose conditions hold is taken."),
    "split_tile": Key(_ROWS["tile"], "Tiles of the kernel that splits the keys."),
    "backward_tile": Key(_ROWS["tile"], "Tiles of the backward."),
    "spill": Key(_ROWS["spill"], "Spilled registers, by the same conditions."),
    "backward_spill": Key(_ROWS["spill"], "Those of the backward."),
    "overhead": Key(_ROWS["overhead"], "What it moves beside its tensors."),
    "backward_overhead": Key(_ROWS["overhead"], "The same of the backward."),
    "backward_pass": Key(
        ListOf(_table(PASS, required=("name", "writes"))),
        "Launches over rows around the backward's main one.",
    ),
    "configurations": Key(
        _table(CONFIGURATIONS, required=tuple(CONFIGURATIONS)), "What is tuned over."
    ),
}
MEANINGS = {
    "requires": REQUIRES,
    **dict.fromkeys(("kernel", "kernel_masked", "backward", "backward_masked"), KERNEL),
    "backward_pass": PASS,
    "configurations": CONFIGURATIONS,
}
"""Table -> its keys; those of all others are `ROW`'s."""
_NAMES = ListOf(Text(), least=0, unique=True)
FILE: Mapping[str, Key] = {
    "schema": Key(Whole(SCHEMA, SCHEMA, "this version reads schema 1"), "version of this format"),
    "name": Key(
        Text(pattern=NAME, such_as="fa2"), "your kernel's name in results; none of the catalog's"
    ),
    "title": Key(Text(), "what it is, in a line"),
    "aliases": Key(_NAMES),
    "backward_aliases": Key(_NAMES),
    "like": Key(Text()),
    "in_models": Key(Text()),
    "before": Key(Text()),
    "stands_in": Key(Text()),
    "algorithm": Key(Text(algorithms), "what its launches move and compute (iosim kernels list)"),
    "source": Key(Text(lines=True), "where this was taken from"),
    "inferred": Key(_NAMES, "what nobody published: every prediction repeats it"),
    "assumed": Key(_NAMES, "what is taken without a source: every prediction repeats it"),
    "rules": Key(Text(rule_books), "what the library decides at launch: splits, packing, sections"),
    "example": Key(
        MapOf(Whole(), tuple(FIELDS)),
        "sizes of a problem that it takes, where it takes no plain one",
    ),
    "any_tile": Key(Flag(), "whether tiles by hand are its purpose"),
    "builds": Key(Text(build_names), "whose recorded builds it runs, for what they spill"),
    **TABLES,
}


def _contradictions(data: Mapping[str, Any]) -> Iterator[Problem]:
    requires = data["requires"]
    # Each key may be right by itself and contradict another: these are the pairs that can.
    if requires.get("min_cc", 0) > requires.get("max_cc", 999):
        yield Problem(
            "requires.min_cc", f"{requires['min_cc']} is more than max_cc ({requires['max_cc']})"
        )
    if ("head_dims" in requires) == ("max_head_dim" in requires):
        yield Problem(
            "requires.max_head_dim", "a kernel has either this (any width up to it) or head_dims"
        )
    for dtype in requires.get("dtype_min_cc", {}):
        if dtype not in requires["dtypes"]:
            yield Problem(f"requires.dtype_min_cc.{dtype}", "is not among requires.dtypes")
    algorithm = algorithm_of(data["algorithm"])
    for n, term in enumerate(requires.get("takes", ())):
        if term not in algorithm.takes:
            yield Problem(
                f"requires.takes[{n}]", f"algorithm {algorithm.name} has no place for {term}"
            )
    widest = max(requires.get("head_dims", [requires.get("max_head_dim", 0)]))
    if "tile" in data and max(row["head_dim"] for row in data["tile"]) < widest:
        yield Problem("tile", f"no row for head_dim {widest}, which requires accepts")
    yield from _kernel_contradictions(data["kernel"], requires)
    if "backward" in data and "backward_tile" not in data:
        yield Problem("backward_tile", "missing; [backward] says how it is scheduled")


def _kernel_contradictions(
    kernel: Mapping[str, Any], requires: Mapping[str, Any]
) -> Iterator[Problem]:
    # Unit, specialisation and warps that load say together who computes.
    unit, roles = kernel.get("matrix_unit"), kernel.get("specialisation", Specialisation.NONE)
    able = ", ".join(dict.fromkeys(str(unit) for unit, _ in SPECIALISED_UNITS))
    if unit is None and roles != Specialisation.NONE:
        yield Problem("kernel.specialisation", f"'{roles}' needs a matrix_unit; accepted: {able}")
    elif unit is not None and stated_unit(unit, roles) is None:
        with_it = ", ".join(
            str(unit_name) for unit_name, role in SPECIALISED_UNITS if role == roles
        )
        yield Problem(
            "kernel.specialisation",
            f"'{roles}' with matrix_unit {unit} is not known; accepted: matrix_unit {with_it}",
        )
    elif "producer_warps" in kernel and (
        unit is None or stated_unit(unit, roles) is not MatrixUnit.PINGPONG
    ):
        yield Problem(
            "kernel.producer_warps",
            'is for matrix_unit = "wgmma" with specialisation = "ping-pong"',
        )
    if kernel.get("cluster", 1) > 1 and requires.get("min_cc", 0) < CLUSTER_CC:
        yield Problem(
            "kernel.cluster",
            f"{kernel['cluster']} needs requires.min_cc = {CLUSTER_CC} or later, which brought clusters",
        )
    if kernel.get("rereads_q") and kernel.get("q_in") == Place.REGISTERS:
        yield Problem(
            "kernel.q_in",
            "'registers' contradicts rereads_q = true, which fetches Q at every key block",
        )
    scheduler = kernel.get("scheduler", Scheduler.STATIC)
    if "persistent_ctas_per_sm" in kernel and scheduler == Scheduler.STATIC:
        yield Problem(
            "kernel.persistent_ctas_per_sm", "needs scheduler persistent or dynamic, not static"
        )


def problems(data: Mapping[str, Any]) -> list[Problem]:
    name = data.get("algorithm")
    # Options are checked by the algorithm's own record, where its name is known.
    options: Spec = MapOf(OneOrMany(Text()))
    if isinstance(name, str) and name in algorithms():
        options = Table.of(algorithm_of(name).options)
    kernel = Table(
        {**_table(KERNEL).keys, "options": options}, required=("writes_lse", "edge_q", "edge_k")
    )
    rows = _table(ROW, (*_WHEN, *_TILE)).keys
    tiles = ListOf(Table({**rows, "options": options}, _TILE_NEEDS))
    needed = ("schema", "name", "title", "algorithm", "source", "requires", "kernel", "tile")
    specs: dict[str, Spec] = {"kernel": kernel, "tile": tiles, "split_tile": tiles}
    file = Table({**_table(FILE).keys, **specs}, needed, (_contradictions,))
    return list(file.problems(dict(data)))
