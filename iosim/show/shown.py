"""How results show themselves where they are looked at: one line, text, tables in a notebook, figures.

A result is data and knows no pages. Its class has the four methods below, or a module beside it, its face, has them as
functions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, cast

from iosim.base.errors import InputError, unknown_name
from iosim.base.records import replace
from iosim.show.page import Page, Panel
from iosim.show.tables import NOTHING, Cell, Table

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects

Part = str | Table | tuple[str, ...]
M = TypeVar("M")


class Shown:
    """A result that shows itself by the four methods below."""

    def _line(self) -> str:
        """The result in one short line, without its type."""
        raise NotImplementedError

    def to_text(self) -> str:
        """The text that the command line prints: the answer, tables, and what they rest on."""
        raise NotImplementedError

    def _parts(self) -> Sequence[Part]:
        """What the text says, with its tables as tables."""
        raise NotImplementedError

    def _panels(self) -> Sequence[Panel]:
        """The plots of its page, the most telling first."""
        return ()

    def records(self) -> Iterable[Mapping[str, Cell]]:
        """The rows of the command's CSV."""
        raise NotImplementedError

    def to_pandas(self) -> pandas.DataFrame:
        """The rows of the command's CSV as a DataFrame."""
        return Table.of(self.records()).to_pandas()

    def to_json(self) -> str:
        """What `to_dict` holds, as the text of a JSON object."""
        result: Any = self
        return json.dumps(result.to_dict(), indent=2, allow_nan=False) + "\n"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._line()}>"

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return html(self._parts())

    @property
    def figures(self) -> tuple[str, ...]:
        """Names that `figure` takes, the most telling figure first."""
        return tuple(panel.id for panel in self._panels())

    def figure(self, name: str | None = None) -> plotly.graph_objects.Figure:
        """A figure of the result's page, as a plotly figure. `name`: one of `figures`; by default the first. Raises
        InputError: no figure of that name, or plotly is not installed."""
        return drawn(self._panels(), name)

    def plot(self, name: str | None = None) -> plotly.graph_objects.Figure:
        """As `figure`, under pandas's name for it."""
        return self.figure(name)


class Face(Protocol):
    """A module beside a result's that says what it looks like."""

    def line(self, result: Any, /) -> str: ...
    def as_text(self, result: Any, /) -> str: ...
    def parts(self, result: Any, /) -> Sequence[Part]: ...
    def panels(self, result: Any, /) -> Sequence[Panel]: ...


class Faced(Shown):
    """A result whose face is a module of its own, which knows the result; it is loaded when the result is shown."""

    _face: ClassVar[str]

    @property
    def _shown_by(self) -> Face:
        return cast(Face, import_module(self._face))

    def _line(self) -> str:
        return self._shown_by.line(self)

    def to_text(self) -> str:
        return self._shown_by.as_text(self)

    def _parts(self) -> Sequence[Part]:
        return self._shown_by.parts(self)

    def _panels(self) -> Sequence[Panel]:
        return self._shown_by.panels(self)


class Several(Shown, Generic[M]):
    """A result of several members: it has a length and is iterated over."""

    @property
    def _members(self) -> Sequence[M]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[M]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


def drawn(panels: Sequence[Panel], name: str | None = None) -> plotly.graph_objects.Figure:
    """A panel as a plotly figure: the first, or the one called `name`."""
    by_name = {panel.id: panel for panel in panels}
    if not by_name:
        raise InputError("there is no figure of this result; `print` shows it")
    if name is not None and name not in by_name:
        raise unknown_name("`name`", name, by_name)
    panel = by_name[name or next(iter(by_name))]
    try:
        import plotly.graph_objects as go
    except ImportError:
        raise InputError(
            "a figure needs plotly, which is not installed; accepted: with iosim[plot] installed"
        ) from None
    # A legend of one name says nothing, and names at the ends of lines make it needless.
    named = sum(
        bool(trace.get("name")) and trace.get("showlegend") is not False for trace in panel.data
    )
    labelled = bool(panel.layout.get("annotations"))  # lines carry their names at their ends
    layout = {"template": "plotly_white", **panel.layout, "title": {"text": panel.title}}
    layout |= {"margin": {"l": 80, "r": 160 if labelled else 20, "t": 60, "b": 60}}
    return go.Figure(
        [dict(trace) for trace in panel.data], layout | {"showlegend": named > 1 and not labelled}
    )


def panels_of(page: Page) -> tuple[Panel, ...]:
    return tuple(
        replace(
            panel,
            # Pulled out of its page a panel loses the heading above it: its title carries it along.
            title=section.heading
            if panel.title in section.heading
            else f"{section.heading}: {panel.title}",
        )
        for section in page.sections
        for panel in section.panels
    )


def html(parts: Sequence[Part]) -> str:
    """Parts as HTML that a notebook shows: paragraphs, tables with numbers to the right, lists."""
    from iosim.show.template import STATIC, environment, filled  # notebooks alone need it

    environment(STATIC).filters["plain"] = _plain
    return filled(STATIC / "notebook.html", parts=parts, nothing=NOTHING).rstrip("\n")


def _plain(text: str) -> str:
    return text.replace("<->", "↔").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
