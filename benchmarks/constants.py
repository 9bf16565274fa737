"""What each fitted number is worth: errors of times with the number at its neutral value.

    python benchmarks/constants.py                    every number, on every eighth row; some minutes
    python benchmarks/constants.py --every 1 NAME     some numbers, by the names of `iosim.evidence.fitted`, on all rows
    python benchmarks/constants.py --write            writes constants_worth.csv beside this script

Rows are those that nothing was fitted on: the groups of `iosim validate --times`, the even calls of the drawn ones
(`h100_random*.csv`, `h200_random*.csv`) by kernel and pass, the other half of published stacks by kernel, and of
published linear attention by product unit. A neutral value is 0 or 1 where the mechanism is then gone, or what holds
where nobody fitted anything: another GPU's value, or a catalog's default. A number is worth what it saves in the group
that loses most without it. Numbers that move no time are judged by the commands of `ELSEWHERE`.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import linear_times
import stack_times
from random_draws import LATER, MEASUREMENTS, SEEDS

from iosim import InputError, Prediction, load_profile
from iosim.base.files import write_whole
from iosim.base.progress import progress
from iosim.catalog.libraries.loader import entry
from iosim.evidence.fitted import Fitted, fitted
from iosim.evidence.times.groups import Group, collect, rows_of
from iosim.evidence.times.tables import SHORT_S, Case, some
from iosim.evidence.validate import read
from iosim.evidence.validate.match import NoModel, match
from iosim.evidence.validate.residuals import calls
from iosim.prediction.call import Call
from iosim.show.tables import Column, Table

PLACE = Path(__file__).with_name("constants_worth.csv")
FIELDS = ("constant", "stands in", "value", "neutral", "rows", "mean", "most", "most lost")
MOST_LOST = 3
NEUTRAL: Mapping[str, float] = {
    "SPECIALISED_NORM": 1.0,
    "OVERLAP_NORM": 100.0,
    "SPLIT_OVERLAP_NORM": 100.0,
    "CODE_AHEAD_BYTES": 1 << 30,
    "STREAM_START_SHARE": 1.0,
    "SLOW_WIDENING_OPERATIONS": 4.0,
    "pass_bandwidth_fraction": 1.0,
    "launch_latency_s": 2.1e-6,
    "graph_call_latency_s": 0.9e-6,
    "sm_dram_bytes_per_clock": 0.01,
    "energy_clock_exponent": 3.0,
}
"""Neutral values that are not 0: no overlap or all of it, all code at an SM's rate at the L2, what holds elsewhere."""
NEUTRAL_OF_GPU: Mapping[tuple[str, str], float] = {
    ("launch_latency_s", "h200-sxm"): 2.6e-6,
    ("energy_clock_exponent", "h100-sxm"): 2.0,
    ("tensor_pj_per_flop", "h100-sxm"): 0.67,
    ("hbm_read_pj_per_byte", "h100-sxm"): 70.0,
    ("pingpong_tile_cycles", "h100-sxm"): 3500.0,
    ("pingpong_tile_cycles", "cc 10.0 and 10.3"): 1800.0,
    ("peak_power_w", "gb200"): 1200.0,
}
"""The same where it depends on the GPU: mostly what another GPU has."""
STACKS = (
    "TILE_WAITS",
    "FP8_OPERATIONS",
    "ALONE_OPERATIONS",
    "WIDEST_OPERATIONS",
    "NARROW_OPERATIONS",
    "XQA_WAITS",
    "SLOW_WIDENING_OPERATIONS",
)
"""Constants that serving stacks' calls are judged by, as their names begin."""
LINEAR = ("PRODUCT_CYCLES",)
ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    "tests/readers/test_check_bits.py": ("FETCHES", "FILLS"),
    "tests/code/test_foreign_local.py": ("L1_WAYS",),
    "python benchmarks/random_draws.py (bytes)": (
        "options.split_stores of fa2",
        "options.lock_write_bytes",
        "options.idle_warps_spill of cutlass",
        "sm_spread of cudnn",
        "spill.write_per_pair of cudnn",
        "spill.read_per_pair of cudnn",
    ),
    "python benchmarks/sets.py": ("SHUFFLED_PAGES", "RUN_PAGES"),
    "python benchmarks/sparse.py": (
        "SELECT_WAITS",
        "SELECT_AHEAD",
        "TENSOR_MEMORY_OPERATIONS",
        "GATHER_CYCLES",
    ),
    "python benchmarks/power_error.py": ("energy_factor",),
    "python experiments/power.py --fit": (
        "warp_instruction_pj",
        "mma_sync_pj_per_flop",
        "shared_pj_per_byte",
        "l2_read_pj_per_byte",
        "l2_write_pj_per_byte",
        "hbm_write_pj_per_byte",
    ),
    "python benchmarks/fit_published.py": (
        "l2_ways",
        "l2_effective_capacity_fraction",
        "l2_dirty_fraction",
    ),
    "python benchmarks/links.py": ("nvlink",),
    "tests/evidence/test_validation_sm90.py (bytes)": ("hbm_share of flash-sm90",),
    "python benchmarks/stack_times.py": (
        "dram_read_bandwidth_bytes_per_s",
        "call_gap_s",
        "APPEND_WAITS",
        "REORDER_WAITS",
    ),
}
"""What judges numbers that move none of these times, or few of them."""
Errors = dict[str, float]


@dataclass(frozen=True)
class Worth:
    """What a number is worth on one set of rows: means of the groups' errors with it and without."""

    constant: Fitted
    neutral: float
    rows: str
    groups: tuple[tuple[str, float, float], ...]

    @property
    def mean(self) -> float:
        return fmean(b - a for _, a, b in self.groups) if self.groups else 0.0

    @property
    def most(self) -> float:
        return max((b - a for _, a, b in self.groups), default=0.0)

    def fields(self) -> tuple[str, ...]:
        lost = sorted(self.groups, key=lambda group: group[1] - group[2])[:MOST_LOST]
        text = "; ".join(f"{key} {a:.1%} to {b:.1%}" for key, a, b in lost if b - a >= 5e-4)
        of = self.constant
        return (
            of.name,
            of.gpu or "the model",
            f"{of.value:.4g}",
            f"{self.neutral:.4g}",
            self.rows,
            f"{100 * self.mean:+.2f}",
            f"{100 * self.most:+.2f}",
            text,
        )


def drawn_cases(gpu: str, every: int) -> Iterator[Case]:
    """The even calls of all draws of a GPU, a launch a case; its regime says kernel and pass."""
    profile = load_profile(gpu)
    for n in range(1, len(SEEDS[gpu]) + 1):
        name = f"{gpu}_random.csv" if n == 1 else f"{gpu}_random_{n}.csv"
        rows = read((MEASUREMENTS if n == 1 else LATER) / name)
        for members in some([call for call in calls(rows) if call[0].call % 2 == 0], every):
            yield from _launches(members, profile)


def _launches(members: Sequence[Any], profile: Any) -> Iterator[Case]:
    try:
        case = match(list(members), profile)
    except NoModel:
        return
    for row, chain in zip(case.rows, case.chains, strict=True):
        try:
            call = Call.of(case.problem, case.kernel, profile, chain)
        except InputError:
            continue
        seconds = row.measured.get("time")
        launch = chain.launches[0].name
        if seconds:
            traffic = call.counted + call.replay().traffic
            kind = "under 30 us" if seconds < SHORT_S else _kind(case, launch)
            yield Case(
                row.implementation, kind, row.call, call, traffic, (float(seconds),), whole=False
            )


def _kind(case: Any, launch: str) -> str:
    if launch not in ("main", "bwd.main"):
        return f"{case.kernel.name}, around"
    decodes = "decode" if case.problem.longest_q == 1 else "forward"
    return f"{case.kernel.name}, {'backward' if launch == 'bwd.main' else decodes}"


def all_cases(every: int) -> list[tuple[Group, Case]]:
    """The held-out cases of the groups, and those of the draws with a group for each kind."""
    held = [(g, case) for g, case in collect(every)[0] if not g.fitted or case.number % 2 == 0]
    for gpu in SEEDS:
        for case in drawn_cases(gpu, every):
            key = f"drawn {gpu}: {case.regime}"
            held.append((Group(key, key, ()), case))
    return held


def errors(
    cases: Sequence[tuple[Group, Case]], changed: Mapping[int, Call] | None = None
) -> Errors:
    """Mean size of the errors by group."""
    sizes = defaultdict(list)
    for row in rows_of(cases, changed):
        sizes[row.group.key].append(abs(row.timed.error))
    return {key: fmean(values) for key, values in sizes.items()}


def stack_errors(every: int) -> Errors:
    """Of published stacks' held-out rows, by table and kernel."""
    sizes = defaultdict(list)
    for row in some(stack_times.rows(), every):
        try:
            error = row.predicted_s() / row.measured_s - 1
        except InputError:
            continue
        narrow = ", fp8" * ("fp8" in (row["kv_cache_dtype"], row["attn_dtype"]))
        sizes[f"{row['table']}, {row.kernel}{narrow}"].append(abs(error))
    return {key: fmean(values) for key, values in sizes.items()}


def linear_errors(pairs: Sequence[tuple[linear_times.Row, Prediction]]) -> Errors:
    """Of published linear attention's prefill, by product unit and table."""
    sizes = defaultdict(list)
    for row, prediction in pairs:
        unit = "tcgen05" if prediction.profile.cc in range(100, 120) else "other"
        sizes[f"{row.values['table']}, {unit}"].append(abs(linear_times.ratio(row, prediction) - 1))
    return {key: fmean(values) for key, values in sizes.items()}


def neutral_of(constant: Fitted) -> float:
    for_gpu = NEUTRAL_OF_GPU.get((constant.name, constant.gpu))
    return NEUTRAL.get(constant.name, 0.0) if for_gpu is None else for_gpu


@contextmanager
def set_to(constant: Fitted, value: float) -> Iterator[None]:
    """A constant of a module, wherever it was imported, or a value of the catalog, at another value meanwhile."""
    name, _, kernel = constant.name.partition(" of ")
    with ExitStack() as undo:
        if kernel:
            table, key = _catalog_table(kernel, name)
            undo.callback(table.__setitem__, key, table[key])
            table[key] = value
        else:
            name, _, key = name.rstrip("]").partition("[")
            for module in list(sys.modules.values()):
                held = vars(module).get(name) if module.__name__.startswith("iosim.") else None
                if isinstance(held, dict):
                    whole = {str(k): k for k in held}
                    undo.callback(held.__setitem__, whole[key], held[whole[key]])
                    held[whole[key]] = value
                    break
                if isinstance(held, int | float):
                    undo.callback(setattr, module, name, held)
                    setattr(module, name, type(held)(value))
        yield


def _catalog_table(kernel: str, path: str) -> tuple[dict[str, Any], str]:
    of_pass, _, key = path.rpartition(".")
    passes = {row["name"]: row for row in entry(kernel).get("backward_pass", ())}
    table = entry(kernel)["kernel"]
    return {"": table, "options": table.get("options"), **passes}[of_pass], key


class Ablation:
    """The cases, with their errors as everything stands."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.cases = all_cases(every)
        self.whole = errors(self.cases)
        self.stacks: Errors = {}
        self.linear: list[tuple[linear_times.Row, Prediction]] = []

    def worth(self, constant: Fitted) -> Worth:
        neutral = neutral_of(constant)
        base = constant.name.partition("[")[0]
        if base in LINEAR:
            rows, before, after = "linear attention", *self._of_linear(constant, neutral)
        elif base in STACKS:
            self.stacks = self.stacks or stack_errors(self.every)
            with set_to(constant, neutral):
                after = stack_errors(self.every)
            rows, before = "serving stacks", self.stacks
        elif constant.gpu:
            rows = "times"
            before = self.whole
            after = self._of_profile(constant, neutral)
        else:
            # What is planned with the constant is planned anew.
            with set_to(constant, neutral):
                planned = " of " in constant.name
                after = errors(all_cases(self.every) if planned else self.cases)
            rows, before = "times", self.whole
        moved_rows = tuple(
            (key, before[key], after[key])
            for key in before
            if key in after and before[key] != after[key]
        )
        return Worth(constant, neutral, rows, moved_rows)

    def _of_linear(self, constant: Fitted, neutral: float) -> tuple[Errors, Errors]:
        if not self.linear:
            rows = [
                row
                for row in linear_times.rows()
                if row.judged and row.cell not in linear_times.ODD
            ]
            prefill = [row for row in rows if row.values["phase"] == "context"]
            self.linear = linear_times.predicted(some(prefill, min(self.every, 4)))
        before = linear_errors(self.linear)
        with set_to(constant, neutral):
            return before, linear_errors(self.linear)

    def _of_profile(self, constant: Fitted, neutral: float) -> Errors:
        capabilities = constant.gpu.startswith("cc ")
        changed = {}
        for _, case in self.cases:
            profile = case.call.profile
            of_gpu = profile.taken.get(constant.name, profile.name) == constant.gpu
            if of_gpu or (capabilities and getattr(profile, constant.name) == constant.value):
                # What others take in proportion changes in proportion.
                share = getattr(profile, constant.name) / constant.value
                values = {constant.name: neutral * share}
                changed[id(case)] = replace(case.call, profile=replace(profile, **values))
        return errors(self.cases, changed)


def judged_elsewhere(constant: Fitted) -> str:
    """The command that judges a number, where it is not this script."""
    for command, names in ELSEWHERE.items():
        if any(constant.name == name or name in constant.name.split(" of ") for name in names):
            return command
        if any(constant.name.startswith(f"{name} of") for name in names):
            return command
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="numbers by name; all where none is given")
    parser.add_argument("--every", type=int, default=8, help="every n-th row of a table")
    parser.add_argument("--write", action="store_true", help=f"write {PLACE.name}")
    options = parser.parse_args()
    chosen = [
        constant for constant in fitted() if not options.names or constant.name in options.names
    ]
    here = [constant for constant in chosen if not judged_elsewhere(constant)]
    ablation = Ablation(options.every)
    show: Callable[[Sequence[Fitted]], Any] = progress("switching off")
    lines = [ablation.worth(constant).fields() for constant in show(here)]
    lines += [
        (
            constant.name,
            constant.gpu or "the model",
            f"{constant.value:.4g}",
            "",
            judged_elsewhere(constant),
            "",
            "",
            "",
        )
        for constant in chosen
        if judged_elsewhere(constant)
    ]
    columns = tuple(Column(name.replace(" ", "_"), name) for name in FIELDS)
    print(Table(columns, tuple(lines)).text())
    if options.write:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([FIELDS, *lines])
        write_whole(PLACE, text.getvalue())


if __name__ == "__main__":
    main()
