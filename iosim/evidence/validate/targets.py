"""The accuracy that is aimed at, by quantity: for each row, and for the whole. Kernels without spills."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from iosim.evidence.validate.residuals import SMALL_BYTES, Residual
from iosim.evidence.validate.rows import QUANTITIES
from iosim.evidence.validate.summary import Summary, clean

L2_SHARE, L2_BYTES = 1e-3, 1000
READ_SHARE, READ_BYTES = 0.10, 100_000
"""Every HBM read: 10 %, or what a launch reads beside its tensors, twice."""
NEAR_SHARE = 0.05
TIME_MEAN = 0.10


Rows = Sequence[Residual]


def _within(share: float, least_bytes: float) -> Callable[[Residual], bool]:
    return lambda r: abs(r.difference) <= max(share * r.measured, least_bytes)


@dataclass(frozen=True)
class Target:
    """`row` says whether a row is where it should be (always, where only the whole counts); `share` of the rows must
    be; `text` says both. `reached` has a rule of its own for reads and times."""

    quantity: str
    text: str
    row: Callable[[Residual], bool]
    share: float = 1.0

    def reached(self, rows: Rows) -> tuple[bool, str]:
        """Whether it is, and what is reached."""
        errors = [r.error for r in rows if r.error is not None]
        within = _share(rows, self.row)
        if self.quantity == "time":
            mean = sum(errors) / len(errors) if errors else 0.0
            return mean <= TIME_MEAN, f"mean {100 * mean:.1f} %"
        if self.quantity != "hbm_read":
            return within >= self.share, f"{100 * within:.1f} % of rows within it"
        near, median = _share(rows, _within(NEAR_SHARE, READ_BYTES)), Summary.of(errors).median or 0.0
        text = f"median {100 * median:.2f} %, {100 * near:.1f} % within 5 %, {100 * within:.1f} % within 10 %"
        return median <= 0.01 and near >= 0.95 and within == 1, text


def _share(rows: Rows, good: Callable[[Residual], bool]) -> float:
    return sum(map(good, rows)) / len(rows)


_L2 = ("every row within 0.1 % or 1 kB", _within(L2_SHARE, L2_BYTES))
_READ = ("median 1 %, 95 % within 5 %, all within 10 % (or 100 kB)", _within(READ_SHARE, READ_BYTES))
TARGETS = {
    "hbm_read": Target("hbm_read", *_READ),
    "hbm_write": Target("hbm_write", "95 % of rows within 5 % or 2 MB", _within(NEAR_SHARE, SMALL_BYTES), 0.95),
    "l2_read": Target("l2_read", *_L2),
    "l2_write": Target("l2_write", *_L2),
    "time": Target("time", "mean error 10 %", lambda r: True),
}


def misses(residuals: Rows) -> list[Residual]:
    """Rows of kernels without spills that miss their target, the quantities in order, the largest errors first."""
    missing_rows = [r for r in clean(residuals) if not TARGETS[r.quantity].row(r)]
    return sorted(missing_rows, key=lambda r: (QUANTITIES.index(r.quantity), -abs(r.difference) / max(1, r.measured)))
