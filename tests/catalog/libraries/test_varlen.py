"""Splits of packed sequences, as FlashAttention's and vLLM's rules have them."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest
from scripts import measurements
from stack_calls import decoding, kernel, prompt

from iosim.catalog.libraries import resolve
from iosim.catalog.libraries.varlen import PROMOTED_OPERATIONS, combines_nothing, varlen_splits
from iosim.hardware.profile import load_profile
from iosim.problem.attention import AttentionProblem


def test_splits_of_a_batch_go_by_its_sequences() -> None:
    """8, 40 and 157 blocks of 128 keys and 8 heads: an SM gets ceil(205 x 1.1 x 8 / 132) = 14 of them."""
    batch = replace(
        decoding(1000), seq_lens=(1, 1, 1), seq_lens_k=(1000, 5000, 20000), seq_q=3, seq_k=26000
    )
    assert varlen_splits(batch, 132, 64, 128, 32) == (1, 3, 12)
    assert varlen_splits(batch, 132, 64, 128, 4) == (1, 3, 4)
    assert varlen_splits(decoding(4096, batch=993), 132, 64, 128, 32) == (1,) * 993


def test_the_combine_is_launched_where_splits_were_possible() -> None:
    chosen = kernel("vllm", decoding(8192, batch=64), "h100")
    assert chosen.splits == 1
    assert combines_nothing(chosen, decoding(8192, batch=64), 132)
    long = prompt(8192)
    assert not combines_nothing(kernel("vllm", long, "h100"), long, 132)
    split = decoding(32768)
    assert not combines_nothing(kernel("sglang", split, "h100"), split, 132)


def test_vllms_bound_on_splits_holds_where_a_graph_may_hold_the_call() -> None:
    """512 new tokens are in its largest graph, 513 in none: then four key blocks are no reason to split."""
    few, many = prompt(512), prompt(513)
    assert combines_nothing(kernel("vllm", few, "h100"), few, 132)
    assert not combines_nothing(kernel("vllm", many, "h100"), many, 132)


def test_what_two_sums_cost_in_fp8_was_counted() -> None:
    """Instructions for a score in a turn of five steps, with vLLM's second sum of O and its tiles, over those without:
    the second sum's additions, and what spills for want of registers. Tiles are those of its build."""
    with measurements("source_loops.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["kernel"] == "fa3"]
    counted: dict[tuple[str, int], float] = {}
    for row in rows:
        _, block_k = map(int, row["tile"].split("x"))
        scores = 5 * 64 * block_k / 128  # five steps; 64 rows a warpgroup of 128 threads
        counted[row["build"], int(row["head_dim"])] = float(row["turn"]) / scores
        if row["build"] == "two-level":
            problem = AttentionProblem(
                heads=8,
                seq_q=4096,
                head_dim=int(row["head_dim"]),
                dtype="fp8",
                mask="causal",
                page_size=64,
            )
            assert str(resolve("vllm-fa3", problem, load_profile("h100")).tile) == row["tile"]
    for width, operations in PROMOTED_OPERATIONS.items():
        more = counted["two-level", width] - counted["source", width]
        assert operations == pytest.approx(more, abs=0.1)
