"""`iosim tiles --compile`: which tiles are compiled, what becomes of their reports, and what is said where nothing can
be compiled. Compilers are stand-ins; where nvcc is, the tests of the CUDA kernels compile the same source."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from refusals import refused

from iosim import AttentionProblem
from iosim.base.errors import InputError
from iosim.catalog.resource_table import BuildReport
from iosim.commands.cli import main
from iosim.evidence.cuda import tile_builds
from iosim.evidence.cuda.spec import FwdSpec
from iosim.hardware.profile import load_profile
from iosim.integrations.triton import compiled as triton_compiled
from iosim.kernel.kernel import Tile
from iosim.studies.tiles.pick import pick_tiles

PROBLEM = AttentionProblem(heads=8, seq_q=512, head_dim=64, dtype="fp16")
ASKED = [
    "tiles",
    "--gpu",
    "h200",
    "--heads",
    "8",
    "--seq-len",
    "512",
    "--head-dim",
    "64",
    "--format",
    "json",
]


@pytest.fixture
def specs(monkeypatch: pytest.MonkeyPatch) -> list[FwdSpec]:
    """What is asked of a compiler that says of every tile that it spills 40 bytes at 200 registers."""
    specs: list[FwdSpec] = []

    def report(spec: FwdSpec, cc: str) -> BuildReport:
        assert cc == "9.0"
        specs.append(spec)
        return BuildReport(200, spec.dynamic_shared_bytes, 40)

    monkeypatch.setattr("iosim.catalog.resource_table._shipped", dict)
    monkeypatch.setattr(tile_builds, "_report", report)
    monkeypatch.setattr(tile_builds, "find_nvcc", lambda: None)
    return specs


@pytest.mark.slow
def test_the_first_tiles_are_compiled_and_ranked_with_their_spills(
    specs: list[FwdSpec], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ASKED, "--compile", "3"]) == 0
    data = json.loads(capsys.readouterr().out)
    compiled = {
        (t["block_q"], t["block_k"], t["warps"], t["stages"]): t
        for t in data["tiles"]
        if t["registers_source"] == "compiled"
    }
    assert len(specs) == 3
    assert set(compiled) == {(s.block_q, s.block_k, s.warps, s.stages) for s in specs}
    assert all((t["registers"], t["spilled_bytes"]) == (200, 40) for t in compiled.values())
    times = [t["time_s"] for t in data["tiles"]]
    assert times == sorted(times)


@pytest.mark.slow
def test_tiles_that_are_thought_to_spill_are_compiled_too(specs: list[FwdSpec]) -> None:
    """128x128 of 4 warps: (128 x 128 + 128 x 64) / 128 + 56 = 248 fits; 192x128 of 4 warps needs 344 and may spill."""
    ranking = pick_tiles(PROBLEM, "h200", library=False, replayed=0)
    wide = Tile(192, 128, 4, 1)
    assert wide in {r.tile for r in ranking.rejected}
    assert wide in tile_builds.without_report(ranking)
    reports = tile_builds.compiled_tiles([wide], PROBLEM, load_profile("h200"), 5)
    again = pick_tiles(PROBLEM, "h200", library=False, replayed=0, reports=reports)
    assert wide in {c.tile for c in again.candidates}
    assert wide not in tile_builds.without_report(again)


@pytest.mark.parametrize(
    "more",
    [
        ("--compile", "0"),
        ("--compile", "--pass", "bwd"),
        ("--compile", "--window", "64"),
        ("--compile", "--matrix-unit", "wgmma"),
        ("--compile", "--dtype", "fp8"),
    ],
)
def test_what_cannot_be_compiled_is_refused(
    more: tuple[str, ...], specs: list[FwdSpec], capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, [*ASKED, *more])
    assert not specs


def test_without_a_compiler_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise InputError("no CUDA compiler: nvcc is nowhere")

    monkeypatch.setattr(tile_builds, "find_nvcc", missing)
    refused(capsys, [*ASKED, "--compile"])


@pytest.mark.slow
def test_triton_configurations(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[Any] = []

    def configs(likely: Any, problem: Any, gpu: Any, limit: int, progress: Any) -> Any:
        tried.extend(likely[:limit])
        return {c: BuildReport(255, 65536, 400) for c in likely[:limit]}

    monkeypatch.setattr(triton_compiled, "compiled_configs", configs)
    assert main([*ASKED, "--triton", "--compile", "2", "--top", "160"]) == 0
    data = json.loads(capsys.readouterr().out)
    compiled = [t for t in data["triton"] if t["registers_source"] == "compiled"]
    assert len(compiled) == len(tried) == 2
    assert all(t["spilled_bytes"] == 400 for t in compiled)
    assert data["triton"][0] not in compiled  # what spills so much is not first
    assert data["answer"].startswith(
        "On h200-sxm at 512 tokens and head_dim 64 the fastest Triton configuration is "
    )
    assert main([*ASKED[:-2], "--triton", "--compile", "2", "--top", "160"]) == 0
    assert "predicted, 255 registers, 400 bytes spilled" in capsys.readouterr().out


def test_without_triton_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    refused(capsys, [*ASKED, "--triton", "--compile"])


def test_one_tile_has_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--tile", "64x64"]) == 0
    assert json.loads(capsys.readouterr().out)["answer"].startswith(
        "64x64 fits on h200-sxm in fp16, and is number "
    )
