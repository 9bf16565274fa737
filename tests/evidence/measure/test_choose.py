"""Plans of `iosim measure` as data, and what of them a table holds already."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripts import measurements

from iosim.base.data import data_dir
from iosim.base.errors import InputError
from iosim.evidence.columns import KNOBS, PROBLEM, TILE
from iosim.evidence.cuda.launch import Order, Shape
from iosim.evidence.cuda.spec import BUILT, BwdSpec, FwdSpec, MinimalSpec, NaiveSpec, Spec
from iosim.evidence.measure import choose
from iosim.evidence.measure.case import Case, flops
from iosim.evidence.measure.choose import Choice, cases_of, fitted
from iosim.evidence.measure.table import (
    COLUMNS,
    TIME_COLUMNS,
    missing,
    next_call,
    read_table,
    write_table,
)

OWN = measurements("h200_iosim_kernels.csv")
FULL = choose.named(["full"])
SMALL = Case(FwdSpec(64, 64, 64, 4, 2), Shape(1, 8, 8, 512, 512, 64))
SPLIT = Case(FwdSpec(64, 64, 64, 4, 2, split=True), Shape(1, 8, 8, 1, 4096, 64), Order(splits=4))


def recorded() -> list[dict[str, str]]:
    with OWN.open(newline="") as file:
        return list(csv.DictReader(file))


# Plans


def test_the_full_plan_is_the_one_that_was_recorded() -> None:
    """Call n of the recorded table is call n of the plan, in every column that the call decides."""
    rows = recorded()
    assert len(FULL) == max(int(row["call"]) for row in rows)
    assert sum(case.launches for case in FULL) == len(rows)
    for row in rows:
        columns = FULL[int(row["call"]) - 1].columns()
        assert {name: row[name] for name in columns} == columns, row["call"]


def test_columns_are_those_of_the_recorded_table() -> None:
    assert list(recorded()[0]) == list(COLUMNS)


@given(st.sampled_from([*FULL, *choose.named(["quick"])]))
def test_a_case_survives_json(case: Case) -> None:
    assert Case.from_dict(json.loads(json.dumps(case.to_dict()))) == case
    assert set(case.columns()) == {*PROBLEM, *TILE, *KNOBS}


def test_the_quick_plan_has_every_kernel() -> None:
    quick = choose.named(["quick"])
    assert {case.implementation for case in quick} == {"flash_fwd", "flash_bwd", "naive", "minimal"}
    assert {case.spec.mask for case in quick if isinstance(case.spec, FwdSpec)} == {
        "none",
        "causal",
        "window",
    }
    assert len(quick) < 25


@pytest.mark.parametrize("cc", [*BUILT, "10.0", "12.0"])
def test_a_plan_is_made_to_fit_every_gpu(cc: str) -> None:
    taken, left_out = fitted(choose.named(["quick"]), cc)
    for case in taken:
        case.spec.check(cc)
    assert {case.implementation for case in taken} >= {"flash_fwd", "naive", "minimal"}
    assert len(taken) + len(left_out) == len(choose.named(["quick"]))
    assert all("7.5" in line for line in left_out)  # nothing else lacks a kernel
    if cc == "7.5":
        assert {case.dtype for case in taken if case.implementation == "flash_fwd"} == {"fp16"}
        assert {case.spec.stages for case in taken if isinstance(case.spec, FwdSpec)} == {1}
    if cc == "9.0":
        assert taken == choose.named(["quick"])


@pytest.mark.slow
def test_tiles_of_a_sweep_are_left_out_rather_than_changed() -> None:
    sweep = choose.named(["tiles"])
    taken, left_out = fitted(sweep, "8.6")
    assert left_out
    wanted = [
        (c.spec.block_q, c.spec.block_k, c.spec.stages)
        for c in sweep
        if isinstance(c.spec, FwdSpec)
    ]
    tiles = [
        (c.spec.block_q, c.spec.block_k, c.spec.stages)
        for c in taken
        if isinstance(c.spec, FwdSpec)
    ]
    assert set(tiles) < set(wanted)


def test_options_are_combined_with_each_other() -> None:
    choice = Choice(
        seq_q=(1024, 4096),
        heads=(8, 16),
        tile=((128, 64), (64, 64)),
        order=("head", "query"),
        direction=("ascending", "descending"),
    )
    cases = cases_of(choice, "9.0")
    assert len(cases) == len(set(cases)) == 2 * 2 * 2 * 2 * 2
    assert {case.shape.seq_q for case in cases} == {1024, 4096}
    assert {(c.spec.block_q, c.spec.block_k) for c in cases if isinstance(c.spec, FwdSpec)} == {
        (128, 64),
        (64, 64),
    }
    assert {(c.order.order, c.order.direction) for c in cases} == {
        (order, direction)
        for order in ("head", "query")
        for direction in ("ascending", "descending")
    }


def test_defaults_follow_the_mask() -> None:
    (causal,) = cases_of(Choice(causal=True), "9.0")
    (plain,) = cases_of(Choice(), "9.0")
    assert causal.order == Order("head", heavy_first=True)
    assert plain.order == Order()
    assert causal.spec == choose.TILES[128].__class__(
        128, 128, 64, 4, 2, "causal", "fp16", min_ctas=2
    )


H100, TURING = "9.0", "7.5"


@pytest.mark.parametrize(
    ("options", "cc", "spec"),
    [
        # head_dim, query rows, key rows, warps, stages of the tile, and the CTAs of an SM that its registers are capped for
        ({}, H100, FwdSpec(128, 128, 64, 4, 2, min_ctas=2)),
        (
            {"warps": 8},
            H100,
            FwdSpec(128, 128, 64, 8, 2, min_ctas=2),
        ),  # the default tile with other warps
        ({"stages": 1}, H100, FwdSpec(128, 128, 64, 4, 1, min_ctas=1)),
        ({"stages": 3}, H100, FwdSpec(128, 128, 64, 4, 3, min_ctas=1)),
        # A tile of one's own: four warps where they divide its rows by 16 and hold its scores, else eight, else two
        ({"tile": ((64, 64),)}, H100, FwdSpec(128, 64, 64, 4, 2, min_ctas=2)),
        ({"tile": ((32, 64),)}, H100, FwdSpec(128, 32, 64, 2, 2, min_ctas=3)),
        ({"tile": ((128, 128),)}, H100, FwdSpec(128, 128, 128, 8, 2, min_ctas=1)),
        ({"tile": ((64, 64),), "warps": 2}, H100, FwdSpec(128, 64, 64, 2, 2, min_ctas=2)),
        (
            {"head_dim": (64,)},
            TURING,
            FwdSpec(64, 128, 128, 4, 1, min_ctas=1),
        ),  # no asynchronous copies: one stage
        ({"head_dim": (64,)}, "8.0", FwdSpec(64, 128, 128, 4, 2, min_ctas=2)),
        ({"splits": 2}, H100, FwdSpec(128, 128, 64, 4, 2, split=True, min_ctas=2)),
        ({"persistent": True}, H100, FwdSpec(128, 128, 64, 4, 2, persistent=True, min_ctas=2)),
        ({"window": 9}, H100, FwdSpec(128, 128, 64, 4, 2, "window", min_ctas=2)),
        # A backward has a warp to 16 keys.
        ({"kernel": ("flash_bwd",)}, H100, BwdSpec(128, 64, 128, 8)),
        (
            {"kernel": ("flash_bwd",), "tile": ((64, 64),), "window": 5},
            H100,
            BwdSpec(128, 64, 64, 4, "window"),
        ),
        (
            {"kernel": ("flash_bwd",), "deterministic": True, "causal": True},
            H100,
            BwdSpec(128, 64, 128, 8, "causal", deterministic=True),
        ),
        ({"kernel": ("naive",)}, H100, NaiveSpec(128, "fp16")),
        ({"kernel": ("naive",), "dtype": "bf16", "causal": True}, H100, NaiveSpec(128, "bf16")),
        ({"kernel": ("minimal",), "head_dim": (64,), "dtype": "fp32"}, H100, MinimalSpec(64)),
    ],
)
def test_what_is_built_for_a_choice(options: dict[str, Any], cc: str, spec: Spec) -> None:
    (case,) = cases_of(Choice(**options), cc)
    wanted = spec if isinstance(spec, NaiveSpec | MinimalSpec) else replace(spec, dtype="fp16")
    assert case.spec == wanted
    assert case.causal is options.get("causal", False)


MINIMAL = {"kernel": ("minimal",), "head_dim": (64,)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": ("fa9",)}, "kernel 'fa9' is not measured here"),
        ({"head_dim": (80,)}, "head_dim 80 is not built; accepted: 64, 96, 128, 256"),
        (
            {"kernel": ("flash_bwd",), "head_dim": (96,)},
            "head_dim 96 has no backward; accepted: 64, 128",
        ),
        ({"window": 4, "causal": True}, "causal contradicts window 4"),
        ({"kernel": ("naive",), "window": 4}, "window 4 is not built for naive"),
        (MINIMAL | {"window": 0}, "window 0 is not built for minimal"),
        (MINIMAL | {"causal": True}, "minimal is fp32 without a mask"),
        (MINIMAL | {"dtype": "fp16"}, "minimal is fp32 without a mask"),
        (MINIMAL | {"seq_q": (100,)}, "a multiple of 32"),
        (MINIMAL | {"seq_k": 128}, "seq_q = seq_k"),
        (MINIMAL | {"kv_heads": 8}, "heads = kv_heads"),
        ({"kernel": ("flash_bwd",), "tile": ((64, 16),)}, "warps 1 is not built; accepted: 4, 8"),
        (
            {"kernel": ("flash_bwd",), "tile": ((64, 32),), "warps": 4},
            "block_k must be 16 . warps = 64",
        ),
        ({"tile": ((128, 64),), "head_dim": (128,), "stages": 4}, "bytes of shared memory"),
    ],
)
def test_what_is_not_built_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        cases_of(Choice(**options), H100 if "stages" not in options else TURING)


def test_a_tile_is_built_for_the_ctas_of_the_resource_table() -> None:
    with (data_dir("kernels") / "resources.csv").open(newline="") as file:
        rows = [
            r
            for r in csv.DictReader(file)
            if r["cc"] == "9.0" and r["head_dim"] == "128" and r["causal"] == "0"
        ]
    for row in rows[::40]:
        spec = FwdSpec(
            128, int(row["block_q"]), int(row["block_k"]), int(row["warps"]), int(row["stages"])
        )
        assert choose.tuned(spec, "9.0").min_ctas == int(row["min_ctas"])


def test_naive_may_read_past_l1() -> None:
    """The build differs in its macro, the row in its note, and a table that holds the one lacks the other."""
    plain, past = (
        cases_of(Choice(kernel=("naive",), bypass_l1=on), "9.0")[0] for on in (False, True)
    )
    assert plain.spec.defines() | {"BYPASS_L1": 1} == past.spec.defines() != plain.spec.defines()
    assert (plain.columns()["note"], past.columns()["note"]) == ("", "bypass L1")
    assert missing([plain, past], [row_of(plain, 1)]) == [past]
    warm = replace(past, note="warm L2")
    assert warm.columns()["note"] == "bypass L1, warm L2"
    with pytest.raises(InputError, match=r"^bypass_l1 is not built for flash_fwd, naive"):
        cases_of(Choice(kernel=("flash_fwd", "naive"), bypass_l1=True), "9.0")


@given(
    seq=st.integers(1, 60),
    keys=st.integers(1, 60),
    window=st.none() | st.integers(0, 70),
    causal=st.booleans(),
)
def test_flops_count_the_kept_pairs(seq: int, keys: int, window: int | None, causal: bool) -> None:
    case = Case(NaiveSpec(64), Shape(2, 3, 3, seq, keys, 64, window), causal=causal)
    pairs = 0
    for i in range(seq):
        for j in range(keys):
            back = i + keys - seq - j
            pairs += (
                back >= 0 and (window is None or back <= window)
                if causal or window is not None
                else True
            )
    assert flops(case) == 4 * 2 * 3 * 64 * pairs


# Tables


def row_of(case: Case, call: int, launch: int = 1, **more: str) -> dict[str, str]:
    return case.columns() | {"call": str(call), "launch": str(launch)} | more


def test_calls_that_a_table_holds_are_not_missing() -> None:
    rows = [row_of(FULL[0], 1), row_of(FULL[5], 2)]
    assert missing(FULL[:6], rows) == FULL[1:5]
    assert missing(FULL[:6], []) == FULL[:6]
    assert next_call(rows) == 3
    assert next_call([]) == 1


def test_a_repeat_must_be_there_as_often_as_planned() -> None:
    twice = [SMALL, replace(SMALL, note="repeat"), replace(SMALL, note="repeat")]
    rows = [row_of(twice[0], 1), row_of(twice[1], 2)]
    assert missing(twice, rows) == [twice[2]]
    assert missing(twice, [*rows, row_of(twice[2], 3)]) == []


def test_launches_of_one_call_count_once() -> None:
    rows = [row_of(SPLIT, 1, 1), row_of(SPLIT, 1, 2)]
    assert missing([SPLIT, SPLIT], rows) == [SPLIT]


def test_warm_and_cold_times_are_two() -> None:
    rows = [row_of(SMALL, 1, l2_start="cold")]
    assert missing([SMALL], rows, "cold") == []
    assert missing([SMALL], rows, "warm") == [SMALL]


def test_a_table_is_written_in_order_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    assert read_table(path, COLUMNS) == []
    write_table(path, [row_of(SPLIT, 10, 2), row_of(SPLIT, 10, 1), row_of(SMALL, 9)], COLUMNS)
    back = read_table(path, COLUMNS)
    assert [(r["call"], r["launch"]) for r in back] == [("9", "1"), ("10", "1"), ("10", "2")]
    assert missing([SMALL, SPLIT], back) == []


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", "call,launch\n1,1\n", "\0\0", ",".join(TIME_COLUMNS) + "\n"]
)
def test_another_table_is_not_touched(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=r"is another table|cannot be read"):
        read_table(path, COLUMNS)
    assert path.read_text() == text
