"""A table and a page of it that tests write."""

from __future__ import annotations

from iosim.show.page import Figure, Page, Panel, Section, Series, listed
from iosim.show.tables import COMMANDS, Column, Table


def page(word: str) -> Page:
    """A page that says `word` in every place there is."""
    table = Table(
        (Column("word", word), Column("commands", word, COMMANDS)), ((word, "P1"), (word, "P1"))
    )
    panel = Panel("plot-1", word, word, ({"type": "bar", "x": [word], "y": [1]},), {"title": word})
    figure = Figure(
        "bars",
        word,
        word,
        table,
        (panel,),
        (Series(word, "#000", "●"), Series(word, "#111", dash="dot")),
        "word",
        ("word",),
        (word,),
        by=("word",),
    )
    sections = (
        Section("first", word, (word,), table=table),
        figure.section(),
        *listed("notes", word, (word,)),
    )
    return Page(
        word,
        word,
        sections,
        text=(word,),
        command=word,
        commands={"P1": word},
        answer=(word, f"{word}; {word}"),
    )
