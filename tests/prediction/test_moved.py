"""The summary of what a change moved: counts, medians and percentiles that a person can check in the head."""

from __future__ import annotations

from typing import Any

import pytest
from scripts import load_script

MAKER: Any = load_script("tests/golden/make_predictions.py")
MOVED: Any = load_script("tests/golden/moved.py")


def row(
    kernel: str, gpu: str, hbm_read: int, time_s: float = 1e-3, traffic: str = "aa"
) -> dict[str, str]:
    return {
        "call": f"--gpu {gpu} --kernel {kernel} --seq-len {hbm_read % 7}",
        "hbm_read": str(hbm_read),
        "traffic": traffic,
        "time_s": repr(time_s),
    }


def changes(before: dict[str, str], **after: str) -> list[Any]:
    return list(MOVED.changes(before, before | after, ("hbm_read", "traffic"), ("time_s",)))


def test_nothing_moved() -> None:
    before = row("fa2", "h200", 1000)
    assert changes(before) == []
    assert changes(before, time_s=repr(1e-3 * (1 + 5e-10))) == []
    assert MOVED.summary([], 3) == "0 of 3 recorded predictions moved."


def test_a_page_of_what_moved() -> None:
    first, second, third = (
        row("fa2", "h200", 1000),
        row("fa2", "a100", 1001),
        row("fa3", "h200", 1002),
    )
    change_rows = [
        *changes(first, hbm_read="1500", traffic="bb"),  # +50 %
        *changes(second, hbm_read="1101.1"),  # +10 %
        *changes(third, hbm_read="501", time_s="2e-3"),  # -50 %, +100 %
    ]
    text = MOVED.summary(change_rows, 10)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "3 of 10 recorded predictions moved."
    assert "hbm_read 3 +10 % 50 %" in lines  # of +50, +10 and -50: the middle one; sizes 10, 50, 50
    assert "traffic 1 - -" in lines  # a hash has no size
    assert "fa2 2 +30 % 50 %" in lines  # between +50 and +10
    assert "h200 2 +50 % 100 %" in lines  # +50, -50, +100
    worst = lines[lines.index("The 4 largest:") + 1 :: 2]
    assert [line.split(":")[0] for line in worst] == [
        "+100 % time_s",
        "+50 % hbm_read",
        "-50 % hbm_read",
        "+10 % hbm_read",
    ]


def test_bytes_from_nothing_and_refusals_are_said() -> None:
    before = row("fa2", "h200", 0)
    (change,) = changes(before, hbm_read="64")
    assert MOVED.percent(change.relative) == "from 0"
    (refused,) = MOVED.changes(before, None, ("hbm_read",), ())
    assert "refused" in MOVED.summary([refused], 1)


@pytest.mark.parametrize(("count", "rank"), [(1, 1), (19, 19), (20, 19), (40, 38), (100, 95)])
def test_percentile_is_the_nearest_rank(count: int, rank: int) -> None:
    assert MOVED.percentile_95([float(n) for n in range(count, 0, -1)]) == rank


def test_two_recordings_are_compared_without_predicting(capsys: pytest.CaptureFixture[str]) -> None:
    before = [dict(line) for line in MAKER.recorded()[:4]]
    now = {line["call"]: dict(line) for line in before[1:]}
    changed = now[before[2]["call"]]
    changed["hbm_read"] = str(2 * int(changed["hbm_read"]))
    assert MAKER.between(before, now) == 0
    printed = capsys.readouterr().out
    assert "1 of 3 recorded predictions moved." in printed
    assert "+100 % hbm_read" in printed
    assert "1 calls are recorded no longer, 0 are new." in printed
