"""On both sides of the numbers at which a row, a launch or a whole table is judged otherwise."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from iosim.base.errors import InputError
from iosim.evidence.cuda.ncu import Profiled
from iosim.evidence.validate import (
    Comparison,
    Gate,
    Residual,
    Row,
    match,
    one_launch,
    profile_rows,
    residuals,
)
from iosim.evidence.validate import rows as tables
from iosim.evidence.validate.one_launch import ALLOWED, SMALL, LaunchAnswer, Part, answer_launch
from iosim.evidence.validate.recognise import Given
from iosim.evidence.validate.report import (
    beneath,
    least,
    legend,
    scatters,
    validated_answer,
)
from iosim.evidence.validate.residuals import SMALL_BYTES
from iosim.evidence.validate.summary import TARGETS
from iosim.hardware.profile import load_profile
from iosim.problem.attention import AttentionProblem
from iosim.studies.explain import HELPS

PROBLEM = AttentionProblem()
MB = 1_000_000


def row(measured: dict[str, Any]) -> Row:
    return Row("table.csv", 1, 1, False, "cudnn", {}, measured)


def residual(
    quantity: str, measured: float, predicted: float, *, spills: bool = False, check_bits: int = 0
) -> Residual:
    return Residual(
        row({quantity: measured}),
        PROBLEM,
        "main",
        "",
        quantity,
        measured,
        predicted,
        "compulsory",
        spills,
        check_bits,
    )


@pytest.mark.parametrize(
    ("quantity", "measured", "predicted", "error"),
    [
        ("hbm_read", SMALL_BYTES, 3 * SMALL_BYTES, 2.0),
        ("hbm_read", SMALL_BYTES - 1, 3 * SMALL_BYTES, None),  # small: the difference counts
        ("time", 2.0, 1.0, 0.5),
        ("time", 1e-9, 2e-9, 1.0),
        ("time", 0.0, 1.0, None),
    ],
)
def test_errors_are_shares_of_what_is_not_small(
    quantity: str, measured: float, predicted: float, error: float | None
) -> None:
    assert residual(quantity, measured, predicted).error == error


@pytest.mark.parametrize(
    ("predicted", "holds"), [(110, True), (111, False), (90, True), (89, False)]
)
def test_a_gate_holds_up_to_its_limit(predicted: int, holds: bool) -> None:
    """An eighth of 80 MB is 10 MB, which binary fractions hold: no rounding decides at the limit."""
    gate = Gate("hbm_read", "max", 0.125)
    wrong = gate.exceeded([residual("hbm_read", 80 * MB, (predicted - 20) * MB)])
    assert (wrong is None) is holds
    assert gate.exceeded([]) == "hbm_read: no row to hold against 12.5%"


@pytest.mark.parametrize(
    ("predicted", "reached"),
    [
        ((100.0, 100.0, 101.0), True),  # the median is 0 %
        ((101.0, 101.0, 101.0), True),  # 1 %, as much as is allowed
        ((101.1, 101.1, 100.0), False),
        ((100.0,) * 19 + (106.0,), True),  # 95 % within 5 %, all within 10 %
        ((100.0,) * 18 + (106.0,) * 2, False),
        ((100.0,) * 30 + (111.0,), False),
    ],
)
def test_reads_reach_their_target_by_three_conditions(
    predicted: tuple[float, ...], reached: bool
) -> None:
    rows = [residual("hbm_read", 100 * MB, round(share * MB)) for share in predicted]
    assert TARGETS["hbm_read"].reached(rows)[0] is reached


def test_the_answer_tells_check_bits_and_what_is_exact() -> None:
    """0.1 % of 10 MB is 10 kB: a row at it is within; check bits are 1 of the 10 MB that are predicted."""
    rows = (
        residual("hbm_read", 10 * MB, 10 * MB, check_bits=MB),
        residual("l2_read", 10 * MB, 10 * MB + 10_000),
        residual("l2_write", 10 * MB, 10 * MB + 10_001),
        residual("l2_write", 10, 10_001),  # small: neither
    )
    answer = validated_answer(Comparison(rows, ()))
    assert (
        "ECC lies in the same memory: 10.00 % of the predicted HBM reads are check bits." in answer
    )
    assert "SM<->L2 bytes are within 0.1 % in 1 of 2." in answer
    assert "Further off than 0.1 % between SMs and L2: cudnn; 0 of 1" in beneath(
        Comparison(rows, ())
    )
    assert "ECC" not in validated_answer(Comparison(rows[1:], ()))
    assert validated_answer(Comparison((), ())) == "No row was compared."


# --- a single launch ---


def answer(
    monkeypatch: pytest.MonkeyPatch,
    predicted: dict[str, float],
    counted: dict[str, float],
    *parts: Part,
    explanation: Any = None,
    check_bits: int = 0,
) -> LaunchAnswer:
    """An answer with these values in place of those of a replay."""
    monkeypatch.setattr(one_launch, "values_of", lambda *_: predicted)
    prediction: Any = SimpleNamespace(
        chain=None,
        time=SimpleNamespace(total_s=1.0),
        kernel=SimpleNamespace(name="kernel"),
        profile=SimpleNamespace(name="gpu"),
        problem=PROBLEM,
        check_bits=SimpleNamespace(total=check_bits, read=check_bits, write=0),
    )
    return LaunchAnswer("name", "", row(counted), prediction, parts, explanation)


@pytest.mark.parametrize(
    ("quantity", "counted", "off", "differs"),
    [
        ("hbm_read", 40 * MB, SMALL, False),  # 5 % and 2 MB, as much as is allowed of both
        ("hbm_read", 40 * MB, SMALL + 1, True),
        ("hbm_read", 400 * MB, SMALL + 1, False),  # large in bytes alone
        ("hbm_read", 400 * MB, 20 * MB, False),
        ("hbm_read", 400 * MB, 20 * MB + 1, True),
        ("hbm_read", 1 * MB, SMALL, False),  # large as a share alone
        ("hbm_read", 1 * MB, SMALL + 1, True),
        ("l2_read", 400 * MB, 4 * MB, False),
        ("l2_read", 400 * MB, 4 * MB + 1, True),
        ("time", 8.0, 2.0, False),
        ("time", 8.0, 2.5, True),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_when_a_launch_differs(
    quantity: str,
    counted: float,
    off: float,
    differs: bool,
    sign: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ALLOWED["hbm_read"] == 0.05
    launch = answer(monkeypatch, {quantity: counted + sign * off}, {quantity: counted})
    (judged,) = launch.quantities()
    assert judged["differs"] is differs
    assert judged["unpredicted"] == -sign * off
    assert launch.status == ("differs" if differs else "as_predicted")


def test_quantities_need_a_prediction_and_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = answer(monkeypatch, {"hbm_read": 1}, {"hbm_read": 1})
    assert len(launch.quantities()) == 1
    for name in ("prediction", "row"):
        assert LaunchAnswer(**{**vars(launch), name: None}).quantities() == []


def test_small_parts_are_left_out_where_there_are_large_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def part(tensor: str, predicted: int) -> Part:
        return Part(tensor, "read", predicted, 1000, 0, 0)

    def named(*parts: Part) -> str:
        return answer(monkeypatch, {}, {}, *parts)._by_tensor()

    large, small = part("K", SMALL), part("V", SMALL - 1)
    assert named(large, small) == "K 2 MB read (1 kB compulsory)"
    assert (
        named(part("Q", 9), part("K", 5)) == "Q 9 B read (1 kB compulsory)"
    )  # all are small: the first
    assert named() == ""


@pytest.mark.parametrize(
    ("rest", "is_said"), [(SMALL, False), (SMALL + 1, True), (-SMALL - 1, True)]
)
def test_what_belongs_to_no_tensor_is_said_where_it_is_large(
    rest: int, is_said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    off = 50 * MB + rest
    parts = (
        Part("K", "read", MB, MB, 0, 40 * MB),
        Part("V", "read", MB, MB, 0, 10 * MB),
        Part("Q", "read", MB, MB, 0, 0),
        Part("O", "write", MB, MB, 0, 7 * MB),
    )
    launch = answer(monkeypatch, {"hbm_read": 10 * MB}, {"hbm_read": 10 * MB + off}, *parts)
    text = launch._where("read")
    assert "as far as its tensors have room for it: K (+40 MB), V (+10 MB)" in text
    assert ("belong to no tensor" in text) is is_said
    assert launch._where("write") == ""


def trials(*seconds: float, total: float = 8.0) -> Any:
    prediction = SimpleNamespace(time=SimpleNamespace(total_s=total))
    tried = SimpleNamespace(trials=[SimpleNamespace(time_s=s) for s in seconds])
    return SimpleNamespace(prediction=prediction, tried=tried, launches=(), advice="a larger tile")


@pytest.mark.parametrize(
    ("explanation", "percent"),
    [
        (None, 0.0),
        (trials(), 0.0),
        (trials(6.0, 1.0), 25.0),  # the first saves 2 of 8 s
        (trials(8.0), 0.0),
        (trials(9.0), 0.0),
        (trials(8 * (1 - HELPS) + 1e-3), 0.0),  # hardly any
        (trials(8 * (1 - HELPS) - 1e-3), 100 * HELPS + 0.0125),
        (trials(1.0, total=0.0), 0.0),
        (trials(1.0, total=-1.0), 0.0),
    ],
)
def test_what_the_best_change_saves(
    explanation: Any, percent: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = answer(monkeypatch, {}, {}, explanation=explanation)
    assert launch.speedup_percent == pytest.approx(percent)
    assert launch.advice == ("" if explanation is None else "a larger tile")


def test_a_saving_as_large_as_helps_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_launch, "HELPS", 0.25)
    launch = answer(monkeypatch, {}, {}, explanation=trials(6.0))
    assert launch.speedup_percent == 25.0


def test_the_answer_in_words_and_in_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared memory is counted in wavefronts of 128 bytes: the profiler's metric gets those."""
    explanation = trials(6.0)
    explanation.launches = [SimpleNamespace(reasons=["It waits", "and more"])]
    launch = answer(
        monkeypatch,
        {"smem": 1280.0, "time": 1.0, "l2_write": 5},
        {"smem": 2560, "time": 1.0},
        explanation=explanation,
        check_bits=1000,
    )
    text = launch.answer()
    assert text.endswith(
        "Check bits of ECC in the same memory: 1 kB read and 0 B written of those predicted. It waits."
    )
    (metric,) = launch.to_dict()["metrics"]
    assert (metric["predicted"], metric["counted"]) == (10, 20)
    assert [q["quantity"] for q in launch.quantities()] == ["smem", "time"]
    explanation.launches = []
    assert "It waits" not in launch.answer()
    assert "Check bits" not in answer(monkeypatch, {}, {}).answer()


def test_no_change_is_tried_of_a_pass_or_of_a_launch_that_is_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case: Any = SimpleNamespace(problem=PROBLEM, kernel=None)
    chain: Any = SimpleNamespace(launches=["pass"])
    long: Any = SimpleNamespace(replay=object(), method="formula")
    monkeypatch.setattr(one_launch, "explain", lambda prediction, budget: ("explained", prediction))
    monkeypatch.setattr(one_launch, "is_attention_loop", lambda launch: launch == "loop")
    monkeypatch.setattr(one_launch, "plan", lambda *_: SimpleNamespace(launches=["loop"]))
    explained = one_launch._explained
    assert explained(case, chain, long) == (None, "")
    chain.launches = ["loop"]
    too_long = "No change was tried: the launch is too long; iosim explain tries them."
    assert explained(case, chain, long) == (None, too_long)
    unplayed: Any = SimpleNamespace(replay=None, method="replay")
    assert explained(case, chain, unplayed) == (None, too_long)
    replayed: Any = SimpleNamespace(replay=object(), method="replay", profile="gpu")
    assert explained(case, chain, replayed) == (("explained", replayed), "")
    # Of a call of several launches the whole is predicted.
    whole: Any = SimpleNamespace(replay=object(), method="replay")
    monkeypatch.setattr(one_launch, "plan", lambda *_: SimpleNamespace(launches=["loop", "sum"]))
    request = SimpleNamespace(predict=lambda replays: whole)
    monkeypatch.setattr(one_launch, "Request", lambda problem, kernel, gpu: request)
    assert explained(case, chain, replayed) == (("explained", whole), "")


def test_a_launch_without_counters_says_so() -> None:
    launch = Profiled("minimal_fwd", (4, 8, 2), (128, 1, 1), {}, ())
    stated = Given(2, 8, None, (512,), None, (64,), "fp32", False)
    told_answer = answer_launch(launch, stated, load_profile("h200"), lambda text: Given())
    assert told_answer.reason == "the profile has none of the counters that are compared"


# --- a report ---

COUNTED = "dram__bytes_read.sum"
KERNEL: dict[str, Any] = {
    "kernel": "gemm",
    "grid": [1, 1, 1],
    "block": [32, 1, 1],
    "device": "",
    "ranges": [],
    "metrics": {COUNTED: [5, "byte"]},
}


def test_a_report_is_read_by_the_module_else_by_the_profiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "some.ncu-rep"
    path.write_bytes(b"NVR")

    def read(opened: Any) -> Any:
        return profile_rows.read_profile(path, Given(), lambda text: Given(), opened)

    def refusing(message: str) -> Any:
        def refuse(*_: Any) -> Any:
            raise InputError(message)

        return refuse

    (launch,) = read(lambda path: [KERNEL]).unmatched
    assert launch.reason == "no catalog kernel has this name"
    # One launch with a counter is enough.
    bare = KERNEL | {"metrics": {}}
    assert len(read(lambda path: [bare, KERNEL]).unmatched) == 2
    with pytest.raises(InputError, match="holds none of the counters"):
        read(lambda path: [bare])
    with pytest.raises(InputError, match="holds no whole launch"):
        read(lambda path: [])
    monkeypatch.setattr(profile_rows, "import_report", refusing("the profiler's reason"))
    for opened, has_ncu, why in (
        (lambda path: None, True, "the profiler's"),
        (lambda path: None, False, "the profiler's"),
        (refusing("the module's reason"), True, "the profiler's"),
        (refusing("the module's reason"), False, "the module's"),
    ):
        monkeypatch.setattr(profile_rows, "_has_ncu", lambda has=has_ncu: has)
        with pytest.raises(InputError, match=f"{why} reason"):
            read(opened)


# --- rows beside predictions ---


class Bytes:
    """Traffic of paper: one number for all that is asked of it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __add__(self, other: Bytes) -> Bytes:
        return Bytes(self.number + other.number)

    def total(self, *_: Any, **__: Any) -> int:
        return self.number


@pytest.mark.parametrize(
    ("registers", "spilled", "spills"),
    [
        ((255, 255), 0, False),  # as many as there are
        ((255, 256), 0, True),  # one launch wants more
        ((256, 255), 0, True),
        ((0, 256), 0, False),  # without exponentials: a pass
        ((255, 255), 19, False),
        ((255, 255), 20, True),  # 2 % of what it writes
    ],
)
def test_rows_of_kernels_that_keep_registers_in_memory(
    registers: tuple[int, int], spilled: int, spills: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch of 0 registers stands for one after it, without exponentials."""
    has_exps = [1, 1 if registers[0] else 0]
    launches = [
        SimpleNamespace(name=f"launch {n}", registers=wanted, work=SimpleNamespace(exps_per_pair=e))
        for n, (wanted, e) in enumerate(zip(registers, has_exps, strict=True))
    ]
    call: Any = SimpleNamespace(
        counted=Bytes(spilled),
        replay=lambda: SimpleNamespace(traffic=Bytes(0)),
        profile=SimpleNamespace(need_int=lambda name: 255),
        chain=SimpleNamespace(launches=launches),
        time=lambda traffic: SimpleNamespace(total_s=1.0),
    )
    monkeypatch.setattr(residuals, "check_bits", lambda traffic, profile: Bytes(7))
    monkeypatch.setattr(residuals, "needed_registers", lambda launch: launch.registers)
    of_regime: list[Any] = []

    def regime(row: Row, call: Any, values: Any, spills: bool) -> str:
        of_regime.append((values, spills))
        return "stream"

    monkeypatch.setattr(residuals, "_regime", regime)
    predicted = {"hbm_read": 100, "l2_write": 1000}
    monkeypatch.setattr(residuals, "values_of", lambda *_: predicted)
    case: Any = SimpleNamespace(problem=PROBLEM, variant="a tile")
    measured = row({"l2_write": 900, "hbm_read": 90, "time": 2.0})
    rows = residuals._residuals(measured, case, call)
    assert [(r.quantity, r.predicted, r.check_bits) for r in rows] == [
        ("hbm_read", 100, 7),
        ("l2_write", 1000, 0),
    ]
    assert {(r.launch, r.variant, r.regime, r.spills) for r in rows} == {
        ("launch 0", "a tile", "stream", spills)
    }
    # What decides the regime is the data, without check bits.
    assert of_regime == [({"hbm_read": 93, "l2_write": 1000}, spills)]


def test_a_legend_names_regimes_first_and_bands_last() -> None:
    rows = [residual("hbm_read", 10 * MB, 10 * MB)]
    assert [entry.name for entry in legend(rows)] == ["compulsory", "equal"]
    assert [entry.name for entry in legend(rows, (0.05,))] == ["compulsory", "equal", "+5%", "-5%"]
    assert [entry.dash for entry in legend(rows)] == ["", "dot"]
    assert [entry.dash for entry in legend(rows, (0.05,))] == ["", "solid", "dot", "dot"]


@pytest.mark.parametrize(("smaller", "panels"), [(1.0, 1), (0.999, 0)])
def test_what_has_no_place_on_a_logarithmic_axis(smaller: float, panels: int) -> None:
    limit = least(residual("hbm_read", 5, 5))
    rows = [residual("hbm_read", limit * smaller, 5 * limit)]
    assert len(scatters(rows, "name", "subject")) == panels


def test_files_of_up_to_64_mib_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []

    def read_text(path: Any, where: str, kind: str, limit: int) -> str:
        limits.append(limit)
        return "text"

    monkeypatch.setattr(tables, "read_text", read_text)
    assert tables.text_of_file("table.csv", "here") == "text"
    assert limits == [64 * 1024 * 1024]


def test_calls_of_up_to_200_million_pairs_of_tiles_are_replayed() -> None:
    assert match.MAX_PAIRS == 200_000_000
    assert match.MAX_CTAS == 2**31 - 1  # CUDA's largest grid along x
    assert (match.MAX_THREADS, match.MAX_REGISTERS) == (1024, 255)
    assert match.MAX_SPILLED_BYTES == 512 * 1024  # of local memory a thread
