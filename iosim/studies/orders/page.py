"""The page of `iosim orders`: time against bytes at HBM, a point for each order, and the ranking."""

from __future__ import annotations

from collections.abc import Sequence

from iosim.show.page import Page, Section, listed
from iosim.studies.orders.entry import SERIES, OrderRanking, notes, ranking_answer, ranking_table


def page(rankings: Sequence[OrderRanking], command: str) -> Page:
    """A figure and a table for each GPU."""
    sections: list[Section] = []
    for n, ranking in enumerate(rankings, 1):
        name = ranking.profile.name
        caption = "Each point is an order; the lower and the farther to the left, the better."
        sections += [
            Section(f"orders-{n}", name, (caption,), SERIES, ranking.panels(f"orders-{n}")),
            Section(f"ranking-{n}", f"Ranking on {name}", table=ranking_table(ranking)),
            *listed(f"notes-{n}", f"Notes on {name}", notes(ranking), folded=True),
        ]
    problems = dict.fromkeys(p.line for r in rankings for p in r.problems)
    kernels = " and ".join(dict.fromkeys(r.kernel for r in rankings))
    return Page(
        f"In which order should the tiles of {kernels} start?",
        f"{'; '.join(problems)}.",
        tuple(sections),
        command=command,
        answer=tuple(line for r in rankings for line in ranking_answer(r).split("\n")),
    )
