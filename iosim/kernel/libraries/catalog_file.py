"""What a catalog file may hold: its schema, and what cannot hold at once.

One file describes one library kernel. This module only checks: `iosim.kernel.libraries.loader` reads the files,
`iosim.kernel.libraries.resolver` makes kernels of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from iosim.base.schema import Flag, ListOf, MapOf, OneOrMany, Problem, Real, Spec, Table, Text, Whole
from iosim.kernel.algorithms import algorithm_of, algorithms
from iosim.kernel.kernel import FMA, SPECIALISED_UNITS, MatrixUnit, Specialisation, stated_unit
from iosim.kernel.launch import Edge, Fetch, Mode
from iosim.kernel.libraries.builds import build_names
from iosim.kernel.libraries.rules import rule_books
from iosim.kernel.overrides import MAX_BLOCK, MAX_CLUSTER
from iosim.kernel.schedule import CLUSTER_CC, Direction, Order, Scheduler, Start
from iosim.kernel.tile_rules import TRITON, WHOLE_ROWS
from iosim.problem.dtypes import INPUT_DTYPES

SCHEMA = 1


class Place(StrEnum):
    """Where a CTA keeps an operand."""

    SHARED = "shared"
    REGISTERS = "registers"


NAME = "[a-z0-9][a-z0-9-]*"
MAX_WIDTH = 1 << 16
_CC = Whole(30, 999, "a compute capability without its point, such as 90")
_WIDTH = Whole(1, MAX_WIDTH)
_SHARED = Whole(0, 1 << 20)
_DTYPES = ListOf(Text(INPUT_DTYPES), unique=True)
_BYTES = Real(-1e6, 1e6)
"""Of a work tile less than 0: where the loop's first or last turn moves less than the others."""
_SCHEDULE: Mapping[str, Spec] = {
    "order": Text(tuple(Order)),
    "start": Text(tuple(Start)),
    "direction": Text(tuple(Direction)),
    "scheduler": Text(tuple(Scheduler)),
    "claims_ahead": Flag(),
    "overlaps_tiles": Flag(),
    "section_heads": Whole(0, 1 << 20),
}
_WHEN: Mapping[str, Spec] = {
    "head_dim": _WIDTH,
    "cc": ListOf(_CC, unique=True),
    "cc_below": _CC,
    "causal": Flag(),
    "window": Flag(),
    "dropout": Flag(),
    "dtype": _DTYPES,
    "paged": Flag(),
    "max_rows": Whole(1),
    "min_shared_memory_per_block_bytes": _SHARED,
}
"""Conditions of a row: head_dim is the widest that it holds for, the others are true of the problem or the GPU.

`causal` is true of any mask, `window` of a window alone."""


def _terms() -> tuple[str, ...]:
    return tuple(sorted({term for name in algorithms() for term in algorithm_of(name).takes}))


REQUIRES = Table(
    {
        "takes": ListOf(Text(_terms), least=0, unique=True),
        "one_score_tensor": Flag(),
        "min_cc": _CC,
        "max_cc": _CC,
        "dtypes": _DTYPES,
        "dtype_min_cc": MapOf(_CC, INPUT_DTYPES),
        "head_dims": ListOf(_WIDTH, ascending=True),
        "max_head_dim": _WIDTH,
        "widths": ListOf(_WIDTH, exactly=2),
        "rows_need_keys": Flag(),
        "dropout": Flag(),
        "passes": ListOf(Text(("fwd", "bwd", "fwd+bwd")), unique=True),
        "latent_only": Flag(),
        "page_multiple": Whole(1),
        "page_sizes": ListOf(Whole(1), ascending=True),
    },
    required=("dtypes",),
)
TILE = Table(
    {**_WHEN, "block_q": Whole(1, MAX_BLOCK), "block_k": Whole(1, MAX_BLOCK), "warps": Whole(1, 32),
     "stages": Whole(1, 16), "edge_k": Text(tuple(Edge)), "threads": Whole(32, 1024), "registers": Whole(1, 255),
     "shared_memory_bytes": _SHARED},
    required=("head_dim", "block_q", "block_k", "warps"),
)  # fmt: skip
SPILL = Table(
    {**_WHEN, "split": Flag(), "whole_tiles": Flag(), "narrow": Flag(), "block_q": Whole(1, MAX_BLOCK),
     "block_k": Whole(1, MAX_BLOCK), "registers": Whole(1, 255), "write_per_tile": _BYTES, "write_per_pair": _BYTES,
     "read_per_tile": _BYTES, "read_per_pair": _BYTES, "accesses_per_pair": Real(0, 1e4),
     "accesses_per_tile": Real(0, 1e4), "frame": Whole(0, 1 << 16), "source": Text()},
    required=("head_dim", "source"),
)  # fmt: skip
OVERHEAD = Table(
    {"name": Text(pattern="[A-Za-z_]+"), "mode": Text(tuple(Mode)),
     **dict.fromkeys(("per_cta", "per_tile", "per_pair", "per_tile_fetch"), Whole(0, 1 << 20))},
    required=("name", "mode"),
)  # fmt: skip
CONFIGURATIONS = Table(
    {**dict.fromkeys(("block_q", "block_k", "stages", "warps"), ListOf(Whole(1, MAX_BLOCK), ascending=True)),
     "eight_warps_from": Whole(1)},
    required=("block_q", "block_k", "stages", "warps", "eight_warps_from"),
)  # fmt: skip
KERNEL: Mapping[str, Spec] = {
    **_SCHEDULE,
    "writes_lse": Flag(),
    "edge_q": Text(tuple(Edge)),
    "edge_k": Text(tuple(Edge)),
    "fetch": Text(tuple(Fetch)),
    "packs_group": Flag(),
    "rereads_q": Flag(),
    "threads": Whole(32, 1024),
    "registers": Whole(1, 255),
    "shared_memory_bytes": _SHARED,
    "stages": Whole(1, 16),
    "cluster": Whole(1, MAX_CLUSTER),
    "persistent_ctas_per_sm": Whole(1, 32),
    "matrix_unit": Text((FMA, *MatrixUnit)),
    "specialisation": Text(tuple(Specialisation)),
    "producer_warps": Whole(1, 16),
    "q_in": Text(tuple(Place)),
    "p_in": Text(tuple(Place)),
    "loads_ahead": Flag(),
    "score_operations": Real(0, 100),
    "sm_spread": Real(0, 0.5),
    "sms_alike": Whole(1, 1 << 10),
    "step_spread": Real(0, 0.5),
    "hbm_share": Real(0.01, 1),
    "cta_shares": Text(),
    "tile_rule": Text((WHOLE_ROWS, TRITON)),
}
_NAMES = ListOf(Text(), least=0, unique=True)
TABLES: Mapping[str, Spec] = {
    "requires": REQUIRES,
    **dict.fromkeys(("tile", "split_tile", "backward_tile"), ListOf(TILE)),
    **dict.fromkeys(("spill", "backward_spill"), ListOf(SPILL)),
    **dict.fromkeys(("overhead", "backward_overhead"), ListOf(OVERHEAD)),
    "configurations": CONFIGURATIONS,
}


def _contradictions(data: Mapping[str, Any]) -> Iterator[Problem]:
    """What cannot hold at once."""
    requires = data["requires"]
    if requires.get("min_cc", 0) > requires.get("max_cc", 999):
        yield Problem("requires.min_cc", f"{requires['min_cc']} is more than max_cc ({requires['max_cc']})")
    if ("head_dims" in requires) == ("max_head_dim" in requires):
        yield Problem("requires.max_head_dim", "a kernel has either this (any width up to it) or head_dims")
    for dtype in requires.get("dtype_min_cc", {}):
        if dtype not in requires["dtypes"]:
            yield Problem(f"requires.dtype_min_cc.{dtype}", "is not among requires.dtypes")
    algorithm = algorithm_of(data["algorithm"])
    for n, term in enumerate(requires.get("takes", ())):
        if term not in algorithm.takes:
            yield Problem(f"requires.takes[{n}]", f"algorithm {algorithm.name} has no place for {term}")
    widest = max(requires.get("head_dims", [requires.get("max_head_dim", 0)]))
    if "tile" in data and max(row["head_dim"] for row in data["tile"]) < widest:
        yield Problem("tile", f"no row for head_dim {widest}, which requires accepts")
    yield from _kernel_contradictions(data["kernel"], requires)
    if "backward" in data and "backward_tile" not in data:
        yield Problem("backward_tile", "missing; [backward] says how it is scheduled")


def _kernel_contradictions(kernel: Mapping[str, Any], requires: Mapping[str, Any]) -> Iterator[Problem]:
    """The same of the table [kernel]."""
    unit, roles = kernel.get("matrix_unit"), kernel.get("specialisation", Specialisation.NONE)
    able = ", ".join(dict.fromkeys(str(unit) for unit, _ in SPECIALISED_UNITS))
    if unit is None and roles != Specialisation.NONE:
        yield Problem("kernel.specialisation", f"'{roles}' needs a matrix_unit; accepted: {able}")
    elif unit is not None and stated_unit(unit, roles) is None:
        with_it = ", ".join(str(one) for one, role in SPECIALISED_UNITS if role == roles)
        yield Problem("kernel.specialisation", f"'{roles}' with matrix_unit {unit} is not known; accepted: matrix_unit "
                      f"{with_it}")  # fmt: skip
    elif "producer_warps" in kernel and (unit is None or stated_unit(unit, roles) is not MatrixUnit.PINGPONG):
        yield Problem("kernel.producer_warps", 'is for matrix_unit = "wgmma" with specialisation = "ping-pong"')
    if kernel.get("cluster", 1) > 1 and requires.get("min_cc", 0) < CLUSTER_CC:
        yield Problem("kernel.cluster", f"{kernel['cluster']} needs requires.min_cc = {CLUSTER_CC} or later, which "
                      "brought clusters")  # fmt: skip
    if kernel.get("rereads_q") and kernel.get("q_in") == Place.REGISTERS:
        yield Problem("kernel.q_in", "'registers' contradicts rereads_q = true, which fetches Q at every key block")
    scheduler = kernel.get("scheduler", Scheduler.STATIC)
    if "persistent_ctas_per_sm" in kernel and scheduler == Scheduler.STATIC:
        yield Problem("kernel.persistent_ctas_per_sm", "needs scheduler persistent or dynamic, not static")


def problems(data: Mapping[str, Any]) -> list[Problem]:
    """Everything that is wrong with a catalog file."""
    name = data.get("algorithm")
    options: Spec = MapOf(OneOrMany(Text()))
    if isinstance(name, str) and name in algorithms():
        options = Table.of(algorithm_of(name).options)
    file = Table(
        {
            "schema": Whole(SCHEMA, SCHEMA, "this version reads schema 1"),
            "name": Text(pattern=NAME, such_as="fa2"),
            "title": Text(),
            "aliases": _NAMES,
            "backward_aliases": _NAMES,
            "like": Text(),
            "algorithm": Text(algorithms()),
            "source": Text(lines=True),
            "inferred": _NAMES,
            "assumed": _NAMES,
            "rules": Text(rule_books),
            "any_tile": Flag(),
            "builds": Text(build_names),
            "kernel": Table({**KERNEL, "options": options}, required=("writes_lse", "edge_q", "edge_k")),
            "backward": Table(dict(_SCHEDULE)),
            **TABLES,
        },
        required=("schema", "name", "title", "algorithm", "source", "requires", "kernel", "tile"),
        rules=(_contradictions,),
    )
    return list(file.problems(dict(data)))
