"""Steps that pick keys: what they read, what scoring costs, and where picking pays."""

from __future__ import annotations

import pytest

import iosim

pytestmark = pytest.mark.usefixtures("replays_once")


def test_a_sparse_step_reads_the_picked_keys_and_keeps_all() -> None:
    short, long_ = iosim.decode("h100", model="deepseek-v3.2", context=[8192, 65536], layers=1)
    read = [point.prediction.traffic.total("l2", "read", tensor="K") for point in (short, long_)]
    assert read[0] == read[1]
    assert long_.cache_bytes == 8 * short.cache_bytes


def test_a_sparse_step_scores_all_keys_and_says_what_that_costs() -> None:
    (point,) = iosim.decode("h200", model="deepseek-v3.2", context=131_072)
    # of 61 layers: 128 bytes and a scale of all keys, and 2,048 rows of 576 columns
    least = 61 * (131_072 * 132 + 2048 * 576 * 2)
    assert point.per_token("hbm", "read") == pytest.approx(least, rel=0.02)
    assert point.bound_tokens_per_s == pytest.approx(
        (point.prediction.profile.dram_read_bandwidth_bytes_per_s or 0) / least
    )
    picking = point.picking
    assert picking is not None
    assert picking.index_hbm_bytes == pytest.approx(61 * 131_072 * 132, rel=0.01)
    assert picking.index_s + picking.attention_s == pytest.approx(point.step_s)
    assert point.to_dict()["picking"]["pays"] == (
        picking.index_s + picking.attention_s < picking.dense_s
    )
    text = str(iosim.decode("h200", model="deepseek-v3.2", context=131_072))
    assert f"up to a context of about {picking.pays_from:,}" in text


def test_picking_pays_where_lines_between_contexts_cross() -> None:
    from iosim.studies.decode.picking import _crossing

    assert _crossing((1000, 4000, 16000), (1.0, 1.0, -1.0)) == 8000
    assert _crossing((1000, 4000), (-1.0, -2.0)) == 1000
    assert _crossing((1000, 4000), (-1.0, 0.5)) is None
    (small,) = iosim.decode(
        "h200", model="deepseek-v3.2", context=65_536, cache_dtype="fp8", batch=32
    )
    assert small.picking is not None
    assert small.picking.pays
    assert small.cache_bytes == 61 * 32 * 65_536 * (656 + 132)
