"""Serving stacks: the tile and splits of their sources, and where they run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from stack_calls import decoding, kernel, prompt

import iosim
from iosim.catalog.serving import read_stack, stack_names
from iosim.commands.cli import main
from iosim.hardware.profile import load_profile
from iosim.problem.attention import AttentionProblem


@pytest.mark.parametrize(
    ("stack", "gpu", "problem", "tile", "splits", "packs"),
    [
        (
            "vllm",
            "a100",
            decoding(65536, kv_heads=32),
            "64x128",
            1,
            False,
        ),  # flash_api.cpp: only packed rows are split
        (
            "vllm",
            "a100",
            decoding(8192, batch=16),
            "64x128",
            3,
            True,
        ),  # 128 tiles on 216 slots: 3 waves of 0.89
        ("vllm", "a100", prompt(4096), "64x128", 1, False),  # pages: the split kernel's tile
        ("vllm", "l40s", prompt(4096, head_dim=64), "64x256", 1, False),
        ("vllm", "h100", prompt(4096), "128x128", 1, True),  # pages without TMA
        (
            "vllm",
            "h100",
            decoding(4096, batch=8, heads=64, head_dim=64),
            "64x192",
            2,
            True,
        ),  # 22 blocks, 12 an SM
        ("sglang", "a100", prompt(4096), "128x64", 1, True),
        (
            "sglang",
            "a100",
            decoding(4096, batch=4),
            "128x112",
            3,
            True,
        ),  # 37 blocks, ceil(148 x 1.1 x 8 / 108) = 13
        (
            "sglang",
            "h100",
            decoding(32768),
            "64x128",
            15,
            True,
        ),  # 256 blocks, ceil(256 x 1.1 x 8 / 132) = 18
        (
            "flashinfer",
            "a100",
            decoding(8192, batch=4),
            "16x128",
            6,
            True,
        ),  # 27 CTAs a head: chunks of 22 pages
    ],
)
def test_a_stacks_kernel_has_the_tile_and_splits_of_its_source(
    stack: str, gpu: str, problem: AttentionProblem, tile: str, splits: int, packs: bool
) -> None:
    chosen = kernel(stack, problem, gpu)
    assert (str(chosen.tile), chosen.splits, chosen.packs_group) == (tile, splits, packs)


def test_a_narrow_cache_costs_sglang_casts_of_what_it_stores() -> None:
    """K, V and Q as new are read in 16 bits and written in 8."""
    extras = {
        extra.name: extra for extra in read_stack("sglang").extras if extra.name.startswith("cast")
    }
    for dtype, launched in (("bf16", False), ("fp8", True)):
        problem = replace(decoding(8192, batch=4), dtype=dtype)
        chosen = kernel("sglang", problem, "h100")
        profile = load_profile("h100")
        assert [extra.is_launched(problem, chosen, profile) for extra in extras.values()] == [
            launched
        ] * 3
    moved_bytes = {name: extra.bytes_moved(problem) for name, extra in extras.items()}
    cast_bytes = 4 * 128 * (2 + 1)  # sequences, columns, bytes
    assert moved_bytes == {
        "cast of K": cast_bytes * problem.kv_heads,
        "cast of V": cast_bytes * problem.kv_heads,
        "cast of Q": cast_bytes * problem.heads,
    }


def test_every_stack_runs_where_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["latency", "--stack", "list", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)["stacks"]
    assert tuple(stack["name"] for stack in listed) == stack_names()
    for name in stack_names():
        shape = {"seq_len": 1, "seq_len_k": 256, "heads": 32, "kv_heads": 8, "head_dim": 64}
        assert iosim.latency(stack=name, gpu="a100", **shape).points[0].total_s > 0
