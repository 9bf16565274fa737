"""Small predictions that a person works out on paper: each row has its arithmetic beside it.

A query or key row of 64 fp16 columns has 128 bytes; tiles are 64 x 64 unless a row says otherwise. No L2 and no clock
is in these numbers: they are what a description of a kernel says by itself.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import iosim
from iosim.prediction.result import Prediction

ROW = 64 * 2
"""Bytes of a row of 64 fp16 columns."""

CALLS: dict[str, dict[str, Any]] = {
    "plain": {"heads": 2, "seq_len": 256},
    "causal": {"heads": 2, "seq_len": 256, "causal": True},
    "grouped": {"heads": 4, "kv_heads": 1, "seq_len": 256},
    "batch": {"batch": 3, "heads": 2, "seq_len": 256},
    "ragged": {"heads": 1, "seq_len": 100},
    "cross": {"heads": 1, "seq_len": 64, "seq_len_k": 512},
    "window": {"heads": 1, "seq_len": 256, "causal": True, "window": 64},
    "wide values": {"heads": 1, "seq_len": 256, "head_dim_v": 128},
    "fp32": {"heads": 1, "seq_len": 128, "dtype": "fp32"},
    "tall tile": {"heads": 1, "seq_len": 256, "tile": "128x64"},
    "packed": {"heads": 1, "seq_lens": "100,28"},
    "splits": {"heads": 2, "seq_len": 1, "seq_len_k": 512, "splits": 4},
    "pages": {"heads": 2, "seq_len": 1, "seq_len_k": 512, "page_size": 64},
    "bias": {"heads": 2, "seq_len": 128, "bias": "full"},
    "padding": {"batch": 2, "heads": 2, "seq_len": 128, "key_padding": True},
    "backward": {"heads": 2, "seq_len": 256, "pass": "bwd"},
    "causal backward": {"heads": 1, "seq_len": 256, "causal": True, "pass": "bwd"},
    "grouped backward": {"heads": 4, "kv_heads": 2, "seq_len": 128, "pass": "bwd"},
    "naive": {"kernel": "naive", "heads": 2, "seq_len": 256},
    "naive causal": {"kernel": "naive", "heads": 1, "seq_len": 256, "causal": True},
    "blocks": {"heads": 1, "seq_len": 512, "mask": "butterfly", "mask_block": 64},
}

LOADED: list[tuple[str, str, str, str, int]] = [
    # call, launch, tensor, direction, bytes between the SMs and the L2
    ("plain", "main", "Q", "read", 2 * 256 * ROW),  # each head's rows once
    ("plain", "main", "K", "read", 2 * 4 * 256 * ROW),  # by each of 4 query blocks
    ("plain", "main", "V", "read", 2 * 4 * 256 * ROW),
    ("plain", "main", "O", "write", 2 * 256 * ROW),
    ("causal", "main", "Q", "read", 2 * 256 * ROW),
    ("causal", "main", "K", "read", 2 * (1 + 2 + 3 + 4) * 64 * ROW),  # block i visits i + 1 blocks
    (
        "grouped",
        "main",
        "K",
        "read",
        4 * 4 * 256 * ROW,
    ),  # each query head goes over the one head of keys
    ("grouped", "main", "Q", "read", 4 * 256 * ROW),
    ("batch", "main", "V", "read", 3 * 2 * 4 * 256 * ROW),
    ("ragged", "main", "Q", "read", 100 * ROW),
    ("ragged", "main", "K", "read", 2 * 100 * ROW),  # two query blocks; no row past the end
    ("cross", "main", "K", "read", 512 * ROW),  # one query block
    ("cross", "main", "O", "write", 64 * ROW),
    (
        "window",
        "main",
        "K",
        "read",
        (1 + 2 + 2 + 2) * 64 * ROW,
    ),  # its own block and the one before it
    ("wide values", "main", "K", "read", 4 * 256 * ROW),
    ("wide values", "main", "V", "read", 4 * 256 * 2 * ROW),
    ("wide values", "main", "O", "write", 256 * 2 * ROW),
    ("fp32", "main", "K", "read", 2 * 128 * 2 * ROW),  # 4 bytes in place of 2
    ("tall tile", "main", "K", "read", 2 * 256 * ROW),  # query blocks of 128
    (
        "packed",
        "main",
        "K",
        "read",
        (2 * 100 + 1 * 28) * ROW,
    ),  # query blocks of a sequence go over its own keys
    ("splits", "main", "K", "read", 2 * 512 * ROW),  # each key once, whatever the splits
    ("splits", "main", "O_partial", "write", 2 * 4 * 1 * 64 * 4),  # fp32, a copy a split
    ("splits", "combine", "O_partial", "read", 2 * 4 * 1 * 64 * 4),
    ("splits", "combine", "O", "write", 2 * 1 * ROW),
    ("pages", "main", "K", "read", 2 * 512 * ROW),
    ("bias", "main", "bias", "read", 2 * 128 * 128 * 2),  # each pair of each head once
    (
        "padding",
        "main",
        "padding",
        "read",
        2 * 2 * 2 * 128 * 1,
    ),  # a byte a key, by each of 2 query blocks
    ("backward", "bwd.main", "K", "read", 2 * 256 * ROW),  # each key block once
    ("backward", "bwd.main", "V", "read", 2 * 256 * ROW),
    ("backward", "bwd.main", "Q", "read", 2 * 4 * 256 * ROW),  # by each of 4 key blocks
    ("backward", "bwd.main", "dO", "read", 2 * 4 * 256 * ROW),
    ("backward", "bwd.main", "LSE", "read", 2 * 4 * 256 * 4),
    ("backward", "bwd.main", "dK", "write", 2 * 256 * ROW),
    ("backward", "bwd.main", "dV", "write", 2 * 256 * ROW),
    (
        "backward",
        "bwd.main",
        "dQ_acc",
        "write",
        2 * 4 * 256 * 64 * 4,
    ),  # added to in fp32 by each key block
    ("backward", "bwd.dot", "O", "read", 2 * 256 * ROW),
    ("backward", "bwd.dot", "dO", "read", 2 * 256 * ROW),
    ("backward", "bwd.dot", "D", "write", 2 * 256 * 4),
    ("backward", "bwd.convert", "dQ_acc", "read", 2 * 256 * 64 * 4),
    ("backward", "bwd.convert", "dQ", "write", 2 * 256 * ROW),
    (
        "causal backward",
        "bwd.main",
        "Q",
        "read",
        (4 + 3 + 2 + 1) * 64 * ROW,
    ),  # key block i is visited by 4 - i
    ("grouped backward", "bwd.main", "dK_heads", "write", 4 * 128 * ROW),  # one per query head
    ("grouped backward", "bwd.sum_groups", "dK_heads", "read", 4 * 128 * ROW),
    ("grouped backward", "bwd.sum_groups", "dK", "write", 2 * 128 * ROW),
    ("naive", "scores", "S", "write", 2 * 256 * 256 * 2),
    ("naive", "softmax", "S", "read", 2 * 256 * 256 * 2),
    ("naive", "softmax", "P", "write", 2 * 256 * 256 * 2),
    ("naive", "values", "O", "write", 2 * 256 * ROW),
    ("naive causal", "softmax", "P", "write", 256 * 256 * 2),  # it knows no blocks
    (
        "blocks",
        "main",
        "K",
        "read",
        8 * 4 * 64 * ROW,
    ),  # 8 blocks: itself, and 3 by flipping one of 3 bits
]

WHOLE: list[tuple[str, str, int]] = [
    # call, quantity, value
    ("plain", "flops", 2 * 4 * 256 * 256 * 64),  # two products of 2 N N d
    ("causal", "flops", 2 * 4 * (256 * 257 // 2) * 64),  # pairs on and below the diagonal
    ("backward", "flops", 2 * 10 * 256 * 256 * 64),  # five products
    ("plain", "exps", 2 * 256 * 256),
    ("plain", "compulsory read", 3 * 2 * 256 * ROW),  # Q, K and V
    ("grouped", "compulsory read", (4 + 1 + 1) * 256 * ROW),
    ("plain", "workspace", 0),
    ("naive", "workspace", 2 * 2 * 256 * 256 * 2),  # S and P
    ("splits", "workspace", 2 * 4 * (64 * 4 + 4)),  # partial O, partial LSE
    (
        "grouped backward",
        "workspace",
        4 * 128 * (4 + 64 * 4) + 2 * 4 * 128 * ROW,
    ),  # D, sums of dQ; dK, dV per head
]


@cache
def predicted(call: str) -> Prediction:
    keywords = {
        "kernel": "flash",
        "gpu": "a100",
        "head_dim": 64,
        "dtype": "fp16",
        "tile": "64x64",
    } | CALLS[call]
    if keywords["kernel"] == "naive":
        del keywords["tile"]
    return iosim.predict(
        **{"passes" if name == "pass" else name: value for name, value in keywords.items()},
        method="bounds",
    )


@pytest.mark.parametrize(("call", "launch", "tensor", "direction", "worked_out"), LOADED)
def test_bytes_by_launch_and_tensor(
    call: str, launch: str, tensor: str, direction: str, worked_out: int
) -> None:
    assert (
        predicted(call).traffic.total("l2", direction, launch=launch, tensor=tensor) == worked_out
    )


@pytest.mark.parametrize(("call", "quantity", "worked_out"), WHOLE)
def test_of_the_whole_call(call: str, quantity: str, worked_out: int) -> None:
    p = predicted(call)
    values = {
        "flops": p.flops,
        "exps": p.to_dict(ranged=False)["exps"],
        "compulsory read": p.hbm_bounds.compulsory_read,
        "workspace": p.memory_bytes["workspace"],
    }
    assert values[quantity] == worked_out


def test_there_are_sixty() -> None:
    assert len(LOADED) + len(WHOLE) >= 60
