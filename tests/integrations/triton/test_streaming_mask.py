"""A mask that is streamed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from counter import count
from triton_configs import H200, RECORDED

from iosim.base.errors import InputError
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import resolve
from iosim.hardware.profile import load_profile
from iosim.integrations.triton.streaming_mask import streaming_mask
from iosim.kernel.schedule import Order


class TestStreaming:
    def test_chunks_keep_their_own_and_those_before(self) -> None:
        # 5 chunks with two before: 1 + 2 + 3 + 3 + 3 blocks
        mask = streaming_mask(600, 128, 2)
        assert mask.nnz == 12
        i, j = np.meshgrid(np.arange(600), np.arange(600), indexing="ij")
        chunk = i // 128 - j // 128
        assert np.array_equal(mask.keeps(i, j), (chunk >= 0) & (chunk <= 2))

    @pytest.mark.parametrize(
        "values", [(0, 1, 0), (8, 0, 0), (8, 4, -1), (8, True, 0), (8, 4, 1.5)]
    )
    def test_bad_values(self, values: tuple[Any, Any, Any]) -> None:
        with pytest.raises(InputError, match=r"out of range|not a whole number"):
            streaming_mask(*values)

    def test_bytes_follow_the_kept_chunks(self) -> None:
        attention = RECORDED.with_(
            heads=2, kv_heads=2, mask="blocks", mask_blocks=streaming_mask(4096, 128, 3)
        )
        kernel = resolve("triton-streaming", attention, load_profile("h100"))
        assert str(kernel.tile) == "128x128"
        counts = count(plan(attention, kernel))
        # 32 chunks: 1 + 2 + 3 + 29 x 4 blocks of 128 x 64 x 2 bytes, two heads
        assert counts.total("l2", "read", tensor="K") == (1 + 2 + 3 + 29 * 4) * 128 * 64 * 2 * 2

    @pytest.mark.parametrize(
        ("gpu", "dtype", "head_dim", "tile", "warps"),
        [
            ("h100", "bf16", 64, "128x128", 4),
            ("h100", "bf16", 128, "128x64", 8),
            ("h100", "fp16", 128, "128x128", 8),
            ("a100", "bf16", 128, "128x64", 8),
            ("a100", "fp32", 256, "64x16", 4),
            ("t4", "fp16", 128, "64x32", 4),
        ],
    )
    def test_tiles_and_order(
        self, gpu: str, dtype: str, head_dim: int, tile: str, warps: int
    ) -> None:
        kernel = resolve(
            "triton-article", RECORDED.with_(dtype=dtype, head_dim=head_dim), load_profile(gpu)
        )
        assert (str(kernel.tile), kernel.tile.warps) == (tile, warps)
        assert kernel.schedule.order is Order.HEAD  # the query block is slowest

    def test_the_tutorial_has_the_query_block_fastest(self) -> None:
        assert resolve("triton", RECORDED, H200).schedule.order is Order.QUERY
