"""What decoding looks like: its text, its table, the plots of its page."""

from __future__ import annotations

from collections.abc import Sequence

from iosim.base.units import some
from iosim.show.page import Panel
from iosim.show.shown import Part, panels_of
from iosim.show.tables import Table
from iosim.studies.decode.answer import answer
from iosim.studies.decode.decode import DecodePoint, Decoding
from iosim.studies.decode.page import as_page, notes, subject, table
from iosim.studies.decode.stack import kinds_table, kinds_title
from iosim.studies.decode.work import work_table


def line(decoding: Decoding) -> str:
    """The model, and the contexts."""
    contexts = sorted({p.context for p in decoding})
    return f"{subject(decoding.points)}; {contexts[0]:,} to {some(contexts[-1], 'token')} of context"


def text(decoding: Decoding) -> str:
    """As the command line prints it."""
    return as_text(decoding.points)


def as_text(points: Sequence[DecodePoint]) -> str:
    """The answer, a row a point, a row a kind of layer where a model has several, the notes."""
    below = "".join(f"note: {n}\n" for n in notes(points))
    kinds = kinds_table(points)
    by_kind = "" if kinds is None else f"\n{kinds_title(points)}\n{kinds.text()}\n"
    work = _work(points)
    by_sequence = "" if work is None else f"\nsplits and work of each sequence\n{work.text()}\n"
    return f"{answer(points)}\n\n{table(points).text()}{by_kind}{by_sequence}{below}"


def _work(points: Sequence[DecodePoint]) -> Table | None:
    """What a launch does for each sequence of a batch; None where all have one length."""
    batches = [p.prediction for p in points if p.prediction.problem.seq_lens is not None]
    return work_table(batches) if batches else None


def parts(decoding: Decoding) -> list[Part]:
    """The answer, a row a point, the notes."""
    kinds = kinds_table(decoding.points)
    by_kind: list[Part] = [] if kinds is None else [kinds_title(decoding.points), kinds]
    work = _work(decoding.points)
    by_sequence: list[Part] = [] if work is None else ["splits and work of each sequence", work]
    return [answer(decoding.points), table(decoding.points), *by_kind, *by_sequence, notes(decoding.points)]


def panels(decoding: Decoding) -> tuple[Panel, ...]:
    """The plots of the page, bytes a token first."""
    return panels_of(as_page(decoding.points))
