"""A model's attention by several kernels and GPUs: a comparison for each kind of layer, and all layers together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from iosim.base.progress import Progress
from iosim.base.records import dataclass, replace
from iosim.base.units import bytes_text, seconds_text, some
from iosim.base.words import sentences
from iosim.prediction.confidence import confidence, in_dtype
from iosim.show import axes
from iosim.show.axes import Part, bars
from iosim.show.page import Page, Panel, Section, listed
from iosim.show.tables import Column, Table, grouped
from iosim.studies.compare.face import as_text, summary
from iosim.studies.compare.study import QUANTITIES, Comparison, Entry, run_comparison
from iosim.studies.models.asked import LayerGroup, groups_of
from iosim.studies.models.layers import Model
from iosim.studies.requests import CompareRequest

COLUMNS = (
    Column("gpu", "GPU"),
    Column("kernel"),
    Column("seq_q", "N", kind="count"),
    Column("l2_bytes", "SM<->L2"),
    Column("hbm_bytes", "HBM"),
    Column("time_s", "time"),
    Column("l2_ratio", "x less L2", kind="number"),
    Column("hbm_ratio", "x less HBM", kind="number"),
    Column("time_ratio", "x faster", kind="number"),
    Column("cannot_run", "cannot run"),
)
DRAWN = (("time_s", "Time", seconds_text), ("hbm_bytes", "HBM bytes", bytes_text))
OF_SUM = tuple(name for name in QUANTITIES if name != "memory")


@dataclass(frozen=True)
class ModelComparison:
    """Kernels and GPUs side by side, for all of a model's layers."""

    model: Model
    parts: tuple[tuple[LayerGroup, Comparison], ...]
    """A comparison for each kind of layer, and for lengths at which it attends otherwise."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row per GPU, kernel and length: bytes and seconds of all layers, and the baseline's over them; null where a
        kind of layer cannot run."""
        # Rows of all kinds of layers with the same length, GPU and kernel add up to one row. Lengths are
        # those of a sequence: a packed call of chunks counts its tokens otherwise.
        entries = (
            (group, entry) for group, comparison in self.parts for entry in comparison.entries
        )
        groups = grouped(
            entries, lambda pair: (pair[0].lengths[pair[1].seq_len], pair[1].gpu, pair[1].requested)
        )
        return [_length_row(key[0], groups[key]) for key in sorted(groups, key=lambda key: key[0])]

    @property
    def table(self) -> Table:
        return Table.of(
            (row | {"cannot_run": ", ".join(row["cannot_run"])} for row in self.rows), COLUMNS
        )

    @property
    def answer(self) -> str:
        """The fastest kernel on each GPU at the longest length, a line each."""
        longest = max(row["seq_q"] for row in self.rows)
        here = [row for row in self.rows if row["seq_q"] == longest]
        clauses = []
        for gpu in dict.fromkeys(row["gpu"] for row in here):
            able = [row for row in here if row["gpu"] == gpu and row["time_s"] is not None]
            if not able:
                clauses.append(f"on {gpu} no kernel runs all of them")
                continue
            best = min(able, key=lambda row: row["time_s"])
            hbm = (
                ""
                if best["hbm_bytes"] is None
                else f", moving {bytes_text(best['hbm_bytes'])} at HBM"
            )
            clauses.append(
                f"on {gpu} {best['kernel']} is the fastest with {seconds_text(best['time_s'])}{hbm}"
            )
        predictions = [p.prediction for _, comparison in self.parts for p in comparison.points]
        dtype = in_dtype(predictions[0].problem)
        of = f"For the attention of {self.model.title}{dtype} at {some(longest, 'token')}"
        sure = sentences([confidence(predictions)])
        if len(clauses) == 1:
            return f"{of}, {clauses[0]}. {sure}"
        return "\n".join([f"{of}:", *(f"{clause}." for clause in clauses), sure])

    def to_dict(self) -> dict[str, Any]:
        layers = [
            {"layer": group.kind.name, "count": group.kind.count, **comparison.to_dict()}
            for group, comparison in self.parts
        ]
        return {"schema": 1, "model": self.model.to_dict(), "rows": self.rows, "layers": layers}

    def to_text(self) -> str:
        out = [self.answer, f"{self.model.line}.", f"All layers\n{self.table.text().rstrip()}"]
        out += [
            f"{group.kind.title}\n\n{as_text(comparison).rstrip()}"
            for group, comparison in self.parts
        ]
        return (
            "\n\n".join((*out, "\n".join(f"note: {note}" for note in self.model.all_notes))) + "\n"
        )

    def as_page(self, command: str) -> Page:
        parts = []
        for n, (group, comparison) in enumerate(self.parts, 1):
            of_kind = summary([e for e in comparison.entries if e.point is not None]).without(
                "reason"
            )
            parts.append(
                Section(
                    f"layers-{n}",
                    group.kind.title,
                    (comparison.legend,) if comparison.legend else (),
                    table=of_kind,
                )
            )
        notes = listed("notes", "Notes", self.model.all_notes, folded=True)
        table = (
            self.table
            if any(row["cannot_run"] for row in self.rows)
            else self.table.without("cannot_run")
        )
        sections = (
            Section("all", "All layers", panels=self._bars(), table=table, most_across=2),
            *parts,
            *notes,
        )
        title = "Which kernel serves the model's attention best?"
        return Page(title, f"{self.model.line}.", sections, command=command, answer=(self.answer,))

    def _bars(self) -> tuple[Panel, ...]:
        longest = max(row["seq_q"] for row in self.rows)
        here = [row for row in self.rows if row["seq_q"] == longest]
        named = ("kernel", "gpu") if len({row["gpu"] for row in here}) > 1 else ("kernel",)
        panels = []
        for n, (key, title, text) in enumerate(DRAWN):
            able = {
                ", ".join(row[key] for key in named): row[key]
                for row in here
                if row[key] is not None
            }
            hover = [f"{name}: {text(value)}" for name, value in able.items()]
            if able:
                heading = f"{title} at {some(longest, 'token')}"
                part = Part(title, axes.colour(n), list(able.values()), hover)
                panels.append(
                    bars(
                        f"all-{n}",
                        heading,
                        f"{heading}: {'; '.join(hover)}.",
                        list(able),
                        [part],
                        text,
                    )
                )
        return tuple(panels)


def _length_row(length: int, members: Sequence[tuple[LayerGroup, Entry]]) -> dict[str, Any]:
    counts, entries = [group.kind.count for group, _ in members], [entry for _, entry in members]

    def summed(values: Iterable[float | None]) -> float | None:
        # One unknown value makes the sum unknown: a part of a model's layers is not the model.
        known = [n * value for n, value in zip(counts, values, strict=True) if value is not None]
        return sum(known, 0.0) if len(known) == len(counts) else None

    sums = {name: summed(e.value(name) for e in entries) for name in OF_SUM}
    # The baseline's sums, from each entry's own ratio: kinds of layers may have different baselines.
    bases = {
        name: summed(
            None if (ratio := e.ratio(name)) is None else ratio * (e.value(name) or 0)
            for e in entries
        )
        for name in OF_SUM
    }
    kernels = ", ".join(dict.fromkeys(e.kernel for e in entries))
    of_levels = {
        f"{n}_bytes": None if (moved_bytes := sums[n]) is None else round(moved_bytes)
        for n in ("l2", "hbm")
    }
    ratios = {
        f"{n}_ratio": base / own_value
        if (base := bases[n]) is not None and (own_value := sums[n])
        else None
        for n in OF_SUM
    }
    cannot = [group.kind.name for group, e in members if e.point is None]
    return {
        "gpu": entries[0].gpu,
        "kernel": kernels,
        "seq_q": length,
        **of_levels,
        "time_s": sums["time"],
        **ratios,
        "cannot_run": cannot,
    }


def run_model(
    request: CompareRequest, model: Model, values: Mapping[str, Any], progress: Progress
) -> ModelComparison:
    parts = (
        (group, run_comparison(replace(request, problems=group.problems), progress))
        for group in groups_of(model, values)
    )
    return ModelComparison(model, tuple(parts))
