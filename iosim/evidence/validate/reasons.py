"""Why rows miss their target: groups of rows by a condition, each with its reason and the experiment that shows it.

The groups stand in `reasons.toml`; the first whose condition holds takes the row. A reason belongs to a group only when
an experiment isolates it; a group that nothing explains yet says so (`isolated = false`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from iosim.base.records import dataclass
from iosim.base.schema import ListOf, OneOrMany, Table, Text, Whole, checked, read_toml
from iosim.evidence.validate.residuals import REGIMES, Residual
from iosim.evidence.validate.rows import QUANTITIES

FILE = Path(__file__).with_name("reasons.toml")
SCHEMA = 1
SECTOR_ROWS = 8
"""Query rows whose fp32 log-sum-exp fills a sector of 32 bytes."""
FACTS = (
    "implementation",
    "order",
    "direction",
    "persistent",
    "heavy_first",
    "causal",
    "note",
    "window",
    "head_dim",
)
TEXTS = ("title", "reason", "experiment", "command")
WHEN = Table(
    {
        **dict.fromkeys((*FACTS, "stage"), OneOrMany(Text())),
        "regime": OneOrMany(Text(REGIMES)),
        "sign": Text(("over", "under")),
        **dict.fromkeys(("ragged", "sections", "small"), Text(("yes", "no"))),
    }
)


@dataclass(frozen=True)
class Group:
    """`when` maps what is asked of a row to the accepted answers: a column of FACTS, or `regime`, `stage`, `sign`
    (over, under), `ragged` (lengths whose log-sum-exp rows end inside a sector), `sections`, `small` (under 2 MB)."""

    name: str
    quantities: tuple[str, ...]
    when: Mapping[str, tuple[str, ...]]
    isolated: bool
    title: str
    reason: str
    experiment: str
    command: str

    def holds(self, r: Residual) -> bool:
        return r.quantity in self.quantities and all(
            value_of_key(r, key) in accepted for key, accepted in self.when.items()
        )


_LINES: dict[str, Any] = dict.fromkeys(TEXTS, Text(lines=True))
GROUP = Table.of(Group, quantities=ListOf(Text(QUANTITIES)), when=WHEN, **_LINES)
REASONS = Table(
    {"schema": Whole(SCHEMA, SCHEMA), "group": ListOf(GROUP)}, required=("schema", "group")
)
YES_NO: Mapping[str, Callable[[Residual], bool]] = {
    "ragged": lambda r: r.problem.seq_q % SECTOR_ROWS != 0,
    "sections": lambda r: r.row.facts.get("section", "0") not in ("", "0"),
    "small": lambda r: r.error is None,
}


def value_of_key(r: Residual, key: str) -> str:
    """What a row says to a key of a condition."""
    if key in YES_NO:
        return "yes" if YES_NO[key](r) else "no"
    sign = "over" if r.difference > 0 else "under"
    of_row = {
        "regime": r.regime,
        "stage": r.launch,
        "sign": sign,
        "implementation": r.row.implementation,
    }
    return of_row[key] if key in of_row else r.row.facts.get(key, "")


@cache
def groups(path: Path = FILE) -> tuple[Group, ...]:
    """The groups of a file, in order. Raises InputError where the file names something that is not known."""
    return tuple(_group(entry) for entry in checked(read_toml(path), REASONS, path.name)["group"])


def _group(entry: Mapping[str, Any]) -> Group:
    when = {key: tuple(v) if isinstance(v, list) else (v,) for key, v in entry["when"].items()}
    texts = {key: " ".join(entry[key].split()) for key in TEXTS}
    return Group(**{**entry, "quantities": tuple(entry["quantities"]), "when": when, **texts})


def reason_of(r: Residual, among: Sequence[Group]) -> Group | None:
    return next((group for group in among if group.holds(r)), None)
