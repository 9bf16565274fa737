"""One time for one problem: every command says the same seconds, and the replay plays what the timing model says."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from iosim import AttentionProblem
from iosim.base.records import replace
from iosim.base.units import seconds_text
from iosim.commands.cli import main
from iosim.kernel.pace import Pace
from iosim.prediction.predictor import predict
from iosim.prediction.replays import Replays, play_of
from iosim.readers.replay.engine import PS
from iosim.studies.trace.trace import trace

pytestmark = pytest.mark.usefixtures("replays_once")

SIZES = "--gpu h200 --heads 8 --seq-len 2k --head-dim 64 --dtype bf16"


def printed(line: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(line.split()) == 0, line
    return out.getvalue()


def found(line: str) -> Any:
    return json.loads(printed(f"{line} --format json"))


@pytest.mark.parametrize("start", ["cold", "warm"])
def test_every_command_says_the_same_seconds(start: str, tmp_path: Path) -> None:
    call = f"{SIZES} --kernel fa2 --l2 {start}"
    time_s = found(f"predict {call}")["predictions"][0]["time_s"]
    seconds_by_command = {
        "explain --time": found(f"explain {call} --time")["predictions"][0]["time_s"],
        "explain": found(f"explain {call}")["explanations"][0]["time_s"],
        "trace": found(f"trace {call}")["traces"][0]["time_s"],
        "sweep": found(f"sweep {call}")["rows"][0]["time_s"],
        "compare": found(f"compare {call}")["rows"][0]["time_s"],
    }
    assert seconds_by_command == dict.fromkeys(seconds_by_command, time_s)
    if start == "cold":
        assert (
            main(
                [
                    "report",
                    *f"{SIZES} --kernel fa2 --format md --out {tmp_path / 'report.md'}".split(),
                ]
            )
            == 0
        )
        assert f" {seconds_text(time_s)} " in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_tiles_says_the_seconds_of_predict() -> None:
    ranked = found(f"tiles {SIZES} --tile 128x64")["studies"][0]["ranked"]
    for tile in [t for t in ranked if (t["block_q"], t["block_k"]) == (128, 64)][:2]:
        options = f"--tile 128x64 --warps {tile['warps']} --stages {tile['stages']}"
        assert (
            found(f"predict {SIZES} --kernel flash {options}")["predictions"][0]["time_s"]
            == tile["time_s"]
        )


def test_decode_says_the_seconds_of_predict() -> None:
    shape = "--gpu h200 --heads 8 --kv-heads 8 --head-dim 64 --dtype bf16 --kernel fa2"
    step = next(
        csv.DictReader(io.StringIO(printed(f"decode {shape} --context 2k --layers 1 --format csv")))
    )
    prediction = found(f"predict {shape} --seq-len 1 --seq-len-k 2k")["predictions"][0]
    assert float(step["step_s"]) == prediction["time_s"]


@pytest.mark.parametrize(
    ("kernel", "more"),
    [
        ("fa2", {}),
        ("naive", {}),
        ("fa2", {"passes": "bwd"}),
        ("fa2", {"seq_q": 1, "seq_k": 4096}),
        ("flash1", {}),
    ],
)
def test_the_last_cta_of_a_trace_ends_at_the_predicted_time(
    kernel: str, more: dict[str, Any]
) -> None:
    values = {"heads": 4, "seq_q": 1024, "head_dim": 64, "dtype": "bf16"} | more
    prediction = predict(AttentionProblem(**values), kernel, "h200")
    t = trace(prediction)
    begin = 0.0
    for launch, timed in zip(t.launches, prediction.time.launches, strict=True):
        assert launch.begin_ps == pytest.approx(begin * PS, abs=2)
        begin += timed.total_s
        assert launch.end_ps == pytest.approx(begin * PS, abs=2)
        assert launch.begin_ps <= int(launch.ctas.start_ps.min())
        assert int(launch.ctas.end_ps.max()) <= launch.end_ps + 2
    assert begin == pytest.approx(prediction.time_s)
    assert int(t.launches[-1].ctas.end_ps.max()) == pytest.approx(prediction.time_s * PS, rel=1e-6)
    assert t.bin_ps * t.bins >= prediction.time_s * PS > t.bin_ps * (t.bins - 1)


PLAYED = [
    ("h200", "fa2", {"heads": 32, "seq_q": 4096, "head_dim": 128}),
    ("h200", "fa2", {"heads": 32, "seq_q": 8192, "head_dim": 128, "mask": "causal"}),
    ("h200", "cudnn", {"heads": 32, "seq_q": 4096, "head_dim": 128}),
    ("h100", "fa3", {"heads": 16, "seq_q": 8192, "head_dim": 128, "mask": "causal"}),
    ("a100", "fa2", {"heads": 32, "seq_q": 2048, "head_dim": 128}),
    ("a100", "fa2", {"heads": 16, "seq_q": 2048, "head_dim": 64, "passes": "bwd"}),
    ("l4", "fa2", {"heads": 8, "seq_q": 2048, "head_dim": 64}),
    ("h200", "triton", {"heads": 16, "seq_q": 4096, "head_dim": 64}),
    ("h200", "flash1", {"heads": 132, "seq_q": 1024, "head_dim": 64}),
]
"""Launches bound by computing, whose bytes stay in the L2."""
LAST_ROUND = (("a100", "fa2"), ("h200", "flash1"))
"""Of these a few CTAs are left for a last round. Steps vary by chance, so that some of them share an SM."""


@pytest.mark.parametrize(("gpu", "kernel", "values"), PLAYED)
def test_the_replay_takes_as_long_as_the_timing_model_says(
    gpu: str, kernel: str, values: dict[str, Any]
) -> None:
    """Tiles of a causal mask differ in length, and the next goes where one ends first. Of CTAs that end together the
    timing model serves that of the first slot, and in the replay chance decides: the second launch ends 3.1 % later for
    it. So causal launches are played without chance, in which the models do not differ."""
    prediction = predict(
        AttentionProblem(**{"dtype": "bf16"} | values), kernel, gpu, method="replay"
    )
    replay = prediction.replay
    if values.get("mask") == "causal":
        play = replace(play_of(prediction.call, "replay", "cold"), drift="least")
        replay = Replays().of(prediction.call, play)
    assert replay is not None
    main_launch = max(
        range(len(prediction.time.launches)), key=lambda n: prediction.time.launches[n].total_s
    )
    played = replay.launches[main_launch]
    near = 0.12 if (gpu, kernel) in LAST_ROUND else 0.025
    assert played.end_s - played.begin_s == pytest.approx(
        prediction.time.launches[main_launch].total_s, rel=near
    )


def test_a_pace_is_that_of_the_launch_and_needs_no_hbm() -> None:
    call = predict(
        AttentionProblem(heads=32, seq_q=4096, head_dim=128, dtype="bf16"), "fa2", "h200"
    ).call
    (pace,) = call.paces
    (beside_hbm,) = call.time(call.counted).launches
    assert pace == beside_hbm.pace != Pace()
    assert list(pace.step_s) == sorted(pace.step_s)  # more CTAs on an SM, each of them slower,
    step_s = [seconds / ctas for ctas, seconds in enumerate(pace.step_s, 1)]
    assert step_s == sorted(step_s, reverse=True)  # and all together faster
    rounds = -(-call.chain.launches[0].work_tiles // call.residencies[0].slots)
    shortest = pace.launch_s + (rounds - 1) * (pace.tile_s + 64 * pace.step_s[-1])
    loads = (128 + 64) * 256 / 44 / 1e9  # Q and the first K, which a replay plays
    longest = shortest + pace.tile_s + 64 * pace.step_s[-1]
    assert shortest < beside_hbm.total_s < longest + rounds * loads + 1e-9
