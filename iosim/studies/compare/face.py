"""What a comparison looks like in a notebook: its line, the tables of its text, the plots of its page."""

from __future__ import annotations

from iosim.show.page import Panel
from iosim.show.shown import Part, panels_of
from iosim.studies.compare import text as texts
from iosim.studies.compare.answer import answer
from iosim.studies.compare.page import as_page
from iosim.studies.compare.study import Comparison
from iosim.studies.compare.tables import summary, tensors
from iosim.studies.report.words import subject


def line(comparison: Comparison) -> str:
    """What is compared."""
    request = comparison.request
    lengths = ", ".join(f"{n:,}" for n in request.lengths)
    return f"{', '.join(request.kernels)} on {', '.join(g.label for g in request.gpus)} at {lengths} tokens"


def text(comparison: Comparison) -> str:
    """As the command line prints it."""
    return texts.as_text(comparison)


def parts(comparison: Comparison) -> list[Part]:
    """The tables of the text, length by length, and what cannot run."""
    shown: list[Part] = [answer(comparison), subject(comparison.request), texts.ratios(comparison)]
    for n in comparison.request.lengths:
        mine = [e for e in comparison.entries if e.seq_len == n]
        shown += [f"N = {n:,}", summary(mine).without("seq_len", "reason")]
        for level, name in (("l2", "SM<->L2"), ("hbm", "HBM")):
            by_tensor = tensors(mine, level)
            shown += [f"{name} bytes by tensor", by_tensor] if by_tensor.rows else []
    return [*shown, tuple(texts.missing(comparison)), tuple(texts.notes(comparison))]


def panels(comparison: Comparison) -> tuple[Panel, ...]:
    """The plots of the comparison's page."""
    return panels_of(as_page(comparison))
