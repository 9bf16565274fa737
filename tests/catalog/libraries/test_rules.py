"""Rule books: registered once, and a library of one's own decides at launch."""

from __future__ import annotations

import pytest

from iosim.base.errors import InputError
from iosim.catalog.libraries import entry, entry_names
from iosim.catalog.libraries.rules import Rules, rule_book, rule_books, rules_of
from iosim.problem.attention import AttentionProblem


def test_a_rule_book_is_registered_once_and_its_name_is_checked() -> None:
    with pytest.raises(ValueError, match="rules 'fa3' is registered already"):
        rule_book("fa3")(Rules)
    with pytest.raises(InputError, match="rules 'fa9' is not known; did you mean fa"):
        rules_of("fa9")
    assert {entry(name)["rules"] for name in entry_names() if "rules" in entry(name)} <= set(
        rule_books()
    )


def test_a_library_of_ones_own_decides_at_launch() -> None:
    class Halves(Rules):
        def splits_of_tile(
            self, problem: AttentionProblem, sms: int, block_q: int, block_k: int
        ) -> int | None:
            return 2

    problem = AttentionProblem(seq_q=256, head_dim=64)
    without = Rules()
    assert Halves().splits_of_tile(problem, 108, 64, 64) == 2
    assert without.splits_of_tile(problem, 108, 64, 64) is None
    assert without.as_launched(problem) is problem
    assert [without.packs_group(problem.with_(seq_q=q), True, 1, 64, 64) for q in (1, 2)] == [
        True,
        False,
    ]
