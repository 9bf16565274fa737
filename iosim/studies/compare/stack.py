"""A model's attention by several kernels and GPUs: a comparison for each kind of layer, and all layers together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iosim.base.progress import Progress
from iosim.base.records import dataclass, replace
from iosim.base.units import bytes_text, seconds_text, some
from iosim.base.words import sentences
from iosim.kernel.libraries.default import told
from iosim.show.page import Page, Section, listed
from iosim.show.tables import Column, Table
from iosim.studies.compare.face import as_text, summary
from iosim.studies.compare.study import QUANTITIES, Comparison, run
from iosim.studies.models.asked import LayerGroup, groups_of
from iosim.studies.models.layers import Model
from iosim.studies.requests import CompareRequest

COLUMNS = (Column("gpu", "GPU"), Column("kernel"), Column("seq_len", "N", "count"), Column("l2_bytes", "SM<->L2"),
           Column("hbm_bytes", "HBM"), Column("time_s", "time"), Column("l2_ratio", "x less L2", "number"),
           Column("hbm_ratio", "x less HBM", "number"), Column("time_ratio", "x faster", "number"),
           Column("cannot_run", "cannot run"))  # fmt: skip
OF_SUM = tuple(name for name in QUANTITIES if name != "memory")


@dataclass(frozen=True)
class ModelComparison:
    """Kernels and GPUs side by side, for all of a model's layers."""

    model: Model
    parts: tuple[tuple[LayerGroup, Comparison], ...]
    """A comparison for each kind of layer, and for lengths at which it attends otherwise."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row a GPU, kernel and length: bytes and seconds of all layers, and the baseline's over them; null where a
        kind of layer cannot run."""
        found: dict[tuple[int, str, str], dict[str, Any]] = {}
        for group, comparison in self.parts:
            for entry in comparison.entries:
                key = (group.lengths[entry.seq_len], entry.gpu, entry.asked)
                row = found.setdefault(key, {"sums": dict.fromkeys(OF_SUM, 0.0), "bases": dict.fromkeys(OF_SUM, 0.0),
                                             "cannot": [], "kernels": {}})  # fmt: skip
                row["kernels"][entry.kernel] = None
                if entry.point is None:
                    row["cannot"].append(group.kind.name)
                for name in OF_SUM:
                    row["sums"][name] = _plus(row["sums"][name], entry.value(name), group.kind.count)
                    ratio, value = entry.ratio(name), entry.value(name)
                    base = None if ratio is None or value is None else ratio * value
                    row["bases"][name] = _plus(row["bases"][name], base, group.kind.count)
        return [_row(key, row) for key, row in sorted(found.items(), key=lambda one: one[0][0])]

    @property
    def table(self) -> Table:
        """The rows for a person."""
        shown = (row | {"cannot_run": ", ".join(row["cannot_run"])} for row in self.rows)
        return Table(COLUMNS, tuple(tuple(row[column.key] for column in COLUMNS) for row in shown))

    @property
    def answer(self) -> str:
        """The fastest kernel on each GPU at the longest length, in one sentence."""
        longest = max(row["seq_len"] for row in self.rows)
        here = [row for row in self.rows if row["seq_len"] == longest]
        clauses = []
        for gpu in dict.fromkeys(row["gpu"] for row in here):
            able = [row for row in here if row["gpu"] == gpu and row["time_s"] is not None]
            if not able:
                clauses.append(f"on {gpu} no kernel runs all of them")
                continue
            best = min(able, key=lambda row: row["time_s"])
            hbm = "" if best["hbm_bytes"] is None else f", moving {bytes_text(best['hbm_bytes'])} at HBM"
            clauses.append(f"on {gpu} {best['kernel']} is the fastest with {seconds_text(best['time_s'])}{hbm}")
        asked = (p.prediction for _, comparison in self.parts for p in comparison.points)
        by_default = told((p.kernel, p.profile) for p in asked)
        of = f"For the attention of the {some(self.model.layers, 'layer')} of {self.model.title}"
        return sentences([f"{of} at {some(longest, 'token')}, {'; '.join(clauses)}", by_default])

    def to_dict(self) -> dict[str, Any]:
        """The command line's JSON: `rows` of all layers, and under `layers` a comparison for each kind."""
        layers = [{"layer": group.kind.name, "count": group.kind.count, **one.to_dict()} for group, one in self.parts]
        return {"schema": 1, "model": self.model.to_dict(), "rows": self.rows, "layers": layers}

    def to_text(self) -> str:
        out = [self.answer, f"{self.model.line}.", f"All layers\n{self.table.text().rstrip()}"]
        out += [f"{group.kind.title}\n\n{as_text(one).rstrip()}" for group, one in self.parts]
        return "\n\n".join((*out, "\n".join(f"note: {note}" for note in self.model.all_notes))) + "\n"

    def as_page(self, command: str) -> Page:
        """The tables as a page. `command` is the command line that makes it again."""
        parts = tuple(
            Section(f"layers-{n}", group.kind.title, (one.legend,) if one.legend else (),
                    table=summary([e for e in one.entries if e.point is not None]).without("reason"))
            for n, (group, one) in enumerate(self.parts, 1)
        )  # fmt: skip
        notes = listed("notes", "Notes", self.model.all_notes)
        sections = (Section("all", "All layers", table=self.table), *parts, *notes)
        title = "Which kernel serves the model's attention best?"
        return Page(title, f"{self.model.line}.", sections, command=command, answer=(self.answer,))


def _plus(total: float | None, value: float | None, count: int) -> float | None:
    return None if total is None or value is None else total + count * value


def _row(key: tuple[int, str, str], found: Mapping[str, Any]) -> dict[str, Any]:
    length, gpu, _ = key
    sums, bases = found["sums"], found["bases"]
    row: dict[str, Any] = {"gpu": gpu, "kernel": ", ".join(found["kernels"]), "seq_len": length}
    row |= {f"{name}_bytes": None if sums[name] is None else round(sums[name]) for name in ("l2", "hbm")}
    row["time_s"] = sums["time"]
    row |= {f"{n}_ratio": bases[n] / sums[n] if bases[n] is not None and sums[n] else None for n in OF_SUM}
    return row | {"cannot_run": found["cannot"]}


def run_model(asked: CompareRequest, model: Model, values: Mapping[str, Any], progress: Progress) -> ModelComparison:
    parts = ((group, run(replace(asked, problems=group.problems), progress)) for group in groups_of(model, values))
    return ModelComparison(model, tuple(parts))
