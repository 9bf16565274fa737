"""A stack's constants on one machine: what is added to a predicted call, and by what its parts are multiplied.

Five numbers, no more, so that twenty rows fix them. A file of them is a small TOML that `iosim calibrate --times`
writes and `iosim latency --calibration` reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import asdict, dataclass, fields
from iosim.base.schema import Real, Spec, Table, Text, Whole, read_toml, refuse

BOUNDS: Mapping[str, tuple[float, float]] = {
    "call_gap_s": (0.0, 2e-4),
    "prefill_factor": (0.5, 2.0),
    "decode_factor": (0.5, 2.0),
    "hbm_factor": (-0.3, 1.0),
    "write_factor": (0.1, 10.0),
}


@dataclass(frozen=True)
class Calibration:
    """What turns the predicted parts of a call into a stack's time."""

    call_gap_s: float
    """Seconds that a call takes beside its launches."""
    prefill_factor: float = 1.0
    """Factor on the attention launches of prefill."""
    decode_factor: float = 1.0
    """Factor on those of decoding: one query token per sequence."""
    hbm_factor: float = 0.0
    """Added for HBM's bytes, over the seconds that HBM alone takes for them."""
    write_factor: float = 1.0
    """Factor on the write to the cache."""

    def attention_s(self, seconds: float, hbm_s: float, decodes: bool) -> float:
        return (
            seconds * (self.decode_factor if decodes else self.prefill_factor)
            + hbm_s * self.hbm_factor
        )


_KEYS: dict[str, Spec] = {"schema": Whole(1, 1), "stack": Text(), "gpu": Text()}
_KEYS |= {name: Real(*bounds) for name, bounds in BOUNDS.items()}
_ERRORS = Table({"rows": Whole(1), "before": Real(0, 1e6), "held_out": Real(0, 1e6)})
_FILE = Table({**_KEYS, "errors": _ERRORS}, required=tuple(_KEYS))


def read_calibration(path: str, stack: str, gpu: str) -> Calibration:
    """The constants in a file. Raises InputError: no such file, or one of another stack or GPU."""
    data = read_toml(Path(path), "`calibration`", "iosim calibrate --times")
    refuse(list(_FILE.problems(data)), f"`calibration` '{path}'")
    for name, requested in (("stack", stack), ("gpu", gpu)):
        if data[name] != requested:
            raise InputError(
                f"`calibration` '{path}' is of {name} {data[name]}, not {requested}; accepted: one of {requested}"
            )
    return Calibration(**{field.name: float(data[field.name]) for field in fields(Calibration)})


def calibration_text(
    constants: Calibration, stack: str, gpu: str, errors: Mapping[str, Any]
) -> str:
    lines = ["schema = 1", f'stack = "{stack}"', f'gpu = "{gpu}"']
    lines += [f"{name} = {value:.6g}" for name, value in asdict(constants).items()]
    lines += [
        "",
        "# Mean |predicted / measured - 1|: before, and after on rows left out of the fit.",
        "[errors]",
    ]
    lines += [f"{name} = {value:.6g}" for name, value in errors.items()]
    return "\n".join(lines) + "\n"
