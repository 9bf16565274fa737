"""The capacity rule by hand: what a mask reaches is read once where it fits."""

from __future__ import annotations

from typing import Any

import pytest

import iosim

ROW = 128 * 2
"""Bytes of a row of head_dim 128 in bf16."""


@pytest.mark.parametrize(("mask", "keys"), [
    # Two blocks of 64 queries at the end of 4,096 keys, in key blocks of 64, of which each query block reads its own
    ({}, 4096),
    ({"mask": "causal"}, 4096),
    # The first query, 3,968, keeps keys from 3,968 - 127 = 3,841 on: in blocks 60 to 63.
    ({"mask": "window", "window": 127}, 4 * 64),
    ({"mask": "window", "window": 128}, 4 * 64),  # 3,840, the first of block 60
    ({"mask": "window", "window": 129}, 5 * 64),
    ({"mask": "window", "window": 0}, 2 * 64),
    ({"mask": "window", "window": 4096}, 4096),
])  # fmt: skip
def test_keys_that_a_mask_reaches_are_read_once(mask: dict[str, Any], keys: int) -> None:
    problem = iosim.AttentionProblem(
        heads=2, seq_q=128, seq_k=4096, head_dim=128, dtype="bf16", **mask
    )
    traffic = iosim.predict(problem, "flash", "a100", method="capacity", tile=(64, 64)).traffic
    read = {x.tensor: x.bytes for x in traffic.rows if (x.level, x.direction) == ("hbm", "read")}
    assert read == {"Q": 2 * 128 * ROW, "K": 2 * keys * ROW, "V": 2 * keys * ROW}
