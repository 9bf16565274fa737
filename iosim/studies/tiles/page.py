"""The page of `iosim tiles`: a map of the fastest tile for each pair of sides, and the ranking."""

from __future__ import annotations

from collections.abc import Sequence

from iosim.base.units import seconds_text
from iosim.show import axes
from iosim.show.page import Page, Panel, Section
from iosim.show.tables import Table
from iosim.studies.tiles.one import beneath, tiles_answer
from iosim.studies.tiles.pick import SHOWN, TileCandidate, TileRanking

SLOWEST = 2.0
"""Times from this many fastest ones on have one colour."""
MOST_ROWS, MOST_LINES = 40, 4
AXES_REM, ROW_REM = 6.0, 2.0
COLOURS = ((0.0, "#2f9a6c"), (0.05, "#9ccbb0"), (0.5, "#f2e6c9"), (1.0, "#cf4357"))
"""The first step ends where tiles no longer tie."""
Sides = tuple[int, int]


def page(rankings: Sequence[TileRanking], command: str) -> Page:
    """A map and a table for each GPU and kind of layer."""
    sections = [part for n, ranking in enumerate(rankings, 1) for part in _sections(n, ranking)]
    names = list(dict.fromkeys(r.profile.name for r in rankings))
    problems = dict.fromkeys(r.problem.line for r in rankings)
    answers = tuple(tiles_answer(rankings).split("\n"))
    return Page(
        f"Which tiles fit on {' and '.join(names)}, and which is fastest?",
        f"{'; '.join(problems)}.",
        tuple(sections),
        command=command,
        answer=answers,
        verdict=answers[:MOST_LINES],
    )


def _sections(n: int, ranking: TileRanking) -> tuple[Section, ...]:
    layers = "" if ranking.layers is None else f", {ranking.layers}"
    where = f"{ranking.profile.name}{layers}"
    if not ranking.candidates:
        return (Section(f"tiles-{n}", where, (f"No tile fits: {ranking.rejected[0].reason}.",)),)
    caption = (
        "Time of the fastest tile with these sides, whatever its warps and stages; an empty cell is a pair of sides of "
        "which none fits. The darkest greens tie with the fastest."
    )
    rows = Table.of(
        (vars(c) | {"tile": str(c.tile)} for c in ranking.candidates[:MOST_ROWS]), SHOWN
    )
    return (
        Section(f"map-{n}", where, (caption, beneath(ranking)), panels=(panel(n, ranking),)),
        Section(f"ranking-{n}", f"Ranking on {where}", table=rows, folded=True),
    )


def panel(n: int, ranking: TileRanking) -> Panel:
    """A heat map: query rows upwards, keys to the right, the fastest tile's time in the cell."""
    fastest: dict[Sides, TileCandidate] = {}
    for c in ranking.candidates:  # the fastest first
        fastest.setdefault((c.tile.block_q, c.tile.block_k), c)
    rows, columns = (sorted({sides[at] for sides in fastest}) for at in (0, 1))
    cells = [[fastest.get((q, k)) for k in columns] for q in rows]
    least = ranking.candidates[0].time_s
    title = f"Fastest time by tile on {ranking.profile.name}"
    heat = {
        "type": "heatmap",
        "x": [str(k) for k in columns],
        "y": [str(q) for q in rows],
        "z": [[_shade(c, least) for c in row] for row in cells],
        "text": [["" if c is None else seconds_text(c.time_s) for c in row] for row in cells],
        "hovertext": [[_hover(c) for c in row] for row in cells],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "zmin": 1,
        "zmax": SLOWEST,
        "xgap": 1,
        "ygap": 1,
        "texttemplate": "%{text}",
        "textfont": {"size": 11},
        "colorscale": [list(step) for step in COLOURS],
        "colorbar": {
            "tickvals": [1, SLOWEST],
            "ticktext": ["fastest", "twice as long"],
            "thickness": 10,
        },
    }
    best = ranking.best
    layout = axes.layout(
        axes.category_axis([str(k) for k in columns]) | {"title": {"text": "keys of a tile"}},
        axes.category_axis([str(q) for q in rows]) | {"title": {"text": "query rows of a tile"}},
    )
    alt = f"{title}: {len(fastest)} pairs of sides fit; best {best.tile}, {seconds_text(best.time_s)}."
    return Panel(f"tiles-{n}", title, alt, (heat,), layout, AXES_REM + ROW_REM * len(rows))


def _shade(candidate: TileCandidate | None, least: float) -> float | None:
    return None if candidate is None else min(SLOWEST, candidate.time_s / least)


def _hover(candidate: TileCandidate | None) -> str:
    if candidate is None:
        return "does not fit"
    tile = candidate.tile
    return (
        f"{tile}, {tile.warps} warps, {tile.stages} stages<br>{seconds_text(candidate.time_s)}, bound by "
        f"{candidate.bound_by}"
    )
