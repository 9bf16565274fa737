"""`iosim ring`: its JSON, table, CSV and page, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import chunk_ranks as reader
import pytest
from refusals import refused

import iosim
from iosim.base.errors import InputError
from iosim.commands.cli import main
from iosim.problem.attention import AttentionProblem
from iosim.studies.distributed import (
    SCHEDULES,
    build,
)

pytestmark = pytest.mark.usefixtures("replays_once")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["ring", *arguments]) == 0
    return capsys.readouterr().out


def test_json_holds_results_links_and_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(
        run(
            capsys,
            "--gpu",
            "h100",
            "--num-gpus",
            "4",
            "--seq-len",
            "4k",
            "--causal",
            "--format",
            "json",
            "--steps",
        )
    )
    assert data["link"]["bandwidth_bytes_per_s"] == 450e9
    by_name = {r["name"]: r for r in data["results"]}
    assert set(by_name) == {*SCHEDULES, "ulysses", "all-gather", "megatron", "rsa"}
    assert by_name["balanced"]["idle"] == {
        "slots": "1/6",
        "of_unbalanced": "1/8",
        "work": by_name["balanced"]["idle"]["work"],
    }
    (steps,) = by_name["ring"]["schedules"]
    assert len(steps["steps"]) == 4
    assert steps["steps"][0]["sends"][0] == {
        "source": 0,
        "target": 1,
        "tensors": ["K", "V"],
        "chunks": [0],
    }


def test_schedules_are_written_out_where_they_are_asked_for() -> None:
    rings = iosim.ring(AttentionProblem(heads=8, seq_q=1024), num_gpus=2, gpu="h100")
    for data, written in ((rings.to_dict(), False), (replace(rings, steps=True).to_dict(), True)):
        assert data["results"]
        assert all((r["schedules"] is not None) is written for r in data["results"])


def test_table_csv_and_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert "balanced" in run(capsys, "--num-gpus", "4", "--causal")
    assert (
        run(capsys, "--num-gpus", "4", "--format", "csv")
        .splitlines()[0]
        .startswith("name,steps,received_bytes_per_gpu")
    )
    text = run(capsys, "--num-gpus", "3", "--causal", "--schedule", "balanced", "--steps")
    assert "GPU 0: q2k0" in text
    assert "O_part+stats of 2 to GPU 2" in text


def test_the_page_is_written_whole(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    place = tmp_path / "ring.html"
    run(capsys, "--num-gpus", "4", "--causal", "--seq-len", "8k", "--html", str(place))
    text = place.read_text(encoding="utf-8")
    assert 'id="time-0"' in text
    assert 'id="idle-1"' in text
    assert 'id="links-1"' in text
    assert "http" not in text.split("<script>")[0].replace("http-equiv", "")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--num-gpus", "0"), "--num-gpus 0"),
        (("--num-gpus", "5000"), "--num-gpus 5000"),
        (("--gpu", "a100,h100"), "--gpu a100,h100"),
        (("--link", "string"), "--link 'string'"),
        (("--link", "-3"), "--link"),
        (("--link", "0"), "--link '0'"),
        (("--gpu", "t4"), "--link nvlink"),
        (("--schedule", "zigzag"), "--schedule zigzag"),
        (("--schedule", "circle"), "--schedule 'circle'"),
        (("--network", "ib"), "--network"),
        (("--gpus-per-node", "4"), "--gpus-per-node"),
        (("--network", "ib", "--gpus-per-node", "0"), "--gpus-per-node 0"),
        (("--shared-network",), "--shared-network"),
        (("--seq-len", "4"), "--seq-len 4"),
        (("--seq-len", "1k,2k"), "--seq-len 1k,2k"),
        (("--seq-len-k", "8192"), "--seq-len-k 8192"),
        (("--window", "9"), "mask 'window'"),
        (("--causal", "--offset", "5"), "--offset 5"),
        (("--dropout", "0.1"), "--dropout 0.1"),
        (("--layers", "0"), "--layers 0"),
        (("--kernel", "uniform"), "--kernel uniform"),
        (("--html", ""), "--html ''"),
        (
            ("--gpu", "h100", "--schedule", "rsa", "--kernel", "fa3", "--dtype", "fp8"),
            "--dtype fp8",
        ),
        (("--kernel", "fa9"), "--kernel 'fa9'"),
    ],
)
def test_bad_input_ends_in_one_line(
    arguments: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, ["ring", *arguments], named)


def test_what_is_not_distributed_is_refused() -> None:
    with pytest.raises(InputError, match=r"^bias=full is not distributed"):
        build("ring", AttentionProblem(seq_q=64, bias="full"), 4)
    with pytest.raises(InputError, match="too long to execute"):
        reader.execute(
            build("ring", AttentionProblem(heads=32, seq_q=8192), 4),
            AttentionProblem(heads=32, seq_q=8192),
        )


def test_more_gpus_than_were_timed_say_how_much_longer_it_may_take(
    capsys: pytest.CaptureFixture[str],
) -> None:
    call = ["ring", "--gpu", "h200", "--heads", "4", "--seq-len", "4096", "--num-gpus"]
    assert main([*call, "8"]) == 0
    assert "Timed on 2 GPUs; eight may take 1.6x" in capsys.readouterr().out
    assert main([*call, "2", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["timed_gpus"], data["longer_than_predicted"]) == (2, [1.0, 1.0])
