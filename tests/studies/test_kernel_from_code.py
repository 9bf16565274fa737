"""What machine code says of a launch, with and without the lines of its PTX."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from iosim.studies import kernel_from_code
from iosim.studies.kernel_from_code import launch_facts


@pytest.mark.parametrize(("lines", "asks"), [((None, None), False), ((None, 12), True)])
def test_addresses_are_asked_for_where_lines_are_named(
    lines: tuple[int | None, ...], asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    instructions = tuple(SimpleNamespace(ptx_line=line) for line in lines)
    call: Any = SimpleNamespace(
        function=SimpleNamespace(instructions=instructions, cc=90),
        resources=SimpleNamespace(shared_memory_bytes=0),
    )
    evaluated: Any = SimpleNamespace(threads=128, runs={})
    for name in ("uses_of", "Flow", "runs_of_lines"):
        monkeypatch.setattr(kernel_from_code, name, lambda *_: None)
    monkeypatch.setattr(kernel_from_code, "code_launch", lambda *_: SimpleNamespace(missed={}))
    monkeypatch.setattr(kernel_from_code, "kernel_facts", lambda *_, **more: set(more))
    gpu: Any = None
    assert launch_facts(call, evaluated, gpu) == ({"uses", "runs"} if asks else set())
