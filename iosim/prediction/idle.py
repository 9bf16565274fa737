"""Settings that were asked for and change no number: said in a note, so that nobody takes the answer for one with them.

A setting is tried by leaving it out: the call without it has the same launches, residencies, replay and time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import replace
from iosim.catalog.libraries import Overrides, resolve
from iosim.kernel.conditions import Conditions
from iosim.kernel.kernel import Kernel
from iosim.kernel.traffic import Traffic
from iosim.prediction.call import Call
from iosim.problem.attention import AttentionProblem

SPELT = {"shared_memory_bytes": "smem", "output": "output_dtype"}
"""Fields that options call otherwise."""


def idle_notes(
    call: Call,
    asked: str | Kernel,
    overrides: Overrides | None,
    beside: Sequence[str],
    traffic: Traffic,
    how: Conditions,
) -> tuple[str, ...]:
    """A note on each setting that changes no number of a call; `asked` is the kernel by name, or made by hand, `beside`
    the fields of its problem that are tried."""
    return tuple(
        f"{SPELT.get(name, name)} {_text(value)} changes no number of {call.kernel.name} here"
        for name, value, other in _without(call, asked, overrides, beside)
        if _same(call, other, traffic, how)
    )


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _without(
    call: Call, asked: str | Kernel, overrides: Overrides | None, beside: Sequence[str]
) -> Iterator[tuple[str, Any, Call]]:
    """(setting, its value, the call without it) of all that are not as they would be."""
    unset, problem = Overrides(), call.problem
    for name, value in vars(overrides or unset).items():
        if value == getattr(unset, name) or not isinstance(asked, str):
            continue
        other = _call(
            call, problem, asked, replace(overrides or unset, **{name: getattr(unset, name)})
        )
        if other is not None and other.kernel != call.kernel:
            yield name, value, other
    usual = AttentionProblem()
    for name in beside:
        value = getattr(problem, name)
        if value == getattr(usual, name) or (name == "output" and value == _output(problem)):
            continue
        default: Any = _output(problem) if name == "output" else getattr(usual, name)
        try:
            plain = replace(problem, **{name: default})
        except InputError:  # another field needs it
            continue
        other = _call(call, plain, asked, overrides)
        if other is not None:
            yield name, value, other


def _output(problem: AttentionProblem) -> str:
    """The type of O where none is said."""
    return str(replace(AttentionProblem(), dtype=problem.dtype).output)


def _call(
    call: Call, problem: AttentionProblem, asked: str | Kernel, overrides: Overrides | None
) -> Call | None:
    try:
        chosen = (
            resolve(asked, problem, call.profile, overrides) if isinstance(asked, str) else asked
        )
        return Call.of(problem, chosen, call.profile)
    except InputError:  # without it the kernel cannot run: the setting does something
        return None


def _same(call: Call, other: Call, traffic: Traffic, how: Conditions) -> bool:
    if other.kernel.name != call.kernel.name or other.chain != call.chain:
        return False
    if other.residencies != call.residencies or other.counted != call.counted:
        return False
    if other.time(traffic, how).total_s != call.time(traffic, how).total_s:
        return False
    return other.replay_inputs() == call.replay_inputs()
