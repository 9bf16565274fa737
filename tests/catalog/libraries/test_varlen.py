"""Splits of packed sequences, as FlashAttention's and vLLM's rules have them."""

from __future__ import annotations

from dataclasses import replace

from stack_calls import decoding, kernel, prompt

from iosim.catalog.libraries.varlen import combines_nothing, varlen_splits


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
