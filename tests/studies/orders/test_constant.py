"""Sections of a constant size: where they are right."""

from __future__ import annotations

import pytest
from orders_asked import CAUSAL, FILE, H200

from iosim.base.errors import InputError
from iosim.studies.orders.constant import check_constant

pytestmark = pytest.mark.usefixtures("replays_once")


def test_a_constant_is_right_where_no_section_is_better() -> None:
    problems = [CAUSAL.with_(seq_q=n, seq_k=n) for n in (1024, 8192)]
    check = check_constant(8 << 20, problems, FILE, H200)
    assert [row.constant.heads for row in check.rows] == [0, 2]  # 0.5 and 4 MiB a head
    for row in check.rows:
        assert set(row.by_heads) == {1, 2, 4, 0}
        assert row.best.hbm_bytes <= row.constant.hbm_bytes or row.best.time_s < row.constant.time_s
    assert check.best_constant[1] >= check.right
    with pytest.raises(InputError, match="section 0 is out of range"):
        check_constant(0, problems, FILE, H200)
