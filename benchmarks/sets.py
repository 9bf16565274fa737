"""How pages of memory fill the L2's sets, measured and in the model: `python benchmarks/sets.py [--gpu h100]`.

experiments/sets.py found which lines of 1,024 pages in a row share a set with each of some 400 lines. Prints what
follows from them, and Markdown tables that set the measured sets beside those that iosim/readers/replay/l2.py makes of
as many pages: how unevenly pages in a row fill them, how many sets get more lines than they have ways, and how unevenly
rows a power of two apart fill them.
"""

from __future__ import annotations

import ctypes as ct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from recorders import asked_gpu, measurements

from iosim import load_profile
from iosim.readers.replay.l2 import (
    PAGE_BYTES,
    PLACEMENTS,
    TWINS,
    L2Model,
    model,
    sample_lines,
    sampler,
)
from iosim.readers.replay.library import library

LINE_BYTES = 128
LINES = PAGE_BYTES // LINE_BYTES
PAGES = 1024
WAYS = 16
IN_A_ROW = (1, 2, 4, 8, 16, 32, 64, 128)
GAP = 200
"""Pages from the start of one of two areas to that of the other."""
EVERY = 15
"""One of so many of the model's sets is looked at."""

STRIDES = ((16, 1), (32, 4), (64, 2), (128, 4), (256, 8))
"""Rows of lines (rows' distance, lines a row): a head's rows where other heads' rows lie between them."""
LINES_A_SET = 12
"""Of such rows as many pages are taken as bring a set about so many lines."""

Counts = npt.NDArray[np.int64]
"""Lines by set and page."""


@dataclass(frozen=True)
class Recorded:
    """Attributes:
    ways: of each set, as found.
    lines: of each set, its lines in order, the target itself among them.
    counts: lines by set and page.
    distances: between the two lines of pages that have two in a set, in lines.
    hit_cycles, miss_cycles: medians of a load that found its line in the L2, and of one that did not.
    failed: how many target lines were dropped.
    """

    ways: Counts
    lines: list[Counts]
    counts: Counts
    distances: Counts
    hit_cycles: float
    miss_cycles: float
    failed: int

    @property
    def lines_of_a_set(self) -> int:
        return int(np.median(self.counts.sum(axis=1)))

    @property
    def sets(self) -> float:
        """Sets of a partition."""
        return LINES * PAGES / self.lines_of_a_set


def recorded(gpu: str = "h200") -> Recorded:
    """What is in experiments/measurements/GPU_l2_sets.npz."""
    with np.load(measurements(f"{gpu}_l2_sets.npz")) as file:
        of_set = np.split(file["lines"].astype(np.int64), np.cumsum(file["count"])[:-1])
        lines = [
            np.sort(np.append(lines, target))
            for lines, target in zip(of_set, file["target"], strict=True)
        ]
        counts = np.array([np.bincount(lines // LINES, minlength=PAGES) for lines in lines])
        distances = [np.diff(lines)[_alone(lines // LINES)] for lines in lines]
        return Recorded(
            file["ways"].astype(np.int64),
            lines,
            counts,
            np.concatenate(distances),
            float(np.median(file["hit_cycles"])),
            float(np.median(file["miss_cycles"])),
            file["failed"].size,
        )


def _alone(page: Counts) -> npt.NDArray[np.bool_]:
    """Which lines, the last left out, are the first of the two that their page has."""
    of_page = np.bincount(page, minlength=PAGES)[page]
    return (of_page[:-1] == 2) & (page[:-1] == page[1:])


def filled(places: Counts, per_set: int, sets: int) -> Counts:
    """Lines by set and page, of one in EVERY sets: a page has TWINS lines in each of `each` sets from its place on."""
    looked_at = np.arange(0, sets, EVERY)[:, None]
    return TWINS * ((looked_at - places[None, :]) % sets < per_set).astype(np.int64)


def page_places(l2: L2Model, pages: int, lines_per_page: int, sets: int, placement: int) -> Counts:
    """The first set of each page, which takes `each` of them, in the replay's model."""
    place = np.empty(pages, dtype=np.int64)
    sample = sampler(l2)
    library().iosim_page_places(
        ct.addressof(sample), pages, lines_per_page, max(1, sets), placement, place.ctypes.data
    )
    return place


def modelled(gpu: str = "h200", pages: int = PAGES, placements: int = PLACEMENTS) -> list[Counts]:
    """Lines by set and page in the replay's model of a GPU, one table per placement."""
    l2 = model(load_profile(gpu))
    lines_per_page, sets = LINES // TWINS, l2.sets
    return [
        filled(page_places(l2, pages, lines_per_page, sets, n), lines_per_page, sets)
        for n in range(placements)
    ]


def windows(counts: Counts, pages: int) -> Counts:
    """Lines by set and first page, of so many pages in a row."""
    total = np.concatenate(
        [np.zeros((counts.shape[0], 1), dtype=np.int64), np.cumsum(counts, axis=1)], axis=1
    )
    return total[:, pages:] - total[:, :-pages]


def variance(counts: Counts, pages: int) -> float:
    """Of the pairs of lines that a set gets of so many pages in a row."""
    return float(np.var(windows(counts, pages) / TWINS))


def overfull(counts: Counts, pages: int, gap: int = 0) -> float:
    """Share of sets that get more than WAYS lines of so many pages in a row, or of twice so many `gap` pages apart."""
    got = windows(counts, pages)
    return float(np.mean((got[:, :-gap] + got[:, gap:] if gap else got) > WAYS))


def averaged(several: list[Counts], figure: str, pages: int, gap: int = 0) -> float:
    """Mean over placements of `variance` or `overfull`."""
    return float(
        np.mean(
            [
                variance(c, pages) if figure == "variance" else overfull(c, pages, gap)
                for c in several
            ]
        )
    )


def pages_of_rows(sets: float, apart: int, row: int) -> int:
    """Pages in a row whose rows bring a set LINES_A_SET lines on average."""
    return min(PAGES, round(LINES_A_SET * sets * apart / (LINES * row)))


def unevenness(got: Counts) -> float:
    """Variance of the lines that sets get over their mean: 1 where every line falls into a set by chance."""
    return float(np.var(got) / np.mean(got))


def rows_measured(recorded_sets: Recorded, apart: int, row: int) -> float:
    """Unevenness of one row of `row` lines in every `apart`, over the recorded sets."""
    end = LINES * pages_of_rows(recorded_sets.sets, apart, row)
    taken = [lines[(lines < end) & (lines % apart // row == 1)] for lines in recorded_sets.lines]
    return unevenness(np.array([lines.size for lines in taken]))


def rows_modelled(gpu: str, apart: int, row: int) -> float:
    """The same in the replay's model of a GPU."""
    l2 = model(load_profile(gpu))
    objects = pages_of_rows(l2.sets, apart, row) * LINES // row
    size = np.full(objects, row * l2.line_bytes, dtype=np.int32)
    sampled = sample_lines(l2, size, row / EVERY, 1.0)
    here = sampled.object % (apart // row) == 1
    return unevenness(np.bincount(sampled.set[here], minlength=sampled.sets))


def about_full(recorded_sets: Recorded) -> list[tuple[int, int]]:
    """(pages in a row, 0) and (pages of each of two areas, GAP) with about as many lines as the sets have ways."""
    full = int(WAYS * recorded_sets.sets / LINES)
    return [
        *((n, 0) for n in range(full - 2, full + 4)),
        *((full // 2 + n, GAP) for n in (-1, 0, 1)),
    ]


def facts(recorded_sets: Recorded, gpu: str = "h200") -> str:
    """What the recorded sets say, in lines."""
    size = 2 * recorded_sets.sets * WAYS * LINE_BYTES
    known = load_profile(gpu).need("l2_bytes")
    share = {n: float(np.mean(recorded_sets.counts == n)) for n in (0, 2, 4)}
    low, high = np.percentile(recorded_sets.distances, [5, 95])
    return "\n".join(
        [
            f"{recorded_sets.ways.size} sets of {recorded_sets.ways.size + recorded_sets.failed} looked for; "
            f"{np.mean(recorded_sets.ways == WAYS):.1%} have {WAYS} ways.",
            f"A load takes {recorded_sets.hit_cycles:.0f} cycles from the L2 "
            f"and {recorded_sets.miss_cycles:.0f} from device memory.",
            f"A set gets {recorded_sets.lines_of_a_set:,} lines of {PAGES:,} pages: "
            f"{recorded_sets.sets:,.0f} sets a partition, "
            f"{size / 2**20:.1f} MiB in both, {size / known:.1%} of the L2.",
            f"Of a page, a set gets no line ({share[0]:.1%}), two ({share[2]:.1%}), four ({share[4]:.1%}) "
            f"or another number ({1 - sum(share.values()):.2%}).",
            f"Where it gets two, they lie {low:.0f} to {high:.0f} lines apart (5th to 95th percentile).",
        ]
    )


def tables(recorded_sets: Recorded, models: list[Counts], gpu: str) -> str:
    """Markdown: variances, shares of sets that are overfull, and rows a power of two apart."""
    lines = [
        "| pages in a row | variance of pairs of lines a set gets, measured | model |",
        "| ---: | ---: | ---: |",
    ]
    for pages in IN_A_ROW:
        real = variance(recorded_sets.counts, pages)
        mine = averaged(models, "variance", pages)
        lines.append(f"| {pages} | {real:.2f} | {mine:.2f} |")
    lines += [
        "",
        f"| pages | sets that get more than {WAYS} lines, measured | model |",
        "| --- | ---: | ---: |",
    ]
    for pages, gap in about_full(recorded_sets):
        name = f"twice {pages}, {gap} apart" if gap else f"{pages} in a row"
        real, mine = (
            overfull(recorded_sets.counts, pages, gap),
            averaged(models, "overfull", pages, gap),
        )
        lines.append(f"| {name} | {real:.1%} | {mine:.1%} |")
    lines += [
        "",
        "| rows | variance of lines a set gets over their mean, measured | model |",
        "| --- | ---: | ---: |",
    ]
    for apart, row in STRIDES:
        real = rows_measured(recorded_sets, apart, row)
        mine = rows_modelled(gpu, apart, row)
        lines.append(f"| {row} of every {apart} lines | {real:.2f} | {mine:.2f} |")
    return "\n".join(lines)


def main() -> None:
    gpu = asked_gpu(__doc__)
    recorded_sets = recorded(gpu)
    print(facts(recorded_sets, gpu))
    print()
    print(tables(recorded_sets, modelled(gpu), gpu))


if __name__ == "__main__":
    main()
