"""Predictions of kernels from their code: bytes that follow by hand, the command, a kernel file of an attention."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import iosim
from iosim.base.errors import InputError
from iosim.base.records import replace
from iosim.catalog.libraries.loader import check_file
from iosim.code.arguments import TensorArgument, read_argument
from iosim.commands.cli import main
from iosim.kernel.launch import SPILL, Mode, Overhead
from iosim.readers.replay.library import why_missing
from iosim.studies.code import whole_texts
from iosim.studies.kernel_from_code import _stages, kernel_file
from iosim.studies.requests import CodeRequest

PTX = Path(__file__).parents[1] / "code" / "ptx"
ACCESSES, FORWARD = PTX / "accesses.ptx", PTX / "flash_forward.ptx"
ROWS, COLUMNS = 4096, 64
COLUMN_STORE = {
    "in": f"TENSOR({COLUMNS}x{ROWS},fp32)",
    "out": f"TENSOR({ROWS}x{COLUMNS},fp32)",
    "rows": ROWS,
    "cols": COLUMNS,
}
HEADS, TOKENS = 8, 1024
MATRICES = [f"{name}=TENSOR(1x{HEADS}x{TOKENS}x64,bf16)" for name in ("Q", "K", "V", "Out")]
ATTENTION = [
    "scale=0.1",
    f"M=TENSOR({HEADS}x{TOKENS},fp32)",
    "Z=1",
    f"H={HEADS}",
    *MATRICES,
    f"N={TOKENS}",
]
replays = pytest.mark.skipif(why_missing() is not None, reason="no engine to replay with")


def test_a_column_store_writes_eight_times_its_bytes_and_says_so() -> None:
    p = iosim.predict_code(
        ACCESSES, (32,), COLUMN_STORE, "h100", entry="column_store", block=(128,)
    )
    assert p.l2.write == 8 * ROWS * COLUMNS * 4
    assert p.l2.read == ROWS * COLUMNS * 4
    assert "stores of out (accesses.cu:" in p.answer
    assert "use 12% of the sectors that they touch" in p.answer
    # 64 x 4096 numbers of fp32, all 32 lanes of a warp at work
    assert {site.width for site in p.sites} == {4}
    assert all(site.bytes == site.requests * 32 * site.width for site in p.sites)
    assert sum(site.requests for site in p.sites if site.mode == "store") == ROWS * COLUMNS // 32


def test_a_transpose_names_its_bank_conflict() -> None:
    arguments = {"in": "TENSOR(256x256,fp32)", "out": "TENSOR(256x256,fp32)", "n": 256}
    p = iosim.predict_code(ACCESSES, (8, 8), arguments, "a100", entry="transpose", block=(32, 8))
    assert "takes 32.0 times its wavefronts: bank conflicts" in p.answer


@replays
def test_what_every_cta_reads_comes_once_from_hbm() -> None:
    tensors = {
        "in": "TENSOR(600x4096,fp32)",
        "out": "TENSOR(600x4096,fp32)",
        "w": "TENSOR(4096,fp32)",
        "cols": 4096,
    }
    p = iosim.predict_code(ACCESSES, (600,), tensors, "h100", entry="row_norm", block=(256,))
    hbm = p.traffic.tensors("hbm")
    assert hbm["in", "read"] == pytest.approx(600 * 4096 * 4, rel=0.05)
    assert hbm["w", "read"] == pytest.approx(4096 * 4, rel=0.5)
    assert p.traffic.total("l2", "read", tensor="in") >= 600 * 4096 * 4
    # Each of 600 CTAs of 8 warps has a row: half of the CTAs execute half of the instructions.
    half = {**tensors, "in": "TENSOR(300x4096,fp32)", "out": "TENSOR(300x4096,fp32)"}
    fewer = iosim.predict_code(ACCESSES, (300,), half, "h100", entry="row_norm", block=(256,))
    if p.work is not None and fewer.work is not None:
        assert (p.work.warps, fewer.work.warps) == (4800, 2400)
        assert p.work.counters["instructions"] == 2 * fewer.work.counters["instructions"]
        assert p.work.counters["xu_instructions"] == 2 * fewer.work.counters["xu_instructions"]


@replays
def test_a_forward_from_its_code_moves_what_its_description_moves() -> None:
    """The same tiles, by two ways: addresses evaluated, and a description in tiles."""
    p = iosim.predict_code(
        FORWARD, (TOKENS // 64, HEADS), dict(map(read_argument, ATTENTION)), "h100"
    )
    described = iosim.predict(
        kernel="flash",
        gpu="h100",
        heads=HEADS,
        seq_len=TOKENS,
        head_dim=64,
        dtype="bf16",
        causal=True,
        tile="64x64",
    )
    for tensor, ours in (("Q", "Q"), ("K", "K"), ("V", "V")):
        assert p.traffic.total("l2", "read", tensor=ours) == described.traffic.total(
            "l2", "read", tensor=tensor
        )
    assert p.hbm.read == pytest.approx(described.hbm.read, rel=0.05)


@replays
@pytest.mark.parametrize(("frame", "uncertain"), [(60_000, False), (120_000, True)])
def test_frames_that_fill_the_l2_make_hbm_bytes_uncertain(frame: int, uncertain: bool) -> None:
    arguments = dict(map(read_argument, ATTENTION))
    p = iosim.predict_code(FORWARD, (TOKENS // 64, HEADS), arguments, "h100")
    assert not p.hbm_is_uncertain
    spilled = Overhead(SPILL, Mode.STORE, per_tile=4 * frame, frame=frame)
    launch = replace(p.launch.launch, overheads=(spilled,))
    chain = replace(p.launch.chain, launches=(launch,))
    spilling = replace(p, launch=replace(p.launch, chain=chain))
    # 16 query tiles x 8 heads, all at once; an H100's L2 keeps 25 MB and more of written lines, of which half is 13
    assert spilling.resident_frame_bytes == 16 * 8 * frame
    assert ("HBM bytes are uncertain" in spilling.answer) is uncertain
    # Where tiles are read again, frames of any size make them so: no more than all that SMs load.
    again = replace(spilling, traffic=p.traffic + p.traffic)
    tensors = sum(p.traffic.total("l2", "read", tensor=name) for name in p.call.chain.tensors)
    assert again.hbm_is_uncertain
    assert again.most_hbm_read == 2 * tensors
    assert not replace(p, traffic=p.traffic + p.traffic).hbm_is_uncertain


def test_the_command_takes_arguments_with_commas(capsys: pytest.CaptureFixture[str]) -> None:
    typed = ",".join(f"{name}={value}" for name, value in COLUMN_STORE.items())
    words = [
        "predict",
        "--code",
        str(ACCESSES),
        "--entry",
        "column_store",
        "--grid",
        "32",
        "--block",
        "128",
        "--gpu",
        "h100,a100",
        "--arg",
        typed,
        "--format",
        "json",
    ]
    assert main(words) == 0
    predictions = json.loads(capsys.readouterr().out)["predictions"]
    assert [p["profile"] for p in predictions] == ["h100-sxm", "a100-sxm-80gb"]
    assert predictions[0]["counters"]["global_store_sectors"] == ROWS * COLUMNS
    assert whole_texts(typed.split(",")) == [
        f"{name}={value}" for name, value in COLUMN_STORE.items()
    ]


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        ({"grid": "0"}, "accepted: one to three whole numbers"),
        ({"entry": "nothing"}, "such kernels; accepted: column_store"),
        ({"arg": {"in": 1}}, "takes 4"),
        ({"arg": ["in=TENSOR(4y,fp32)"]}, "accepted: TENSOR"),
        ({"arg": ["in=TENSOR(4,half8)"]}, "dtype 'half8' is not known"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(more: dict[str, object], refused: str) -> None:
    arguments = {
        "code": ACCESSES,
        "grid": (32,),
        "arg": COLUMN_STORE,
        "gpu": "h100",
        "entry": "column_store",
        **more,
    }
    with pytest.raises(InputError, match=refused) as error:
        iosim.predict_code(**arguments)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_arguments_as_they_are_typed() -> None:
    assert read_argument("q=TENSOR(2x3,bf16)") == ("q", TensorArgument("q", (2, 3), "bf16"))
    assert read_argument("starts=VALUES(int32,0,100:400:100)")[1] == TensorArgument(
        "starts", (4,), "int32", (0, 100, 200, 300)
    )
    assert read_argument("n=0x10") == ("n", 16)
    assert read_argument("s=0.5") == ("s", 0.5)


def test_a_kernel_file_is_made_of_an_attentions_code(tmp_path: Path) -> None:
    grid = (TOKENS // 64, HEADS)
    text = kernel_file(CodeRequest(code=FORWARD, grid=grid, arg=ATTENTION, gpu="h100"), "mine")
    file = tmp_path / "mine.toml"
    file.write_text(text, encoding="utf-8")
    assert list(check_file(file)) == []
    for name in (
        'order = "query"',
        "block_q = 64",
        "block_k = 64",
        "writes_lse = true",
        'edge_k = "exact"',
        "warps = 4",
    ):
        assert f"\n{name}" in text
    read = iosim.predict(
        kernel=str(file),
        gpu="h100",
        heads=HEADS,
        seq_len=TOKENS,
        head_dim=64,
        dtype="bf16",
        causal=True,
    )
    assert read.kernel.tile.block_q == 64
    with pytest.raises(InputError, match="names no tensor Q of attention"):
        kernel_file(
            CodeRequest(
                code=ACCESSES,
                entry="column_store",
                grid=(32,),
                block=(128,),
                arg=COLUMN_STORE,
                gpu="h100",
            )
        )


PROBLEM = [
    "--heads",
    str(HEADS),
    "--seq-len",
    str(TOKENS),
    "--head-dim",
    "64",
    "--dtype",
    "bf16",
    "--causal",
]
OF_CODE = ["--code", str(FORWARD), "--grid", f"{TOKENS // 64},{HEADS}", "--gpu", "h100"]
OF_CODE += ["--arg", ",".join(ATTENTION)]


@pytest.mark.parametrize("command", ["predict", "compare", "tiles"])
def test_a_kernels_code_and_a_problem_are_taken_wherever_a_kernel_is(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, *OF_CODE, *PROBLEM, "--format", "json", "--quiet"]) == 0
    answer = capsys.readouterr().out
    assert '"flash-forward"' in answer
    if command == "predict":
        (prediction,) = json.loads(answer)["predictions"]
        assert (prediction["kernel"]["block_q"], prediction["kernel"]["block_k"]) == (64, 64)
        # a query block of 64 rows visits its own and all earlier key blocks: n (n + 1) / 2 of 16 blocks
        blocks = TOKENS // 64
        loaded = HEADS * (TOKENS + 2 * blocks * (blocks + 1) // 2 * 64) * 64 * 2
        assert prediction["totals"]["l2"]["read"] == loaded


def test_tiles_of_a_code_and_of_a_named_kernel_contradict_each_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["tiles", *OF_CODE, *PROBLEM, "--kernel", "fa2"]) == 2
    assert "--kernel fa2 contradicts --code" in capsys.readouterr().err


def test_code_that_is_no_attention_is_refused_with_a_problem(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ",".join(f"{name}={value}" for name, value in COLUMN_STORE.items())
    code = [
        "--code",
        str(ACCESSES),
        "--entry",
        "column_store",
        "--grid",
        "32",
        "--block",
        "128",
        "--arg",
        arguments,
    ]
    assert main(["predict", *code, "--gpu", "h100", *PROBLEM]) == 2
    assert "names no tensor Q of attention; given: in, out" in capsys.readouterr().err


@pytest.mark.slow
def test_a_kernel_of_code_has_its_splits_and_the_time_of_its_instructions() -> None:
    tensors = dict.fromkeys(("Q", "K", "V", "Out"), f"TENSOR(1x{HEADS}x{TOKENS}x64,bf16)")
    arguments = {
        "scale": 0.1,
        "M": f"TENSOR({HEADS}x{TOKENS},fp32)",
        "Z": 1,
        "H": HEADS,
        **tensors,
        "N": TOKENS,
    }
    name = iosim.kernel_of_code(FORWARD, (TOKENS // 64, HEADS), arguments, "h100")
    request_options = {
        "gpu": "h100",
        "heads": HEADS,
        "seq_len": TOKENS,
        "head_dim": 64,
        "dtype": "bf16",
    }
    assert iosim.predict(kernel=name, **request_options).kernel.tile.block_q == 64
    assert iosim.explain(kernel=name, **request_options).prediction.kernel.name == name
    assert name in iosim.compare(kernel=["naive", name], **request_options).to_text()


@pytest.mark.parametrize(
    ("is_asynchronous", "step_bytes", "stages"),
    [
        (True, 100, 10),
        (True, 600, 1),
        (True, 2000, 1),
        (True, 10, 16),
        (True, 0, 16),
        (False, 10, 1),
    ],
)
def test_stages_are_what_fits_in_shared_memory(
    is_asynchronous: bool, step_bytes: int, stages: int
) -> None:
    """Of 1,000 bytes, at least one buffer and at most 16; one where nothing is copied ahead."""
    evaluated = SimpleNamespace(sites=[SimpleNamespace(asynchronous=is_asynchronous)])
    assert _stages(evaluated, step_bytes, 1000) == stages  # type: ignore[arg-type]
