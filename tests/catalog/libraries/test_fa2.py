"""What FlashAttention-2 and cuDNN store beside their tensors, against counted calls."""

from __future__ import annotations

import csv
from typing import Any

import pytest
from counter import count
from scripts import measurements

import iosim
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import resolve
from iosim.evidence.validate import compare, read
from iosim.hardware.profile import load_profile
from iosim.problem.attention import AttentionProblem

HEADS = 300
"""So many that no keys are divided."""


def stored(tensor: str, **values: Any) -> int:
    problem = AttentionProblem(**{"heads": HEADS, "dtype": "bf16", "mask": "causal", **values})
    return int(
        count(plan(problem, resolve("fa2", problem, load_profile("h100")))).total(
            "l2", "write", tensor=tensor
        )
    )


@pytest.mark.parametrize(
    ("values", "a_tile"),
    [
        ({"seq_q": 8, "head_dim": 128}, 68),  # one block of 64 keys, in a step that masks
        ({"seq_q": 88, "head_dim": 128}, 224),
        (
            {"seq_q": 1000, "head_dim": 128},
            (224 + sum(528 + 32 * n for n in (4, 6, 8, 10, 12, 14, 16))) / 8,
        ),
        ({"seq_q": 100, "head_dim": 64}, 120),
        ({"seq_q": 128, "head_dim": 128}, 168),
        ({"seq_q": 100, "head_dim": 40}, 64),
    ],
)
def test_a_tile_of_few_keys_leaves_before_the_loops_stores(
    values: dict[str, Any], a_tile: float
) -> None:
    tiles = -(-values["seq_q"] // 128)
    assert stored("spill", **values) == pytest.approx(HEADS * tiles * 128 * a_tile, rel=1e-4)


def test_rows_of_packed_sequences_lie_apart() -> None:
    """304 bytes a row: ten packets of 32 where it begins on one, and twelve where it begins inside, are 48 more."""
    lengths = (1000, 30, 128)  # on 3 x 8 tiles, 10 with rows
    packed = {"seq_lens": lengths, "head_dim": 152}
    assert stored("split_sectors", **packed) == pytest.approx(HEADS * sum(lengths) * 48, rel=1e-4)
    whole = stored("split_sectors", seq_q=sum(lengths), head_dim=152)
    assert whole == pytest.approx(HEADS * sum(lengths) * 48 * 0.7, rel=1e-3)
    alone = stored("split_sectors", **packed | {"heads": 1})  # rows of one head follow one another
    assert alone == pytest.approx(whole / HEADS, rel=1e-3)


def test_sectors_by_halves_are_of_rows_that_there_are() -> None:
    """cuDNN's convert: 49 % of the sectors of dQ, of 11 rows in a block; none where rows begin inside a sector."""
    for head_dim, share in ((64, 0.49), (88, 0.0)):
        problem = AttentionProblem(heads=4, seq_q=11, head_dim=head_dim, dtype="bf16", passes="bwd")
        chain = plan(problem, resolve("cudnn", problem, load_profile("h100")))
        split = count(chain).total("l2", "write", tensor="split_sectors", launch="bwd.convert")
        assert split == pytest.approx(4 * 11 * head_dim * 2 * share, abs=4)


def test_stores_of_calls_that_nothing_was_taken_from() -> None:
    """The fifth draws."""
    errors = []
    for gpu in ("h100", "h200"):
        rows = [
            r
            for r in read(measurements(f"{gpu}_random_5.csv"))
            if r.implementation == "pytorch_flash"
        ]
        residuals = compare(rows, load_profile(gpu)).residuals
        errors += [
            r.error
            for r in residuals
            if r.launch == "main" and r.quantity == "l2_write" and r.error is not None
        ]
    errors.sort()
    assert len(errors) == 59
    assert errors[29] < 0.003
    assert errors[55] < 0.04
    assert errors[-1] < 0.07


def timed_backward(tokens: int, width: int, causal: bool) -> tuple[float, float]:
    """Seconds of the main launch of 2 x 16 heads on an H200: recorded, predicted."""
    case = f"2x16x{tokens}x{width} causal {int(causal)}"
    with measurements("h200_timers.csv").open(newline="", encoding="utf-8") as file:
        (recorded_s,) = (
            float(row["seconds"])
            for row in csv.DictReader(file)
            if (row["section"], row["case"]) == ("flash-backward", case)
            and "dq_dk_dv" in row["kernel"]
        )
    predicted = iosim.predict(
        gpu="h200",
        kernel="fa2",
        batch=2,
        heads=16,
        seq_len=tokens,
        head_dim=width,
        dtype="bf16",
        mask="causal" if causal else "none",
        passes="bwd",
        l2_start="flushed",
    )
    (main,) = (launch for launch in predicted.time.launches if launch.name == "bwd.main")
    return recorded_s, main.total_s


@pytest.mark.parametrize(
    ("width", "causal"), [(32, False), (64, False), (96, False), (128, False), (64, True)]
)
def test_a_backward_of_whole_blocks_takes_as_much_less_as_was_recorded(
    width: int, causal: bool
) -> None:
    """Without a mask its exponentials begin among the products, up to width 96; with one, or ragged ends, a branch lies
    between."""
    ragged = timed_backward(2000, width, causal)
    whole = timed_backward(2048, width, causal)
    assert whole[1] / ragged[1] == pytest.approx(whole[0] / ragged[0], abs=0.03)


GPU_OF = {80: "a100", 89: "rtx-4090", 90: "h100"}


def package_builds() -> list[dict[str, str]]:
    with measurements("source_loops.csv").open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["build"] == "package"]


@pytest.mark.parametrize(
    "row", package_builds(), ids=lambda row: f"{row['cc']}-{row['head_dim']}-{row['tile']}"
)
def test_the_packages_build_executes_what_was_counted(row: dict[str, str]) -> None:
    """A turn of the loop less its mma.sync, over the scores of a thread. PyTorch's build, compiled without fast math, is
    another: its default stands."""
    mask = "causal" if row["mask"] == "causal" else "none"
    problem = AttentionProblem(
        heads=32, seq_q=4096, head_dim=int(row["head_dim"]), dtype="fp16", mask=mask
    )
    gpu = load_profile(GPU_OF[int(row["cc"])])
    package, pytorch = (resolve(name, problem, gpu) for name in ("flash-attn", "fa2"))
    assert str(package.tile) == row["tile"]
    products = int(row["products"].rpartition(":")[2])
    scores = package.tile.block_q * package.tile.block_k / (32 * package.tile.warps)
    counted = (float(row["turn"]) - products) / scores
    assert package.loop.instructions_per_score == pytest.approx(counted, abs=0.05)
    assert pytorch.loop.instructions_per_score is None
    assert package.tile == pytorch.tile
    dropping, dropping_too = (
        resolve(name, problem.with_(dropout=0.1), gpu) for name in ("flash-attn", "fa2")
    )
    assert dropping.tile == dropping_too.tile
    assert dropping.loop.instructions_per_score is None


def test_fewer_instructions_take_less_energy_and_so_less_time_under_power() -> None:
    call: dict[str, Any] = {"batch": 8, "heads": 32, "seq_len": 2048, "head_dim": 64}
    call |= {"gpu": "rtx-4090", "clocks": "sustained", "l2_start": "warm", "method": "capacity"}
    package, pytorch = (iosim.predict(kernel=name, **call) for name in ("flash-attn", "fa2"))
    assert (package.energy_j or {})["instructions"] < 0.7 * (pytorch.energy_j or {})["instructions"]
    assert package.time_s < 0.97 * pytorch.time_s
