"""Numbers as text: bytes in decimal units (MB is 10^6), seconds, sizes (k is 1024, M 1024^2) and limits in %."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from iosim.base.errors import InputError

_BYTE_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
_ENERGY_UNITS = ((1.0, "J"), (1e-3, "mJ"), (1e-6, "uJ"))
_FLOP_UNITS = ((1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"), (1, "FLOP"))
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
MOST_SHOWN = 60
"""Characters of a text that a message shows."""
_FACTORS = {"": 1, "k": 1024, "m": 1024 * 1024}


def bytes_text(n: int | float) -> str:
    """1,234,567 -> "1.235 MB"; whole bytes below 1 kB."""
    for size, unit in _BYTE_UNITS:
        if abs(n) >= size:
            return f"{n / size:,.4g} {unit}" if abs(n) < 1000 * size else f"{n / size:,.0f} {unit}"
    return f"{n:,.0f} B"


def digits_text(x: float, digits: int = 3, sign: str = "") -> str:
    """So many significant digits, and no exponent from thousands on: 12,345.6 -> "12,346"; `sign` "+" writes it."""
    text = f"{x:{sign}.{digits}g}"
    return f"{x:{sign},.0f}" if "e+" in text else text


def seconds_text(s: float) -> str:
    """0.00123 -> "1.23 ms"; of two units the one in which three digits have no fourth: 999.96 us -> "1 ms"."""
    for size, unit in _TIME_UNITS:
        if float(f"{s:.3g}") >= size:
            return f"{digits_text(s / size)} {unit}"
    return f"{round(s * 1e9, 6):.3g} ns"


def joules_text(joules: float) -> str:
    """0.00123 -> "1.23 mJ"."""
    rounded = float(f"{joules:.3g}")
    size, unit = next((scale for scale in _ENERGY_UNITS if rounded >= scale[0]), _ENERGY_UNITS[-1])
    return f"{digits_text(joules / size)} {unit}"


def operations_text(flops: float) -> str:
    """17.2e9 -> "17.2 GFLOP"; fewer in a unit that shows them: 4.6e6 -> "4.6 MFLOP"."""
    least = 0.05  # of a unit, which one decimal shows
    size, unit = next((n, unit) for n, unit in _FLOP_UNITS if flops >= least * n or n == 1)
    return f"{flops / size:,.{0 if size == 1 else 1}f} {unit}"


def count_text(n: int | float) -> str:
    """65536 -> "65,536"."""
    return f"{n:,.0f}"


def some(number: float, singular: str) -> str:
    """1 "token" -> "1 token", 4096 "token" -> "4,096 tokens"."""
    return f"{number:,.0f} {singular}{'' if f'{number:,.0f}' == '1' else 's'}"


def times_of(number: str, noun: str) -> str:
    """2.4 and "the cache" -> "2.4 times the cache"; 1 -> "the cache"."""
    return noun if number == "1" else f"{number} times {noun}"


def number_text(x: float) -> str:
    """Four significant digits, with separators of thousands."""
    return digits_text(x, 4)


def per_second_text(rate: float) -> str:
    """11864.3 -> "11,864", 6.537 -> "6.537": four digits, and no more where they are before the point."""
    return f"{float(f'{rate:.4g}'):,.0f}" if rate >= 1000 else f"{rate:.4g}"


def rate_text(flops_per_s: float) -> str:
    """3.12e14 -> "312 TFLOP/s"."""
    return f"{number_text(flops_per_s / 1e12)} TFLOP/s"


_BINARY_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_UNITS = (
    ("_bytes_per_s", "B/s"),
    ("_flops_per_s", "FLOP/s"),
    ("_flops_achieved_per_s", "FLOP/s"),
    ("_hz", "Hz"),
    ("_w", "W"),
)


def capacity_text(n: int) -> str:
    """62914560 -> "60 MiB", as a memory's size is written; what is no multiple of 1 KiB, or whole GB, is decimal."""
    if n % 1024 or n % 10**9 == 0:
        return bytes_text(n)
    return next(
        (f"{n / size:.4g} {unit}" for size, unit in _BINARY_UNITS if n >= size), bytes_text(n)
    )


def scaled_text(x: float, unit: str) -> str:
    """1.94e12 of "B/s" -> "1.94 TB/s"; four significant digits."""
    for size, prefix in _PREFIXES:
        if abs(x) >= size:
            return f"{x / size:.4g} {prefix}{unit}"
    return f"{x:.4g} {unit}"


def quantity_text(name: str, value: object) -> str:
    """A quantity whose name ends with its unit, as a person reads it: `l2_bytes` 62914560 -> "60 MiB"."""
    if isinstance(value, list | tuple):
        if value and isinstance(
            value[0], list | tuple
        ):  # points of a curve over a footprint in bytes
            return "; ".join(f"{capacity_text(x)}: {quantity_text(name, y)}" for x, y in value)
        return ", ".join(quantity_text(name, element) for element in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    for ending, unit in _UNITS:
        if name.endswith(ending):
            return scaled_text(value, unit)
    if name.endswith("_bytes"):
        return capacity_text(int(value))
    if name.endswith("_s") and not name.endswith("_per_s"):
        return seconds_text(value)
    if name.endswith("_cycles"):
        return f"{number_text(value)} cycles"
    if name.endswith("_fraction"):
        return f"{100 * value:.4g} %"
    return count_text(value) if isinstance(value, int) else number_text(value)


def length_text(n: int) -> str:
    """4096 -> "4k", 1048576 -> "1M", 1000 -> "1000"."""
    for size, unit in ((1 << 20, "M"), (1 << 10, "k")):
        if n % size == 0:
            return f"{n // size}{unit}"
    return str(n)


def size(text: str, option: str) -> int:
    """A whole number, with k for 1024 and m for 1024^2: "64k" -> 65536. Raises InputError: not such a number."""
    match = re.fullmatch(r"([0-9]{1,18})([km]?)", text.strip().lower())
    if not match:
        grouped = re.fullmatch(r"\s*([0-9]{1,3}(?:[,_'. ][0-9]{3})+)\s*", text)
        accepted = (
            f"write {_ungrouped(grouped[1])}"
            if grouped
            else "accepted: whole numbers such as 4096 or 64k"
        )
        shown = text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."
        raise InputError(f"{option} '{shown}' is not a size; {accepted}")
    return int(match[1]) * _FACTORS[match[2]]


_GROUPED = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:,[0-9]{1,3}(?:,[0-9]{3})+)*")
"""Digits and commas that can be read as numbers with separators of thousands, and as a list of smaller ones."""
MOST_GROWTH, ROUND = 16, 8192
"""From one length of a list to the next, and what a long length is a multiple of. 8,192 grows by 24."""


def _ungrouped(text: str) -> str:
    return re.sub(r"[^0-9]", "", text)


def check_separators(text: str, option: str, *, sequences: bool = False) -> None:
    """Refuses a list that is as likely one number with separators of thousands: "4,096" and "8,192", not "512,1024" and
    not "64,128,256". A list it is where multiples of 8 grow by at most 16 times and make no multiple of 8192, where a
    space follows the comma, or where an option is given again. `sequences`: of an option that always takes several
    numbers, in any order, all three digits make a list too. Raises InputError."""
    parts = text.strip().split(",")
    padded = any(re.fullmatch(r"0[0-9]{2}", part) for part in parts[1:])  # nobody writes 096 for 96
    if not padded:
        if sequences and all(len(part) == 3 for part in parts):
            return
        if not _GROUPED.fullmatch(text.strip()):
            if not sequences and not all(
                part.strip().isdigit() and len(part) < 4 for part in parts
            ):
                _check_mixed(parts, option)
            return
        numbers = [int(part) for part in parts]
        grows = all(a < b <= MOST_GROWTH * a for a, b in pairwise(numbers))
        if grows and not any(n % 8 for n in numbers) and int(_ungrouped(text)) % ROUND:
            return
    grouped = re.fullmatch(r"[0-9]{1,3}(?:,[0-9]{3})+", text.strip())
    number = (
        f"write {_ungrouped(text)}" if grouped else "write numbers without separators of thousands"
    )
    listed = "" if padded else f", or '{', '.join(parts)}' for a list"
    raise InputError(f"{option} '{text.strip()}': {number}{listed}")


def _check_mixed(parts: list[str], option: str) -> None:
    """Refuses a list in which two parts are as likely one number as two: "4k,8k,16,384" and "16,384,32k", not
    "4k,8k,512" and not "128,512,1k". Raises InputError."""
    # Only neighbours that make one number of four to six digits can be meant as one.
    for first, second in pairwise(parts):
        if not re.fullmatch(r"[0-9]{1,3},[0-9]{3}", f"{first},{second}"):
            continue
        a, b, whole = int(first), int(second), int(first + second)
        grows = a < b <= MOST_GROWTH * a and not (a % 8 or b % 8) and whole % ROUND
        if not grows:
            text, spaced = ",".join(parts), ", ".join(parts)
            raise InputError(f"{option} '{text}': write {whole}, or '{spaced}' for a list")


def list_text(numbers: Iterable[object], *, sequences: bool = False) -> str:
    """Numbers as an option takes them: "512,1024", and "8, 192" where a comma alone might separate thousands."""
    text = ",".join(map(str, numbers))
    try:
        check_separators(text, "", sequences=sequences)
    except InputError:
        return text.replace(",", ", ")
    return text


def sizes(text: str, option: str, *, sequences: bool = False) -> list[int]:
    """A list of sizes and ranges: "512,4096", "1k:64k:x2" (doubling), "1k:4k:1k" (steps; the end is included). Raises
    InputError: not such a list, or one that may be a number with separators of thousands (`check_separators`)."""
    check_separators(text, option, sequences=sequences)
    out: list[int] = []
    for part in text.split(","):
        ends = part.split(":")
        if len(ends) == 1:
            out.append(size(part, option))
            continue
        if len(ends) != 3:
            raise InputError(
                f"{option} '{part}' is not a range; accepted: first:last:step or first:last:xFACTOR"
            )
        first, last = size(ends[0], option), size(ends[1], option)
        factor = ends[2].strip().lower()
        step = size(factor.removeprefix("x"), option)
        if step < (2 if factor.startswith("x") else 1) or first < 1 or last < first:
            accepted = "first up to last, a step from 1 or a factor from x2"
            raise InputError(
                f"{option} '{part}' is an empty or endless range; accepted: {accepted}"
            )
        # Steps or factors until the end, which is included where it is met.
        value = first
        while value <= last:
            out.append(value)
            if len(out) > 10_000:
                raise InputError(f"{option} '{text}' has too many values; accepted: up to 10,000")
            value = value * step if factor.startswith("x") else value + step
    return out


def parse_limit(
    text: str,
    option: str,
    names: Sequence[str],
    statistics: Sequence[str],
    default: str,
    examples: str,
) -> tuple[str, str, float]:
    """The parts of NAME[:STATISTIC]=LIMIT: a name of an `option`, a statistic or the default, the limit as a share.
    Without `statistics` the form is NAME=LIMIT. Raises InputError: the text is not of that form."""
    match = re.fullmatch(
        r"\s*([a-z0-9_-]+)(?::([a-z0-9]+))?\s*=\s*(\d{1,9}(?:\.\d{1,9})?)\s*(%?)\s*", text
    )
    if not match or (match[2] and not statistics):
        form = f"{option.upper()}{'[:STATISTIC]' if statistics else ''}=LIMIT"
        raise InputError(
            f"`fail_above` '{text}' is not of the form {form}; accepted: such as {examples}"
        )
    name, statistic = match[1], match[2] or default
    for kind, word, accepted in (
        (option, name, names),
        ("statistic", statistic, (*statistics, default)),
    ):
        if word not in accepted:
            known = ", ".join(dict.fromkeys(accepted))
            raise InputError(
                f"`fail_above` '{text}': {kind} '{word}' is not known; accepted: {known}"
            )
    return name, statistic, float(match[3]) / (100 if match[4] else 1)


def picoseconds(seconds: float) -> int:
    """Whole picoseconds of a time: what times are ranked by, so that a tie does not hang on the last bit."""
    return round(seconds * 1e12)
