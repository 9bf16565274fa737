"""Tracing: it sums up to the replay, changes nothing, and its files are what their readers expect."""

from __future__ import annotations

import csv
import io
import json
import shlex
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from refusals import refused
from trace_events import checked

import iosim
from iosim import AttentionProblem, InputError
from iosim.base.units import bytes_text
from iosim.commands.cli import main
from iosim.prediction.predictor import predict
from iosim.prediction.result import Prediction
from iosim.readers.replay.tracing import CtaTable, ReuseHistogram
from iosim.show.html import unpacked
from iosim.show.timeline import text
from iosim.studies.trace.face import _walk
from iosim.studies.trace.trace import (
    TraceResult,
    as_dict,
    chrome,
    cta_rows,
    reuse_rows,
    tensor_rows,
    trace,
)

pytestmark = pytest.mark.usefixtures("replays_once")

SMALL = "--gpu h200 --heads 4 --seq-len 4096 --head-dim 64 --causal --dtype bf16"


def predicted(kernel: str, seq_q: int = 4096, **more: Any) -> Prediction:
    values = {
        "batch": 1,
        "heads": 4,
        "seq_q": seq_q,
        "head_dim": 64,
        "dtype": "bf16",
        "mask": "causal",
    } | more
    return predict(AttentionProblem(**values), kernel, "h200")


@pytest.fixture(scope="module")
def long_fa2() -> TraceResult:
    return trace(predicted("fa2", 65536, heads=8, head_dim=128))


@pytest.fixture(scope="module")
def long_cudnn() -> TraceResult:
    return trace(predicted("cudnn", 65536, heads=8, head_dim=128))


CASES = [
    ("fa2", {}),
    ("cudnn", {}),
    ("naive", {"seq_q": 2048}),
    ("cutlass", {"passes": "bwd"}),
    ("fa2", {"seq_q": 1, "seq_k": 8192, "mask": "none"}),
    ("fa1", {"mask": "none"}),
]


@pytest.mark.parametrize(("kernel", "more"), CASES)
def test_misses_are_what_the_replay_read_from_hbm(kernel: str, more: dict[str, Any]) -> None:
    p = predicted(kernel, **more)
    t = trace(p)
    read = {r.tensor: 0 for r in p.traffic}
    for row in p.traffic:
        if row.level == "hbm" and row.direction == "read" and row.tensor != "code":
            read[row.tensor] += int(row.bytes)
    assert {n: b for n, b in t.misses().items() if b} == {n: b for n, b in read.items() if b}
    assert int(t.hit.min()) >= 0
    assert int(t.miss.min()) >= 0


@pytest.mark.parametrize(("kernel", "more"), CASES)
def test_tracing_changes_nothing(kernel: str, more: dict[str, Any]) -> None:
    p = predicted(kernel, **more)
    assert trace(p, bins=7).replay == p.replay


def test_what_is_asked_is_what_crosses_to_the_sms(long_fa2: TraceResult) -> None:
    l2 = {
        r.tensor: int(r.bytes)
        for r in long_fa2.prediction.traffic
        if r.level == "l2" and r.direction == "read"
    }
    for name in ("Q", "K", "V"):
        assert long_fa2.loaded()[name] == pytest.approx(l2[name], rel=1e-3)


def test_histogram_sums_to_the_loads(long_fa2: TraceResult) -> None:
    reuse = long_fa2.launches[0].reuse
    assert reuse.total == pytest.approx(sum(long_fa2.loaded().values()), rel=0.01)
    rows = reuse_rows(long_fa2.launches[0], long_fa2.partition_bytes)
    assert sum(r["bytes"] for r in rows) == reuse.total
    # Q, K and V of 134,217,728 bytes: K and V are loaded first in each of two partitions, Q in the one of its CTA
    assert reuse.first == pytest.approx(134_217_728 * (2 + 2 + 1), rel=0.01)
    assert reuse.beyond(0) + reuse.first == reuse.total


def test_reuse_distances_foretell_the_misses(
    long_fa2: TraceResult, long_cudnn: TraceResult
) -> None:
    size = long_fa2.partition_bytes
    assert size == pytest.approx(62_914_560 / 2 * 0.98, rel=0.001)
    assert long_fa2.launches[0].reuse.beyond(size) > 5e9
    assert long_cudnn.launches[0].reuse.beyond(size) < 300e6


def test_drift_tells_the_two_kernels_apart(long_fa2: TraceResult, long_cudnn: TraceResult) -> None:
    fa2 = long_fa2.launches[0]
    cudnn = long_cudnn.launches[0]
    assert fa2.shared_tensors == cudnn.shared_tensors == ("K", "V")
    assert fa2.bytes_per_index == 64 * 128 * 2 * 2  # block_k x head_dim x bf16 x (K and V)
    assert fa2.share_above(long_fa2.partition_bytes) > 0.5
    assert cudnn.share_above(long_cudnn.partition_bytes) == 0
    assert (
        (cudnn.peak_in_use_bytes or 0) < long_cudnn.partition_bytes < (fa2.median_in_use_bytes or 0)
    )
    # of at most two heads at once: 2 x 65,536 keys x 128 x 2 bytes x (K and V)
    assert (fa2.peak_in_use_bytes or 0) <= 2 * 65536 * 128 * 2 * 2


def test_ctas_that_walk_quantised_keys_walk_keys() -> None:
    problem = AttentionProblem(heads=2, seq_q=1024, head_dim=128, dtype="fp8")
    traced = trace(predict(problem, "fa3-fp8", "h100", method="replay"))
    assert traced.launches[-1].shared_tensors == ("K_fp8", "V_fp8")
    assert [panel.layout["yaxis"]["title"]["text"] for panel in _walk(traced, "walk")] == [
        "key block"
    ]


def test_every_cta_ran_once_within_the_launch(long_fa2: TraceResult) -> None:
    launch = long_fa2.launches[0]
    c = launch.ctas
    assert c.tiles == 8 * 512  # heads x 65536 / 128
    assert (c.start_ps < c.end_ps).all()
    assert c.start_ps.min() >= launch.begin_ps
    assert c.end_ps.max() == launch.end_ps
    assert set(c.sm.tolist()) == set(range(132))
    assert c.slot.max() == 1  # two CTAs an SM
    assert len({(h, b) for h, b in zip(c.head.tolist(), c.block.tolist(), strict=True)}) == c.tiles


def test_position_walks_the_loop_both_ways() -> None:
    i32, i64 = (np.array([0, 0], dtype=t) for t in (np.int32, np.int64))
    c = CtaTable(
        i32,
        i32,
        i32,
        i32,
        i64,
        np.array([100, 100]),
        i64,
        np.array([3, 3], dtype=np.int32),
        np.array([10, 10], dtype=np.int32),
        np.array([0, 1], dtype=np.uint8),
    )
    both = np.array([0, 1])
    assert c.position(both, 0).tolist() == [3, 12]
    assert c.position(both, 55).tolist() == [3 + 5, 12 - 5]
    assert c.position(both, 99.9).tolist() == [12, 3]


def events(value: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [e for e in value["traceEvents"] if e["ph"] == phase]


@pytest.mark.parametrize(("kernel", "more"), CASES)
def test_chrome_rows_are_in_order_and_do_not_overlap(kernel: str, more: dict[str, Any]) -> None:
    t = trace(predicted(kernel, **more))
    value = checked(text(chrome(t)))
    rows: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for e in events(value, "X"):
        rows.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["dur"]))
    assert sum(len(v) for (pid, _), v in rows.items() if pid == 1) == sum(
        launch.ctas.tiles for launch in t.launches
    )
    for row in rows.values():
        assert all(dur >= 0 for _, dur in row)
        for (ts, dur), (after, _) in pairwise(row):
            assert (
                ts + dur <= after + 1e-6
            )  # microseconds: a picosecond is lost in the floating point
    named = {(e["pid"], e["tid"]) for e in events(value, "M") if e["name"] == "thread_name"}
    assert set(rows) == named


def test_viewers_drop_no_slice_of_a_long_trace(long_fa2: TraceResult) -> None:
    checked(text(chrome(long_fa2)))


def test_chrome_counters_hold_the_misses(long_cudnn: TraceResult) -> None:
    value = chrome(long_cudnn)
    read = [e["args"] for e in events(value, "C") if e["name"] == "HBM bytes read"]
    assert sum(sum(args.values()) for args in read) == sum(long_cudnn.misses().values())
    rates = [
        v
        for e in events(value, "C")
        if e["name"].startswith("hit rate")
        for v in e["args"].values()
    ]
    assert 0 <= min(rates) <= max(rates) <= 100


def test_chrome_leaves_out_whole_sms_and_says_so(long_fa2: TraceResult) -> None:
    value = chrome(long_fa2, max_events=1000)
    slices = [e for e in events(value, "X") if e["pid"] == 1]
    c = long_fa2.launches[0].ctas
    assert (
        len(slices) == int((c.sm % 5 == 0).sum()) <= 1000
    )  # 4,096 tiles / 1,000, rounded up, is 5
    assert "every 5th SM" in value["otherData"]["note"]
    assert "note" not in chrome(long_fa2)["otherData"]


def test_one_launch_of_a_chain() -> None:
    p = predicted("naive", 2048)
    whole = trace(p)
    single_launch = trace(p, launch="softmax")
    assert [n.name for n in single_launch.launches] == ["softmax"]
    assert single_launch.replay == whole.replay
    c = single_launch.launches[0].ctas
    assert c.start_ps.tolist() == whole.launch("softmax").ctas.start_ps.tolist()
    softmax = sum(
        int(r.bytes)
        for r in p.traffic
        if (r.level, r.launch, r.direction) == ("hbm", "softmax", "read") and r.tensor != "code"
    )
    assert sum(single_launch.misses().values()) == softmax
    with pytest.raises(KeyError):
        single_launch.launch("values")


def test_rows_and_json(long_cudnn: TraceResult) -> None:
    value = json.loads(json.dumps(as_dict(long_cudnn), allow_nan=False))
    assert [r["tensor"] for r in value["tensors"]] == ["Q", "K", "V"]
    assert sum(value["bins"]["miss_bytes"]["K"]) == value["tensors"][1]["missed_bytes"]
    assert all(r is None or 0 <= r <= 1 for r in value["bins"]["hit_rate"]["K"])
    assert value["bin_s"] * len(value["bins"]["hit_rate"]["K"]) >= value["launches"][0]["end_s"]
    assert len(list(cta_rows(long_cudnn))) == 4096
    for row in tensor_rows(long_cudnn):
        assert row["hit_rate"] == 1 - row["missed_bytes"] / row["asked_bytes"]


def test_command_writes_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", *SMALL.split(), "--kernel", "fa2", "--kernel", "cudnn"]) == 0
    printed = capsys.readouterr().out
    assert all(
        word in printed for word in ("hit rate", "fa2", "cudnn", "first load", "one partition")
    )
    assert main(["trace", *SMALL.split(), "--kernel", "fa2", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 4 * 32  # heads x 4096 / 128
    assert main(["trace", *SMALL.split(), "--format", "json", "--bins", "10"]) == 0
    assert len(json.loads(capsys.readouterr().out)["traces"][0]["bins"]["hit_rate"]["K"]) == 10
    page = tmp_path / "t.html"
    assert (
        main(["trace", *SMALL.split(), "--format", "html", "--out", str(page), "--kernel", "fa2"])
        == 0
    )
    body = page.read_text().split("<script>")[0]
    assert "src=" not in body
    assert 'href="http' not in body
    data = unpacked(page.read_text())
    assert all(f'id="{panel}"' in body for panel in data["panels"])
    assert list(dict.fromkeys(p.split("-")[0] for p in data["panels"])) == [
        "walk",
        "read",
        "tensors",
        "drift",
        "reuse",
    ]
    file = tmp_path / "t.json"
    capsys.readouterr()
    assert main(["trace", *SMALL.split(), "--format", "chrome", "--out", str(file)]) == 0
    messages = capsys.readouterr().err.splitlines()
    assert messages == [
        f"iosim: wrote {file}: {file.stat().st_size:,} bytes",
        f"iosim: open {file} in https://ui.perfetto.dev (or chrome://tracing)",
    ]
    assert checked(file.read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--bins 0", ("--bins 0", "1 to")),
        ("--bins 200k", ("--bins 204800", "1 to")),
        ("--launch nosuch", ("--launch 'nosuch'", "main")),
        ("--seq-len 1k,2k", ("--seq-len 1k,2k", "one")),
        ("--format chrome --kernel fa2 --kernel cudnn", ("--format chrome", "one --kernel")),
        ("--kernel foo", ("--kernel", "'foo'", "fa2")),
        ("--gpu h100", ("--gpu h200,h100", "one")),
        ("--l2 hot", ("--l2 'hot'", "cold")),
        ("--format svg", ("--format", "svg", "chrome")),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_file(
    options: str, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    refused(capsys, ["trace", *SMALL.split(), *options.split(), "--out", str(out)], *words)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "t.html"
    out.write_text("before")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    assert main(["trace", *SMALL.split(), "--format", "html", "--force", "--out", str(out)]) == 130
    assert [p.name for p in tmp_path.iterdir()] == ["t.html"]
    assert out.read_text() == "before"


def test_a_trace_needs_a_replay_of_bearable_length(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = AttentionProblem(batch=1, heads=1, seq_q=512, head_dim=64, dtype="bf16")
    with pytest.raises(InputError, match="needs a replay"):
        trace(predict(problem, "fa2", "h200", method="bounds"))
    monkeypatch.setattr("iosim.studies.trace.trace.MAX_ACCESSES", 3)
    with pytest.raises(InputError, match="too long; accepted: up to 3"):
        trace(predict(problem, "fa2", "h200"))


def test_what_an_l2_lacks_comes_from_the_memory_side_cache_where_there_is_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    p = iosim.predict(gpu="mi300x", kernel="hipkittens", dtype="bf16", heads=16, seq_len=2048)
    traced = trace(p)
    assert sum(traced.misses().values()) == p.total("side", "read")
    assert (
        main(
            shlex.split(
                "trace --gpu mi300x --kernel hipkittens --dtype bf16 --heads 16 --seq-len 2k"
            )
        )
        == 0
    )
    out = capsys.readouterr().out
    assert f"{bytes_text(p.total('side', 'read'))} from the memory-side cache" in out
    assert "missed, read from the memory-side cache" in out


def test_rows_of_a_reuse_histogram_by_hand() -> None:
    """Forty steps of 1 kB with n + 1 bytes at n kB; the partition has 20 kB, between the edges at 16 and at 32 kB."""
    loads = np.arange(1, 41)

    def rows_of(loads: Any, deeper: int) -> list[tuple[Any, ...]]:
        launch: Any = SimpleNamespace(reuse=ReuseHistogram(1000, loads, deeper, 7))
        return [tuple(row.values()) for row in reuse_rows(launch, 20_000)]

    # from, to, kind, bytes: of 0 to 1 kB, 1 to 2, ...; 17 + ... + 20 = 74, 21 + ... + 32 = 318, 33 + ... + 40 = 292
    expected = [
        (0, 0, "first load", 7), (0, 1000, "reuse", 1), (1000, 2000, "reuse", 2), (2000, 4000, "reuse", 3 + 4),
        (4000, 8000, "reuse", 5 + 6 + 7 + 8), (8000, 16000, "reuse", 100), (16000, 20000, "reuse", 74),
        (20000, 32000, "reuse", 318), (32000, 40000, "reuse", 292), (40000, None, "reuse", 9),
    ]  # fmt: skip
    assert rows_of(loads, 9) == expected
    # Empty rows at the end are left out, empty ones between are not.
    assert rows_of(np.where(loads > 20, 0, loads), 0) == expected[:7]
    assert rows_of(np.where(loads == 3, 0, 0 * loads), 0) == expected[:1]
    assert rows_of(np.where(loads == 4, 4, 0), 0)[1:] == [
        (0, 1000, "reuse", 0),
        (1000, 2000, "reuse", 0),
        (2000, 4000, "reuse", 4),
    ]
