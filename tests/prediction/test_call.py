"""A call of both passes runs the launches of the forward and those of the backward, each as it runs alone."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from iosim.base.errors import InputError
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import Overrides, entry_names, resolve
from iosim.commands.cli import main
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Launch, Mode
from iosim.problem.attention import AttentionProblem

GPUS = ("a100", "h100", "h200", "b200", "rtx-4090", "h20", "t4", "v100", "l4", "rtx-3090")
SAVES = "writes its log-sum-exp; alone it writes none"
UNPACKS = "is described with one head per tile; alone it packs a group's query heads"
WHOLE = "the forward takes all value heads in a tile; alone it takes"


def drawn(rng: random.Random) -> dict[str, Any]:
    heads = rng.choice((1, 2, 4, 8, 32))
    seq_q = rng.choice((1, 7, 64, 777, 1024, 4096))
    head_dim = rng.choice((32, 40, 64, 96, 100, 128, 192, 256))
    sizes: dict[str, Any] = {
        "batch": rng.choice((1, 1, 3)),
        "heads": heads,
        "kv_heads": rng.choice([h for h in (1, 2, 4, 8) if heads % h == 0]),
        "seq_q": seq_q,
        "seq_k": rng.choice((seq_q, seq_q, max(seq_q, 2048))),
        "head_dim": head_dim,
        "head_dim_v": rng.choice((head_dim, head_dim, 64)),
        "dtype": rng.choice(("fp16", "bf16", "fp32")),
        "dropout": rng.choice((0, 0, 0, 0.1)),
        "mask": rng.choice(("none", "causal", "causal", "window")),
    }
    return sizes | ({"window": rng.choice((64, 5000))} if sizes["mask"] == "window" else {})


def without_lse(launch: Launch) -> Launch:
    """It, and what it reads for the LSE alone: FlexAttention's row sums over splits need no maxima without it."""
    lse = any(a.tensor == "LSE" and a.mode is Mode.STORE for a in launch.accesses)
    unused = ("LSE", "max_partial") if lse and launch.name == "sums" else ("LSE",) if lse else ()
    return replace(launch, accesses=tuple(a for a in launch.accesses if a.tensor not in unused))


def launches(
    name: str, gpu: str, sizes: dict[str, Any], passes: str
) -> tuple[Kernel, tuple[Launch, ...]]:
    problem = AttentionProblem(passes=passes, **sizes)
    kernel = resolve(name, problem, load_profile(gpu))
    return kernel, plan(problem, kernel).launches


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_both_passes_run_the_launches_of_each(seed: int) -> None:
    rng = random.Random(seed)
    compared: set[str] = set()
    split, apart, packed = 0, 0, 0
    for _ in range(25):
        gpu, sizes = rng.choice(GPUS), drawn(rng)
        for name in entry_names():
            try:
                alone = [launches(name, gpu, sizes, passes) for passes in ("fwd", "bwd")]
            except InputError:
                with pytest.raises(InputError):
                    launches(name, gpu, sizes, "fwd+bwd")
                continue
            kernel, both = launches(name, gpu, sizes, "fwd+bwd")
            (_, first), (_, second) = alone
            if any(WHOLE in note for note in kernel.notes):
                both = both[len(first) :]
                first = ()
                apart = apart + 1
            elif any(UNPACKS in note for note in kernel.notes):
                both = both[-len(second) :]
                first = ()
                packed = packed + 1
            elif any(SAVES in note for note in kernel.notes):
                both = (*map(without_lse, both[: len(first)]), *both[len(first) :])
            assert both == first + second, (name, gpu, sizes)
            compared.add(name)
            split += any(n.name == "combine" for n in both)
    assert {"fa2", "uniform", "cutlass", "naive", "flash1"} <= compared
    assert split
    assert apart
    assert packed <= len(compared)


def test_flash_attention_2_splits_with_a_backward_too() -> None:
    """mha_fwd asks set_params_splitkv with num_splits 0 whether gradients are wanted or not (flash_api.cpp)."""
    problem = AttentionProblem(batch=1, heads=4, seq_q=777, head_dim=128, passes="fwd+bwd")
    assert resolve("fa2", problem, load_profile("rtx-4090")).splits == 4


def test_a_tile_by_hand_is_the_backwards_too() -> None:
    gpu = load_profile("a100")
    over = Overrides(tile=(64, 64))
    problem = AttentionProblem(batch=1, heads=4, seq_q=1024, head_dim=128, passes="bwd")
    main_launch = next(
        n
        for n in plan(problem, resolve("fa2", problem, gpu, over)).launches
        if n.name == "bwd.main"
    )
    assert (main_launch.domain.block_q, main_launch.domain.block_k) == (64, 64)


def test_why_the_forward_differs_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "predict",
        "--kernel",
        "uniform",
        "--gpu",
        "h20",
        "--heads",
        "8",
        "--head-dim",
        "64",
        "--pass",
        "fwd+bwd",
        "--method",
        "capacity",
    ]
    assert main(arguments) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert SAVES in printed
    assert WHOLE in printed
    assert main([*arguments, "--format", "json"]) == 0
    notes = json.loads(capsys.readouterr().out)["predictions"][0]["notes"]
    assert any(SAVES in note for note in notes)
    assert any(WHOLE in note for note in notes)
