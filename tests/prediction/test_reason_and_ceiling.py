"""What `predict` and `explain` say of one call: one reason, and a ceiling that no time lies below."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import pytest
from effort import quick_first

from iosim import AttentionProblem, predict
from iosim.base.errors import InputError
from iosim.base.units import bytes_text
from iosim.commands.cli import main
from iosim.hardware.profile import load_profile
from iosim.prediction.answer import answer, reread_clauses, why
from iosim.prediction.answer import reason as shortly
from iosim.prediction.result import Prediction
from iosim.prediction.reuse import Reuse, reuse
from iosim.studies import explain as explaining

GPUS = (
    "a100",
    "h100",
    "h200",
    "b200",
    "rtx-4090",
    "h20",
    "t4",
    "v100",
    "l4",
    "rtx-3090",
    "a10",
    "rtx-a6000",
    "gb200",
)
KERNELS = (
    "fa2",
    "fa3",
    "fa4",
    "naive",
    "flash",
    "cudnn",
    "cutlass",
    "sdpa",
    "triton",
    "eager",
    "flash1",
    "math",
)
WORDS = {
    "thrashing": "most loads of",
    "wave-bound": "waves of CTAs read them anew",
    "drift": "CTAs drift apart",
}


def drawn(rng: random.Random, longest: int) -> dict[str, Any]:
    seq_q = rng.choice([n for n in (1, 64, 777, 1024, 4096, 16384) if n <= longest])
    return {
        "batch": rng.choice((1, 2)),
        "heads": rng.choice((1, 2, 8)),
        "seq_q": seq_q,
        "seq_k": max(seq_q, 512),
        "head_dim": rng.choice((64, 128, 256)),
        "mask": rng.choice(("none", "causal")),
        "dtype": rng.choice(("fp16", "bf16", "fp32")),
        "passes": rng.choice(("fwd", "fwd", "bwd", "fwd+bwd")),
    }


def small_l2(rng: random.Random, gpu: str) -> Any:
    """The GPU with its L2, or with one so small that keys outgrow it at lengths that are quickly replayed."""
    profile = load_profile(gpu)
    return replace(profile, l2_bytes=profile.need_int("l2_bytes") // rng.choice((1, 8, 32)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_predict_and_explain_give_one_reason(seed: int) -> None:
    rng = random.Random(seed)
    regimes = set()
    for _ in range(22):
        gpu = small_l2(rng, rng.choice(GPUS))
        try:
            p = predict(
                AttentionProblem(**drawn(rng, 4096)), rng.choice(KERNELS), gpu, method="replay"
            )
            e = explaining.explain(p, budget=0)
        except InputError:
            continue
        reason = why(p)
        assert shortly(p) in answer([p])
        assert shortly(p) in explaining.explanations_answer([e])
        assert reason in str(p)
        assert reason in str(e)
        for explained in e.launches:
            launch = next(n for n in p.chain.launches if n.name == explained.name)
            reuse_here = reuse(p, launch)
            assert explained.regime.removesuffix(", spills") == reuse_here.regime
            regimes.add(reuse_here.regime)
        assert borne_out(reason)
        regimes_named = {regime for regime, words in WORDS.items() if words in reason}
        reading = max(p.chain.launches, key=lambda n: p.traffic.total("hbm", "read", launch=n.name))
        assert regimes_named <= {reuse(p, reading).regime}
    assert len(regimes) >= 3


def borne_out(reason: str) -> bool:
    """True where what is said to fit fits, what is said to exceed exceeds, and what is read in step is less than what
    is read."""
    units = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
    sizes = re.search(r"([\d.]+) (\w?B), (would fit in|exceeds?) the ([\d.]+) (\w?B) that", reason)
    if sizes is None:
        return "exceed" not in reason.split(" keeps")[0] or "between launches" in reason
    used = float(sizes[1]) * units[sizes[2]]
    keeps = float(sizes[4]) * units[sizes[5]]
    return (used <= keeps) == (sizes[3] == "would fit in")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--gpu t4 --kernel sdpa --seq-len 4k",
            "a head, 2.097 MB, would fit in the 4.11 MB that the L2 keeps",
        ),
        (
            "--gpu a100 --kernel fa2 --causal --seq-len 8k",
            "4 heads in progress, 16.78 MB, would fit in the 20.97 MB",
        ),
        (
            "--gpu h200 --kernel fa2 --heads 8 --seq-len 32k --causal --dtype bf16",
            "33.55 MB, exceed the 30.83 MB",
        ),
    ],
)
def test_a_reason_is_one_that_its_numbers_bear(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What fits in the L2 is no reason why it is read again; nor is what would be read in step, where that is more."""
    assert main(["predict", *options.split()]) == 0
    (why_line,) = (
        line for line in capsys.readouterr().out.split("\n") if line.startswith("  why: ")
    )
    assert message in why_line
    assert borne_out(why_line)
    assert ("kept in step" in why_line) == ("exceed" in message)


def test_bytes_in_step_are_named_only_where_they_are_less_than_what_is_read() -> None:
    """Two waves of 2 heads of 4 MB, of which the L2 keeps 6 or 3."""
    reused = Reuse(
        ("K", "V"), 64, 2.0, 6_000_000, 4_000_000, 8_000_000, 1, 16_000_000, 90_000_000, 12_000_000
    )
    p = predict(AttentionProblem(heads=2, seq_q=512, head_dim=64), "fa2", "a100", method="bounds")
    assert (reused.outgrows, reused.regime) == (False, "drift")
    assert "16 MB" not in reread_clauses(p, reused)["drift"]
    outgrown = replace(reused, capacity_bytes=3_000_000, hbm_read_bytes=30_000_000)
    assert (outgrown.outgrows, outgrown.regime) == (True, "drift")
    assert "kept in step, they read at most 16 MB" in reread_clauses(p, outgrown)["drift"]
    assert replace(outgrown, hbm_read_bytes=15_000_000).regime == "wave-bound"


def first_sentences(capsys: pytest.CaptureFixture[str], command: str, options: str) -> list[str]:
    """What is read, and why."""
    assert main([command, *options.split()]) == 0
    return capsys.readouterr().out.split("\n")[0].rstrip(".").split(". ")[:2]


@pytest.mark.parametrize(
    "options",
    [
        "--kernel flash --gpu t4 --heads 2 --seq-len 16k --head-dim 128 --causal --dtype fp16",
        "--kernel flash --gpu t4 --heads 8 --seq-len 8k --head-dim 128 --dtype fp16",
    ],
)
def test_the_commands_print_one_reason(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert first_sentences(capsys, "predict", options) == first_sentences(
        capsys, "explain", options
    )


def test_a_changes_reads_stand_beside_reads() -> None:
    problem = AttentionProblem(
        batch=1, heads=4, seq_q=8192, head_dim=128, dtype="fp16", mask="causal"
    )
    gpu = load_profile("a100")
    e = explaining.explain(
        predict(problem, "fa2", replace(gpu, l2_bytes=gpu.need_int("l2_bytes") // 16))
    )
    best = e.tried.trials[0].prediction
    now = e.prediction
    assert best.total("hbm") < 0.98 * now.total("hbm")
    sentence = explaining.explanations_answer([e])
    assert f"fa2 would read {bytes_text(best.total('hbm', 'read'))}" in sentence
    assert bytes_text(now.total("hbm", "read")) in sentence


def bounded(p: Prediction) -> bool:
    return p.ceiling_s <= p.time_s * (1 + 1e-12)


@pytest.mark.parametrize("seed", quick_first(range(4), 1))
def test_no_time_is_below_the_ceiling(seed: int) -> None:
    rng = random.Random(seed)
    seen = 0
    for _ in range(90):
        how: dict[str, Any] = {
            "launched": rng.choice(("alone", "graph")),
            "l2_start": rng.choice(("cold", "warm")),
            "method": "capacity",
            "clocks": rng.choice(("boost", "boost", "sustained", 1.2e9, 3e9)),
        }
        gpu = rng.choice(GPUS)
        kernel = rng.choice(KERNELS)
        sizes = drawn(rng, 16384)
        try:
            p = predict(AttentionProblem(**sizes), kernel, gpu, **how)
        except InputError:
            continue
        assert bounded(p), (gpu, kernel, sizes, how, p.ceiling_s, p.time_s)
        seen += 1
    assert seen > 30


def test_a_short_call_in_a_graph() -> None:
    """The same model on specified rates took each launch as if it ran alone, and so longer than the prediction."""
    problem = AttentionProblem(batch=1, heads=8, seq_q=512, head_dim=64)
    graph, alone = (predict(problem, "fa2", "a100", launched=how) for how in ("graph", "alone"))
    assert graph.to_dict()["ceiling_s"] == graph.ceiling_s < graph.time_s
    assert graph.time_specification.total_s < alone.time_specification.total_s


@pytest.mark.parametrize(("gpu", "flops_per_s"), [("a100", 156e12 / 3), ("v100", 15.7e12)])
def test_fp32_may_run_as_three_products_of_tf32(gpu: str, flops_per_s: float) -> None:
    """Where there are tensor cores for tf32; 4 x 8 x 2,048 x 2,048 x 128 operations."""
    problem = AttentionProblem(heads=8, seq_q=2048, head_dim=128, dtype="fp32")
    p = predict(problem, "cutlass", load_profile(gpu), method="bounds")
    assert p.ceiling_s == pytest.approx(4 * 8 * 2048**2 * 128 / flops_per_s, rel=0.03)
