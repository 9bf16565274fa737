"""What is not known is refused with what was meant, or with the page of what iosim does not model."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from scripts import ROOT

import iosim
from iosim.base.errors import PAGE, alike, out_of_scope, topics, unknown_name
from iosim.catalog.libraries import choice_names, entry_names
from iosim.hardware.profile import list_profiles
from iosim.problem.dtypes import INPUT_DTYPES

DOCS = ROOT / "docs"


@pytest.mark.skipif(not DOCS.is_dir(), reason="iosim runs from an install without its docs")
def test_every_topic_is_a_heading_of_the_page() -> None:
    heads = re.findall(r"^## (.*)$", (DOCS.parent / PAGE).read_text(encoding="utf-8"), re.M)
    titles = [topic["title"] for topic in topics()]
    assert [h for h in heads if h in titles] == titles


OUT = (
    "--gpu MI250",
    "--gpu gaudi3",
    "--gpu tpu-v5e",
    "--gpu m3-max",
    "--gpu p100",
    "--gpu gtx-1080",
    "--kernel quest",
    "--kernel retnet",
    "--kernel sageattention3",
    "--kernel trtllm",
    "--kernel medusa",
    "--dtype int8",
    "--dtype nvfp4",
    "--cache-dtype nvfp4",
    "--cache-dtype fp4",
    "--sink-tokens 4",
    "--softcap 30",
    "--kv-cache-dtype fp8",
    "--tree-mask 512",
    "--rope",
    "--pipeline-parallel 2",
    "--offload",
)


@pytest.mark.parametrize("line", OUT)
def test_what_is_out_of_scope_names_the_page_and_suggests_nothing(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(capsys, ["predict", *line.split()])
    assert "out of scope: " in message
    assert PAGE in message
    assert "did you mean" not in message


def test_python_names_it_too() -> None:
    for given_value in (
        {"gpu": "mi250"},
        {"kernel": "quest"},
        {"sink_tokens": 4},
        {"dtype": "int4"},
    ):
        with pytest.raises(iosim.InputError, match=PAGE):
            iosim.predict(**given_value)


def test_no_gpu_and_no_type_that_is_known_is_out_of_scope() -> None:
    for gpu in list_profiles():
        assert not out_of_scope("GPU", gpu)
    for dtype in INPUT_DTYPES:
        assert not out_of_scope("dtype", dtype)


def test_a_slip_of_a_known_kernel_is_answered_by_it() -> None:
    """Also where a topic's words fit its name: who adds a kernel leaves scope.toml as it is."""
    names = [*entry_names(), *choice_names()]
    for kernel in names:
        if out_of_scope("kernel", kernel):
            assert f"did you mean {kernel}" in str(unknown_name("kernel", f"{kernel}x", names))


def test_a_kernel_that_was_added_is_nearer_than_its_topic() -> None:
    assert out_of_scope("kernel", "mosaic-gpu")  # as long as nobody has described it
    message = str(unknown_name("kernel", "mosaic-gpus", ["fa2", "mosaic-gpu"]))
    assert (
        message
        == "kernel 'mosaic-gpus' is not known; did you mean mosaic-gpu? accepted: fa2, mosaic-gpu"
    )
    assert "out of scope" in str(
        unknown_name("kernel", "mosaic-tpus-of-2020", ["fa2", "mosaic-gpu"])
    )
    assert "out of scope" in str(unknown_name("kernel", "mosaic-gpus", ["fa2"]))


HINTS = (
    ("predict a100", "did you mean --gpu a100?"),
    ("predict causal", "did you mean --causal?"),
    ("explain fa2", "did you mean --kernel fa2?"),
    ("predict llama-3-8b", "did you mean --model llama-3-8b?"),
    ("predict warm", "did you mean --l2 warm?"),
    ("cache clear foo", "'iosim cache clear --help'"),
    ("predict --html p", "accepted by: iosim compare"),
    ("kernels list --format html", "accepted: table"),
    ("predict --json", "did you mean --format json?"),
    ("predict --casual", "did you mean --causal?"),
    ("predict --seq_len 4", "did you mean --seq-len?"),
    ("predict --num-heads 4", "did you mean --heads 4?"),
    ("predict --batch-size 4", "did you mean --batch 4?"),
    ("predict --zzz", "'iosim predict --help'"),
    ("profiles list --gpu a100", "accepted by: iosim predict"),
    ("predict --gpu h10", "did you mean h100"),
    ("predict --gpu h100-nvl", "did you mean h100"),
    ("predict --kernel flash-attention", "did you mean flash"),
    ("predict --dtype float61", "accepted: fp32"),
)


@pytest.mark.parametrize(("line", "hint"), HINTS)
def test_a_word_that_is_not_known_has_its_hint(
    line: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hint in refused(capsys, line.split())


KNOWN = [*list_profiles(), *entry_names()]


@given(word=st.sampled_from(KNOWN), at=st.integers(0, 30), letter=st.sampled_from("abx179"))
def test_one_slip_is_suggested_and_a_word_of_its_own_is_not(
    word: str, at: int, letter: str
) -> None:
    at %= len(word)
    for slip in (word[:at] + letter + word[at:], word[:at] + word[at + 1 :]):
        close = alike(slip, KNOWN, count=len(KNOWN))
        assert (
            word in close
            or slip in KNOWN
            or any(re.sub(r"\W", "", slip) == re.sub(r"\W", "", c) for c in close)
        )
    assert alike("qqqqqqqq", KNOWN) == []
    assert alike("", KNOWN) == []


@pytest.mark.parametrize(
    ("typed", "likes"),
    [
        ("tri", ["triton-streaming"]),  # three letters are a beginning
        ("tr", []),  # two are none
        ("trx", []),
        ("Triton_Streaming", ["triton-streaming"]),  # case and punctuation are no slip
        ("streaming", ["triton-streaming"]),  # a whole word of it
    ],
)
def test_a_beginning_has_three_letters(typed: str, likes: list[str]) -> None:
    assert alike(typed, ["triton-streaming", "cudnn"]) == likes
