"""What decoding looks like: its text, its table, the plots of its page."""

from __future__ import annotations

from iosim.show.page import Panel
from iosim.show.shown import Part, panels_of
from iosim.studies.decode.answer import answer
from iosim.studies.decode.decode import Decoding
from iosim.studies.decode.page import as_page, notes, subject, table


def line(decoding: Decoding) -> str:
    """The model, and the contexts."""
    contexts = sorted({p.context for p in decoding})
    return f"{subject(decoding.points)}; {contexts[0]:,} to {contexts[-1]:,} tokens of context"


def text(decoding: Decoding) -> str:
    """As the command line prints it."""
    below = "".join(f"note: {n}\n" for n in notes(decoding.points))
    return f"{answer(decoding.points)}\n\n{table(decoding.points).text()}{below}"


def parts(decoding: Decoding) -> list[Part]:
    """The answer, a row a point, the notes."""
    return [answer(decoding.points), table(decoding.points), notes(decoding.points)]


def panels(decoding: Decoding) -> tuple[Panel, ...]:
    """The plots of the page, bytes a token first."""
    return panels_of(as_page(decoding.points))
