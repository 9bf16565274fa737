"""What was typed is what is computed: no option is guessed from its beginning, a word that says nothing is told what
would say it, and a headline is of something that exists."""

from __future__ import annotations

import json

import pytest
from refusals import refused

import iosim
from iosim import load_profile
from iosim.commands.cli import COMMANDS, build_parser, main
from iosim.commands.completion import subparsers
from iosim.commands.hints import ELSEWHERE
from iosim.commands.options import CommandParser
from iosim.studies.decode.face import HOLLOW, notes

REFUSED = (
    ("predict --seq-len 4,096", "--seq-len '4,096': write 4096"),
    ("decode --context 8,192", "--context '8,192': write 8192"),
    ("check-claim --hbm 4,3GB", "--hbm '4,3GB': write 4.3GB"),
    ("decode --batch 1,024", "--batch '1,024': write 1024"),
    ("train-memory --vocabulary 128,256", "write 128256"),
    ("predict --seq-lens 4,096", "write 4096"),
    ("predict --top 3", "did you mean --top-k? accepted by: iosim tiles, orders"),
    ("predict --causal true", "--causal takes no value"),
    ("predict --causal=true", "--causal takes no value, and has 'true'; accepted: --causal alone"),
    ("train-memory --causal false", "--no-causal"),
    ("predict --backward", "did you mean --pass bwd?"),
    ("predict --bs 4", "did you mean --batch 4?"),
    ("predict --tp 8", "did you mean --tensor-parallel 8?"),
    ("predict --fp8", "did you mean --dtype fp8?"),
    ("decode --sequence-length 4k", "did you mean --context 4k?"),
    ("predict --nkv 8", "did you mean --kv-heads 8?"),
    ("predict --d 64", "did you mean --head-dim 64?"),
    ("latency --context 4k", "did you mean --seq-len 1 --seq-len-k 4k?"),
    ("decode --seq-len 4k", "did you mean --context 4k?"),
    (
        "compare --kv-heads 1,8",
        "'iosim compare' takes one, so accepted: one of them; iosim predict,",
    ),
    # Of a second value the first would be lost: a file that was asked for and is not written.
    ("predict --format json --format csv", "--format json,csv are 2 values"),
    ("predict --out x.txt --out y.txt", "--out x.txt,y.txt are 2 values"),
    ("predict --heavy-first --no-heavy-first", "--heavy-first contradicts --no-heavy-first"),
    (f"predict --heads {'9' * 400}", f"--heads '{'9' * 57}...' is not a size"),
    ("predict --gpu mi360x", "did you mean mi300x"),
    ("predict --gpu mi399", "GPU 'mi399' is not known; accepted: a10"),
    ("predict --output", "--out lacks its value"),
    ("ncu-rule --install x --launch y", "--launch contradicts --install; accepted: one of them"),
    ("kernels new", "--from is missing"),
    ("predict --gpu gfx942", "GPU 'gfx942' is not known; accepted: a10"),
    # Tensor cores of cc 8.0 know no fp8: no command times it at a rate that there is not.
    ("explain --gpu a100 --dtype fp8 --seq-len 1k", "kernel flash needs cc 8.9 or later for it"),
    ("decode --gpu a100 --dtype fp8 --context 1k", "accepted there: fp32, tf32, fp16, bf16"),
    ("tiles --gpu a100 --dtype fp8 --seq-len 1k", "accepted there: fp32, tf32, fp16, bf16"),
    # Of what nobody typed the model is to blame, or the command.
    (
        "predict --model bloom-7b1 --gpu h100 --kernel flashinfer --seq-len 1k",
        "iosim: bias alibi of bloom-7b1: kernel flashinfer does",
    ),
    (
        "decode --model deepseek-v3 --gpu h100 --kernel flex --context 1k",
        "iosim: latent-kv of deepseek-v3: kernel flex",
    ),
    (
        "train-memory --gpu a10 --kernel math --seq-len 1k",
        "iosim: pass 'bwd' is not described for kernel 'math'",
    ),
    (
        "predict --gpu h100 --kernel flex --latent-kv --heads 8 --kv-heads 1 --head-dim 576 --head-dim-v 512 --seq-len 1k",
        "iosim: --latent-kv: kernel flex",
    ),
)


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_what_would_be_another_question_is_refused_with_what_says_it(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, line.split())


NEEDED = {
    "formula": ("fa2",),
    "model": ("gpt2",),
    "completion": ("bash",),
    "ncu-rule": ("--install", "x"),
}
"""Words without which a command is refused before its options are looked at."""


@pytest.mark.slow
def test_no_command_takes_the_beginning_of_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    for command, parser in subparsers(build_parser()).items():
        spellings = (
            parser.spellings()
            if isinstance(parser, CommandParser) and not subparsers(parser)
            else []
        )
        for option in (
            spelling
            for spelling in spellings
            if len(spelling) > 5 and spelling[:-1] not in spellings
        ):
            if option[:-1] not in ELSEWHERE:
                refused(capsys, [command, *NEEDED.get(command, ()), option[:-1]], option[:-1])


def test_other_spellings_are_taken_as_the_option(
    tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--format", "json", "--method", "bounds", "--kernel", "fa2"]
    assert (
        main(["predict", "--gpus", "a100,h100", "--output", f"{tmp_path}/x.json", *arguments]) == 0
    )
    with open(f"{tmp_path}/x.json") as file:
        assert [p["profile"] for p in json.load(file)["predictions"]] == [
            "a100-sxm-80gb",
            "h100-sxm",
        ]
    capsys.readouterr()
    assert (
        main(["ring", "--gpus", "2", "--seq-len", "1k", "--format", "json", "--schedule", "ring"])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["gpus"] == 2


@pytest.mark.parametrize("command", ["", "predict", "profiles"])
def test_help_is_a_command_too(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for words in ([*command.split(), "--help"], ["help", *command.split()]):
        with pytest.raises(SystemExit):
            main(words)
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert texts[0]


def test_what_is_meant_is_an_option_of_some_command() -> None:
    spelt = {
        s
        for p in subparsers(build_parser()).values()
        if isinstance(p, CommandParser)
        for s in p.spellings()
    }
    for meant in ELSEWHERE.values():
        assert {text.split()[0] for text in meant} <= spelt
    assert len(COMMANDS) > 20


SLOW_TYPES = ("predict --kernel flash", "tiles", "explain", "train-memory --attention naive")


@pytest.mark.parametrize("line", SLOW_TYPES)
def test_a_type_that_tensor_cores_lack_runs_on_the_fp32_units_in_every_command(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = ["--precision", "bf16"] if "train" in line else ["--dtype", "bf16"]
    assert main([*line.split(), "--gpu", "t4", "--seq-len", "256", *kind]) == 0
    capsys.readouterr()
    assert load_profile("t4").product_flops("bf16") == load_profile("t4").product_flops("fp32")


def test_training_takes_fp16_where_tensor_cores_lack_bf16(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for gpu, precision in (("t4", "amp-fp16"), ("a100", "amp-bf16")):
        assert (
            main(
                [
                    "train-memory",
                    "--gpu",
                    gpu,
                    "--seq-len",
                    "256",
                    "--layers",
                    "2",
                    "--format",
                    "json",
                ]
            )
            == 0
        )
        assert json.loads(capsys.readouterr().out)["training"][0]["setup"]["precision"] == precision
    refused(
        capsys,
        ["train-memory", "--gpu", "t4", "--precision", "bf16"],
        "--precision bf16",
        "amp-fp16",
    )


def test_a_headline_is_of_a_context_that_fits_and_that_the_model_has() -> None:
    eight = iosim.decode(gpu="a100", batch=8, context="4k:128k:x2")
    assert [p.fits for p in eight.points][-1] is False
    assert eight.answer.startswith("At 65,536 tokens of context")
    assert "not fit" not in eight.answer
    small = iosim.decode(model="gpt2", gpu="a100")
    assert max(p.context for p in small.points) == 1024
    beyond = iosim.decode(model="gpt2", gpu="a100", context="512,4k")
    assert beyond.answer.startswith("At 512 tokens of context")
    assert any("positions for 1,024 tokens" in note for note in notes(beyond.points))
    assert "past its" not in beyond.answer
    past = iosim.decode(model="gpt2", gpu="a100", context="4k")
    assert "% of HBM's bound, past its 1,024 positions. " in past.answer
    assert iosim.predict(model="gpt2").layers[0].prediction.problem.seq_q == 1024
    drawn = eight.as_page().sections[0]
    marks = [
        mark for line in drawn.panels[0].data for mark in line.get("marker", {}).get("symbol", ())
    ]
    assert marks.count("circle-open") == 1  # 128k do not fit
    assert HOLLOW in drawn.text


def test_a_model_with_another_number_of_heads_is_said_to_have_it() -> None:
    call = {"model": "llama-3-8b", "gpu": "a100", "context": 1024}
    assert " Llama 3 8B: fa2 on" in iosim.decode(**call).answer
    assert " Llama 3 8B with heads 16: fa2 on" in iosim.decode(**call, heads=16).answer


def test_a_whole_model_names_the_units_that_compute_its_type() -> None:
    for gpu, units in (("t4", " on fp32 units on t4"), ("l4", " on l4")):
        answer = iosim.model("gpt2", gpu=gpu, seq_len=64).answer
        assert f"GPT-2 (124M) in bf16{units} takes" in answer


def test_python_takes_what_pytorch_gives() -> None:
    torch = pytest.importorskip("torch")
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    mask = flex.create_block_mask(lambda b, h, q, k: q >= k, None, None, 1024, 1024, device="cpu")
    call = {"gpu": "a100", "heads": 8, "seq_len": 1024, "head_dim": 64}
    taken = iosim.predict(kernel="flex", mask_blocks=mask, **call)
    assert taken.problem.mask_blocks.nnz == 36  # 8 x 9 / 2 blocks of 128 on and below the diagonal
    with pytest.raises(
        iosim.InputError,
        match="it is for 1024 queries and 1024 keys; accepted: one for 512 and 512",
    ):
        iosim.predict(kernel="flex", mask_blocks=mask, **call | {"seq_len": 512})
    several = flex.create_block_mask(
        lambda b, h, q, k: q >= k + h, None, 2, 1024, 1024, device="cpu"
    )
    with pytest.raises(iosim.InputError, match="one mask for all heads"):
        iosim.predict(kernel="flex", mask_blocks=several, **call)
    assert iosim.predict(kernel="fa2", dtype=torch.bfloat16, **call).problem.dtype == "bf16"
    assert (
        iosim.decode(dtype=torch.float16, context=1024).points[0].prediction.problem.dtype == "fp16"
    )


def test_gpus_of_a_ring_are_counted_in_python_too() -> None:
    call = {"gpu": "a100", "seq_len": 2048, "heads": 8, "schedule": "ring"}
    assert iosim.ring(gpus=2, **call).answer == iosim.ring(num_gpus=2, **call).answer
    assert iosim.predict(gpus="a100", kernel="fa2", seq_len=512).profile.name == "a100-sxm-80gb"


def test_a_clock_is_in_megahertz_everywhere() -> None:
    call = {"gpu": "a100", "kernel": "fa2", "heads": 8, "seq_len": 1024}
    times = {
        iosim.predict(clocks=clocks, **call).time_s for clocks in (900, 900.0, "900", "900MHz")
    }
    assert len(times) == 1
    assert times != {iosim.predict(clocks=1200, **call).time_s}
    with pytest.raises(iosim.InputError, match="MHz such as 1500"):
        iosim.predict(clocks=15, **call)
