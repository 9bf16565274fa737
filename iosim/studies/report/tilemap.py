"""The tile space as heat maps: how much slower than the fastest tile every other one is predicted to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from textwrap import wrap
from typing import Any

from iosim.base.errors import InputError
from iosim.base.units import bytes_text, number_text, seconds_text, some
from iosim.problem.fields import length_options
from iosim.show import axes
from iosim.show.page import Figure, Panel, Series
from iosim.show.tables import Cell, Column, Table
from iosim.studies.compare.lines import drawn
from iosim.studies.compare.points import CaseGrid, Gpu, command_line
from iosim.studies.tiles.pick import BLOCK_K, BLOCK_Q, TileCandidate, TileRanking, pick_tiles

SLOWEST_COLOUR = 4.0
"""Times the fastest from which on the colour stays the same."""
SCALE = [[0.0, "#e9f5b8"], [0.15, "#a8dba0"], [0.4, "#4fb3ab"], [0.7, "#2f78a8"], [1.0, "#2c3f7f"]]
FASTEST = Series("fastest tile", "#d1127c", "□")
LIBRARY = Series("a library's tile", "#e8590c", "○")
SHORT_COLUMNS = (
    Column("gpu", "GPU"),
    Column("kernel"),
    Column("tile"),
    Column("warps", kind="count"),
    Column("stages", kind="count"),
    Column("time_s", "time"),
    Column("times_fastest", "times the fastest", kind="ratio"),
)
"""Columns of the fastest tile of each GPU, and of the libraries' tiles beside it."""
Place = tuple[int, int]


def search(request: CaseGrid, gpus: Sequence[Gpu]) -> dict[str, TileRanking | str]:
    """By GPU label, the ranking of the tiles for the middle length, or why there is none."""
    problem = (
        request.middle.with_(passes="fwd") if request.middle.passes == "fwd+bwd" else request.middle
    )
    rankings: dict[str, TileRanking | str] = {}
    for gpu in gpus:
        try:
            ranking = pick_tiles(problem, gpu.profile)
            rankings[gpu.label] = (
                ranking if ranking.candidates else f"no tile fits: {ranking.rejected[-1].reason}"
            )
        except InputError as error:
            rankings[gpu.label] = str(error)
    return rankings


def tiles_line(gpu: Gpu, ranking: TileRanking) -> str:
    p = ranking.problem
    return command_line(
        ["tiles", "--gpu", gpu.argument, *length_options(p)], p, ["--format", "json"]
    )


def tile_map(
    request: CaseGrid, rankings: Mapping[str, TileRanking | str], ids: Mapping[str, str]
) -> Figure:
    """One heat map a GPU; `ids` gives, by GPU label, the id of the command line that prints its ranking."""
    panels: list[Panel] = []
    left_out: list[str] = []
    rows: list[tuple[Cell, ...]] = []
    short: list[tuple[Cell, ...]] = []
    for label, ranking in rankings.items():
        if isinstance(ranking, str):
            left_out.append(f"the tiles of {label}: {ranking}")
            continue
        cells = {
            (c.tile.block_q, c.tile.block_k): c for c in reversed(ranking.candidates)
        }  # the fastest of each
        why, n, command = reasons(ranking), ranking.problem.seq_q, ids[label]
        panels.append(_panel(f"tiles-{len(panels) + 1}", label, ranking, cells, why))
        for place in product(BLOCK_Q, BLOCK_K):
            empty = (label, "flash", n, *place, *[None] * 8, why.get(place, "not tried"), command)
            rows.append(
                _tile_row(label, n, cells[place], ranking, command) if place in cells else empty
            )
        rows += [_tile_row(label, n, c, ranking, command) for c in ranking.library]
        short += _short_rows(label, ranking)
    p = request.middle
    which = "forward pass" if p.forward else "backward pass"
    words, fastest = {"length": f"{p.seq_q:,}", "which": which}, Table(SHORT_COLUMNS, tuple(short))
    columns = (
        Column("block_q", kind="count"),
        Column("block_k", kind="count"),
        Column("warps", kind="count"),
        Column("stages", kind="count"),
        Column("time_s", "time"),
        Column("times_fastest", "times the fastest", kind="ratio"),
        Column("l2_bytes", "SM<->L2 bytes"),
        Column("occupancy", kind="percent"),
        Column("registers", kind="count"),
        Column("registers_source", "registers are"),
        Column("rejected", "rejected because"),
    )
    return drawn(
        "tiles",
        columns,
        rows,
        panels,
        (FASTEST, LIBRARY),
        words=words,
        left_out=tuple(left_out),
        short=fastest,
    )


def _short_rows(label: str, ranking: TileRanking) -> list[tuple[str | int | float | None, ...]]:
    """The fastest tile of a GPU, and the libraries' tiles beside it."""
    return [
        (
            label,
            c.kernel,
            str(c.tile),
            c.tile.warps,
            c.tile.stages,
            c.time_s,
            c.time_s / ranking.best.time_s,
        )
        for c in (ranking.best, *ranking.library)
    ]


def reasons(ranking: TileRanking) -> dict[Place, str]:
    """Why a block_q x block_k is rejected: the reason of its variant with the fewest stages and the most warps."""
    # A dictionary keeps the last: reversed, the variant that needs least stays.
    in_order = sorted(ranking.rejected, key=lambda r: (r.tile.stages, -r.tile.warps))
    return {(r.tile.block_q, r.tile.block_k): r.reason for r in reversed(in_order)}


def _tile_row(
    label: str, n: int, c: TileCandidate, ranking: TileRanking, command: str
) -> tuple[Cell, ...]:
    t, l2_bytes = c.tile, c.l2_read_bytes + c.l2_write_bytes
    return (
        label,
        c.kernel,
        n,
        t.block_q,
        t.block_k,
        t.warps,
        t.stages,
        c.time_s,
        c.time_s / ranking.best.time_s,
        l2_bytes,
        c.occupancy,
        c.registers,
        c.registers_source,
        None,
        command,
    )


def _panel(
    panel_id: str,
    label: str,
    ranking: TileRanking,
    cells: Mapping[Place, TileCandidate],
    why: Mapping[Place, str],
) -> Panel:
    best, heat = _heat(cells, ranking, why)
    on_grid = [
        c for c in ranking.library if c.tile.block_q in BLOCK_Q and c.tile.block_k in BLOCK_K
    ]
    marks = [_marks(LIBRARY, on_grid, "circle-open", 20)] if on_grid else []
    data = [heat, *marks, _marks(FASTEST, [best], "square-open", 24)]
    libraries = ", ".join(f"{c.kernel} {c.tile} {seconds_text(c.time_s)}" for c in ranking.library)
    alt = (
        f"Tile space of {label}: the fastest tile is {best.tile} with {some(best.tile.warps, 'warp')} and "
        f"{some(best.tile.stages, 'stage')}, {seconds_text(best.time_s)}; {len(cells)} of "
        f"{len(BLOCK_Q) * len(BLOCK_K)} sizes fit. Libraries: {libraries or 'none runs there'}."
    )
    layout = axes.layout(_blocks("block_k"), _blocks("block_q"))
    return Panel(panel_id, label, alt, tuple(data), layout)


def _heat(
    cells: Mapping[Place, TileCandidate], ranking: TileRanking, why: Mapping[tuple[int, int], str]
) -> tuple[TileCandidate, dict[str, object]]:
    """The heat map's trace: rows are block_q, columns block_k; a cell is the fastest of its warps and stages."""
    best = ranking.best
    z: list[list[float | None]] = []
    text: list[list[str]] = []
    hover: list[list[str]] = []
    for q in BLOCK_Q:
        line = [cells.get((q, k)) for k in BLOCK_K]
        # Rows are block_q, columns block_k; a cell is the fastest of its warps and stages.
        z.append([c.time_s / best.time_s if c else None for c in line])
        text.append([number_text(round(c.time_s / best.time_s, 1)) if c else "" for c in line])
        hover.append(
            [
                _hover(c)
                if c
                else f"{q}x{k}<br>{'<br>'.join(wrap(why.get((q, k), 'not tried'), 48))}"
                for k, c in zip(BLOCK_K, line, strict=True)
            ]
        )
    heat = {
        "type": "heatmap",
        "x": list(map(str, BLOCK_K)),
        "y": list(map(str, BLOCK_Q)),
        "z": z,
        "text": text,
        "hovertext": hover,
        "hovertemplate": "%{hovertext}<extra></extra>",
        "texttemplate": "%{text}",
        "textfont": {"size": 9},
        "zmin": 1.0,
        "zmax": SLOWEST_COLOUR,
        "colorscale": SCALE,
        "xgap": 1,
        "ygap": 1,
        "colorbar": {
            "thickness": 8,
            "len": 0.9,
            "outlinewidth": 0,
            "tickvals": [1, 2, 3, 4],
            "ticktext": ["1x", "2x", "3x", "4x+"],
        },
    }
    return best, heat


def _blocks(title: str) -> dict[str, Any]:
    return {
        "type": "category",
        "title": {"text": title, "standoff": 10},
        "automargin": True,
        "showgrid": False,
        "tickangle": 0,
    }


def _marks(
    series: Series, tiles: Sequence[TileCandidate], symbol: str, size: int
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": series.name,
        "x": [str(c.tile.block_k) for c in tiles],
        "y": [str(c.tile.block_q) for c in tiles],
        "text": [_hover(c) for c in tiles],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"symbol": symbol, "size": size, "color": series.colour, "line": {"width": 2.5}},
    }


def _hover(c: TileCandidate) -> str:
    return (
        f"{c.kernel} {c.tile}, {some(c.tile.warps, 'warp')}, "
        f"{some(c.tile.stages, 'stage')}<br>{seconds_text(c.time_s)}, bound by "
        f"{c.bound_by}<br>{bytes_text(c.l2_read_bytes + c.l2_write_bytes)} SM<->L2, occupancy "
        f"{100 * c.occupancy:.0f} %"
    )
