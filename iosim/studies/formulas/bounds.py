"""What a kernel moves at both levels of a GPU beside the papers' bounds there (`iosim.readers.formula.levels`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from iosim.base.units import bytes_text, number_text, times_of
from iosim.hardware.profile import HardwareProfile
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.readers.formula.levels import LEVELS, LevelBound, explanation, level_bounds
from iosim.show.tables import Column, Table
from iosim.studies.formulas.study import DEFAULT_GPU, _kernel, _problem, _profile

COLUMNS = (
    Column("level", "level"),
    Column("fast_memory_elements", "M, elements", "count"),
    Column("moved_bytes", "moved", "bytes"),
    Column("bound_bytes", "bound", "bytes"),
    Column("times_above", "times above", "ratio"),
    Column("bound_is", "the bound is"),
)


@dataclass(frozen=True)
class KernelBounds:
    """The bounds of one call of a kernel, a level each, and why they differ."""

    problem: AttentionProblem
    kernel: str
    profile: str
    method: str
    levels: tuple[LevelBound, ...]

    def to_dict(self) -> dict[str, Any]:
        """The command line's `bounds` object."""
        return {
            "problem": self.problem.to_dict(), "kernel": self.kernel, "profile": self.profile, "method": self.method,
            "levels": [one.to_dict() for one in self.levels], "why": explanation(self.levels, self.profile),
        }  # fmt: skip


def kernel_bounds(asked: Mapping[str, Any]) -> KernelBounds:
    """The bounds of the kernel that a formula was asked of; sizes not given are the formula's stand-ins. Raises
    InputError: values that make no sense, or a kernel that cannot run the problem on the GPU."""
    problem = _problem(asked)
    profile: HardwareProfile = _profile(asked.get("gpu") or DEFAULT_GPU)
    made = predict(problem, _kernel(asked, problem)[0], profile)
    compulsory = made.hbm_bounds.compulsory_read + made.hbm_bounds.compulsory_write
    moved = {"l2": made.total("l2"), "hbm": made.total("hbm") if made.hbm_known else None}
    levels = level_bounds(problem, profile, compulsory, moved)
    return KernelBounds(problem, made.kernel.name, profile.name, made.method, levels)


def table(bounds: KernelBounds) -> Table:
    """A row a level."""
    rows = tuple(
        (LEVELS[one.level], one.fast_elements, one.moved_bytes, round(one.bound_bytes), one.times_above, _what(one))
        for one in bounds.levels
    )
    return Table(COLUMNS, rows)


def _what(one: LevelBound) -> str:
    return one.term_text if one.decided_by == "term" else "inputs and outputs, once"


def answer(bounds: KernelBounds) -> str:
    """One sentence: how far above its bound each level is."""
    sm, l2 = bounds.levels
    bound = "the bound between L2 and HBM"
    hbm = "an amount not known" if l2.times_above is None else times_of(number_text(l2.times_above), bound)
    above = times_of(number_text(sm.times_above or 0), "the bound between SMs and L2")
    return (
        f"{bounds.kernel} on {bounds.profile} moves {above}, where M is {sm.fast_memory}, and {hbm}, where M is the L2."
    )


def text(bounds: KernelBounds) -> str:
    """As the command line prints it."""
    lines = [
        f"{bounds.kernel} on {bounds.profile}: {bounds.problem.line}; HBM by {bounds.method}",
        "",
        table(bounds).text().rstrip("\n"),
        "",
    ]
    for one in bounds.levels:
        term, once = bytes_text(round(one.term_bytes)), bytes_text(one.compulsory_bytes)
        lines.append(
            f"{LEVELS[one.level]}: {one.term_text} ({one.source}) = {term}, inputs and outputs once {once}; "
            f"M is {one.fast_memory}, together {bytes_text(one.fast_bytes)}"
        )
    return "\n".join([*lines, "", *explanation(bounds.levels, bounds.profile)]) + "\n"
