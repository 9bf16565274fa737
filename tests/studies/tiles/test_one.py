"""`iosim tiles --tile QxK`: whether one tile fits, what it is short of, its rank, the nearest; reasons in groups."""

from __future__ import annotations

import csv
import io
import json

import pytest
from refusals import refused

from iosim import AttentionProblem
from iosim.commands.cli import main
from iosim.studies.tiles.one import by_reason, excess, study_tile
from iosim.studies.tiles.pick import TileRanking, pick_tiles

PROBLEM = AttentionProblem(heads=32, seq_q=4096, head_dim=128)


@pytest.fixture(scope="module")
def ranking() -> TileRanking:
    return pick_tiles(PROBLEM, "rtx-4090", library=False)


def test_a_tile_that_fits_has_the_rank_and_the_bytes_of_the_ranking(ranking: TileRanking) -> None:
    for rank in (1, 7, len(ranking.candidates)):
        candidate = ranking.candidates[rank - 1]
        study = study_tile(ranking, (candidate.tile.block_q, candidate.tile.block_k))
        if candidate.method == "replay":
            assert (rank, candidate) in study.ranked
        else:  # ranked by the quick rule there, replayed here
            assert [c.method for _, c in study.ranked if c.tile == candidate.tile] == ["replay"]
        assert study.nearest is None
        assert [place for place, _ in study.ranked] == sorted(place for place, _ in study.ranked)


def test_every_choice_of_warps_and_stages_is_answered(ranking: TileRanking) -> None:
    study = study_tile(ranking, (64, 64))
    assert len(study.ranked) + len(study.rejected) == 4 * 3
    (rejected,) = study_tile(ranking, (64, 64), warps=4, stages=3).rejected
    # Q 64 x 128, and K and V 64 x 128 in three buffers each, 2 bytes: 16,384 + 98,304; an RTX 4090 allows 101,376
    assert rejected.reason == "needs 114,688 bytes of shared memory, sm_89 allows 101,376"
    assert excess(rejected.reason) == {"bytes of shared memory": 114_688 - 101_376}


def test_a_tile_that_does_not_fit_says_by_how_much_and_names_the_nearest(
    ranking: TileRanking,
) -> None:
    study = study_tile(ranking, (128, 256))
    assert not study.fits
    assert "62,464 bytes of shared memory too many" in study.answer  # 163,840 - 101,376
    assert study.nearest is not None
    rank, nearest = study.nearest
    assert ranking.candidates[rank - 1] is nearest
    assert (nearest.tile.block_q, nearest.tile.block_k) == (128, 128)


def test_a_tile_outside_the_space_is_ranked_where_it_would_stand(ranking: TileRanking) -> None:
    study = study_tile(ranking, (128, 80), warps=8, stages=1)
    ((rank, candidate),) = study.ranked
    times = [c.time_s for c in ranking.candidates]
    assert all(t <= candidate.time_s for t in times[: rank - 1])
    assert all(t >= candidate.time_s for t in times[rank - 1 :])


def test_reasons_are_grouped_and_no_tile_is_lost(ranking: TileRanking) -> None:
    groups = by_reason(ranking.rejected)
    assert sum(len(g.tiles) for g in groups) == len(ranking.rejected)
    assert len(groups) < 10
    assert [len(g.tiles) for g in groups] == sorted((len(g.tiles) for g in groups), reverse=True)
    assert any("sm_89 allows 101,376" in g.reason and " to " in g.reason for g in groups)


@pytest.mark.slow
def test_the_command_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["tiles", "--gpu", "rtx-4090", "--tile", "128x256,64x64"]
    assert main(argv) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("128x256 does not fit on rtx-4090")
    assert main([*argv, "--format", "json"]) == 0
    studies = json.loads(capsys.readouterr().out)["studies"]
    assert [s["fits"] for s in studies] == [False, True]
    assert studies[0]["nearest"]["rank"] >= 1
    assert main([*argv, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 2 * 4 * 3
    assert {row["reason"] == "" for row in rows if row["fits"] == "True"} == {True}
    assert main([*argv, "--format", "md"]) == 0
    assert capsys.readouterr().out.startswith("### 128x256")


@pytest.mark.slow
def test_rejected_tiles_come_by_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tiles", "--gpu", "l4", "--rejected", "--top", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) < 36
    assert main(["tiles", "--gpu", "l4", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert sum(group["tiles"] for group in data["rejected_by_reason"]) == len(data["rejected"])


def test_warps_without_a_tile_are_refused_before_any_is_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "iosim.studies.tiles.pick.try_tile", lambda *_: pytest.fail("a tile was tried")
    )
    refused(capsys, ["tiles", "--warps", "4"], "--warps", "--tile")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tiles --warps 4", ("--warps", "--tile")),
        ("tiles --tile 64", ("--tile", "'64'", "128x64")),
        ("predict --gpu t4 --kernel cutlass --dtype bf16", ("--dtype bf16", "fp16")),
        ("predict --gpu t4 --kernel fa2", ("--kernel fa2", "cutlass")),
    ],
)
def test_what_is_refused_says_what_is_accepted(
    line: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, line.split(), *words)
