"""What fits on an SM is said in one place: whoever is asked about a tile refuses it, or says that it would spill."""

from __future__ import annotations

import json
import random
from contextlib import nullcontext
from typing import Any

import pytest

import iosim
from iosim import AttentionProblem
from iosim.base.errors import InputError
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import Overrides, resolve
from iosim.commands.cli import main
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.residency import residency
from iosim.kernel.tile_rules import refuse_tile, rows_misfit, stages_misfit
from iosim.kernel.unit import MatrixUnit
from iosim.prediction.predictor import predict
from iosim.studies.tiles.pick import try_tile

PROBLEM = AttentionProblem(batch=1, heads=8, seq_q=1024, head_dim=128)
SPILLS = "needs about 312 registers a thread, at most 255"
"""(256 x 128 + 256 x 128) / 256 + 56."""


def said(kernel: str, tile: Tile, problem: AttentionProblem, gpu: str) -> str | None:
    """The refusal of a tile, its spills that nothing is known of, or None where it runs."""
    over = Overrides(tile=(tile.block_q, tile.block_k), warps=tile.warps, stages=tile.stages)
    try:
        p = predict(problem, kernel, gpu, overrides=over, method="bounds")
    except InputError as error:
        return str(error)
    return next((note for note in p.notes if "the compiler would spill" in note), None)


@pytest.mark.parametrize("kernel", ["flash", "fa2"])
def test_registers_alone_are_said_to_spill(kernel: str) -> None:
    note = said(kernel, Tile(256, 128, 8, 1), PROBLEM, "a100")
    assert note is not None
    assert SPILLS in note
    assert "is in no number here" in note


@pytest.mark.parametrize("passes", ["fwd", "bwd"])
def test_tiles_and_predictions_agree(passes: str) -> None:
    """Of drawn tiles that warps can share out, `tiles` rejects those that `predict` refuses or says to spill."""
    rng = random.Random(passes)
    rejected = 0
    for _ in range(120):
        gpu = rng.choice(("a100", "h100", "rtx-4090", "t4"))
        tile = Tile(
            rng.choice((32, 64, 128, 256)),
            rng.choice((32, 64, 128, 256)),
            rng.choice((4, 8)),
            rng.choice((1, 2)),
        )
        problem = PROBLEM.with_(passes=passes, head_dim=rng.choice((64, 128)), head_dim_v=128)
        problem = problem.with_(head_dim_v=problem.head_dim)
        profile, unit = load_profile(gpu), MatrixUnit.MMA_SYNC
        if rows_misfit(tile, unit, backward=passes == "bwd") or stages_misfit(tile, profile):
            continue
        tried = try_tile(tile, problem, profile, unit)
        refusal = said("flash", tile, problem, gpu)
        assert isinstance(tried, str) == (refusal is not None), (gpu, tile, tried, refusal)
        if isinstance(tried, str):
            assert any(reason in (refusal or "") for reason in tried.split("; "))
            rejected += 1
    assert rejected > 10


def test_the_backward_of_a_tile_by_hand_needs_its_shared_memory() -> None:
    """256 x (128 + 128) + 256 x (128 + 128) + 2 x 256 x 256 elements of 2 bytes."""
    refusal = said("flash", Tile(256, 256, 8, 1), PROBLEM.with_(passes="bwd"), "a100")
    assert refusal is not None
    assert "needs 524,288 bytes of shared memory" in refusal


def test_a_recorded_build_that_spills_counts_its_spills() -> None:
    tile = Tile(256, 96, 8, 2)
    over = Overrides(tile=(256, 96), warps=8, stages=2)
    p = predict(PROBLEM, "flash", "a100", overrides=over, method="capacity")
    tried = try_tile(tile, PROBLEM, load_profile("a100"), MatrixUnit.MMA_SYNC)
    assert not isinstance(tried, str)
    assert p.traffic.total("l2", "write", tensor="spill") > 0
    assert (p.total("l2", "write"), p.time_s) == (
        tried.candidate.l2_write_bytes,
        tried.candidate.time_s,
    )
    assert not any("the compiler would spill" in note for note in p.notes)


def test_what_a_library_says_of_its_spills_stands() -> None:
    problem = PROBLEM.with_(mask="causal", dtype="bf16", seq_q=4096, seq_k=4096)
    kernel = resolve("fa2", problem, load_profile("h200"))
    assert kernel.spill is not None
    assert not any(
        residency(n, load_profile("h200")).spilling for n in plan(problem, kernel).launches
    )


TILE = ["--tile", "256x128", "--heads", "2", "--seq-len", "512", "--gpu", "a100", "--kernel"]
LEFT_OUT = "would spill registers, at a cost that is in no number here"


@pytest.mark.parametrize("command", ["predict", "explain", "trace"])
@pytest.mark.parametrize("kernel", ["flash", "fa2"])
def test_the_answer_says_what_is_left_out(
    command: str, kernel: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, *TILE, kernel, "--warps", "8"]) == 0
    assert f"{kernel} {LEFT_OUT}" in capsys.readouterr().out


def test_predict_tells_how_many_registers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *TILE, "flash", "--warps", "8"]) == 0
    assert SPILLS in capsys.readouterr().out
    assert main(["predict", *TILE, "flash", "--warps", "8", "--format", "json"]) == 0
    assert any(
        SPILLS in note for note in json.loads(capsys.readouterr().out)["predictions"][0]["notes"]
    )


def test_tiles_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    main(["tiles", "--gpu", "a100", "--tile", "256x128"])
    assert SPILLS in capsys.readouterr().out


def test_comparisons_orders_and_sweeps_have_it() -> None:
    sizes: dict[str, Any] = {"heads": 2, "seq_len": 512, "gpu": "a100"}
    compared = iosim.compare(kernel=["flash"], passes="bwd", **sizes)
    assert any("the compiler would spill" in note for note in compared.notes)
    ranking = iosim.orders(kernel="flash", tile="128x128", **sizes)
    assert any("the compiler would spill" in note for note in ranking.notes)
    frame = iosim.sweep(kernel="flash", tile="256x128", warps=8, method="bounds", **sizes)
    assert list(frame["spilled_registers"]) == [312 - 255]


def test_a_kernel_of_ones_own_has_it() -> None:
    p = predict(PROBLEM, Kernel("mine", "flash", Tile(256, 128, 8)), "a100", method="bounds")
    assert any(SPILLS in note for note in p.notes)


@pytest.mark.parametrize(
    ("kernel", "gpu", "changes", "tile"),
    [
        # hopper/tile_size.h, tile_size_fwd_sm8x: Q in registers, V in its place
        ("fa3-sm80", "rtx-4090", {"head_dim": 256}, Tile(128, 64, 8)),
        (
            "fa3-sm80",
            "rtx-4090",
            {"head_dim": 256, "mask": "window", "window": 99},
            Tile(128, 48, 8),
        ),
        ("fa3-sm80", "a100", {"head_dim": 256}, Tile(128, 96, 8)),
        ("fa3-sm80", "a100", {"head_dim": 256, "mask": "window", "window": 99}, Tile(128, 64, 8)),
        ("fa3-sm80", "a100", {"head_dim": 192}, Tile(128, 96, 8, 2)),
        ("fa3-sm80", "a100", {"head_dim": 192, "page_size": 16}, Tile(128, 64, 8)),
        ("flex", "rtx-4090", {}, Tile(128, 64, 8, 3)),
        ("flex", "a100", {}, Tile(128, 64, 8, 3)),
        ("flex", "rtx-5090", {}, Tile(128, 64, 8, 2)),
        ("flex", "rtx-5090", {"head_dim": 256}, Tile(32, 64, 4, 2)),
        ("gdn", "rtx-4090", {"head_dim": 128, "mask": "causal"}, Tile(32, 64, 4, 2)),
        ("gdn", "rtx-4090", {"head_dim": 256, "mask": "causal"}, Tile(32, 64, 4, 1)),
        ("gdn", "a100", {"head_dim": 256, "mask": "causal"}, Tile(32, 64, 4, 2)),
    ],
)
def test_a_library_runs_where_it_launches(
    kernel: str, gpu: str, changes: dict[str, Any], tile: Tile
) -> None:
    p = predict(
        PROBLEM.with_(**changes | {"head_dim_v": changes.get("head_dim", 128)}),
        kernel,
        gpu,
        method="bounds",
    )
    assert p.kernel.tile == tile


@pytest.mark.parametrize(
    ("seq_q", "kv_heads", "packs", "runs"),
    [
        (16, 8, False, True),  # one fragment of 16 rows: four warps divide the keys
        (17, 8, False, False),
        (16, 2, False, True),  # heads of a group have tiles of their own
        (4, 2, True, True),  # four heads of a group in a tile: 4 x 4 rows
        (5, 2, True, False),  # 5 x 4
    ],
)
def test_few_rows_are_shared_by_warps_that_divide_the_keys(
    seq_q: int, kv_heads: int, packs: bool, runs: bool
) -> None:
    problem = AttentionProblem(heads=8, kv_heads=kv_heads, seq_q=seq_q, seq_k=512, head_dim=64)
    kernel = Kernel("few", "flash", Tile(16, 64, 4), packs_group=packs)
    with nullcontext() if runs else pytest.raises(InputError, match="block_q a multiple of 64"):
        refuse_tile("whole-rows", kernel, problem, load_profile("a100"), Overrides(tile=(16, 64)))
