"""The range of a predicted time: where rates were not measured on the GPU, and whether it is wide enough."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest
from scripts import measurements

from iosim.commands.cli import main
from iosim.evidence.times.tables import kernel_of, problem_of
from iosim.hardware.profile import load_profile
from iosim.hardware.trust import RATES_KNOWN, unmeasured_rates
from iosim.prediction.predictor import predict

BRACKETED = 0.85
SAME_KERNEL = {
    "a30": "attention_latency_a30_fa2_nvbench.csv",
    "rtx-a6000": "attention_latency_h100_a6000_llmservingsim.csv",
}


def test_a_gpu_whose_rates_were_measured_has_no_range() -> None:
    assert unmeasured_rates(load_profile("h200")) == ()
    assert "tile_cycles" in unmeasured_rates(load_profile("a100"))
    assert "dram_read_bandwidth_bytes_per_s" not in unmeasured_rates(load_profile("a100"))
    assert "dram_read_bandwidth_bytes_per_s" in unmeasured_rates(load_profile("a30"))
    assert "achieved_dram_fraction" in unmeasured_rates(load_profile("rtx-5090"))
    assert set(unmeasured_rates(load_profile("l4"))) <= set(RATES_KNOWN)


@pytest.mark.parametrize(("gpu", "file"), SAME_KERNEL.items())
def test_published_times_of_the_catalogs_kernels_lie_in_it(gpu: str, file: str) -> None:
    with measurements("published_attention_times.csv").open(newline="", encoding="utf-8") as table:
        rows = [r for r in csv.DictReader(table) if r["gpu"] == gpu and r["file"] == file][::4]
    inside = 0
    for row in rows:
        problem = problem_of(row)
        p = predict(problem, kernel_of(row, problem), gpu, l2_start=row["l2_start"])
        assert p.time_range is not None
        least, highest = p.time_range.seconds
        assert least < p.time_s < highest < 3 * least
        inside += least <= float(row["seconds"]) <= highest
    assert inside >= BRACKETED * len(rows) > 8


def test_a_wider_unknown_makes_a_wider_range() -> None:
    """With products, waits and memory measured on the GPU itself the range is what the model leaves unexplained."""
    p = predict(problem_of(ROW), "fa2", "a30")
    assert p.time_range is not None
    known = replace(
        p.profile, kinds={**p.profile.kinds, **dict.fromkeys(p.profile.kinds, "measured")}
    )
    assert replace(p, call=replace(p.call, profile=known)).time_range is None
    launch = replace(known, kinds={**known.kinds, "launch_latency_s": "taken"})
    narrow = replace(p, call=replace(p.call, profile=launch)).time_range
    assert narrow is not None
    assert list(narrow.rates) == ["launch_latency_s"]
    assert narrow.seconds[1] - narrow.seconds[0] < p.time_range.seconds[1] - p.time_range.seconds[0]


ROW = {
    "file": "",
    "gpu": "a30",
    "kernel": "fa2",
    "batch": "1",
    "heads": "8",
    "kv_heads": "8",
    "seq_q": "1024",
    "seq_k": "1024",
    "head_dim": "128",
    "dtype": "fp16",
    "mask": "causal",
}


def test_what_nobody_measured_has_the_wider_range() -> None:
    """The same GPU, backed by public times and by nothing; and a chain whose products are cuBLAS's."""
    fused, plain = (predict(problem_of(ROW), kernel, "a30") for kernel in ("fa2", "naive"))
    nothing = replace(fused.profile, backed_by="nothing")
    unknown = replace(fused, call=replace(fused.call, profile=nothing))
    shares = []
    for p in (fused, unknown, plain):
        assert p.time_range is not None
        shares.append(p.time_range.seconds[1] / p.time_s)
    assert shares[0] < shares[1]
    assert shares[2] > 1.3


def test_the_command_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["predict", "--gpu", "t4", "--kernel", "flash", "--seq-len", "512"]
    assert main(line) == 0
    assert "range: time " in capsys.readouterr().out
    assert main([*line, "--format", "json"]) == 0
    span = json.loads(capsys.readouterr().out)["predictions"][0]["time_range"]
    assert span["time_s"][0] < span["time_s"][1]
    assert span["rates"]
    line[2] = "h200"
    assert main([*line, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["predictions"][0]["time_range"] is None
