"""A claimed number as it was typed: its value, its unit, and how precisely it was said."""

from __future__ import annotations

import re
from collections.abc import Mapping

from iosim.base.errors import InputError
from iosim.base.records import dataclass

BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15, "KiB": 1 << 10, "MiB": 1 << 20,
         "GiB": 1 << 30, "TiB": 1 << 40}  # fmt: skip
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
FLOPS = {"FLOP": 1, "kFLOP": 10**3, "MFLOP": 10**6, "GFLOP": 10**9, "TFLOP": 10**12, "PFLOP": 10**15}
UNITS: dict[str, Mapping[str, float]] = {"hbm": BYTES, "l2": BYTES, "time": SECONDS, "flops": FLOPS}
"""Units of each quantity that can be claimed."""
OTHER_UNIT = {"kB": "KiB", "MB": "MiB", "GB": "GiB", "TB": "TiB", "KiB": "kB", "MiB": "MB", "GiB": "GB", "TiB": "TB"}
"""Decimal for binary, and the other way round."""
EXAMPLES = {"hbm": "4.3GB or 33.6MiB", "l2": "2.2GB", "time": "1.4ms", "flops": "137GFLOP"}


@dataclass(frozen=True)
class Amount:
    """A number of bytes, seconds or operations. `share` is half a unit of its last digit, over the number."""

    quantity: str
    text: str
    value: float
    unit: str
    share: float


NUMBER = re.compile(r"\s*([0-9][0-9,_]{0,30}(?:\.[0-9]{0,15})?)(?:[eE]([+-]?[0-9]{1,2}))?\s*([A-Za-z]+)\s*", re.ASCII)


def parse(quantity: str, text: str) -> Amount:
    """The amount of a text such as 4.3GB: a number and a unit of its quantity, in upper or lower case. GB may be
    written G, and GFLOP G or GFLOPs. Raises InputError where there is no number above zero with such a unit."""
    match = NUMBER.fullmatch(text)
    unit = None if match is None else _unit(quantity, match[3])
    if match is None or unit is None:
        raise InputError(
            f"`{quantity}` '{text}' is no amount; accepted: a number with a unit, such as {EXAMPLES[quantity]}"
        )
    digits = re.sub("[,_]", "", match[1])
    scale = 10.0 ** int(match[2] or 0) * UNITS[quantity][unit]
    value = float(digits) * scale
    if not value > 0:
        raise InputError(f"`{quantity}` '{text}' is out of range; accepted: more than 0")
    decimals = len(digits.partition(".")[2])
    return Amount(quantity, text.strip(), value, unit, 0.5 * 10.0**-decimals * scale / value)


def _unit(quantity: str, typed: str) -> str | None:
    known = {name.lower(): name for name in UNITS[quantity]}
    if quantity == "flops":
        known |= {f"{name.lower()}s": name for name in FLOPS}
    if quantity != "time":
        known |= {name[0].lower(): name for name in UNITS[quantity] if name[:1] in "kMGTP" and not name.endswith("iB")}
    return known.get(typed.lower())


def share(text: str | float | None) -> float | None:
    """2% or 0.02. Raises InputError where it is no such number."""
    if text is None:
        return None
    text = str(text)
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise InputError(f"`tolerance` '{text}' is out of range; accepted: above 0 and below 1, such as 2% or 0.02")
    return value
