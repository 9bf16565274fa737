"""Which calls of libraries are measured: every build's, and those that a seed draws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from iosim.evidence.measure.library_case import builds, drawn


def cases() -> Iterator[tuple[str, Any]]:
    for n, case in enumerate(builds()):
        yield f"build {n}", list(case.columns().values())
    for n, case in enumerate(drawn(11, 60)):
        yield f"drawn {n}", list(case.columns().values())
