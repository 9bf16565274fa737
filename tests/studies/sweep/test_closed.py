"""Closed forms of many rows against single predictions."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import examples
from swept import single

from iosim import sweep
from iosim.catalog.libraries import choice_names, entry_names
from iosim.commands.cli import main
from iosim.studies.sweep import closed
from iosim.studies.sweep.cases import Words, cases
from iosim.studies.sweep.closed import evaluate

pytestmark = pytest.mark.usefixtures("replays_once")


KERNELS = (*entry_names(), *choice_names())


def rows(rng: random.Random, kernel: str, number: int, alike: int) -> list[dict[str, Any]]:
    """Problems of one kernel: `alike` at a time differ in sizes and tiles alone."""

    def drawn() -> dict[str, Any]:
        mask = rng.choice(["none", "causal", "window"])
        return {
            "gpu": rng.choice(["a100", "h100-sxm", "h200-sxm", "t4"]),
            "kernel": kernel,
            "batch": rng.choice([1, 2, 16]),
            "heads": rng.choice([1, 6, 8]),
            "kv_heads": rng.choice([None, 1, 2]),
            "seq_q": rng.choice([1, 512, rng.randint(1, 300), rng.randint(1, 9000)]),
            "seq_k": rng.choice([None, None, rng.randint(1, 20000)]),
            "head_dim": rng.choice([64, 80, 128, 192, 256]),
            "head_dim_v": rng.choice([None, None, None, 64]),
            "dtype": rng.choice(["bf16", "fp16", "fp16", "fp32"]),
            "mask": mask,
            "window": rng.choice([0, 3, 100, 4000]) if mask == "window" else None,
            "offset": rng.choice([None, None, -511, 3, 4000]) if mask != "none" else None,
            "passes": rng.choice(["fwd", "fwd", "bwd", "fwd+bwd"]),
            "dropout": rng.choice([0.0, 0.0, 0.0, 0.1]),
            "tile": rng.choice([None, None, (64, 64), (128, 32), (48, 80), (16, 16), (256, 256)]),
            "bias": rng.choice(["none"] * 5 + ["full", "alibi"]),
            "page_size": rng.choice([None] * 8 + [64]),
            "latent_kv": kernel in ("mla", "flashmla"),
            "layout": rng.choice(["bhsd", "bshd"]),
        }

    shared = ("gpu", "dtype", "mask", "passes", "dropout", "bias", "page_size", "layout")
    drawn_rows = []
    while len(drawn_rows) < number:
        first = drawn()
        for _ in range(alike):
            row = drawn() | {name: first[name] for name in shared}
            row["window"] = rng.choice([0, 3, 100, 4000]) if row["mask"] == "window" else None
            row["offset"] = (
                first["offset"] if first["offset"] is None else rng.choice([-511, 0, 3, 4000])
            )
            drawn_rows.append(row)
    return drawn_rows


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_closed_forms_are_single_predictions(kernel: str) -> None:
    rng, alike = random.Random(kernel), examples(120)
    drawn = rows(rng, kernel, 2 * alike, alike)
    part = cases({}, {name: Words.of([row[name] for row in drawn]) for name in drawn[0]}).part(
        0, len(drawn)
    )
    for method in ("bounds", "capacity"):
        counts = evaluate(part, method)
        remaining = set(counts.remaining.tolist())
        for n in range(part.rows):
            if n in remaining:
                continue
            numbers, refused = single(part.case(n), method)
            assert counts.refused[n] == refused, part.case(n)
            assert {name: int(counts.columns[name][n]) for name in numbers} == numbers, part.case(n)
            assert all(
                (counts.columns[name][n] is not np.ma.masked) == (name in numbers)
                for name in closed.FOUND
            ), part.case(n)


@pytest.mark.parametrize("kernel", ["flash", "naive", "fa2", "fa3", "cudnn", "sdpa"])
def test_usual_grids_have_closed_forms(kernel: str) -> None:
    grid = {
        "gpu": ["h100"],
        "kernel": [kernel],
        "seq_q": list(range(256, 8192, 256)),
        "heads": [8, 16, 32],
        "batch": [1, 4],
        "head_dim": [64, 128],
        "mask": ["none", "causal"],
    }
    grid_cases = cases(grid)
    counts = evaluate(grid_cases.part(0, len(grid_cases)), "capacity")
    assert counts.remaining.size <= len(grid_cases) / 100  # too few like them
    assert counts.without_form == 0
    assert all(reason is None for reason in counts.refused)
    # Some of them, of either mask, against single predictions; the slow part has many drawn at random.
    part = grid_cases.part(0, len(grid_cases))
    for method in ("bounds", "capacity"):
        counts = evaluate(part, method)
        for n in range(0, len(grid_cases), len(grid_cases) // 3):
            numbers, _ = single(part.case(n), method)
            assert {m: int(counts.columns[m][n]) for m in numbers} == numbers, part.case(n)
            known = {m for m in closed.FOUND if counts.columns[m][n] is not np.ma.masked}
            assert known == {*numbers}, part.case(n)


@pytest.mark.parametrize("kernel", ["flash", "fa2", "cutlass"])
def test_rows_of_one_grid_have_their_own_occupancy(kernel: str) -> None:
    """Columns decide registers and shared memory, and so how many CTAs an SM holds and how often keys are read again:
    every row of a grid whose keys do not fit in the L2 is a single prediction."""
    grid = {
        "gpu": ["t4"],
        "kernel": [kernel],
        "seq_q": [4096, 32768],
        "heads": [4],
        "head_dim": [32, 64, 128, 256],
        "mask": ["none", "causal"],
    }
    grid_cases = cases(grid)
    part = grid_cases.part(0, len(grid_cases))
    counts = evaluate(part, "capacity")
    compared = {n for n in range(part.rows) if n not in set(counts.remaining.tolist())}
    for n in sorted(compared):
        numbers, refused = single(part.case(n), "capacity")
        assert counts.refused[n] == refused, part.case(n)
        assert {m: int(counts.columns[m][n]) for m in numbers} == numbers, part.case(n)
    assert compared


def test_what_has_no_closed_form_is_predicted_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    frame = sweep(
        kernel="flash", seq_len=[512, 1024], mask=["causal", "butterfly"], method="capacity"
    )
    for _, row in frame.iterrows():
        numbers, _ = single(
            {
                "heads": 32,
                "seq_q": int(row.seq_q),
                "head_dim": 128,
                "mask": row["mask"],
                "kernel": "flash",
                "gpu": "a100",
            },
            "capacity",
        )
        assert {name: row[name] for name in numbers} == numbers
    command = (
        "sweep --kernel flash --seq-len 512 --mask causal,butterfly --method capacity --format csv"
    )
    assert main(command.split()) == 0
    assert "1 of 2 rows have no closed form of --method capacity" in capsys.readouterr().err


def test_a_row_of_bytes_beyond_64_bits_is_refused() -> None:
    frame = sweep(kernel=["naive", "flash"], seq_len=1 << 20, heads=[1, 1 << 14], method="bounds")
    exact, _ = single(
        {"kernel": "naive", "gpu": "a100", "seq_q": 1 << 20, "heads": 1 << 14, "head_dim": 128},
        "bounds",
    )
    assert max(exact.values()) >= 1 << 63
    large = frame.heads == 1 << 14
    assert frame[large].refused.str.contains("more bytes than 64 bits count").all()
    assert frame[~large].refused.isna().all()


@pytest.mark.slow
def test_a_million_closed_forms_take_seconds(tmp_path: Path) -> None:
    begin = time.process_time()
    code = main(
        [
            "sweep",
            "--gpu",
            "a100,h100",
            "--kernel",
            "flash,fa2,naive",
            "--seq-len",
            "64:16000:32",
            "--heads",
            "4,8,16,32,64",
            "--batch",
            "1,2,4,8,16,32,64",
            "--head-dim",
            "64,128",
            "--method",
            "bounds",
            "--jobs",
            "1",
            "--out",
            str(tmp_path / "out.csv"),
        ]
    )
    took = time.process_time() - begin
    assert code == 0
    rows_there = (tmp_path / "out.csv").read_bytes().count(b"\n") - 1
    assert rows_there == 2 * 3 * 499 * 5 * 7 * 2
    # Seconds a million rows: 20 to 50 of one core that others share; a single prediction takes 1,000.
    assert took / rows_there * 1e6 < 120


def test_rows_whose_bytes_64_bits_hold() -> None:
    """The first row is within reach; each other one is beyond it by one number, and by one bound alone."""
    usual = {
        "batch": 1,
        "heads": 8,
        "kv_heads": 8,
        "seq_q": 4096,
        "seq_k": 4096,
        "head_dim": 128,
        "head_dim_v": 128,
    }
    beyond: list[dict[str, int]] = [
        {},
        {"kv_heads": 3},  # no whole number of query heads
        {
            "batch": 1 << 17,
            "heads": 1 << 10,
            "kv_heads": 1 << 10,
            "seq_k": 1,
            "head_dim": 8,
            "head_dim_v": 1 << 11,
        },  # O
        {"batch": 1 << 26, "seq_q": 1, "seq_k": 4097, "head_dim_v": 512},  # V
        {"seq_q": 1 << 27, "seq_k": 1 << 27, "head_dim": 128},  # pairs of a head
    ]
    rows = [usual | more for more in beyond]
    sizes = {name: np.array([row[name] for row in rows], dtype=np.int64) for name in usual}
    group = closed._Group({}, None, np.arange(len(rows)), sizes)  # type: ignore[arg-type]
    assert closed._within_reach(group).tolist() == [True, False, False, False, False]
