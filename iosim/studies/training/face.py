"""What a training step looks like: its text, its table, memory over time."""

from __future__ import annotations

from iosim.base.units import bytes_text, seconds_text, some
from iosim.show.page import Panel
from iosim.show.shown import Part, panels_of
from iosim.studies.training.answer import answer
from iosim.studies.training.page import as_page
from iosim.studies.training.prediction import TrainingPrediction
from iosim.studies.training.text import as_text, memory_table


def line(t: TrainingPrediction) -> str:
    """The model, its peak and the time of a step."""
    time = "" if t.time is None else f", a step {seconds_text(t.time.total_s)}"
    fits = "fits" if t.fits else "does not fit"
    return (f"{some(t.model.layers, 'layer')} of width {t.model.width}, {t.setup.tokens} on "
            f"{t.profile.name}: peak {bytes_text(t.peak_bytes)}, {fits}{time}")  # fmt: skip


def text(t: TrainingPrediction) -> str:
    """As the command line prints it."""
    return f"{answer(t)}\n\n{as_text(t)}"


def parts(t: TrainingPrediction) -> list[Part]:
    """The answer, what is trained, bytes by what they hold, and the lines below."""
    above, _, below = as_text(t).partition(memory_table(t).text())
    return [answer(t), above.strip(), memory_table(t), tuple(below.strip().splitlines())]


def panels(t: TrainingPrediction) -> tuple[Panel, ...]:
    """The plots of the page: memory over time."""
    return panels_of(as_page(t, None, ""))
