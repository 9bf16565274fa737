"""`iosim validate --ncu`: launches of a recorded profile matched with catalog kernels, and everything that is not.

`data/ncu_user.csv` is the raw page of PyTorch's flash, cuDNN and memory-efficient backends on an H200, forward at three
shapes and a decoding step each, and one flash backward; of its 200 columns those that say what was launched, and the
counters. `data/ncu_details.csv` is the beginning of the page of details, a row a metric.
"""

from __future__ import annotations

import csv
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripts import ROOT

from iosim.base.errors import InputError
from iosim.commands.cli import main
from iosim.evidence.cuda.ncu import Profiled, parse_raw
from iosim.evidence.validate import Comparison, compare
from iosim.evidence.validate.profile_rows import ProfileRows, matched, metrics, read_profile
from iosim.evidence.validate.recognise import KERNELS, Given, Unknown, recognise
from iosim.hardware.profile import load_profile

DATA = ROOT / "tests" / "data"
USER = DATA / "ncu_user.csv"
TEXT = USER.read_text()
ALL = Given(
    batch=None, heads=8, seqs=(1000, 2048, 4096), head_dims=(64, 128), dtype="bf16", causal=True
)

ELEMENT = "cutlass::bfloat16_t"
FLASH = (
    f"void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, 0, 0, {ELEMENT}, "
    f"Flash_kernel_traits<128, 128, 64, 4, {ELEMENT}>>, %s>(pytorch_flash::Flash_fwd_params)"
)
OLDER = (
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 64, 4, false, false, cutlass::half_t, "
    "Flash_kernel_traits<64, 128, 64, 4, cutlass::half_t> >, false, true, false, false, true, true, "
    "false>(Flash_fwd_params)"
)
CASTS = (
    "void flash::flash_fwd_kernel<flash::Flash_fwd_kernel_traits<(int)128, (int)128, (int)64, (int)4, (bool)0, "
    "(bool)0, cutlass::half_t, flash::Flash_kernel_traits<(int)128, (int)128, (int)64, (int)4, cutlass::half_t>>, "
    "(bool)0, (bool)1, (bool)0, (bool)0, (bool)1, (bool)1, (bool)0, (bool)0>(flash::Flash_fwd_params)"
)
SPLIT = (
    f"void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, 0, 0, {ELEMENT}, "
    f"Flash_kernel_traits<128, 64, 128, 4, {ELEMENT}>>, 0, 0, 0, 0, 1, 0, %d, 0>(pytorch_flash::Flash_fwd_params)"
)
CUTLASS = "fmha_cutlassF_%s_sm80(PyTorchMemEffAttention::AttentionKernel<...>::Params)"
CUTLASS_BACKWARD = (
    "fmha_cutlassB_%s_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<...>::Params)"
)
CUDNN = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1_kernel0_0"
WHOLE = FLASH % "0, 0, 0, 0, 1, 1, 0, 0"
RAGGED = FLASH % "0, 0, 0, 0, 0, 1, 0, 0"
PADDED = FLASH % "0, 0, 0, 0, 1, 0, 0, 0"
LOCAL = FLASH % "0, 0, 1, 0, 0, 1, 0, 0"


def facts(name: str, grid: tuple[int, int, int], options: Given) -> dict[str, str]:
    return recognise(name, grid, options).facts


def unknown(name: str, grid: tuple[int, int, int], options: Given) -> str:
    with pytest.raises(Unknown) as caught:
        recognise(name, grid, options)
    return str(caught.value)


# Names and grids


@pytest.mark.parametrize(
    ("name", "grid", "options", "wanted"),
    [
        # not causal, lengths multiples of the tile: 32 x 128 = 4096
        (WHOLE, (32, 2, 16), Given(seqs=(4096, 1000)),
         {"batch": "2", "heads": "16", "kv_heads": "16", "seq_q": "4096", "seq_k": "4096", "head_dim": "128",
          "causal": "0", "dtype": "bf16", "window": ""}),
        (FLASH % "0, 1, 0, 0, 0, 1, 0, 0", (8, 1, 32), Given(seqs=(1000,), seq_k=3000, kv_heads=8),
         {"seq_q": "1000", "seq_k": "3000", "causal": "1", "kv_heads": "8"}),
        (LOCAL, (8, 1, 8), Given(seqs=(1000,), window=256), {"window": "256"}),
        (PADDED, (8, 1, 8), Given(seqs=(1024,), head_dims=(96, 512)),
         {"head_dim": "96"}),
        (OLDER, (32, 1, 8), Given(seqs=(4096,)), {"head_dim": "64", "causal": "1", "dtype": "fp16"}),
        (CASTS, (32, 1, 8), Given(seqs=(4096,)), {"head_dim": "128", "causal": "1", "dtype": "fp16"}),
        (SPLIT % 1, (16, 2, 16), Given(seqs=(1000,), batch=2), {"batch": "2", "heads": "8", "causal": "0"}),
        (SPLIT % 1, (1, 28, 8), Given(seqs=(1,), seq_k=131072, batch=1, heads=32, kv_heads=8),
         {"batch": "1", "heads": "32", "kv_heads": "8", "seq_k": "131072"}),  # a group's heads are rows of one tile
        (SPLIT % 0, (16, 2, 8), Given(seqs=(1000,)), {"batch": "2", "heads": "8"}),
        (CUTLASS % "bf16_aligned_64x128_rf", (64, 16, 2),
         Given(seqs=(4096,), head_dims=(64, 128), causal=False),
         {"batch": "2", "heads": "16", "head_dim": "128", "dtype": "bf16"}),
        (CUTLASS % "f32_aligned_64x64_rf", (64, 16, 2),
         Given(seqs=(4096,), head_dims=(64, 128), causal=True), {"head_dim": "64", "dtype": "fp32", "causal": "1"}),
        (CUTLASS % "f16_aligned_64x128_gmem", (16, 8, 1),
         Given(seqs=(1000,), head_dims=(256,), causal=True), {"head_dim": "256", "dtype": "fp16"}),
        (CUTLASS_BACKWARD % "bf16_aligned_64x64_k64_seqaligned", (32, 16, 2),
         Given(seqs=(2048,), head_dims=(64,), causal=False),
         {"batch": "2", "heads": "16", "seq_q": "2048", "head_dim": "64", "dtype": "bf16", "causal": "0"}),
        (CUDNN, (132, 1, 1), Given(batch=4, heads=32, seqs=(4096,), head_dims=(128,), dtype="bf16", causal=False),
         {"batch": "4", "heads": "32", "seq_q": "4096", "causal": "0"}),
        ("flash_fwd", (256, 1, 1), Given(batch=1, heads=8, seqs=(2048, 4096), head_dims=(128,), dtype="bf16",
         causal=False, settings={"block_q": "128", "block_k": "64", "stages": "2"}),
         {"seq_q": "4096", "block_q": "128"}),
        ("minimal_fwd", (1, 64, 1), Given(batch=1, heads=64, seqs=(512,), head_dims=(64,), causal=False),
         {"dtype": "fp32", "seq_q": "512"}),
    ],
)  # fmt: skip
def test_what_a_name_and_a_grid_say(
    name: str, grid: tuple[int, int, int], options: Given, wanted: dict[str, str]
) -> None:
    values = facts(name, grid, options)
    assert {key: values[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("name", "grid", "options", "reason"),
    [
        (
            "void at::native::elementwise_kernel<128, 4>(int)",
            (8, 1, 1),
            ALL,
            "no catalog kernel has this name",
        ),
        (
            CUDNN.replace("sm90", "sm80").replace("wgmma", "wmma"),
            (8, 1, 1),
            ALL,
            "no catalog kernel has this name",
        ),
        (WHOLE, (32, 2, 16), Given(), "needs --seq-len"),
        (WHOLE, (32, 2, 16), Given(seqs=(1000,)), "none of --seq-len 1000"),
        (WHOLE, (8, 1, 8), Given(seqs=(1000,)), "none of --seq-len 1000"),  # whole
        (RAGGED, (8, 1, 8), Given(seqs=(1000, 1010)), "more than one of --seq-len"),
        (WHOLE, (32, 2, 16), Given(seqs=(4096,), heads=8), "--heads 8 is not the 16"),
        (WHOLE, (32, 2, 16), Given(seqs=(4096,), batch=1), "--batch 1 is not the 2"),
        (WHOLE, (32, 2, 16), Given(seqs=(4096,), kv_heads=3), "--kv-heads 3"),
        (LOCAL, (32, 2, 16), Given(seqs=(4096,)), "needs --window"),
        (WHOLE, (32, 2, 16), Given(seqs=(4096,), window=8), "without the window"),
        (PADDED, (32, 2, 16), Given(seqs=(4096,)), "needs --head-dim"),
        (WHOLE[:120], (32, 2, 16), Given(seqs=(4096,)), "cut short"),
        ("pytorch_flash::flash_fwd_kernel<Fl", (32, 2, 16), Given(seqs=(4096,)), "cut short"),
        (SPLIT % 1, (1, 28, 8), Given(seqs=(1,)), "needs --batch or --heads"),
        (
            SPLIT % 1,
            (1, 28, 8),
            Given(seqs=(1,), batch=1, heads=32),
            "--batch 1 and --heads 32 do not make",
        ),
        (
            CUTLASS % "bf16_aligned_64x128_rf",
            (64, 16, 2),
            Given(seqs=(4096,)),
            "needs --head-dim, --causal or --no-causal",
        ),
        (
            CUTLASS % "bf16_aligned_64x128_rf",
            (64, 16, 2),
            Given(seqs=(4096,), head_dims=(64,), causal=True),
            "none of --head-dim 64 fits a kernel built for 128",
        ),
        (
            CUTLASS_BACKWARD % "bf16_aligned_64x64_k64",
            (32, 16, 2),
            Given(seqs=(4096,)),
            "needs --head-dim, --causal or --no-causal",
        ),
        (
            CUTLASS_BACKWARD % "f32_aligned_64x64_k64",
            (32, 16, 2),
            Given(seqs=(4096,), head_dims=(80,), causal=True),
            "none of --head-dim 80 fits a kernel built for 64",
        ),
        (CUTLASS_BACKWARD % "f16_aligned_64x64", (32, 16, 2), Given(seqs=(4096,)), "cut short"),
        (
            CUDNN,
            (132, 1, 1),
            Given(seqs=(4096,), causal=True),
            "needs --batch, --heads, --head-dim, --dtype",
        ),
        (
            CUDNN,
            (132, 1, 1),
            Given(1, 8, None, (512, 1024), None, (64,), "bf16", True),
            "give one --seq-len",
        ),
        ("flash_fwd", (256, 1, 1), ALL, "needs --batch"),
        (
            "flash_fwd",
            (256, 1, 1),
            Given(1, 8, None, (4096,), None, (128,), "bf16", False),
            "needs --tile",
        ),
        (
            "flash_fwd",
            (250, 1, 1),
            Given(1, 8, None, (4096,), None, (128,), "bf16", False, None, {"block_q": "128"}),
            "do not make the 250 CTAs",
        ),
    ],
)
def test_what_is_left_open_is_not_guessed(
    name: str, grid: tuple[int, int, int], options: Given, reason: str
) -> None:
    assert reason in unknown(name, grid, options)


@given(
    name=st.text(max_size=60),
    pick=st.sampled_from([FLASH, OLDER, CASTS, SPLIT, CUTLASS, CUDNN]),
    cut=st.integers(0, 250),
)
def test_no_name_breaks_it(name: str, pick: str, cut: int) -> None:
    """Any text, and every cut of the names that are known: a call or a reason, never another error."""
    for cut_name in (name, pick[:cut], pick[cut:]):
        recognised = None
        try:
            recognised = recognise(cut_name, (8, 1, 8), ALL)
        except Unknown as reason:
            recognised = str(reason)
        assert recognised


def test_every_pattern_is_reached() -> None:
    known = [launch.kernel for launch in parse_raw(TEXT)[0]]
    known += ["flash_fwd", "flash_fwd_sm90", CUTLASS_BACKWARD % "bf16_aligned_64x64_k64"]
    known += [
        "flash_combine",
        "naive_scores",
        "naive_softmax",
        "naive_values",
        "minimal_fwd",
        "triton_tem_fused_flex_attention_0",
        "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<...>>>(T1::Params)",
    ]
    import re

    for pattern, _ in KERNELS:
        assert any(re.search(pattern, name) for name in known), pattern


# The recorded profile


@pytest.fixture(scope="module")
def profile_rows() -> ProfileRows:
    return read_profile(USER, ALL)


@pytest.fixture(scope="module")
def compared(profile_rows: ProfileRows) -> Comparison:
    return compare(profile_rows.rows, load_profile("h200"))


def test_calls_of_the_recorded_profile(profile_rows: ProfileRows) -> None:
    """8 heads: flash at 4096 and, split, at 1000; memory-efficient likewise; what has 16 heads says so."""
    calls = [
        (r.implementation, r.call, r.launch, r.facts["seq_q"], r.facts["stage"])
        for r in profile_rows.rows
    ]
    assert calls == [
        ("pytorch_flash", 1, 1, "4096", "main"),
        ("pytorch_flash", 2, 1, "1000", "main"),
        ("pytorch_flash", 2, 2, "1000", "combine"),
        ("pytorch_mem_efficient", 3, 1, "4096", "main"),
        ("pytorch_mem_efficient", 4, 1, "1000", "main"),
    ]
    assert len(profile_rows.rows) + len(profile_rows.unmatched) == 18
    reasons = [s.reason for s in profile_rows.unmatched]
    assert reasons.count("--heads 8 is not the 16 of its grid") == 4
    assert reasons.count("needs --batch") == 3  # cudnn, whose grid is the GPU's SMs
    assert "no catalog kernel has this name" in reasons  # cudnn's decoding kernel
    assert profile_rows.notes == ()


def test_decoding_and_backward_of_the_recorded_profile() -> None:
    decode = read_profile(
        USER, Given(batch=1, heads=8, seqs=(1,), seq_k=8192, head_dims=(128,), causal=False)
    )
    assert {(r.implementation, r.facts["seq_k"]) for r in decode.rows} == {
        ("pytorch_flash", "8192"),
        ("pytorch_mem_efficient", "8192"),
    }
    backward = read_profile(USER, Given(heads=16, seqs=(2048,), causal=True))
    stages = [(r.implementation, r.facts["stage"]) for r in backward.rows]
    assert stages == [
        ("pytorch_flash", "main"),
        ("pytorch_flash_backward", "bwd.dot"),
        ("pytorch_flash_backward", "bwd.main"),
        ("pytorch_flash_backward", "bwd.convert"),
    ]
    comparison = compare(backward.rows, load_profile("h200"))
    assert not comparison.skipped
    assert {r.launch for r in comparison.residuals} == {
        "main",
        "bwd.dot",
        "bwd.main",
        "bwd.convert",
    }


def test_bytes_of_the_recorded_profile(compared: Comparison) -> None:
    assert not compared.skipped
    reads = [r for r in compared.residuals if r.quantity == "l2_read"]
    assert len(reads) == 5
    for r in reads:
        assert abs(r.difference) <= max(2000, 1e-3 * r.measured), (r.row.call, r.launch)
    for r in compared.residuals:
        if r.quantity == "hbm_read":
            assert abs(r.difference) <= max(100_000, 0.03 * r.measured), (r.row.call, r.launch)


def test_measured_bytes_are_no_inputs(profile_rows: ProfileRows, compared: Comparison) -> None:
    rows = [
        [("7" if "." in c and number > 1 else c) for c in row] if number > 1 else row
        for number, row in enumerate(csv.reader(io.StringIO(TEXT)))
    ]
    header = rows[0]
    counters = [
        i
        for i, name in enumerate(header)
        if "__bytes" in name or "time" in name or "_bytes." in name
    ]
    for row in rows[2:]:
        for i in counters:
            row[i] = "7"
    assert counters
    original = list(csv.reader(io.StringIO(TEXT)))
    for row, true in zip(rows[2:], original[2:], strict=True):
        for i, value in enumerate(true):
            if i not in counters:
                row[i] = value
    other = matched(parse_raw(written(rows))[0], ALL, "scrambled")
    again = compare(other.rows, load_profile("h200"))
    assert [(r.predicted, r.regime) for r in again.residuals] == [
        (r.predicted, r.regime) for r in compared.residuals
    ]
    assert {r.measured for r in again.residuals} != {r.measured for r in compared.residuals}


def written(rows: list[list[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows(rows)
    return out.getvalue()


def table() -> list[list[str]]:
    return list(csv.reader(io.StringIO(TEXT)))


def test_order_and_scale_of_columns_change_nothing(profile_rows: ProfileRows) -> None:
    rows = table()
    at = rows[0].index("dram__bytes_read.sum")
    assert rows[1][at] == "Mbyte"
    rows[1][at] = "Kbyte"
    for row in rows[2:]:
        row[at] = f"{float(row[at].replace(',', '')) * 1000:,.3f}"
    order = list(range(1, len(rows[0])))
    random.Random(5).shuffle(order)
    shuffled = [[row[0], *(row[i] for i in order)] for row in rows]
    again = matched(parse_raw(written(shuffled))[0], ALL, profile_rows.rows[0].source)
    assert again.rows == profile_rows.rows


def test_a_counter_that_is_missing_is_not_compared(tmp_path: Path) -> None:
    rows = table()
    at = rows[0].index("dram__bytes_write.sum")
    path = tmp_path / "some.csv"
    path.write_text(written([row[:at] + row[at + 1 :] for row in rows]))
    some = read_profile(path, ALL)
    assert {frozenset(r.measured) for r in some.rows} == {
        frozenset(("hbm_read", "l2_read", "l2_write", "time"))
    }
    rows[2][rows[0].index("dram__bytes_read.sum")] = "n/a"
    path.write_text(written(rows))
    assert len(read_profile(path, ALL).rows) == 5


def test_launches_of_one_call_must_follow_each_other() -> None:
    launches = parse_raw(TEXT)[0]
    main_launch, combine = launches[2], launches[3]
    fill = Profiled(
        "void at::native::vectorized_elementwise_kernel<4>(int)",
        (8, 1, 1),
        (128, 1, 1),
        main_launch.metrics,
    )
    other = Profiled("gemm", (8, 1, 1), (128, 1, 1), main_launch.metrics)
    assert len(matched([main_launch, combine], ALL, "a").rows) == 2
    assert len(matched([main_launch, fill, combine], ALL, "a").rows) == 2  # fills may stand between
    for broken in ([main_launch, other, combine], [combine, main_launch], [combine]):
        reasons = [s.reason for s in matched(broken, ALL, "a").unmatched]
        assert "is not preceded by the launches of its call (main)" in reasons


# Files


def refused(capsys: pytest.CaptureFixture[str], path: Path, *more: str) -> str:
    assert main(["validate", "--ncu", str(path), *more]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_files_that_are_no_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*args: object) -> Any:
        raise InputError("no profiler: ncu is nowhere")

    monkeypatch.setattr("iosim.evidence.validate.profile_rows.import_report", wrong)
    monkeypatch.setattr("iosim.integrations.ncu.report.launches", lambda path: None)
    path = tmp_path / "bad.csv"
    for content, message in (
        (b"", "no table of launches"),
        (b"\x7fELF\x00\x01\xff\xfe", "is not UTF-8 text"),
        (b"a,b\n1,2\n", "no table of launches"),
        (TEXT[: TEXT.index("\n") + 1].encode(), "no row of units"),
        ("\n".join(TEXT.splitlines()[:2]).encode(), "holds no whole launch"),
        (TEXT[: TEXT.index("pytorch_flash") + 40].encode(), "no CSV|holds no whole launch"),
        (TEXT.replace('"Mbyte"', '"Mbit"').encode(), "unit 'Mbit' is not known"),
        (
            TEXT.replace("dram__", "x__")
            .replace("l1tex__", "y__")
            .replace("gpu__", "z__")
            .encode(),
            "none of the count",
        ),
    ):
        path.write_bytes(content)
        err = refused(capsys, path)
        assert any(word in err for word in message.split("|")), err
    assert "cannot be read" in refused(capsys, tmp_path / "absent.csv")
    assert "does not exist" in refused(capsys, tmp_path / "absent.ncu-rep")
    report = tmp_path / "there.ncu-rep"
    report.write_bytes(b"NVR")
    assert "no profiler" in refused(capsys, report)
    assert "ncu --import there.ncu-rep --csv --page raw" in refused(capsys, report)
    assert "--measurements contradicts --ncu" in refused(capsys, USER, "--measurements", "x.csv")
    assert "--seq-len" in refused(capsys, USER, "--seq-len", "many")


def test_a_report_is_imported_by_the_profiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "user.ncu-rep"
    path.write_bytes(b"NVR")
    monkeypatch.setattr(
        "iosim.evidence.validate.profile_rows.import_report",
        lambda asked_path: TEXT if asked_path == path else "",
    )
    assert len(read_profile(path, ALL).rows) == 5


def test_a_file_that_breaks_off_keeps_whole_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cut.csv"
    path.write_text(TEXT[: TEXT.rindex("void pytorch_flash")].rstrip('"').rstrip(","))
    argv = [
        "validate",
        "--ncu",
        str(path),
        "--seq-len",
        "4096",
        "--heads",
        "8",
        "--head-dim",
        "64",
        "--causal",
    ]
    assert main([*argv, "--format", "json"]) == 0
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert "is left out" in captured.err
    assert captured.err.startswith("iosim: --ncu: row 18")
    assert {r["implementation"] for r in data["rows"]} == {"pytorch_flash", "pytorch_mem_efficient"}
    assert all(s["reason"] for s in data["skipped"])


def test_the_counters_to_ask_for_are_named() -> None:
    assert metrics().split(",") == [
        "dram__bytes_read.sum",
        "dram__bytes_write.sum",
        "l1tex__m_xbar2l1tex_read_bytes.sum",
        "l1tex__m_l1tex2xbar_write_bytes.sum",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
        "gpu__time_duration.sum",
    ]
