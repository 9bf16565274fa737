"""How the CTAs of an SM share it: rates from ends against a simulated SM, and the recorded table."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import mean, median
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import load_script

from iosim.base.data import data_dir
from iosim.base.errors import InputError
from iosim.catalog.libraries import Overrides, resolve
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay import sharing
from iosim.readers.replay.sharing import (
    Key,
    measured_rates,
    rates_from_ends,
    rates_of,
    sloped,
    usual_heights,
)

GPU = load_profile("h200-sxm")
Rates = Callable[[Sequence[float], Sequence[float]], Sequence[float]]


def ends_on_an_sm(rates: Sequence[float], work: Sequence[float]) -> list[float]:
    """When CTAs that began together on one SM end: played from one end to the next.

    Those still there, the oldest first, go on at rates[0], rates[1], ...
    """
    remaining, now = dict(enumerate(work)), 0.0
    ends = [0.0] * len(work)
    while remaining:
        pace = dict(zip(sorted(remaining), rates, strict=False))
        first = min(remaining, key=lambda cta: remaining[cta] / pace[cta])
        step = remaining[first] / pace[first]
        now += step
        remaining = {
            cta: amount - pace[cta] * step for cta, amount in remaining.items() if cta != first
        }
        ends[first] = now
    return ends


def test_two_ctas_by_hand() -> None:
    # the older does 12 at 3 a second and ends at 4 s; the younger has done 4 by then and does the other 8 at 3: 6.67 s
    assert ends_on_an_sm([3, 1], [12, 12]) == pytest.approx([4, 20 / 3])
    assert rates_from_ends([4, 20 / 3], [12, 12]) == pytest.approx(
        (1.5, 0.5)
    )  # 3 and 1 over their mean


def test_three_ctas_by_hand() -> None:
    # rates 4, 3, 2 on 12 each. To 3 s: 12, 9, 6 done. The second does its last 3 at 4, to 3.75 s, the third 3 x 0.75 in
    # that time, 8.25 in all, and its last 3.75 at 4: to 4.6875 s.
    assert ends_on_an_sm([4, 3, 2], [12, 12, 12]) == pytest.approx([3, 3.75, 4.6875])
    assert rates_from_ends([3, 3.75, 4.6875], [12, 12, 12]) == pytest.approx((4 / 3, 1, 2 / 3))


@st.composite
def sms(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    """(rates that do not rise with age's rank, work that does not fall): the oldest ends first."""
    count = draw(st.integers(1, 8))
    amounts = st.lists(st.floats(0.2, 5.0), min_size=count, max_size=count)
    return sorted(draw(amounts), reverse=True), sorted(draw(amounts))


def recovered(rates_found: Rates, rates: Sequence[float], work: Sequence[float]) -> bool:
    """Whether the rates of a simulated SM are found again from its ends."""
    recovered_rates = rates_found(ends_on_an_sm(rates, work), work)
    return bool(np.allclose(recovered_rates, np.array(rates) / mean(rates), rtol=1e-6, atol=1e-9))


@given(sms())
@settings(deadline=None)
def test_rates_are_found_again_from_the_ends(sm: tuple[list[float], list[float]]) -> None:
    assert recovered(rates_from_ends, *sm)


@given(sms(), st.floats(0.01, 1e6), st.floats(0.01, 1e6))
@settings(deadline=None)
def test_units_drop_out(sm: tuple[list[float], list[float]], seconds: float, keys: float) -> None:
    rates, work = sm
    ends = ends_on_an_sm(rates, work)
    other = rates_from_ends([seconds * t for t in ends], [keys * w for w in work])
    assert other == pytest.approx(rates_from_ends(ends, work), rel=1e-6, abs=1e-9)


# Mistakes planted in the formula: the simulated SM must show each one.


def nobody_moves_up(ends: Sequence[float], work: Sequence[float]) -> list[float]:
    """As though a CTA kept its rate when an older one ends."""
    speeds = [amount / end for amount, end in zip(work, ends, strict=True)]
    return [rate / mean(speeds) for rate in speeds]


def all_go_first(ends: Sequence[float], work: Sequence[float]) -> list[float]:
    """As though all who are left had the oldest's rate from the first end on."""
    speeds = [work[0] / ends[0]]
    speeds += [
        (w - speeds[0] * (t - ends[0])) / ends[0] for w, t in zip(work[1:], ends[1:], strict=True)
    ]
    return [rate / mean(speeds) for rate in speeds]


def all_have_the_same_work(ends: Sequence[float], work: Sequence[float]) -> Sequence[float]:
    return rates_from_ends(ends, [work[0]] * len(work))


def youngest_first(ends: Sequence[float], work: Sequence[float]) -> Sequence[float]:
    return rates_from_ends(ends, work)[::-1]


def not_in_units_of_the_mean(ends: Sequence[float], work: Sequence[float]) -> Sequence[float]:
    return [rate / rates_from_ends(ends, work)[0] for rate in rates_from_ends(ends, work)]


PLANTED: tuple[Rates, ...] = (
    nobody_moves_up,
    all_go_first,
    all_have_the_same_work,
    youngest_first,
    not_in_units_of_the_mean,
)


@pytest.mark.parametrize("wrong", PLANTED)
def test_a_wrong_formula_is_seen(wrong: Rates) -> None:
    rates = [4.0, 3.0, 1.0]
    work = [12.0, 14.0, 20.0]
    assert recovered(rates_from_ends, rates, work)
    assert not recovered(wrong, rates, work)


# The table.


def rows() -> list[dict[str, str]]:
    rate_rows = []
    for table in sharing.TABLES:
        with (data_dir("kernels") / table).open(encoding="utf-8", newline="") as file:
            rate_rows += list(csv.DictReader(file))
    return rate_rows


def all_rates() -> dict[Key, tuple[float, ...]]:
    names = dict.fromkeys(row["kernel"] for row in rows())
    return {key: rates for name in names for key, rates in measured_rates(name).items()}


def test_the_table_loads() -> None:
    all_sharing_rates, heights = all_rates(), usual_heights()
    assert len(all_sharing_rates) > 200
    assert set(heights) == {2, 3, 4, 5, 6, 7}
    for key, rates in all_sharing_rates.items():
        assert len(rates) == key[-1]
        assert mean(rates) == pytest.approx(1)
        assert min(rates) > 0.3, key
        assert all(a > b - 0.05 for a, b in pairwise(rates)), key  # the older, the faster
    for ctas, height in heights.items():
        heights_of_count = [
            rates[0] - rates[-1]
            for key, rates in all_sharing_rates.items()
            if key[0] == "own" and len(rates) == ctas
        ]
        assert height == median(heights_of_count)


def test_every_row_is_used() -> None:
    rates = all_rates()
    for row in rows():
        assert len(row["keys"].split()) == len(row["ends_us"].split()) == int(row["ctas"])
        assert (*sharing._key(row), int(row["ctas"])) in rates


def test_kernels_that_the_benchmark_names_were_measured() -> None:
    assert set(load_script("benchmarks/shares.py").NAMED.values()) <= set(all_rates())


def test_runs_of_a_kernel_agree() -> None:
    """By 0.05 in a rate, which is the noise."""
    runs: dict[Any, list[tuple[float, ...]]] = {}
    for row in rows():
        ends, work = ([float(x) for x in row[name].split()] for name in ("ends_us", "keys"))
        if min(ends) > 0:
            runs.setdefault((sharing._key(row), len(ends)), []).append(rates_from_ends(ends, work))
    for key, several in runs.items():
        assert np.ptp(np.array(several), axis=0).max() < 0.05, key


def two_ctas(kernel: str, head_dim: str, causal: str, build: str = "") -> tuple[float, float]:
    """The mean rates of a library's kernel with two CTAs, by hand from its rows."""
    pairs = []
    for row in rows():
        if (row["kernel"], row["head_dim"], row["causal"], row.get("build", "")) == (
            kernel,
            head_dim,
            causal,
            build,
        ):
            (first, second), (older, younger) = (
                [float(x) for x in row[n].split()] for n in ("ends_us", "keys")
            )
            rate = (
                younger / older * first - (second - first)
            ) / first  # of the younger, in units of the older's
            pairs.append((2 / (1 + rate), 2 * rate / (1 + rate)))
    return mean(a for a, _ in pairs), mean(b for _, b in pairs)


@pytest.mark.parametrize(
    ("name", "stands_for", "head_dim", "mask"),
    [
        ("fa2", "flash", 128, "none"),
        ("fa2", "flash", 64, "causal"),
        ("fa2", "flash", 256, "causal"),
        ("cutlass", "efficient", 128, "none"),
    ],
)
def test_kernels_of_libraries(name: str, stands_for: str, head_dim: int, mask: str) -> None:
    problem = AttentionProblem(heads=8, seq_q=4096, head_dim=head_dim, dtype="bf16", mask=mask)
    kernel = resolve(name, problem, GPU)
    expected = two_ctas(stands_for, str(head_dim), "01"[mask == "causal"])
    assert rates_of(kernel, problem, 2) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("tokens", "head_dim", "splits", "build"),
    [
        (4096, 128, 1, ""),
        (4095, 128, 1, "ragged"),
        (4096, 104, 1, "narrow"),
        (4095, 104, 1, "narrow"),
        (4095, 104, 2, ""),
    ],
)
def test_builds_of_flash_attention_2(tokens: int, head_dim: int, splits: int, build: str) -> None:
    """The kernel of splits is another, whose shares nobody measured."""
    problem = AttentionProblem(heads=8, seq_q=tokens, head_dim=head_dim, dtype="bf16")
    kernel = resolve("fa2", problem, GPU).with_(splits=splits)
    assert rates_of(kernel, problem, 2) == pytest.approx(two_ctas("flash", "128", "0", build))


def test_an_untested_mask_takes_the_unmasked_kernel_of_the_library() -> None:
    """The memory-efficient kernel was measured without a mask alone."""
    plain = AttentionProblem(heads=8, seq_q=4096, head_dim=128, dtype="bf16")
    causal = AttentionProblem(heads=8, seq_q=4096, head_dim=128, dtype="bf16", mask="causal")
    kernel = resolve("cutlass", causal, GPU)
    assert (
        rates_of(kernel, causal, 2) == rates_of(kernel, plain, 2) != sloped(usual_heights()[2], 2)
    )


def own(
    tile: tuple[int, int] = (128, 64), dtype: str = "bf16", mask: str = "none", **over: Any
) -> tuple[Kernel, AttentionProblem]:
    problem = AttentionProblem(heads=8, seq_q=4096, head_dim=128, dtype=dtype, mask=mask)
    return resolve("flash", problem, GPU, Overrides(tile=tile, warps=4, stages=2, **over)), problem


def test_known_heights() -> None:
    """Rounded from the table: how far the oldest and the youngest lie apart."""
    heights = {"none": 0.035, "causal": 0.114}
    for mask, height in heights.items():
        rates = rates_of(*own(mask=mask), 2)
        assert rates[0] - rates[1] == pytest.approx(height, abs=0.01)
    memory_efficient = two_ctas("efficient", "128", "0")
    assert memory_efficient[0] - memory_efficient[1] == pytest.approx(0.2, abs=0.01)


def test_the_mask_and_the_list_are_part_of_the_kernel() -> None:
    persistent = own(scheduler="persistent")
    rates = {rates_of(*own(), 2), rates_of(*own(mask="causal"), 2), rates_of(*persistent, 2)}
    assert len(rates) == 3


def test_a_dtype_that_was_not_measured_takes_that_of_bf16() -> None:
    rates = all_rates()
    assert ("own", 128, 128, 64, 4, 2, False, False, "fp16", 2) not in rates
    assert rates_of(*own(dtype="fp16"), 2) == rates_of(*own(), 2)
    assert rates_of(*own(dtype="fp16", mask="causal"), 2) != rates_of(
        *own(mask="causal"), 2
    )  # this one was


def test_what_was_not_measured_falls_evenly() -> None:
    heights = usual_heights()
    assert rates_of(*own((192, 64)), 2) == (1 + heights[2] / 2, 1 - heights[2] / 2)
    assert rates_of(*own(), 2, compiled=False) == (1 + heights[2] / 2, 1 - heights[2] / 2)
    kernel, problem = own()
    assert rates_of(kernel.with_(cta_shares=""), problem, 2) == (
        1 + heights[2] / 2,
        1 - heights[2] / 2,
    )
    three = rates_of(kernel.with_(cta_shares=""), problem, 3)
    assert three == pytest.approx((1 + heights[3] / 2, 1, 1 - heights[3] / 2))


def test_as_many_ctas_as_nobody_has_take_the_nearest_number() -> None:
    heights = usual_heights()
    kernel, problem = own()
    assert rates_of(kernel, problem, 16) == pytest.approx(sloped(heights[7], 16))


def test_a_cta_alone_has_the_sm() -> None:
    assert rates_of(*own(), 1) == (1.0,)


def test_a_stated_share_goes_before_the_table() -> None:
    kernel, problem = own()
    assert rates_of(kernel.with_(age_share=0.3), problem, 2) == pytest.approx((1.15, 0.85))
    assert rates_of(kernel.with_(age_share=0.0), problem, 4) == (1, 1, 1, 1)


@given(st.floats(0, 1), st.integers(2, 16))
def test_slopes(share: float, ctas: int) -> None:
    rates = sloped(share, ctas)
    assert mean(rates) == pytest.approx(1)
    assert rates[0] - rates[-1] == pytest.approx(share)
    assert np.diff(rates) == pytest.approx(-share / (ctas - 1))


# The script that measured it.


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """experiments/ends.py."""
    return load_script("experiments/ends.py")


def test_keys_of_a_causal_kernel(script: ModuleType) -> None:
    # 3 SMs with 2 CTAs of 64 rows, and as many rows again: 768 rows, the last of which has all 131,072 keys. CTA 1's
    # last row is row 127 and has 131,072 - 768 + 128 keys, CTA 4's 131,072 - 768 + 320.
    causal = script.Shared("flash", 256, True, 64, 2)
    assert script.keys_of_groups(causal, 2, 3) == [130432, 130624]
    assert script.keys_of_groups(script.Shared("flash", 256, False, 64, 2), 2, 3) == [
        131072,
        131072,
    ]
    assert script.keys_of_groups(script.Shared("own", 64, True, 128, 3), 4, 3) == [32768] * 4


def test_keys_of_the_table_are_the_scripts(script: ModuleType) -> None:
    cases = {(c.kernel, str(c.head_dim), str(int(c.causal))): c for c in script.SHARED_LIBRARY}
    long = {(c.kernel, str(c.head_dim), str(c.tokens)) for c in script.CASES if not c.causal}
    for row in rows():
        if (row["kernel"], row["head_dim"], row["keys"].split()[0]) in long and row[
            "causal"
        ] == "0":
            continue  # the first CTAs of a long launch, by --first
        case = cases.get(
            (row["kernel"], row["head_dim"], row["causal"]), script.Shared("own", 64, False, 128, 2)
        )
        keys = script.keys_of_groups(case, int(row["ctas"]), 132)
        assert [int(x) for x in row["keys"].split()] == keys


@pytest.mark.parametrize(("misses", "tries"), [(0, 1), (2, 3), (3, 3)])
def test_an_output_elsewhere_is_tried_again(
    misses: int, tries: int, script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(empty_cache=lambda: None))
    )
    tried: list[int] = []

    def measure() -> str:
        tried.append(1)
        if len(tried) <= misses:
            raise script.Elsewhere("the output went elsewhere")
        return "seen"

    if misses < 3:
        assert script.attempted(measure) == "seen"
    else:
        with pytest.raises(InputError, match="elsewhere"):
            script.attempted(measure)
    assert len(tried) == tries


# A mistake in reading the table.


@pytest.mark.parametrize("column", ["ends_us", "keys"])
def test_a_column_read_backwards_is_seen(column: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = csv.DictReader

    def turned(file: Any) -> list[dict[str, str]]:
        return [row | {column: " ".join(reversed(row[column].split()))} for row in real(file)]

    expected = two_ctas("flash", "64", "1")
    monkeypatch.setattr(sharing.csv, "DictReader", turned)
    backwards = measured_rates.__wrapped__("flash")
    assert backwards["flash", 64, True, "", 2] != pytest.approx(expected)
