"""Why rows miss their target: groups of rows by a condition, each with its reason and the experiment that shows it.

The groups stand in `reasons.toml`; the first whose condition holds takes the row. A reason belongs to a group only when
an experiment isolates it; a group that nothing explains yet says so (`found = false`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.evidence.validate.residuals import REGIMES, Residual
from iosim.evidence.validate.rows import QUANTITIES

FILE = Path(__file__).with_name("reasons.toml")
SCHEMA = 1
SECTOR_ROWS = 8
"""Query rows whose fp32 log-sum-exp fills a sector of 32 bytes."""
FACTS = ("implementation", "order", "direction", "persistent", "heavy_first", "causal", "note", "window", "head_dim")
TEXTS = ("title", "reason", "experiment", "command")


@dataclass(frozen=True)
class Group:
    """`when` maps what is asked of a row to the accepted answers: a column of FACTS, or `regime`, `stage`, `sign`
    (over, under), `ragged` (lengths whose log-sum-exp rows end inside a sector), `sections`, `small` (under 2 MB)."""

    name: str
    title: str
    quantities: tuple[str, ...]
    when: Mapping[str, tuple[str, ...]]
    found: bool
    reason: str
    experiment: str
    command: str

    def holds(self, r: Residual) -> bool:
        return r.quantity in self.quantities and all(answer(r, key) in accepted for key, accepted in self.when.items())


def answer(r: Residual, key: str) -> str:
    """What a row says to a key of a condition."""
    if key == "regime":
        return r.regime
    if key == "stage":
        return r.launch
    if key == "sign":
        return "over" if r.difference > 0 else "under"
    if key == "ragged":
        return _yes(r.problem.seq_q % SECTOR_ROWS != 0)
    if key == "sections":
        return _yes(r.row.facts.get("section", "0") not in ("", "0"))
    if key == "small":
        return _yes(r.error is None)
    if key == "implementation":
        return r.row.implementation
    return r.row.facts.get(key, "")


def _yes(value: bool) -> str:
    return "yes" if value else "no"


@cache
def groups(path: Path = FILE) -> tuple[Group, ...]:
    """The groups of a file, in order.

    Raises:
        InputError: the file names something that is not known.
    """
    with open(path, "rb") as file:
        data = tomllib.load(file)
    if data.get("schema") != SCHEMA:
        raise InputError(f"{path.name} has schema {data.get('schema')}; accepted: {SCHEMA}")
    return tuple(_group(entry, path.name) for entry in data.get("group", ()))


def _group(entry: Mapping[str, Any], where: str) -> Group:
    name = str(entry.get("name", ""))
    missing = [key for key in ("name", "quantities", "when", "found", *TEXTS) if key not in entry]
    if missing:
        raise InputError(f"{where}: group '{name}' lacks {', '.join(missing)}")
    when = {key: tuple(v) if isinstance(v, list) else (v,) for key, v in entry["when"].items()}
    known = (*FACTS, "regime", "stage", "sign", "ragged", "sections", "small")
    wrong = [key for key in when if key not in known] + [q for q in entry["quantities"] if q not in QUANTITIES]
    wrong += [word for word in when.get("regime", ()) if word not in REGIMES]
    if wrong:
        raise InputError(f"{where}: group '{name}' asks for '{wrong[0]}'; accepted: {', '.join(known)}")
    texts = {key: " ".join(str(entry[key]).split()) for key in TEXTS}
    return Group(name, quantities=tuple(entry["quantities"]), when=when, found=bool(entry["found"]), **texts)


def reason_of(r: Residual, among: Sequence[Group]) -> Group | None:
    """The group of a row; None where no condition holds."""
    return next((group for group in among if group.holds(r)), None)
