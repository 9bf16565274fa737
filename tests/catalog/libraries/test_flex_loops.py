"""What FlexAttention's compiled loops take beside the plain one: the catalog's table, and times of recorded builds."""

from __future__ import annotations

import csv
from types import SimpleNamespace
from typing import Any

import flex_loops
import numpy as np
import pandas as pd
import pytest

from iosim import AttentionProblem, load_profile, predict, resolve
from iosim.catalog.libraries.triton import FLEX_LOOPS, flex_ends
from iosim.readers.timing import step_terms


@pytest.fixture(scope="module")
def recorded() -> pd.DataFrame:
    table = pd.read_csv(flex_loops.RECORDED, comment="#")
    return table[table.seq_q.isin(list(flex_loops.ENDS))]


def test_the_table_is_made_of_what_was_recorded(recorded: pd.DataFrame) -> None:
    assert flex_loops.catalog(recorded).to_csv(index=False) == FLEX_LOOPS.read_text("utf-8")


def test_a_row_by_hand() -> None:
    """head_dim 64, causal, 2,039 tokens: 1,485 instructions in a turn where the plain loop has 1,119, for 128 scores a
    thread: 366 / 128 = 2.859 more on each. At the diagonal 1,946: (1,946 - 1,485) / 128 = 3.602 beside these. The
    first loop has 21 LDL and 20 STL, the other 18 of each."""
    with FLEX_LOOPS.open(encoding="utf-8", newline="") as file:
        rows = {(r["head_dim"], r["mask"], r["ends"]): r for r in csv.DictReader(file)}
    row = rows["64", "causal", "odd"]
    assert [float(row[name]) for name in ("step_operations", "end_operations")] == [2.859, 3.602]
    assert [int(row[name]) for name in ("step_spills", "end_spills")] == [36, 5]


@pytest.mark.parametrize(
    ("tokens", "ends"), [(128, "whole"), (2040, "eighths"), (2039, "odd"), (2044, "odd")]
)
def test_lengths_have_builds_of_their_own(tokens: int, ends: str) -> None:
    assert flex_ends(tokens, 128) == ends
    problem = AttentionProblem(heads=4, seq_q=tokens, head_dim=128, dtype="bf16")
    step = resolve("flex", problem, load_profile("h200")).options.step_operations
    assert step == {"whole": 0.0, "eighths": 2.0, "odd": 2.5}[ends]


@pytest.mark.parametrize(
    ("warps", "ctas", "times"), [(4, 1, 4), (4, 2, 2), (8, 1, 2), (4, 4, 1), (8, 4, 1)]
)
def test_few_warps_wait_for_each_instruction(warps: int, ctas: int, times: int) -> None:
    """One warp of a scheduler issues every fourth cycle, two every second, four or more every one."""

    mask = SimpleNamespace(every_step=2.0, edge_steps=0.0, in_order=True)
    step: Any = SimpleNamespace(
        launch=SimpleNamespace(work=SimpleNamespace(mask=mask)),
        rates=SimpleNamespace(fp32_lanes=128.0),
        scores=8192.0,
        warps=warps,
        ctas_per_sm=ctas,
    )
    assert step_terms.mask_cycles(step) == 2 * 8192 / 128 * times
    mask.in_order = False
    assert step_terms.mask_cycles(step) == 2 * 8192 / 128


def test_times_of_recorded_builds(recorded: pd.DataFrame) -> None:
    """All 45 in the mean; 7.8 % where a ragged length was a fitted number of instructions for each copy."""
    errors = []
    for build in recorded.drop_duplicates(["head_dim", "mask", "seq_q"]).itertuples():
        masked = {"mask": build.mask} | ({"window": 256} if build.mask == "window" else {})
        problem = AttentionProblem(
            heads=build.heads, seq_q=build.seq_q, head_dim=build.head_dim, dtype="bf16", **masked
        )
        time = predict(problem, "flex", "h200", l2="warm").time_s
        errors.append(time / build.seconds - 1)
    assert np.mean(np.abs(errors)) < 0.065
    assert abs(np.mean(errors)) < 0.02
