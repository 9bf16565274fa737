"""Rows of a sweep that was left: its journal keeps them, and mixes no others in."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from swept import GRID

from iosim import sweep
from iosim.base.errors import InputError
from iosim.studies.sweep.rows import Done
from iosim.studies.sweep.run import journal_of, opened

pytestmark = pytest.mark.usefixtures("replays_once")


def leave(target: Path, sweep: str, *parts: Done) -> None:
    """A journal of these parts, as an interrupt leaves it."""
    with contextlib.suppress(KeyboardInterrupt), opened(target, sweep) as journal:
        for part in parts:
            journal.append(part)
        raise KeyboardInterrupt


def test_rows_of_another_sweep_are_not_mixed_in(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    leave(target, "another", Done(0, 1, "a,b\n", 0, 0))
    with pytest.raises(InputError, match="holds rows of another sweep"):
        sweep(**GRID, method="bounds", out=target)
    assert len(sweep(**GRID, method="bounds", out=target, fresh=True)) == 36
    assert not journal_of(target).exists()


def test_a_journal_keeps_parts_and_their_order(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    leave(target, "one", Done(4, 6, "four\nfive\n", 1, 0), Done(0, 2, "zero\none\n", 0, 2))
    with opened(target, "one") as journal:
        assert journal.gaps(10) == [(2, 4), (6, 10)]
        assert journal.parts == [Done(0, 2, None, 0, 2), Done(4, 6, None, 1, 0)]
        assert b"".join(journal.csv()) == b"zero\none\nfour\nfive\n"
        journal.append(Done(6, 10, "rest\n", 0, 0))
        assert journal.gaps(10) == [(2, 4)]
    assert not list(tmp_path.iterdir())
