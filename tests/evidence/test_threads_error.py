"""benchmarks/threads_error.py: times that public threads report, beside predictions."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import load_script

import iosim
from iosim import load_profile

SCRIPT = load_script("benchmarks/threads_error.py")
HEAD = (
    "source,kernel_reported,gpu,pass,batch,heads,kv_heads,seq_q,seq_k,head_dim,head_dim_v,causal,"
    "window,dtype,measured_us,note"
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = (
        "a/b#1,flash-attn FA2,h100,fwd,1,8,,1024,1024,64,,0,,fp16,20,",
        "a/b#1,SDPA EA,h100,fwd,1,8,,1024,1024,64,,0,,fp16,60,",
        "a/b#1,another kernel,h100,fwd,1,8,,1024,1024,64,,0,,fp16,60,",
        "a/b#1,FlashMLA,h100,fwd,1,8,1,1,1024,576,512,0,,fp16,60,more than the kernel",
        "microsoft/onnxruntime#1,FA2 paged,h100,fwd,64,64,8.0,1,256,128,,0,,fp16,40,nvbench",
    )
    path = tmp_path / "threads.csv"
    path.write_text("\n".join((HEAD, *rows)) + "\n", encoding="utf-8")
    return path


def test_rows_are_predicted_as_they_were_measured(table: Path) -> None:
    rows = list(SCRIPT.rows([table]))
    assert [(row.number, row.kernel, row.kind) for row in rows] == [
        (1, "flash-attn", "fwd"),
        (2, "cutlass", "fwd"),
        (5, "fa2", "decode"),
    ]
    how = SCRIPT.method_of("microsoft/onnxruntime#1")
    assert how["l2_start"] == "flushed"
    call = rows[2].call | {"kernel": "fa2", "gpu": "h100", "page_size": 256, "layout": "bshd"}
    alone_s = iosim.predict(**call, **how).time_s
    assert rows[2].predicted_us == pytest.approx(1e6 * (alone_s + SCRIPT.EVENTS_S))
    assert SCRIPT.method_of("a/b#1") == SCRIPT.LOOP


def test_errors_stand_by_kernel_gpu_and_pass(table: Path) -> None:
    rows = list(SCRIPT.rows([table]))
    text = SCRIPT.table(rows)
    assert "| decode | fa2 | h100 | 1 |" in text
    assert "| fwd | all |  | 2 |" in text
    assert "right in 1 of 1 pairs" in SCRIPT.told_apart(list(SCRIPT.pairs(rows)))


@pytest.mark.parametrize(("speed", "right"), [("1.95", True), ("0.5", False), ("1.05", None)])
def test_a_stated_speed_is_a_pair(tmp_path: Path, speed: str, right: bool | None) -> None:
    """flash-attention-turing on a T4 is predicted to take less than the memory-efficient kernel; a pair within 10 % says
    nothing."""
    path = tmp_path / "speeds.csv"
    path.write_text(
        "source,gpu,batch,heads,seq,head_dim,dtype,measured_speedup\n"
        f"a/b#2,T4,4,32,1024,128,fp16,{speed}\n",
        encoding="utf-8",
    )
    assert not SCRIPT.times_of(path)
    (pair,) = SCRIPT.stated_pairs([path])
    assert pair.predicted > 1
    assert pair.counts is (right is not None)
    if right is not None:
        assert pair.right is right


def test_what_is_left_out_is_said_with_why(table: Path) -> None:
    assert (
        SCRIPT.left_out([table])
        == "Left out: 1 (more than the kernel was timed), 1 (the catalog has no such kernel)."
    )


CALL = {"batch": 4, "heads": 48, "seq_len": 4096, "seq_len_k": 4096, "head_dim": 64}
VALUES = 3 * 4 * 48 * 4096 * 64  # dQ, dK and dV


@pytest.mark.parametrize(
    ("source", "reported", "expected_s"),
    [
        (
            "meta-pytorch/tritonbench#196",
            "SDPA flash",
            6 * VALUES / 3.1e12,
        ),  # two loads and a store
        ("meta-pytorch/tritonbench#196", "flash_v3", 3 * 194.9e-6),  # h200_timers.csv, add-strided
        ("NVIDIA/cutlass#992", "fMHA v3", 6 * VALUES / 3.1e12),
        ("facebookresearch/xformers#587", "fMHA v3", 6 * VALUES / 3.1e12),
        ("a/b#1", "flash_v3", 0.0),
    ],
)
def test_a_backward_that_adds_gradients_up_takes_that_long(
    source: str, reported: str, expected_s: float
) -> None:
    row = {"source": source, "pass": "bwd", "gpu": "h100", "kernel_reported": reported}
    assert SCRIPT.added_up_s(row, CALL) == pytest.approx(expected_s, rel=0.1)


def test_a_gpu_that_a_name_says_is_the_one_predicted() -> None:
    row = {"kernel_reported": "FlashInfer, no cascade, L20", "gpu": "l40"}
    assert SCRIPT.gpu_of(row) == "l20"
    assert SCRIPT.gpu_of(row | {"kernel_reported": "FlashInfer, L200"}) == "l40"


def test_an_l20_decodes_at_the_rate_of_an_l40s() -> None:
    """Their memory and its error correction are alike: a published stream of an L40 reads 845 GB/s, an L40S's decoding
    725."""
    rates = [load_profile(name).dram_read_bandwidth_bytes_per_s for name in ("l20", "l40s")]
    assert rates[0] == rates[1] == 725e9


def test_a_missing_file_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["threads_error.py", str(tmp_path / "none.csv")])
    with pytest.raises(SystemExit) as stop:
        SCRIPT.main()
    lines = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2
    assert len(lines) == 1
    assert "none.csv" in lines[0]
