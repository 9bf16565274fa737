"""What an explanation advises, of changes whose bytes and times are given: now 1 GB in 1 ms, of which 400 MB must be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from iosim.studies.explain import HELPS, SAME_TIME, _advice, _change, _change_to_make

GB, MS = 1e9, 1e-3
NOW = GB


def prediction(now: float = NOW, bound_by: str = "hbm") -> Any:
    return SimpleNamespace(
        total=lambda level: now,
        time=SimpleNamespace(total_s=MS, bound_by=bound_by),
        hbm_bounds=SimpleNamespace(compulsory_read=0.3 * GB, compulsory_write=0.1 * GB),
        kernel=SimpleNamespace(name="fa2"),
    )


def trial(words: str, hbm_bytes: float, time_s: float) -> Any:
    read = SimpleNamespace(hbm=SimpleNamespace(read=hbm_bytes / 2))
    return SimpleNamespace(words=words, hbm_bytes=hbm_bytes, time_s=time_s, prediction=read)


def advice(*trials: tuple[float, float], bound_by: str = "hbm", now: float = NOW) -> str:
    """Of changes named a, b, ..., each by its bytes and seconds, the first being the best."""
    tried = SimpleNamespace(
        trials=[trial(words, *t) for words, t in zip("abc", trials, strict=False)], skipped=()
    )
    return _advice(prediction(now, bound_by), tried)


@pytest.mark.parametrize(
    ("now", "then", "words"),
    [
        (0, 5, "as now"),
        (100, 0, "none left"),
        (100, 25, "4 x less"),
        (100, 50, "-50.0 %"),  # half is told in percent, and less than half as so many times less
        (100, 49.9, "2 x less"),
        (100, 125, "+25.0 %"),
    ],
)
def test_a_change_in_words(now: float, then: float, words: str) -> None:
    assert _change(now, then) == words


def test_one_change_that_helps() -> None:
    assert advice((0.5 * GB, 0.8 * MS)) == (
        "'a' helps most: HBM 1 GB -> 500 MB (-50.0 %; compulsory 400 MB), time 1 ms -> 800 us"
    )


def test_the_time_stays_where_something_else_bounds_it() -> None:
    clause = "; the time stays, since tensor bounds it, not HBM"
    assert advice((0.5 * GB, MS), bound_by="tensor").endswith(clause)
    assert not advice((0.5 * GB, MS)).endswith(clause)
    assert not advice((0.5 * GB, (1 - 2 * HELPS) * MS), bound_by="tensor").endswith(clause)


def test_the_fastest_change_is_told_beside_the_best() -> None:
    assert advice((0.5 * GB, 0.9 * MS), (0.8 * GB, 0.7 * MS)).endswith(
        "; fastest is 'b': 700 us, HBM 800 MB"
    )
    assert "fastest" not in advice((0.5 * GB, 0.9 * MS), (0.8 * GB, (1 - HELPS / 2) * 0.9 * MS))


@pytest.mark.parametrize(
    ("trials", "sentence"),
    [
        # Saves bytes, and takes longer than the same time.
        (
            [(0.5 * GB, 1.5 * MS)],
            "the one change tried does not lower HBM bytes by 2 % at no cost of time; "
            "'a' saves 500 MB and takes 50 % longer",
        ),
        # Saves neither bytes nor time.
        (
            [(0.99 * GB, 0.99 * MS), (1.5 * GB, MS)],
            "none of the 2 changes tried lowers HBM bytes by 2 % at no cost of time",
        ),
        # A faster one with more bytes stands in second place.
        (
            [(0.99 * GB, MS), (1.5 * GB, 0.5 * MS)],
            "none of the 2 changes tried lowers HBM bytes by 2 % at no cost of time; "
            "'b' is 50 % faster with 1.5 GB of HBM traffic",
        ),
    ],
)
def test_nothing_helps(trials: list[tuple[float, float]], sentence: str) -> None:
    assert advice(*trials) == sentence


def test_a_change_helps_by_its_bytes_or_by_its_time() -> None:
    """Less by a fiftieth is a help, and as long is within SAME_TIME."""
    assert advice((0.97 * GB, MS)).startswith("'a' helps most")
    assert advice((GB, 0.97 * MS)).startswith("'a' helps most")
    assert advice((0.5 * GB, (SAME_TIME + 1) / 2 * MS)).startswith("'a' helps most")
    assert advice((0.5 * GB, (SAME_TIME + 0.01) * MS)).startswith("the one change tried")


def test_where_nothing_is_moved_there_is_only_time() -> None:
    nothing = "nothing is read from or written to HBM"
    assert advice((0, MS), now=0) == nothing
    assert advice((0, 0.5 * MS), now=0) == f"{nothing}; fastest is 'a': 500 us, HBM 0 B"


@pytest.mark.parametrize(
    ("skipped", "why"),
    [
        ((), "no setting of this kernel changes what runs"),
        ((("splits 2", "it has one key block"),), "it has one key block"),
    ],
)
def test_nothing_was_tried(skipped: tuple[tuple[str, str], ...], why: str) -> None:
    tried = SimpleNamespace(trials=[], skipped=skipped)
    assert _advice(prediction(), tried) == f"nothing was tried: {why}"
    assert _change_to_make(SimpleNamespace(prediction=prediction(), tried=tried)) == ""


@pytest.mark.parametrize(
    ("hbm_bytes", "time_s", "is_made"),
    [
        (0.5 * GB, MS, True),
        (0.5 * GB, (SAME_TIME + 0.01) * MS, False),  # slower
        (0.99 * GB, 0.5 * MS, False),  # as many bytes
    ],
)
def test_the_change_of_the_first_sentence(hbm_bytes: float, time_s: float, is_made: bool) -> None:
    tried = SimpleNamespace(trials=[trial("a", hbm_bytes, time_s)])
    sentence = _change_to_make(SimpleNamespace(prediction=prediction(), tried=tried))
    assert sentence == ("With 'a' fa2 would read 250 MB" if is_made else "")
