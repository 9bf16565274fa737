"""On both sides of the numbers at which a measurement is chosen, made or read otherwise; no GPU, no profiler."""

from __future__ import annotations

import os
import random
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from iosim.base.errors import InputError
from iosim.evidence.cuda.launch import Shape
from iosim.evidence.cuda.ncu import Profiled
from iosim.evidence.cuda.spec import STATIC_BYTES_MARGIN, BwdSpec, FwdSpec
from iosim.evidence.measure import (
    bundle,
    calibrate,
    choose,
    collect,
    library_case,
    machine,
    run,
    table,
)
from iosim.evidence.measure.case import Case
from iosim.evidence.measure.chain_case import ChainCase, describe_launches
from iosim.evidence.measure.fit import ON_CLIFF, Point, cliff, partitions_of
from iosim.evidence.measure.library_case import LibraryCase
from iosim.evidence.measure.profile_text import _inline, _values
from iosim.hardware.profile import HardwareProfile

# --- tiles that fit ---

TILE = FwdSpec(128, 128, 64, 4, 2)


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
def test_a_tile_that_just_fits_stays(
    spare: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = TILE.dynamic_shared_bytes + STATIC_BYTES_MARGIN + spare
    monkeypatch.setattr(choose, "_shared_bytes", lambda cc: room)
    assert (choose._shrunk(TILE, "9.0") == TILE) is fits
    backward = BwdSpec(64, 128, 128, 8)
    room = backward.dynamic_shared_bytes + STATIC_BYTES_MARGIN + spare
    assert (choose._shrunk_backward(backward, "9.0") == backward) is fits


def test_warps_that_just_hold_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four warps where they hold them, else eight; 128 rows are whole for both."""
    monkeypatch.setattr(choose, "live_registers", lambda spec: {4: 200, 8: 100, 2: 300}[spec.warps])
    for limit, warps in ((200, 4), (199, 8), (100, 8), (99, 4)):
        monkeypatch.setattr(choose, "LIVE_LIMIT", limit)
        assert choose._warps(TILE) == warps


def test_a_sweep_leaves_out_what_is_not_worth_building(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"head_dim": 128, "heads": 8, "seq": 512, "note": "sweep"}
    tile = {"block_q": 128, "block_k": 64, "warps": 4, "stages": 2}

    def is_built(**changes: int) -> bool:
        return choose._call(row | tile | changes) is not None

    assert is_built()
    assert not is_built(block_q=96)  # no whole number of warps' 64 rows
    monkeypatch.setattr(choose, "live_registers", lambda spec: choose.LIVE_LIMIT)
    assert is_built(stages=3)
    assert not is_built(stages=3, block_k=128)
    for size, fits in ((232_000, True), (232_001, False)):
        monkeypatch.setattr(FwdSpec, "dynamic_shared_bytes", property(lambda _, size=size: size))
        monkeypatch.setattr(choose, "tuned", lambda spec, cc: spec)
        assert is_built() is fits
    monkeypatch.setattr(FwdSpec, "dynamic_shared_bytes", property(lambda _: 1))
    monkeypatch.setattr(choose, "live_registers", lambda spec: choose.LIVE_LIMIT + 1)
    assert not is_built()


# --- random draws ---


class Drawn(random.Random):
    """Gives the numbers that it was made with, in turn."""

    def __init__(self, *numbers: float) -> None:
        super().__init__(0)
        self.numbers = list(numbers)

    def random(self) -> float:
        return self.numbers.pop(0)

    def uniform(self, a: float, b: float) -> float:
        return a + (b - a) * self.random()


@pytest.mark.parametrize(
    ("number", "value"),
    [(0.0, "a"), (0.249, "a"), (0.25, "b"), (0.749, "b"), (0.75, "c"), (1.0, "c")],
)
def test_weights_share_out_the_numbers(number: float, value: str) -> None:
    """A number at a border belongs to what begins there."""
    assert library_case._pick(Drawn(number), [("a", 1.0), ("b", 2.0), ("c", 1.0)]) == value


@pytest.mark.parametrize(
    ("kind", "length"),
    [
        (0.0, 1001),
        (0.499, 1001),  # odd
        (0.5, 1000),
        (0.749, 1000),  # even
        (0.75, 896),
        (0.999, 896),  # of whole blocks of 128
    ],
)
def test_kinds_of_lengths(kind: float, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_case, "_log_uniform", lambda rng, low, high: 1000)
    assert library_case._length(Drawn(kind)) == length
    monkeypatch.setattr(library_case, "_log_uniform", lambda rng, low, high: high)
    assert library_case._length(Drawn(0.0), 100) == 99  # the longest that is odd


@pytest.mark.parametrize(
    ("backend", "numbers", "head_dim"),
    [
        ("flash", (0.499, 0.399), 64),
        ("flash", (0.499, 0.4), 128),
        ("flash", (0.5, 0.0), 8),
        ("flash", (0.5, 0.999), 256),
        ("cudnn", (0.5, 0.999), 128),
        ("flex", (0.5, 0.0), 16),
        ("flex", (0.5, 0.999), 256),
    ],
)
def test_widths_of_heads(backend: str, numbers: tuple[float, ...], head_dim: int) -> None:
    assert library_case._head_dim(Drawn(*numbers), backend) == head_dim


def draw(monkeypatch: pytest.MonkeyPatch, kind: str, backend: str, *numbers: float) -> LibraryCase:
    """A drawn call whose sizes are the least of their ranges, with these numbers for its choices."""
    picks = iter((kind, backend))
    pick = library_case._pick
    monkeypatch.setattr(
        library_case,
        "_pick",
        lambda rng, weighted: next(picks, None) or pick(rng, weighted),
    )
    monkeypatch.setattr(library_case, "_log_uniform", lambda rng, low, high: low)
    monkeypatch.setattr(library_case, "_head_dim", lambda rng, backend: 64)
    lengths = iter((300, 200))
    monkeypatch.setattr(library_case, "_length", lambda rng, longest=0: next(lengths))
    return library_case._draw(Drawn(*numbers))


@pytest.mark.parametrize(
    ("kind", "backend", "numbers", "wanted"),
    [
        # grouped?, which group, bf16?, causal?, K's own length?
        (
            "prefill",
            "flash",
            (0.499, 0.0, 0.599, 0.499, 0.333),
            {"heads": 2, "dtype": "bf16", "seq_q": 200, "seq_k": 300},
        ),
        (
            "prefill",
            "flash",
            (0.5, 0.6, 0.5, 0.34),
            {"heads": 1, "dtype": "fp16", "mask": "none", "seq_q": 300, "seq_k": 300},
        ),
        (
            "prefill",
            "cudnn",
            (0.5, 0.0, 0.0, 0.333),
            {"heads": 1, "mask": "causal", "seq_q": 200, "seq_k": 200},
        ),
        (
            "prefill",
            "efficient",
            (0.0, 0.099, 0.5, 1 / 3),
            {"heads": 1, "dtype": "fp32", "seq_q": 300, "seq_k": 300},
        ),
        (
            "backward",
            "efficient",
            (0.0, 0.1, 0.5, 0.0),
            {"dtype": "bf16", "passes": "bwd", "seq_k": 200},
        ),
        ("decode", "flash", (0.5, 0.0, 0.0, 0.499), {"seq_q": 1, "seq_k": 300, "mask": "none"}),
        ("decode", "flash", (0.5, 0.0, 0.0, 0.5), {"seq_q": 1, "seq_k": 300}),
        (
            "packed",
            "flash",
            (0.5, 0.0, 0.0),
            {"seq_q": 500, "seq_lens": (300, 200), "batch": 1, "mask": "causal"},
        ),
        (
            "flex",
            "flex",
            (0.0, 0.0, 0.999),
            {"mask": "window", "window": 16, "seq_q": 300, "seq_k": 300},
        ),
        ("flex", "flex", (0.0, 0.0, 0.0), {"mask": "none", "window": None}),
    ],
)
def test_choices_of_a_draw(
    kind: str,
    backend: str,
    numbers: tuple[float, ...],
    wanted: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = draw(monkeypatch, kind, backend, *numbers)
    assert {name: getattr(case, name) for name in wanted} == wanted


def test_what_is_too_much_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls at the limits of bytes and of operations are kept, others are not."""
    small = LibraryCase("flash", 1, 8, 8, 512, 512, 64)
    slow, long = replace(small, backend="efficient"), replace(small, seq_q=513, seq_k=513)
    calls = iter((long, slow, small, slow, small))
    monkeypatch.setattr(library_case, "_draw", lambda rng: next(calls))
    flops = small.problem.matmul_flops()
    monkeypatch.setattr(library_case, "MOST_BYTES", small.tensor_bytes)
    monkeypatch.setattr(library_case, "MOST_FLOPS", flops)
    monkeypatch.setattr(library_case, "MOST_FLOPS_SLOW", flops - 1)
    assert library_case.drawn(0, 2) == [small, small]
    calls = iter((small, slow))
    monkeypatch.setattr(library_case, "MOST_FLOPS", flops - 1)
    monkeypatch.setattr(library_case, "MOST_FLOPS_SLOW", flops)
    assert library_case.drawn(0, 1) == [slow]
    with pytest.raises(InputError, match="0 is out of range; accepted: 1 or more"):
        library_case.drawn(0, 0)


# --- the machine ---


@pytest.mark.parametrize(
    ("profiler", "torch", "asked_for"),
    [(True, False, ["nvcc", "device", "ncu"]), (False, False, ["nvcc", "device"])],
)
def test_what_a_measurement_needs(
    profiler: bool, torch: bool, asked_for: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(machine, "find_nvcc", lambda: calls.append("nvcc"))
    monkeypatch.setattr(machine, "find_ncu", lambda: calls.append("ncu"))
    device = SimpleNamespace(
        use_device=lambda: calls.append("device"), compute_capability=lambda: "9.0"
    )
    monkeypatch.setattr(machine, "driver", device)
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    assert machine.require(profiler=profiler, torch=torch) == "9.0"
    assert calls == asked_for
    with pytest.raises(InputError, match="no PyTorch"):
        machine.require(profiler=profiler)
    fake_torch: Any = ModuleType("torch")
    fake_torch.__version__ = "9.9"
    monkeypatch.setitem(sys.modules, "torch", fake_torch)
    monkeypatch.setattr(machine, "find_spec", lambda name: name)
    for available in (True, False):
        fake_torch.cuda = SimpleNamespace(is_available=lambda is_there=available: is_there)
        if available:
            assert machine.require(profiler=profiler) == "9.0"
        else:
            with pytest.raises(InputError, match=r"PyTorch 9\.9 here finds no GPU"):
                machine.require(profiler=profiler)


def test_builds_tell_their_warnings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built: list[Any] = []

    def build(spec: Any, cc: str) -> Any:
        built.append((spec, cc))
        return SimpleNamespace(warnings=["spills", "slow"] if spec == "b" else [])

    monkeypatch.setattr(machine, "build", build)
    machine.prebuild(["a", "b", "a"], "9.0")  # type: ignore[list-item]
    assert sorted(built) == [("a", "9.0"), ("b", "9.0")]
    assert capsys.readouterr().err == "iosim: b: spills; slow\n"


@pytest.mark.parametrize(("query", "gpu"), [("GPU, 1, 2", "GPU, 1, 2"), ("", "by the driver")])
def test_facts_of_the_machine(query: str, gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_said", lambda command: query)
    monkeypatch.setattr(
        machine, "driver", SimpleNamespace(properties=lambda: {"gpu": "by the driver"})
    )
    monkeypatch.setattr(machine, "find_nvcc", lambda: "nvcc")
    monkeypatch.setattr(machine, "compiler_version", lambda nvcc: f"{nvcc} 13")
    facts = machine.facts()
    assert (facts["gpu"], facts["cuda_compiler"]) == (gpu, "nvcc 13")
    monkeypatch.setattr(machine, "find_ncu", lambda: "ncu")
    monkeypatch.setattr(
        machine, "_said", lambda command: "" if not query else "NVIDIA\nVersion 2025"
    )
    assert machine.profiler_version() == ("Version 2025" if query else "")


def test_kinds_of_plans_go_to_those_that_make_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iosim.evidence.cuda.microbench.play", lambda plan: [{"scan": plan}])
    fake_run: Any = ModuleType("iosim.evidence.measure.torch_run")
    fake_run.run_in_torch = lambda kind, **plan: [{kind: plan}]
    monkeypatch.setitem(sys.modules, "iosim.evidence.measure.torch_run", fake_run)
    assert run.answers("scans", 3) == [{"scan": 3}]
    assert run.answers("own", {"calls": []}) == [{"own": {"calls": []}}]


# --- the profiler ---


def test_names_of_kernels_are_cut() -> None:
    """To 240 letters in a table of calls, and where a chain's launches are listed to 200."""
    launch = replace(PAGE, kernel="k" * 300)
    assert (collect.NAME_LENGTH, collect.CHAIN_NAME_LENGTH) == (240, 200)
    (cell,) = collect.launch_rows({}, [launch])
    assert cell["kernel"] == "k" * 240


@pytest.mark.parametrize("printed", ["==ERROR== ERR_NVGPUCTRPERM - no permission", "fine"])
def test_a_profiler_that_refuses(printed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[Any] = []

    def run_group(command: list[str], session: bool = True) -> str:
        commands.append(command)
        return printed

    monkeypatch.setattr(collect, "find_ncu", lambda: Path("ncu"))
    monkeypatch.setattr(collect, "run_group", run_group)
    if printed == "fine":
        assert collect.run_profiler(["-o", "x"], ["python"]) == "fine"
        assert commands == [["ncu", "-o", "x", "python"]]
    else:
        with pytest.raises(InputError, match="NVreg_RestrictProfilingToAdminUsers"):
            collect.run_profiler(["-o", "x"], ["python"])


CASE = Case(TILE, Shape(1, 8, 8, 512, 512, 128))
MADE = {"call": 1, "launches": [{"kernel": "k", "grid": "(1, 1, 1)"}]}
LEFT_OUT = {"call": 1, "left_out": "wrong"}
PAGE = Profiled("k", (1, 1, 1), (32, 1, 1), {"dram__bytes_read.sum": 5.0}, ("iosim call 1",))


@pytest.mark.parametrize(
    ("lines", "page", "why", "outcome"),
    [
        ([MADE], "a page", "", 1),
        ([MADE], "", "", "left no report"),
        ([MADE], "", "it cannot be read", "it cannot be read"),
        ([LEFT_OUT], "", "", 0),  # no launch, no report: none is needed
        ([LEFT_OUT], "", "it cannot be read", "it cannot be read"),
        ([], "", "", "left no report"),  # the process did not survive
    ],
)
def test_when_a_portion_needs_a_report(
    lines: list[Any],
    page: str,
    why: str,
    outcome: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (
        ("run_calls", lambda *args, **how: collect.Run(lines, "printed", page, why)),
        ("parse_raw", lambda text: ([PAGE], [])),
        ("profiler_options", lambda warm: []),
        ("profiler_version", lambda: "1"),
        ("prebuild", lambda specs, cc: None),
    ):
        monkeypatch.setattr(collect, name, value)
    monkeypatch.setattr(table, "facts", dict)
    if isinstance(outcome, str):
        with pytest.raises(InputError, match=outcome):
            collect.collect(tmp_path / "rows.csv", [CASE], "9.0")
    else:
        done = collect.collect(tmp_path / "rows.csv", [CASE], "9.0")
        assert done.measured == outcome
        assert done.left_out == ([] if outcome else ["flash_fwd call 1: wrong"])


@pytest.mark.parametrize(
    ("clock", "portions"),
    [
        ([0, 59, 61], 1),
        ([0, 60, 60], 2),  # the minute's last moment is within it
        ([0, 61], 0),
    ],
)
def test_no_portion_begins_after_the_time(
    clock: list[float], portions: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([*clock, *[clock[-1]] * 9])
    plans: list[Any] = []

    def run_calls(kind: str, calls: Any, options: Any, **how: Any) -> collect.Run:
        plans.append(calls)
        return collect.Run([{"call": n} for n in calls], "", "a page")

    for name, value in (
        ("run_calls", run_calls),
        ("parse_raw", lambda text: ([], [])),
        ("profiler_options", lambda warm, columns: []),
        ("profiler_version", lambda: "1"),
        ("LIBRARY_PORTION", 1),
    ):
        monkeypatch.setattr(collect, name, value)
    monkeypatch.setattr(collect.time, "time", lambda: next(times))
    monkeypatch.setattr(table, "facts", dict)
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    cases = [LibraryCase("flash", 1, 8, 8, seq, seq, 64) for seq in (128, 256)]
    done = collect.collect_library(tmp_path / "rows.csv", cases, minutes=1)
    assert len(plans) == portions
    # PyTorch's compiler starts no processes, which the profiler would count, too.
    assert os.environ.get("TORCHINDUCTOR_COMPILE_THREADS") == ("1" if portions else None)
    # What launched nothing is a row with that reason.
    assert done.left_out == [f"call {n}: no kernel was launched" for n in range(1, portions + 1)]
    assert [row["left_out"] for row in done.rows] == ["no kernel was launched"] * portions


@pytest.mark.parametrize(
    ("lines", "end", "raises"), [([], 0.0, False), ([], 1.0, True), ([LEFT_OUT], 0.0, False)]
)
def test_compiling_that_takes_all_time_ends_quietly(
    lines: list[Any], end: float, raises: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute passes while a portion runs; `end` is how much of the allowed time is then left."""
    now = [0.0]

    def run_calls(kind: str, calls: Any, options: Any, **how: Any) -> collect.Run:
        now[0] = 60.0 + (1e-3 if not end else 0.0)
        return collect.Run(lines, "printed", "a page" if lines else "")

    for name, value in (
        ("run_calls", run_calls),
        ("parse_raw", lambda text: ([], [])),
        ("profiler_options", lambda warm, columns: []),
        ("profiler_version", lambda: "1"),
    ):
        monkeypatch.setattr(collect, name, value)
    monkeypatch.setattr(collect.time, "time", lambda: now[0])
    monkeypatch.setattr(table, "facts", dict)
    cases = [LibraryCase("flash", 1, 8, 8, 128, 128, 64)]
    if raises:
        with pytest.raises(InputError, match="left no report"):
            collect.collect_library(tmp_path / "rows.csv", cases, minutes=1)
    else:
        done = collect.collect_library(tmp_path / "rows.csv", cases, minutes=1)
        assert done.left_out == (["call 1: wrong"] if lines else [])


def test_launches_of_a_chain_are_those_of_its_last_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of the listing has more columns than say what it is of, or just those."""
    chain = ChainCase("naive", 1, 8, 512, 64)
    described = describe_launches(chain)
    monkeypatch.setattr(collect, "run_calls", lambda *args, **how: collect.Run([], "", "a page"))
    values = dict.fromkeys(collect.RANGE_COUNTED, 5.0)
    monkeypatch.setattr(collect, "parse_range", lambda page, columns: dict(values))
    monkeypatch.setattr(table, "facts", dict)
    for listed, launches in (
        ([described | {"call": "1"}] * 3 + [described | {"call": "2"}] * 2, "2"),
        ([described | {"call": "1", "heads": "4"}], ""),
        ([], ""),
    ):
        out = table.Table(tmp_path / f"{launches}{len(listed)}.csv", collect.chain_case.COLUMNS, {})
        collect._measure_chain(chain, out, listed)
        assert (out.rows[0]["launches"], out.measured) == (launches, 1)


# --- tables, fits, profiles ---


@pytest.mark.parametrize(
    ("text", "is_another"),
    [
        ("a,b\n1,2\n", False),
        ("a,b\n1\n", True),
        ("a,b\n1,2,3\n", True),
        ("a,b\n1,2\n1,2,3\n", True),
        ("b,a\n1,2\n", True),
        ("a\n1\n", True),
        ("", True),
    ],
)
def test_a_table_of_other_columns_is_another(text: str, is_another: bool, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    assert table.read_table(path, ("a", "b")) == []
    path.write_text(text)
    if is_another:
        with pytest.raises(InputError, match="is another table"):
            table.read_table(path, ("a", "b"))
    else:
        assert table.read_table(path, ("a", "b"))[0]["a"] == "1"


MIB = 1 << 20


@pytest.mark.parametrize(("share", "partitions"), [(0.75, 1), (0.71875, 2), (0.5, 2)])
def test_partitions_by_the_middle_of_a_half_and_one(
    share: float, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scan(size: float, misses: float) -> Point:
        return Point("shared_scan", int(size * MIB), 3, 132, round(size * MIB * (1 + 2 * misses)))

    # None misses at an eighth less of the L2 and all do at an eighth more: half of them at `share`.
    points = [scan(64 * (share - 0.125), 0.0), scan(64 * (share + 0.125), 1.0)]
    assert partitions_of(points, 64 * MIB) == partitions


def test_shares_at_the_ends_of_the_cliff_are_beside_it() -> None:
    def at(size: int, misses: float) -> Point:
        return Point("shared_scan", 1000 * size, 2, 132, round(1000 * size * (1 + misses)))

    low, high = ON_CLIFF
    assert (low, high) == (0.002, 0.998)
    on, before, behind = at(2, 0.5), at(1, low), at(3, high)
    assert [p.misses for p in (before, behind)] == pytest.approx([low, high])
    points = [at(1, 0.0), at(2, 0.0), at(3, 0.5), at(4, 1.0), at(5, 1.0)]
    assert cliff(points) == points[1:4]
    assert cliff([before, behind]) in ([], [before, behind])  # by the last bit of a share
    assert cliff([on]) == [on]


def test_copies_of_two_partitions_fill_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a long fill leaves is held against what the sets hold: 23 of 24 where each partition has copies."""
    fill = {"pattern": "fill", "footprint_bytes": 100, "passes": 1, "ctas": 1, "hbm_write": 77}
    raw = {"rows": [fill], "l2_bytes": 96, "gpu": "gpu", "date": "today"}
    monkeypatch.setattr(calibrate, "points_of", lambda rows: ["a point"])
    monkeypatch.setattr(calibrate, "_enough", lambda raw: None)
    monkeypatch.setattr(calibrate, "_fitted", lambda raw, f: {})
    for partitions, share in ((2, 0.25), (1, 0.24), (None, 0.24)):
        fitted = None if partitions is None else SimpleNamespace(partitions=partitions)
        monkeypatch.setattr(calibrate, "fit", lambda *args, fitted=fitted: fitted)
        entries = calibrate._from_counters(raw, lambda: None, [])
        # 23 of 96 bytes stay: 0.2396; over 23/24 of the sets, a quarter
        assert entries["l2_dirty_fraction"].value == share
    assert calibrate._from_counters({**raw, "l2_bytes": None}, lambda: None, []) == {}


def test_a_far_partition_that_is_nearer_is_dropped() -> None:
    raw = {"gpu": "gpu", "compute_capability": "9.0"}

    def latencies(near: float, far: float) -> set[str]:
        entries = {
            f"l2_latency_{side}_cycles": calibrate.Entry(value, "a source")
            for side, value in (("near", near), ("far", far))
        }
        return {name for name in _values(raw, None, entries, "mine") if "latency" in name}

    near, far = "l2_latency_near_cycles", "l2_latency_far_cycles"
    assert latencies(200, 201) == {near, far}
    assert latencies(200, 200) == {near, far}
    assert latencies(200, 199) == {near}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([[1048576, 2e12]], "value = [\n  [1_048_576, 2.0000e+12],\n]"),
        ([1, 2], "value = [1, 2]"),
        ([], "value = []"),
        (5_000_000, "value = 5_000_000"),
        (5e6, "value = 5e+06"),
        (999_999.0, "value = 999999.0"),
        ("text", 'value = "text"'),
    ],
)
def test_values_in_a_line(value: Any, text: str) -> None:
    assert _inline({"value": value, "source": "s"}) == '{ source = "s", ' + text + " }"


def test_a_replay_wants_a_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured stands for what a maker states; without it no profile of it is asked for more."""
    raw = {
        "gpu": "gpu",
        "date": "today",
        "sms": 10,
        "l2_bytes": 1 << 20,
        "compute_capability": "",
        "private": [],
    }
    profile = calibrate._enough(raw | {"hbm_read_bandwidth_bytes_per_s": 1e12})
    assert isinstance(profile, HardwareProfile)
    assert profile.dram_bandwidth_bytes_per_s == 1e12
    assert calibrate._enough(raw).dram_bandwidth_bytes_per_s is None


def test_profiles_need_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "profiles_dir", lambda: None)
    with pytest.raises(InputError, match="there is no home directory for profiles"):
        bundle._place("mine", False)
