"""The harness on this machine's CPU: what a call is given, what it is held against, and when it is believed; and how
times are taken of calls that are made of paper."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from iosim.base.errors import InputError  # noqa: E402
from iosim.evidence.cuda.launch import Backward, Forward, Minimal, Naive, Order, Shape  # noqa: E402
from iosim.evidence.cuda.spec import BwdSpec, FwdSpec, MinimalSpec, NaiveSpec  # noqa: E402
from iosim.evidence.measure import harness, table, timing  # noqa: E402
from iosim.evidence.measure.case import LSE_TOLERANCE, TOLERANCE, Case  # noqa: E402

SHAPE = Shape(2, 4, 2, 5, 7, 64)
FORWARD = Case(FwdSpec(64, 64, 64, 4, 2, dtype="fp16"), SHAPE)
SPLIT = Case(FwdSpec(64, 64, 64, 4, 2, dtype="fp16", split=True), SHAPE, Order(splits=3))
BACKWARD = Case(BwdSpec(64, 128, 128, 8, dtype="fp16"), SHAPE)
NAIVE = Case(NaiveSpec(64, "fp16"), SHAPE)
MINIMAL = Case(MinimalSpec(64), SHAPE)
ROWS = (2, 4, 5)
"""Batches, heads and query rows: one number each."""
HALF, FULL = torch.float16, torch.float32


class OnTheCpu:
    """PyTorch whose GPU is the CPU."""

    def __init__(self) -> None:
        self.cuda = SimpleNamespace(
            synchronize=lambda: None,
            empty_cache=lambda: None,
            current_stream=lambda: SimpleNamespace(cuda_stream=17),
        )

    def __getattr__(self, name: str) -> Any:
        original = getattr(torch, name)
        if name in ("Tensor", "double", "float16", "float32", "float64", "bool", "linalg"):
            return original
        if name == "Generator":
            return lambda device: torch.Generator()

        def called(*args: Any, **named: Any) -> Any:
            return original(*args, **{**named, **({"device": "cpu"} if "device" in named else {})})

        return called if callable(original) else original


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (harness, timing):
        monkeypatch.setattr(module, "torch", OnTheCpu())


def test_inputs_are_normal_and_the_same_for_a_seed() -> None:
    t = harness.inputs(FORWARD, 3)
    assert {name: tuple(x.shape) for name, x in t.items()} == {
        "q": (2, 4, 5, 64),
        "k": (2, 2, 7, 64),
        "v": (2, 2, 7, 64),
    }
    assert all(x.dtype == HALF for x in t.values())
    for x in t.values():  # of 900 or more numbers: mean 0 to 0.15, deviation 1 to 0.1
        assert abs(x.float().mean()) < 0.15
        assert abs(x.float().std() - 1) < 0.1
    again, other = harness.inputs(FORWARD, 3), harness.inputs(FORWARD, 4)
    assert torch.equal(again["q"], t["q"])
    assert not torch.equal(other["q"], t["q"])
    large = harness.inputs(FORWARD, 3, magnitude=4.0)
    assert torch.equal(large["q"], 4 * t["q"])  # a power of two: exact
    assert tuple(harness.inputs(BACKWARD, 3)["d_o"].shape) == (2, 4, 5, 64)
    assert harness.inputs(MINIMAL, 3)["q"].dtype == FULL


def filled(tensors: dict[str, Any]) -> dict[str, Any]:
    """Shape, type and what all elements are: a number, NaN, or "values" where they differ."""

    def value(x: Any) -> Any:
        if bool(x.isnan().all()):
            return "NaN"
        first = x.flatten()[0].item()
        return first if bool((x == first).all()) else "values"

    return {name: (tuple(x.shape), x.dtype, value(x)) for name, x in tensors.items()}


@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        (FORWARD, {"o": ((*ROWS, 64), HALF, "NaN"), "lse": (ROWS, FULL, "NaN")}),
        (
            SPLIT,
            {
                "o": ((*ROWS, 64), HALF, "NaN"),
                "lse": (ROWS, FULL, "NaN"),
                "o_partial": ((3, *ROWS, 64), FULL, "NaN"),
                "lse_partial": ((3, *ROWS), FULL, "NaN"),
            },
        ),
        (
            NAIVE,
            {
                "s": ((*ROWS, 7), HALF, "NaN"),
                "p": ((*ROWS, 7), HALF, "NaN"),
                "o": ((*ROWS, 64), HALF, "NaN"),
            },
        ),
        (
            MINIMAL,  # adds up in place
            {
                "o": ((*ROWS, 64), FULL, 0.0),
                "sum": (ROWS, FULL, 0.0),
                "top": (ROWS, FULL, -math.inf),
            },
        ),
        (
            BACKWARD,
            {
                "o": ((*ROWS, 64), HALF, "values"),
                "lse": (ROWS, FULL, "values"),
                "rows": ((*ROWS, 2), FULL, "NaN"),
                "dq": ((*ROWS, 64), HALF, "NaN"),
                "dk": ((2, 2, 7, 64), HALF, "NaN"),
                "dv": ((2, 2, 7, 64), HALF, "NaN"),
                "dq_sum": ((*ROWS, 64), FULL, 0.0),
            },
        ),
    ],
)
def test_a_workspace_is_poisoned_or_as_its_kernel_wants_it(case: Case, wanted: Any) -> None:
    t = harness.inputs(case, 3)
    assert filled(harness.workspace(case, t)) == wanted
    if case is BACKWARD:
        alone = replace(case, spec=replace(case.spec, deterministic=True))
        assert filled(harness.workspace(alone, t)) == {
            name: value for name, value in wanted.items() if name != "dq_sum"
        }


@pytest.mark.parametrize(
    ("case", "kind", "settings"),
    [
        (FORWARD, Forward, (FORWARD.order, 0.5)),
        (replace(NAIVE, causal=True), Naive, (True, 0.5)),
        (MINIMAL, Minimal, (0.5,)),
        (BACKWARD, Backward, (0.5,)),
    ],
)
def test_a_kernel_is_launched_over_addresses(
    case: Case, kind: type, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = kind.__new__(kind)
    kernel.launches = lambda *args: list(args)
    monkeypatch.setattr(harness, "loaded", lambda spec: kernel)
    tensors = {"q": torch.zeros(3), "k": torch.zeros(4)}
    addresses = {name: x.data_ptr() for name, x in tensors.items()}
    assert harness.launches(case, tensors, 0.5) == [case.shape, addresses, *settings]


@pytest.mark.parametrize(
    ("causal", "window", "kept_keys"),
    [
        (False, None, None),
        # Five queries are the last of seven keys: query n sees keys up to n + 2.
        (True, None, [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4], [*range(6)], [*range(7)]]),
        # A window of one: the key of its own place and the one before.
        (False, 1, [[1, 2], [2, 3], [3, 4], [4, 5], [5, 6]]),
        (True, 0, [[2], [3], [4], [5], [6]]),
    ],
)
def test_which_keys_a_query_keeps(causal: bool, window: int | None, kept_keys: Any) -> None:
    case = Case(FORWARD.spec, replace(SHAPE, window=window), causal=causal)
    mask = harness.kept(case, torch.arange(5))
    rows = None if mask is None else [row.nonzero().flatten().tolist() for row in mask]
    assert rows == kept_keys


def test_a_scale_of_ones_own() -> None:
    t = harness.inputs(FORWARD, 3)
    scaled, scaled_lse = harness.reference(FORWARD, t)
    same, _ = harness.reference(FORWARD, t, scale=1 / 8)  # the root of 64 columns
    assert torch.equal(same, scaled)
    flat, flat_lse = harness.reference(FORWARD, t, scale=0.0)
    assert torch.allclose(flat_lse, torch.full_like(flat_lse, math.log(7)))
    assert not torch.allclose(flat_lse, scaled_lse)
    assert torch.allclose(flat[0, 3, 0], t["v"][0, 1].double().mean(0))


def test_rows_that_are_held_against_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them up to so many pairs; beyond, the first and last 64 and some others."""
    case = replace(FORWARD, shape=Shape(1, 2, 2, 300, 300, 64))
    pairs = 2 * 300 * 300
    monkeypatch.setattr(harness, "SAMPLED_PAIRS", pairs)
    assert harness.reference_rows(case).tolist() == list(range(300))
    monkeypatch.setattr(harness, "SAMPLED_PAIRS", pairs - 1)
    rows = harness.reference_rows(case).tolist()
    assert rows == sorted(set(rows))
    assert {*range(64), *range(236, 300)} <= {*rows}
    assert 128 <= len(rows) <= 192
    short = replace(FORWARD, shape=Shape(1, 2000, 2000, 30, 300, 64))
    assert harness.reference_rows(short).tolist() == list(range(30))


def computing(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], object] = lambda t: None
) -> list[Any]:
    """Launches that compute what the reference says, with a change to it; gives what they were asked for."""
    asked_for: list[Any] = []

    def launches(case: Case, tensors: dict[str, Any], scale: float | None = None) -> list[Any]:
        asked_for.append((set(tensors), scale))

        def run(stream: int = 0) -> None:
            if isinstance(case.spec, BwdSpec):
                for name, grad in harness.gradients(case, tensors).items():
                    tensors[name].copy_(grad)
            else:
                o, lse = harness.reference(case, tensors, None, scale)
                tensors["o"].copy_(o)
                if "lse" in tensors:
                    tensors["lse"].copy_(lse)
            change(tensors)

        return [SimpleNamespace(run=run)]

    monkeypatch.setattr(harness, "launches", launches)
    return asked_for


def test_a_right_call_has_no_errors_but_those_of_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for = computing(monkeypatch)
    errors = harness.check(FORWARD, 3, 2.0, 0.25)
    assert asked_for == [({"q", "k", "v", "o", "lse"}, 0.25)]
    assert errors.keys() == {"o", "lse", "empty_rows"}
    assert errors["o"] < TOLERANCE["fp16"]
    assert errors["lse"] < LSE_TOLERANCE
    assert errors["empty_rows"] == 0.0
    assert harness.check(NAIVE, 3).keys() == {"o"}
    backward = harness.check(BACKWARD, 3)
    assert backward.keys() == {"dq", "dk", "dv"}
    assert max(backward.values()) < TOLERANCE["fp16"]


def test_what_is_off_shows_in_the_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def far(t: dict[str, Any]) -> None:
        t["lse"][1, 2, 3] -= 0.5

    computing(monkeypatch, far)
    assert harness.check(FORWARD, 3)["lse"] == pytest.approx(0.5, abs=1e-3)

    def doubled(t: dict[str, Any]) -> None:
        t["dk"].mul_(2)

    computing(monkeypatch, doubled)
    errors = harness.check(BACKWARD, 3)
    assert errors["dk"] == pytest.approx(1.0, abs=1e-2)  # |2 x - x| / |x|
    assert errors["dq"] < TOLERANCE["fp16"]

    def unwritten(t: dict[str, Any]) -> None:
        t["o"][0, 0, 0, 0] = math.nan

    computing(monkeypatch, unwritten)
    assert harness.check(FORWARD, 3)["o"] == math.inf


@pytest.mark.parametrize(
    ("lse", "o", "error"),
    [
        (-math.inf, 0.0, 0.0),
        (0.0, 0.0, math.inf),
        (-math.inf, 1.0, math.inf),
        (0.0, 1.0, math.inf),
    ],
)
@pytest.mark.parametrize("queries", [9, 2])
def test_rows_without_a_key_are_zero(
    lse: float, o: float, error: float, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine queries over two keys: the first seven see none. Of two queries, both see none."""
    empty = slice(0, 7 if queries == 9 else 2)

    def change(t: dict[str, Any]) -> None:
        t["lse"][0, 0, empty] = lse
        t["o"][0, 0, empty] = o

    case = replace(FORWARD, shape=Shape(1, 1, 1, queries, 2, 64), causal=True)
    computing(monkeypatch, change)
    if queries == 2:
        monkeypatch.setattr(
            harness,
            "reference",
            lambda case, t, *_: (
                torch.zeros(1, 1, 2, 64, dtype=torch.float64),
                torch.full((1, 1, 2), -math.inf, dtype=torch.float64),
            ),
        )
    errors = harness.check(case, 3)
    assert errors["empty_rows"] == error
    assert errors["lse"] < LSE_TOLERANCE


@pytest.mark.parametrize(
    ("errors", "extremes", "good"),
    [
        ({"o": TOLERANCE["fp16"], "lse": LSE_TOLERANCE}, {}, True),
        ({"o": 1.001 * TOLERANCE["fp16"], "lse": 0.0}, {}, False),
        ({"o": 0.0, "lse": 1.001 * LSE_TOLERANCE}, {}, False),
        ({"o": 0.0, "lse": 50 * LSE_TOLERANCE}, {"magnitude": 8.0}, True),
        ({"o": 0.0, "lse": 51 * LSE_TOLERANCE}, {"magnitude": 8.0}, False),
        ({"o": 2 * TOLERANCE["fp16"]}, {"magnitude": 8.0}, False),
    ],
)
def test_when_a_call_is_trusted(
    errors: dict[str, float], extremes: Any, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[Any] = []

    def check(case: Case, seed: int, **more: float) -> dict[str, float]:
        asked_for.append((seed, more))
        return errors

    monkeypatch.setattr(harness, "check", check)
    assert harness.trusted(FORWARD, 5, **extremes) == (good, errors)
    assert asked_for == [(5, extremes)]
    if extremes:
        return
    if good:
        harness.refuse_wrong(FORWARD)
    else:
        with pytest.raises(InputError, match="wrong against float64"):
            harness.refuse_wrong(FORWARD)


# --- times ---


@pytest.mark.parametrize(("case", "zeroed"), [(BACKWARD, True), (FORWARD, False)])
def test_a_timed_call_runs_its_launches_and_clears_its_sums(
    case: Case, zeroed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    call_tensors: dict[str, Any] = {}
    streams: list[int] = []

    def launches(case: Case, tensors: dict[str, Any]) -> list[Any]:
        call_tensors.update(tensors)
        return [SimpleNamespace(run=streams.append)] * 3

    def median_ms(call: Callable[[], object], flush: bool) -> float:
        if "dq_sum" in call_tensors:
            call_tensors["dq_sum"].fill_(5)
        call()
        return 2.0 if flush else 1.0

    monkeypatch.setattr(timing, "launches", launches)
    monkeypatch.setattr(timing, "median_ms", median_ms)
    assert timing.case_ms(case, True) == 2.0
    assert timing.case_ms(case, False) == 1.0
    assert streams == [17] * 6
    assert {"q", "k", "v", "o", "lse"} <= call_tensors.keys()
    assert ("dq_sum" in call_tensors) is zeroed
    if zeroed:
        assert float(call_tensors["dq_sum"].abs().max()) == 0.0


@pytest.mark.parametrize(("l2_start", "ms"), [("cold", 2.0), ("warm", 1.0)])
def test_a_plan_of_times(
    l2_start: str, ms: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve calls, one of which is wrong: the table is saved after ten, and at the end."""
    saved: list[int] = []
    cases = [replace(FORWARD, note=f"call {n}") for n in range(12)]

    def refuse_wrong(case: Case) -> None:
        if case.note == "call 3":
            raise InputError("wrong against float64\nand more")

    def save(self: table.Table) -> None:
        saved.append(len(self.rows))
        table.write_table(self.path, self.rows, self.columns)

    monkeypatch.setattr(timing, "refuse_wrong", refuse_wrong)
    monkeypatch.setattr(timing, "case_ms", lambda case, flush: 2.0 if flush else 1.0)
    monkeypatch.setattr(timing, "prebuild", lambda specs, cc: None)
    monkeypatch.setattr(table.Table, "save", save)
    out = tmp_path / "times.csv"
    timed = timing.time_plan(out, cases, "9.0", l2_start)
    assert timed.left_out == [f"flash_fwd {SHAPE}: wrong against float64"]
    assert (timed.measured, saved) == (11, [10, 11])
    rows = table.read_table(out, table.TIME_COLUMNS)
    assert [row["call"] for row in rows] == [str(n) for n in range(1, 12)]
    # 2 products x 2 operations x 2 batches x 4 heads x 5 x 7 pairs x 64 columns are 71,680.
    assert {(row["ms"], row["tflops"], row["l2_start"]) for row in rows} == {
        (f"{ms:.4f}", f"{71_680 / ms / 1e9:.1f}", l2_start)
    }
    assert rows[0]["note"] == "call 0"
    again = timing.time_plan(out, cases, "9.0", l2_start)
    assert (again.measured, saved) == (0, [10, 11])  # nothing new: not written
