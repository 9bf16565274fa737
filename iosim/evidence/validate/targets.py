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


def _within(share: float, least_bytes: float) -> Callable[[Residual], bool]:
    return lambda r: abs(r.difference) <= max(share * r.measured, least_bytes)


@dataclass(frozen=True)
class Target:
    """`row` says whether a row is where it should be (always, where only the whole counts); `text` says both."""

    quantity: str
    text: str
    row: Callable[[Residual], bool]
    reached: Callable[[Sequence[Residual]], tuple[bool, str]]


def _share(rows: Sequence[Residual], good: Callable[[Residual], bool]) -> float:
    return sum(map(good, rows)) / len(rows)


def _l2(rows: Sequence[Residual]) -> tuple[bool, str]:
    share = _share(rows, _within(L2_SHARE, L2_BYTES))
    return share == 1, f"{100 * share:.1f} % of rows within it"


def _hbm_read(rows: Sequence[Residual]) -> tuple[bool, str]:
    s = Summary.of(r.error for r in rows if r.error is not None)
    near, all_in = _share(rows, _within(NEAR_SHARE, READ_BYTES)), _share(rows, _within(READ_SHARE, READ_BYTES))
    median = s.median or 0.0
    good = median <= 0.01 and near >= 0.95 and all_in == 1
    return good, f"median {100 * median:.2f} %, {100 * near:.1f} % within 5 %, {100 * all_in:.1f} % within 10 %"


def _hbm_write(rows: Sequence[Residual]) -> tuple[bool, str]:
    share = _share(rows, _within(NEAR_SHARE, SMALL_BYTES))
    return share >= 0.95, f"{100 * share:.1f} % of rows within it"


def _time(rows: Sequence[Residual]) -> tuple[bool, str]:
    errors = [r.error for r in rows if r.error is not None]
    mean = sum(errors) / len(errors) if errors else 0.0
    return mean <= TIME_MEAN, f"mean {100 * mean:.1f} %"


_L2_TEXT = "every row within 0.1 % or 1 kB"
TARGETS = {
    t.quantity: t
    for t in (
        Target("hbm_read", "median 1 %, 95 % within 5 %, all within 10 % (or 100 kB)",
               _within(READ_SHARE, READ_BYTES), _hbm_read),
        Target("hbm_write", "95 % of rows within 5 % or 2 MB", _within(NEAR_SHARE, SMALL_BYTES), _hbm_write),
        Target("l2_read", _L2_TEXT, _within(L2_SHARE, L2_BYTES), _l2),
        Target("l2_write", _L2_TEXT, _within(L2_SHARE, L2_BYTES), _l2),
        Target("time", "mean error 10 %", lambda r: True, _time),
    )
}  # fmt: skip


def misses(residuals: Sequence[Residual]) -> list[Residual]:
    """Rows of kernels without spills that miss their target, the quantities in order, the largest errors first."""
    missing_rows = [r for r in clean(residuals) if not TARGETS[r.quantity].row(r)]
    return sorted(missing_rows, key=lambda r: (QUANTITIES.index(r.quantity), -abs(r.difference) / max(1, r.measured)))
