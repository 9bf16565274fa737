"""What is said beside numbers: readings of plots, advice, ranges of claims, bounds of what may be typed. Tables of small
cases, each with what a reader is told."""

from __future__ import annotations

import math
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest

from iosim.catalog.algorithms import algorithm_of, algorithms
from iosim.evidence.claims.check import _error
from iosim.evidence.reproduce.side import Amount
from iosim.hardware.profile_file import _expand
from iosim.hardware.quantities import Quantities
from iosim.prediction.code_face import site_table
from iosim.readers.timing.warps import placed_warps
from iosim.studies.explain import LaunchFacts, _advice, _headline
from iosim.studies.trials import Tried


def of(**values: Any) -> Any:
    return SimpleNamespace(**values)


# ---- advice ----


def advice(
    now: int, *trials: tuple[str, int, float], skipped: tuple[tuple[str, str], ...] = ()
) -> str:
    """Advice where a call moves `now` bytes in a second, and trials (words, bytes, seconds) were made."""
    p = of(
        total=lambda _: now,
        time=of(total_s=1.0, bound_by="hbm"),
        hbm_bounds=of(compulsory_read=6, compulsory_write=4),
    )
    tried = [
        of(words=words, hbm_bytes=hbm_bytes, time_s=seconds) for words, hbm_bytes, seconds in trials
    ]
    return _advice(p, Tried(tuple(tried), skipped))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("now", "trials", "says", "says_not"),
    [
        (0, [("a", 0, 0.99)], ["nothing is read"], ["fastest"]),
        (0, [("a", 0, 0.5)], ["nothing is read", "fastest is 'a': 500 ms, HBM 0 B"], []),
        (1000, [("a", 500, 1.0)], ["'a' helps most", "1 kB -> 500 B", "-50.0 %"], ["fastest"]),
        (1000, [("a", 500, 1.0), ("b", 900, 0.5)], ["'a' helps most", "fastest is 'b'"], []),
        (1000, [("a", 990, 1.0)], ["the one change tried does not lower"], ["faster", "saves"]),
        (1000, [("a", 1000, 1.0), ("b", 1200, 0.5)], ["none of the 2", "'b' is 50 % faster"], ["saves"]),
        (1000, [("a", 600, 2.0)], ["does not lower", "'a' saves 400 B and takes 100 % longer"], ["faster"]),
    ],
)  # fmt: skip
def test_advice_on_what_was_tried(
    now: int, trials: list[tuple[str, int, float]], says: list[str], says_not: list[str]
) -> None:
    text = advice(now, *trials)
    assert all(part in text for part in says), text
    assert not any(part in text for part in says_not), text


def test_advice_where_nothing_was_tried() -> None:
    assert advice(10) == "nothing was tried: no setting of this kernel changes what runs"
    assert advice(10, skipped=(("a", "too large"),)) == "nothing was tried: too large"


@pytest.mark.parametrize(
    ("regime", "in_use", "stronger"),
    [("drift", 200, True), ("drift", 50, False), ("drift", None, False)],
)
def test_a_regime_past_the_capacity_is_said_so(
    regime: str, in_use: int | None, stronger: bool
) -> None:
    names = {f.name for f in fields(LaunchFacts)} | {
        "median_in_use_bytes",
        "share_above_capacity",
        "where",
        "step",
    }
    values: Any = dict.fromkeys(names, 1) | {
        "shared_tensors": ["K", "V"],
        "hbm_read_bytes": 300,
        "all_bytes": 150,
        "capacity_bytes": 100,
        "peak_in_use_bytes": in_use,
    }
    text = _headline(regime, values)
    assert ("drifted apart" in text) == stronger


# ---- claims ----

HBM_RANGE = of(read=(50.0, 200.0), write=(90.0, 120.0), total=(140.0, 320.0))


@pytest.mark.parametrize(
    ("quantity", "direction", "known", "low", "high"),
    [
        ("hbm", "read", True, 0.5, 2.0),
        ("hbm", "written", True, 0.9, 1.2),
        ("hbm", "moved", True, 1.4, 3.2),
        ("hbm", "read", False, 0.97, 1.03),
        ("hbm", "written", False, 0.95, 1.05),
        ("ratio", "read", True, 0.97, 1.03),
        ("l2", "read", True, 1.0, 1.0),
        ("flops", "", True, 1.0, 1.0),
        ("time", "", True, 0.5, 2.5),
        ("time", "", False, 0.85, 1.15),
        ("tflops", "", True, 0.4, 2.0),
        ("tflops", "", False, 1 / 1.15, 1 / 0.85),
    ],
)
def test_what_a_claim_may_be_off_by(
    quantity: str, direction: str, known: bool, low: float, high: float
) -> None:
    p = of(
        hbm_range=HBM_RANGE if known else None,
        time_range=of(seconds=(1.0, 5.0)) if known else None,
        time_s=2.0,
    )
    claim = of(quantity=quantity, of="hbm")
    reading = of(direction=direction, value=100.0)
    assert _error(claim, p, reading) == pytest.approx((low, high))


@pytest.mark.parametrize(
    ("unit", "scaled"),
    [
        ("KiB", 2e6 / 1024),
        ("MiB", 2e6 / 1024**2),
        ("GiB", 2e6 / 1024**3),
        ("MB", 2.0),
        ("GB", 2e-3),
        ("GFLOP", 2e-3),
        ("ms", 2e9),
        ("us", 2e12),
        ("percent", 2e8),
        ("%", 2e8),
    ],
)
def test_amounts_in_units(unit: str, scaled: float) -> None:
    assert getattr(Amount(2e6), unit) == pytest.approx(scaled)


# ---- bounds ----


def is_round(bound: float) -> bool:
    """0, a power of two, one less than it, or 1, 2, 2.5 or 5 times a power of ten."""
    bound = abs(bound)
    if bound == 0 or math.isinf(bound):
        return True
    mantissa = bound / 10 ** math.floor(math.log10(bound) + 1e-12)
    twos = (bound, bound + 1)
    return any(math.isclose(mantissa, m) for m in (1, 2, 2.5, 5)) or any(
        math.log2(n) == round(math.log2(n)) for n in twos
    )


def test_bounds_of_numbers_are_round() -> None:
    """A bound is there to catch a slip of a unit: a number of three digits is a slip itself."""
    odd = []
    for field in fields(Quantities):
        about = field.metadata
        odd += [(field.name, b) for b in (about["low"], about["high"]) if not is_round(b)]
    for name in algorithms():
        for field in fields(algorithm_of(name).options):
            bounds = (field.metadata.get("low"), field.metadata.get("high"))
            odd += [(name, field.name, b) for b in bounds if b is not None and not is_round(b)]
    assert odd == []


def test_sources_are_written_out_and_never_endless() -> None:
    assert _expand("doc: p. 7", {"doc": "https://example.org/a"}) == "https://example.org/a: p. 7"
    assert _expand("other: p. 7", {"doc": "x"}) == "other: p. 7"
    assert len(_expand("word " * 200, {})) == 400


# ---- machine code ----


@pytest.mark.parametrize("threads", [1, 31, 32, 33, 96, 100, 128, 1024])
def test_each_warp_of_a_cta_has_a_part(threads: int) -> None:
    warps = placed_warps(threads, 3)
    of_each = -(-threads // 32)  # a warp of one thread is a warp
    assert [cta for cta, _ in warps] == [n // of_each for n in range(3 * of_each)]
    assert {part for _, part in warps} == set(range(min(4, 3 * of_each)))


def test_accesses_that_move_most_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sector is 32 bytes, a wavefront 128: 10 of them are more than 39 sectors and less than 41."""

    def group(line: str, space: str, sectors: int, wavefronts: int) -> Any:
        site = of(
            line=line,
            space=space,
            sectors=sectors,
            wavefronts=wavefronts,
            requests=1,
            mode="load",
            width=4,
            tensor="t",
            sectors_per_request=1.0,
            used_share=1.0,
            least_wavefronts=1,
            loop="",
        )
        return of(sum=site, served=None)

    groups = [group("a", "global", 39, 0), group("b", "shared", 0, 10), group("c", "global", 41, 0)]
    monkeypatch.setattr("iosim.prediction.code_face.groups", lambda p: groups)
    assert [row[0] for row in site_table(of()).rows] == ["c", "b", "a"]
