"""A file of a user's constants."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from stack_calls import TRUE, decoding, prompt

import iosim
from iosim.catalog.serving import read_stack
from iosim.commands.cli import main
from iosim.studies.latency.calibration import (
    calibration_text,
    read_calibration,
)


def test_a_users_times_make_a_file_that_latency_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = [decoding(1024 * n, batch=n % 3 + 1) for n in range(1, 7)] + [
        prompt(512 * n) for n in range(1, 4)
    ]
    truth = [
        point.total_s + 10e-6 for point in iosim.latency(problems, stack="vllm", gpu="a100").points
    ]
    times, profile_file = tmp_path / "times.csv", tmp_path / "a100.toml"
    with times.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "us"])
        for p, seconds in zip(problems, truth, strict=True):
            writer.writerow(
                [p.batch, p.heads, p.kv_heads, p.seq_q, p.seq_k, p.head_dim, 1e6 * seconds]
            )
    assert (
        main(["calibrate", "--times", str(times), "--gpu", "a100", "--out", str(profile_file)]) == 0
    )
    out = capsys.readouterr().out
    assert "9 calls of vllm on a100-sxm-80gb are predicted" in out
    constants = read_calibration(str(profile_file), "vllm", "a100-sxm-80gb")
    assert constants.call_gap_s == pytest.approx(read_stack("vllm").call_gap_s + 10e-6, rel=0.1)
    line = [
        "latency",
        "--gpu",
        "a100",
        "--calibration",
        str(profile_file),
        "--seq-len",
        "1",
        "--seq-len-k",
        "2k",
        "--kv-heads",
    ]
    assert main([*line, "8", "--format", "json"]) == 0
    (entry_made,) = json.loads(capsys.readouterr().out)["latencies"]
    assert entry_made["calibrated"]
    assert entry_made["parts"][-1]["time_s"] == pytest.approx(constants.call_gap_s, rel=1e-5)
    assert main(["latency", "--gpu", "h100", "--calibration", str(profile_file)]) == 2
    assert "is of gpu a100-sxm-80gb, not h100-sxm" in capsys.readouterr().err


def test_a_file_of_constants_is_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        calibration_text(TRUE, "vllm", "l4", {"rows": 20, "before": 0.1, "held_out": 0.05}),
        encoding="utf-8",
    )
    assert asdict(read_calibration(str(path), "vllm", "l4")) == pytest.approx(asdict(TRUE))
    path.write_text(path.read_text(encoding="utf-8").replace("0.93", "9.3"), encoding="utf-8")
    with pytest.raises(iosim.InputError, match="prefill_factor"):
        read_calibration(str(path), "vllm", "l4")
