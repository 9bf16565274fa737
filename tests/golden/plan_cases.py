"""Which calls are measured: of libraries every build's and those that a seed draws; of our kernels what fits a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from iosim.evidence.measure.choose import fitted
from iosim.evidence.measure.library_case import builds, describe, drawn
from iosim.evidence.measure.plan import GROUPS, named


def cases() -> Iterator[tuple[str, Any]]:
    for n, case in enumerate(builds()):
        yield f"build {n}", list(describe(case).values())
    for n, case in enumerate(drawn(11, 60)):
        yield f"drawn {n}", list(describe(case).values())
    for name in ("quick", *GROUPS):
        for cc in ("7.5", "8.0", "8.9", "9.0"):
            kept, left = fitted(named([name]), cc)
            yield f"{name} on {cc}", [len(kept), [f"{c.implementation} {c.shape} {c.spec}" for c in kept[::5]], left[:3]]
