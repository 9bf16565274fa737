"""The kernel that is taken where none is named: one rule for all commands and for Python, told in the first line."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from effort import quick_first
from hypothesis import given, settings
from hypothesis import strategies as st

import iosim
from iosim.base.errors import InputError
from iosim.catalog.libraries import default_kernel
from iosim.catalog.libraries.default import ORDER, SUITS, order_of
from iosim.commands.cli import main
from iosim.hardware.profile import list_profiles, load_profile
from iosim.prediction.predictor import planned
from iosim.problem.attention import AttentionProblem

pytestmark = pytest.mark.usefixtures("replays_once")

OWN = {
    "h100": "fa3",
    "a100": "fa2",
    "t4": "cutlass",
    "b200": "fa4",
    "l4": "fa2",
    "rtx-5090": "fa2",
    "v100": "cutlass",
}


@pytest.mark.parametrize(("gpu", "kernel"), OWN.items())
def test_it_is_the_gpus_generation(gpu: str, kernel: str) -> None:
    assert (
        default_kernel(AttentionProblem(heads=8, seq_q=1024, head_dim=128), load_profile(gpu))
        == kernel
    )


@pytest.mark.parametrize(
    ("gpu", "values", "kernel"),
    [
        ("b200", {"seq_q": 1, "seq_k": 4096}, "fa2"),
        ("b200", {"passes": "bwd"}, "fa4"),
        ("h100", {"dtype": "fp8"}, "fa3"),
        ("h100", {"dropout": 0.1}, "fa2"),
        ("h100", {"bias": "full"}, "cutlass"),
        ("a100", {"dtype": "fp32"}, "cutlass"),
        ("a100", {"page_size": 16}, "flash"),
        ("a100", {"head_dim": 192, "head_dim_v": 128}, "cutlass"),
        (
            "h100",
            {"head_dim": 576, "head_dim_v": 512, "kv_heads": 1, "seq_q": 1, "latent_kv": True},
            "flashmla",
        ),
        (
            "a100",
            {"head_dim": 576, "head_dim_v": 512, "kv_heads": 1, "seq_q": 1, "latent_kv": True},
            "mla",
        ),
        ("h100", {"mask": "butterfly"}, "flash"),
        ("b200", {"head_dim": 256}, "fa4-256"),
        ("b200", {"head_dim": 256, "seq_q": 1}, "fa2"),
        ("b200", {"head_dim": 256, "passes": "fwd+bwd"}, "fa2"),
    ],
)
def test_it_takes_the_problem(gpu: str, values: dict[str, Any], kernel: str) -> None:
    problem = AttentionProblem(
        **{"heads": 8, "seq_q": 4096, "seq_k": 4096, "head_dim": 128, "dtype": "bf16"} | values
    )
    assert default_kernel(problem, load_profile(gpu)) == kernel
    p = iosim.predict(problem, gpu=gpu, method="bounds")
    assert p.kernel.name == kernel


def runs(problem: AttentionProblem, kernel: str, gpu: str) -> bool:
    try:
        planned(problem, kernel, gpu)
    except InputError:
        return False
    return True


@settings(deadline=None)
@given(
    gpu=st.sampled_from(list_profiles()),
    dtype=st.sampled_from(["fp16", "bf16", "fp32", "tf32", "fp8"]),
    head_dim=st.sampled_from([32, 64, 72, 128, 192, 256, 512]),
    passes=st.sampled_from(["fwd", "bwd", "fwd+bwd"]),
    mask=st.sampled_from(["none", "causal", "window", "strided"]),
    seq_q=st.sampled_from([1, 64, 1000]),
    dropout=st.sampled_from([0.0, 0.1]),
    page_size=st.sampled_from([None, 16, 64, 256]),
    kv_heads=st.sampled_from([1, 4]),
)
def test_it_is_the_first_of_the_order_that_runs(gpu: str, seq_q: int, **values: Any) -> None:
    window = {"window": 128} if values["mask"] == "window" else {}
    try:
        problem = AttentionProblem(heads=4, seq_q=seq_q, seq_k=1000, **values, **window)
    except InputError:
        return
    order = order_of(problem, load_profile(gpu))

    def first(of: AttentionProblem) -> str:
        able = [k for k in order if (k not in SUITS or SUITS[k](of)) and runs(of, k, gpu)]
        return able[0] if able else ORDER[-1]

    best = first(problem)
    both = problem.passes == "fwd+bwd" and load_profile(gpu).is_amd
    parts = [first(problem.with_(passes=part)) for part in ("fwd", "bwd") if both]
    apart = both and best == ORDER[-1] and ORDER[-1] not in parts
    assert default_kernel(problem, load_profile(gpu)) == ("+".join(parts) if apart else best)


def test_amds_libraries_pass_a_call_on_to_each_other() -> None:
    problem = AttentionProblem(
        batch=3,
        heads=8,
        seq_q=512,
        head_dim=80,
        mask="causal",
        dtype="bf16",
        passes="fwd+bwd",
        layout="bhsd",
    )
    both = iosim.predict(problem, gpu="mi355x")
    assert both.kernel.name == "ck+aiter"
    forward = iosim.predict(problem.with_(passes="fwd"), "ck", "mi355x", overrides=None)
    backward = iosim.predict(problem.with_(passes="bwd"), "aiter", "mi355x")
    statistics = forward.problem.batch * forward.problem.heads * forward.problem.seq_q * 4
    written = (
        forward.l2.write + backward.l2.write + statistics
    )  # alone the forward writes no log-sum-exp
    assert both.l2.write == written
    assert both.l2.read == forward.l2.read + backward.l2.read
    assert iosim.predict(problem, "ck+aiter", "mi355x").l2 == both.l2
    assert any("one for each pass" in note for note in both.kernel.notes)


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main([*words, *(["--format", "json"] if words[0] == "sweep" else [])]) == 0
    return capsys.readouterr().out


USED = (
    "predict",
    "compare",
    "explain",
    "trace",
    "orders --order head",
    "sweep",
    "decode --context 1k",
    "ring --link pcie",
    "check-claim --hbm 1MB",
    "predict --model llama-3-8b",
    "compare --model llama-3-8b",
    "orders --check-constant section=50MiB",
)


@pytest.mark.parametrize("gpu", ["h100", pytest.param("a100", marks=pytest.mark.slow), "t4"])
@pytest.mark.parametrize("line", quick_first(USED, 4))
def test_every_command_takes_it_and_says_so(
    line: str, gpu: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *rest = line.split()
    options = [
        "--gpu",
        gpu,
        *([] if command == "decode" else ["--seq-len", "512"]),
        "--dtype",
        "fp16",
    ]
    options += [] if "--model" in rest else ["--heads", "4"]
    printed = shown(capsys, command, *rest, *options)
    if command == "sweep":
        assert "kernel default: each GPU's own, as runs_as says" in printed
    else:
        on = load_profile(gpu).name
        assert (
            f"Kernel by default: {OWN[gpu]} on {on}" in printed
            or f"default kernel: {OWN[gpu]}, " in printed
        )
    named = shown(capsys, command, *rest, *options, "--kernel", OWN[gpu])
    assert "ernel by default" not in named
    assert "default kernel" not in named


def test_gpus_are_compared_with_their_own_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "compare",
        "--gpu",
        "h200,a100",
        "--seq-len",
        "512",
        "--kernel",
        "naive,default",
        "--format",
        "json",
    )
    assert main(list(words)) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [(row["gpu"], row["kernel"]) for row in printed["rows"]] == [
        ("h200-sxm", "naive"),
        ("h200-sxm", "fa3"),
        ("a100-sxm-80gb", "naive"),
        ("a100-sxm-80gb", "fa2"),
    ]
    assert all(row["reason"] is None and row["time_ratio"] for row in printed["rows"])
    assert any("default kernel: fa3" in note for note in printed["notes"])
    assert any("--kernel fa3" in line for line in printed["commands"].values())
    same = iosim.compare(kernel="fa3,default", gpu="h200", seq_len=512)
    assert [e.kernel for e in same.entries] == ["fa3"], "a kernel that is named is not there twice"


def test_a_models_layers_have_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    c = iosim.predict(model="deepseek-v3", gpu="h100", seq_len=1, seq_len_k=2048, layers=2)
    assert c.kernels == "flashmla"
    line = "compare --model deepseek-v3 --layers 1 --gpu a100 --seq-len 512 --method bounds --dtype bf16"
    assert main(line.split()) == 0
    assert re.search(r"^a100-sxm-80gb +cutlass ", capsys.readouterr().out, re.M)


def test_python_has_the_commands_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert iosim.predict(gpu="h100", seq_len=512).kernel.name == "fa3"
    assert iosim.explain(gpu="h100", seq_len=256, heads=2).prediction.kernel.name == "fa3"
    assert iosim.orders(gpu="b200", seq_len=512, heads=2, order="head").kernel == "fa4"
    assert iosim.ring(gpu="h100", num_gpus=2, seq_len=1024).kernel_name == "fa3"
    assert iosim.check_claim(hbm="1MB", gpu="t4", seq_len=256).prediction.kernel.name == "cutlass"
    assert [e.kernel for e in iosim.compare(gpu="t4", seq_len=256).entries] == ["naive", "cutlass"]
    assert set(iosim.sweep(gpu="h100", seq_len=256, method="bounds")["runs_as"]) == {"naive", "fa3"}
    assert iosim.decode("b200", context=[512], layers=1).points[0].kernel_name == "fa2"
