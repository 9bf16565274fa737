"""A stand-in of the profiler's module NvRules, as its public reference describes it (NvRules API, Nsight Compute 2025),
for one recorded launch: what a rule asks of it, and what it puts on the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class IFrontend:
    """The constants of the real one."""

    (
        MsgType_MSG_NONE,
        MsgType_MSG_OK,
        MsgType_MSG_WARNING,
        MsgType_MSG_OPTIMIZATION,
        MsgType_MSG_ERROR,
    ) = range(5)
    Severity_SEVERITY_DEFAULT, Severity_SEVERITY_LOW, Severity_SEVERITY_HIGH = range(3)
    SpeedupType_LOCAL, SpeedupType_GLOBAL = 1, 2


@dataclass
class Page(IFrontend):
    """What a rule said, in its order."""

    messages: list[tuple[int, str, str]] = field(default_factory=list)
    tables: list[tuple[int, list[str], list[list[str]], dict[str, str]]] = field(
        default_factory=list
    )
    focus: list[tuple[int, str, float, int, str]] = field(default_factory=list)
    speedups: list[tuple[int, int, float]] = field(default_factory=list)
    handed_on: dict[str, float] = field(default_factory=dict)

    def message(self, kind: int, text: str, title: str = "") -> int:
        assert isinstance(text, str)
        self.messages.append((kind, text, title))
        return len(self.messages) - 1

    def generate_table(
        self, message: int, header: list[str], data: list[list[str]], config: dict[str, str]
    ) -> None:
        assert message < len(self.messages)
        assert all(len(row) == len(header) for row in data)
        self.tables.append((message, header, data, config))

    def focus_metric(self, message: int, name: str, value: float, severity: int, info: str) -> bool:
        self.focus.append((message, name, float(value), severity, info))
        return True

    def speedup(self, message: int, kind: int, percent: float) -> bool:
        self.speedups.append((message, kind, percent))
        return True

    def send_dict_to_children(self, values: Mapping[str, float]) -> None:
        assert all(isinstance(value, float) for value in values.values())
        self.handed_on.update(values)


@dataclass(frozen=True)
class Metric:
    held: Any
    of: str = ""

    def value(self) -> Any:
        return self.held

    def unit(self) -> str:
        return self.of


@dataclass(frozen=True)
class Domain:
    pushed: tuple[str, ...]

    def name(self) -> str:
        return "<default domain>"

    def push_pop_ranges(self) -> tuple[str, ...]:
        return self.pushed

    def start_end_ranges(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class State:
    pushed: tuple[str, ...]

    def domains(self) -> tuple[int, ...]:
        return (0,)

    def domain_by_id(self, number: int) -> Domain:
        return Domain(self.pushed)


class Action:
    """A recorded launch."""

    NameBase_FUNCTION, NameBase_DEMANGLED, NameBase_MANGLED = range(3)

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.facts = facts
        self.metrics = {name: Metric(*pair) for name, pair in facts["metrics"].items()}
        for dim in ("grid", "block"):
            self.metrics |= {
                f"launch__{dim}_dim_{a}": Metric(n) for a, n in zip("xyz", facts[dim], strict=True)
            }
        self.metrics["device__attribute_display_name"] = Metric(facts["device"])

    def name(self, base: int = 0) -> str:
        assert base == self.NameBase_DEMANGLED
        return str(self.facts["kernel"])

    def metric_by_name(self, name: str) -> Metric | None:
        return self.metrics.get(name)

    def nvtx_state(self) -> State | None:
        return State(tuple(self.facts["ranges"])) if self.facts["ranges"] else None


class Context:
    """The profiler's context with one launch, as a rule gets it."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.page, self.action = Page(), Action(facts)

    def frontend(self) -> Page:
        return self.page

    def range_by_idx(self, number: int) -> Context:
        assert number == 0
        return self

    def action_by_idx(self, number: int) -> Action:
        assert number == 0
        return self.action


def get_context(handle: Context) -> Context:
    return handle
