"""No decoding step is said to be faster than what bounds it."""

from __future__ import annotations

import random
import re

import pytest

import iosim
from iosim.base.errors import InputError
from iosim.commands.cli import main
from iosim.studies.decode.decode import ModelShape, decode_point

GPUS = ("t4", "l4", "a100", "h100", "h200", "b200", "rtx-4090", "v100", "mi300x", "h20", "rtx-5090")
KERNELS = (
    "default",
    "fa2",
    "fa3",
    "cudnn",
    "flashinfer",
    "flash",
    "naive",
    "cutlass",
    "triton",
    "vllm-fa3",
    "math",
)


@pytest.mark.parametrize("seed", range(3))
def test_no_step_makes_more_tokens_than_hbm_delivers_keys_for(seed: int) -> None:
    rng, seen = random.Random(seed), 0
    while seen < 15:
        heads, context, batch = (
            rng.choice((4, 8, 32)),
            rng.choice((512, 4096, 32768)),
            rng.choice((1, 3, 16)),
        )
        sizes = {
            "heads": heads,
            "kv_heads": rng.choice((1, 4, heads)),
            "head_dim": rng.choice((64, 128)),
            "layers": 1,
            "window": rng.choice((None, None, 511)),
            "page_size": rng.choice((None, 16, 64)),
        }
        gpu = rng.choice(GPUS)
        kernel = rng.choice(KERNELS)
        new = rng.choice((1, 1, 3))
        try:
            point = decode_point(
                ModelShape(**sizes), context, gpu, kernel, batch=batch, new_tokens=new
            )
        except InputError:
            continue
        assert point.bound_tokens_per_s is not None
        assert point.tokens_per_s <= point.bound_tokens_per_s * (1 + 1e-9), (
            gpu,
            kernel,
            context,
            batch,
            new,
            sizes,
        )
        seen += 1


@pytest.mark.parametrize(
    ("gpu", "sizes", "context", "batch"),
    [
        ("h100", {"heads": 32, "kv_heads": 8, "layers": 32}, 131_072, 8),
        ("h200", {"heads": 64, "kv_heads": 64, "layers": 80}, 262_144, 1),
    ],
)
def test_a_long_step_is_bound_by_hbm_and_stays_below_its_bound(
    gpu: str, sizes: dict[str, int], context: int, batch: int
) -> None:
    """They were 101 % and 105 % of it, where the bound had another rate than the time."""
    point = decode_point(ModelShape(**sizes), context, gpu, batch=batch)
    assert point.bound_tokens_per_s is not None
    assert 0.95 < point.tokens_per_s / point.bound_tokens_per_s <= 1


def test_few_tokens_per_second_are_not_rounded_away(capsys: pytest.CaptureFixture[str]) -> None:
    """6.5 of them were printed as 7, and 7 of 7 as 97 %."""
    sizes = ["--heads", "64", "--kv-heads", "64", "--layers", "80"]
    assert main(["decode", "--gpu", "h200", *sizes, "--context", "256k"]) == 0
    first, _, _, row = capsys.readouterr().out.splitlines()[:4]
    rate, bound = row.split()[5:7]
    assert f"{rate} tokens per second" in first
    assert len(rate) == 5  # four digits, such as 6.523
    assert 6.3 < float(rate) < float(bound) == 6.781


def test_a_model_that_the_memory_holds_is_said_to_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """141.1 GB of weights and a cache of 0.3 GB in the 150.8 GB that an H200 reports."""
    assert main(["decode", "--model", "llama-3-70b", "--gpu", "h200", "--context", "1k"]) == 0
    assert "not fit" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "model", ["deepseek-v4", "qwen3-next-80b-a3b", "kimi-linear-48b-a3b", "gpt2"]
)
def test_the_longest_context_is_one_that_can_be_asked_for(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Caches that hardly grow fit at any length; 2^24 tokens are the most that a problem has."""
    assert main(["decode", "--model", model, "--gpu", "h200", "--context", "1k"]) == 0
    assert "out of range" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "contexts"), [("gpt2", [1024]), ("llama-3-8b", [1024, 2048, 4096, 8192])]
)
def test_contexts_that_nobody_asked_for_end_with_the_models_positions(
    model: str, contexts: list[int]
) -> None:
    points = iosim.decode(model=model, gpu="h100").points
    assert [point.prediction.problem.seq_k for point in points] == contexts


def test_check_bits_are_no_second_reading_of_the_cache(capsys: pytest.CaptureFixture[str]) -> None:
    """An L4 keeps a byte of check bits for eight of data in the same memory."""
    sizes = ["--heads", "4", "--kv-heads", "2", "--context", "4k"]
    assert main(["decode", "--gpu", "l4", *sizes]) == 0
    out = capsys.readouterr().out
    amounts = re.search(r"reads ([\d.]+) MB from HBM, ([\d.]+) MB of it check bits \((.*?)\)", out)
    assert amounts is not None
    assert float(amounts[2]) == pytest.approx(float(amounts[1]) / 9, rel=0.01)
    assert amounts[3].startswith("the whole cache of")


def test_a_search_that_ends_does_not_say_what_is_the_most(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """2^24 tokens of 32 bytes are 0.5 GB: more would fit, and none are tried."""
    sizes = ["--heads", "1", "--head-dim", "8", "--layers", "1", "--context", "1k"]
    assert main(["decode", "--gpu", "h100", *sizes]) == 0
    assert "longest context that fits on h100-sxm at batch 1: at least 16,777,216 tokens" in (
        capsys.readouterr().out
    )
    small = ["--layers", "1", "--width", "64", "--heads", "1", "--vocabulary", "10"]
    assert main(["train-memory", "--gpu", "h200", *small]) == 0
    assert "At least 16,777,216 tokens fit" in capsys.readouterr().out
