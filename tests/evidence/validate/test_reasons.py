"""What a row says to the keys of a condition, and which group takes it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from iosim.evidence.validate.reasons import Group, groups, reason_of, value_of_key


def residual(**more: Any) -> Any:
    facts = more.pop("facts", {"order": "head", "section": "4"})
    row = SimpleNamespace(facts=facts, implementation="fa2")
    defaults = {
        "quantity": "hbm_read",
        "difference": 1,
        "regime": "fits",
        "launch": "fwd",
        "error": 0.1,
        "problem": SimpleNamespace(seq_q=1024),
        "row": row,
    }
    return SimpleNamespace(**defaults | more)


@pytest.mark.parametrize(
    ("key", "more", "answer"),
    [
        ("ragged", {}, "no"),
        ("ragged", {"problem": SimpleNamespace(seq_q=1028)}, "yes"),  # 4 of a sector's 8 rows
        ("sections", {}, "yes"),
        ("sections", {"facts": {"section": "0"}}, "no"),
        ("sections", {"facts": {"section": ""}}, "no"),
        ("sections", {"facts": {}}, "no"),
        ("small", {}, "no"),
        ("small", {"error": 0.0}, "no"),
        ("small", {"error": None}, "yes"),
        ("sign", {}, "over"),
        ("sign", {"difference": 0}, "under"),
        ("sign", {"difference": -1}, "under"),
        ("regime", {}, "fits"),
        ("stage", {}, "fwd"),
        ("implementation", {}, "fa2"),
        ("order", {}, "head"),
        ("window", {}, ""),
    ],
)
def test_answers_of_a_row(key: str, more: dict[str, Any], answer: str) -> None:
    assert value_of_key(residual(**more), key) == answer


def group(name: str, **when: tuple[str, ...]) -> Group:
    return Group(name, ("hbm_read",), when, True, "", "", "", "")


def test_the_first_group_whose_condition_holds_takes_the_row() -> None:
    over, fits, both = (
        group("over", sign=("over",)),
        group("fits", regime=("fits", "drift")),
        group("both", sign=("over",), small=("yes",)),
    )
    assert reason_of(residual(), (both, over, fits)) is over
    assert reason_of(residual(), (fits, over)) is fits
    assert reason_of(residual(error=None), (both, over)) is both
    assert reason_of(residual(difference=-1), (both, over)) is None
    assert reason_of(residual(quantity="l2_read"), (over, fits)) is None


def test_shipped_groups_are_read_whole() -> None:
    names = [g.name for g in groups()]
    assert len(names) == len(set(names)) > 3
    assert all(isinstance(values, tuple) and values for g in groups() for values in g.when.values())
    assert all("\n" not in g.reason and "  " not in g.reason for g in groups())
