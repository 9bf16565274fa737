"""How pages of memory fill the L2's sets, measured and in the model: `python benchmarks/sets.py [--gpu h100]`.

experiments/sets.py found which lines of 1,024 pages in a row share a set with each of some 400 lines. Prints what
follows from them, and two Markdown tables that set the measured sets beside those that iosim/readers/replay/l2.py makes
of as many pages: how unevenly pages in a row fill them, and how many sets get more lines than they have ways.
"""

from __future__ import annotations

import ctypes as ct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from recorders import asked_gpu, measurements

from iosim import load_profile
from iosim.readers.replay.l2 import PAGE_BYTES, PLACEMENTS, TWINS, L2Model, model, sampler
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

Counts = npt.NDArray[np.int64]
"""Lines by set and page."""


@dataclass(frozen=True)
class Recorded:
    """Attributes:
    ways: of each set, as found.
    counts: lines by set and page, the target itself among them.
    distances: between the two lines of pages that have two in a set, in lines.
    hit_cycles, miss_cycles: medians of a load that found its line in the L2, and of one that did not.
    failed: how many target lines were dropped.
    """

    ways: Counts
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
            np.sort(np.append(found, target))
            for found, target in zip(of_set, file["target"], strict=True)
        ]
        counts = np.array([np.bincount(each // LINES, minlength=PAGES) for each in lines])
        distances = [np.diff(each)[_alone(each // LINES)] for each in lines]
        return Recorded(
            file["ways"].astype(np.int64), counts, np.concatenate(distances), float(np.median(file["hit_cycles"])),
            float(np.median(file["miss_cycles"])), file["failed"].size,
        )  # fmt: skip


def _alone(page: Counts) -> npt.NDArray[np.bool_]:
    """Which lines, the last left out, are the first of the two that their page has."""
    of_page = np.bincount(page, minlength=PAGES)[page]
    return (of_page[:-1] == 2) & (page[:-1] == page[1:])


def filled(places: Counts, each: int, sets: int) -> Counts:
    """Lines by set and page, of one in EVERY sets: a page has TWINS lines in each of `each` sets from its place on."""
    looked_at = np.arange(0, sets, EVERY)[:, None]
    return TWINS * ((looked_at - places[None, :]) % sets < each).astype(np.int64)


def page_places(l2: L2Model, pages: int, each: int, sets: int, placement: int) -> Counts:
    """The first set of each page, which takes `each` of them, in the replay's model."""
    place, asked = np.empty(pages, dtype=np.int64), sampler(l2)
    library().iosim_page_places(
        ct.addressof(asked), pages, each, max(1, sets), placement, place.ctypes.data
    )
    return place


def modelled(gpu: str = "h200", pages: int = PAGES, placements: int = PLACEMENTS) -> list[Counts]:
    """Lines by set and page in the replay's model of a GPU, one table per placement."""
    l2 = model(load_profile(gpu))
    each, sets = LINES // TWINS, l2.sets
    return [filled(page_places(l2, pages, each, sets, n), each, sets) for n in range(placements)]


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


def about_full(found: Recorded) -> list[tuple[int, int]]:
    """(pages in a row, 0) and (pages of each of two areas, GAP) with about as many lines as the sets have ways."""
    full = int(WAYS * found.sets / LINES)
    return [
        *((n, 0) for n in range(full - 2, full + 4)),
        *((full // 2 + n, GAP) for n in (-1, 0, 1)),
    ]


def facts(found: Recorded, gpu: str = "h200") -> str:
    """What the recorded sets say, in lines."""
    size = 2 * found.sets * WAYS * LINE_BYTES
    known = load_profile(gpu).need("l2_bytes")
    share = {n: float(np.mean(found.counts == n)) for n in (0, 2, 4)}
    low, high = np.percentile(found.distances, [5, 95])
    return "\n".join([
        f"{found.ways.size} sets of {found.ways.size + found.failed} looked for; "
        f"{np.mean(found.ways == WAYS):.1%} have {WAYS} ways.",
        f"A load takes {found.hit_cycles:.0f} cycles from the L2 and {found.miss_cycles:.0f} from device memory.",
        f"A set gets {found.lines_of_a_set:,} lines of {PAGES:,} pages: {found.sets:,.0f} sets a partition, "
        f"{size / 2**20:.1f} MiB in both, {size / known:.1%} of the L2.",
        f"Of a page, a set gets no line ({share[0]:.1%}), two ({share[2]:.1%}), four ({share[4]:.1%}) "
        f"or another number ({1 - sum(share.values()):.2%}).",
        f"Where it gets two, they lie {low:.0f} to {high:.0f} lines apart (5th to 95th percentile).",
    ])  # fmt: skip


def tables(found: Recorded, made: list[Counts]) -> str:
    """Markdown: variances, and shares of sets that are overfull."""
    lines = [
        "| pages in a row | variance of pairs of lines a set gets, measured | model |",
        "| ---: | ---: | ---: |",
    ]
    for pages in IN_A_ROW:
        real, mine = variance(found.counts, pages), averaged(made, "variance", pages)
        lines.append(f"| {pages} | {real:.2f} | {mine:.2f} |")
    lines += [
        "",
        f"| pages | sets that get more than {WAYS} lines, measured | model |",
        "| --- | ---: | ---: |",
    ]
    for pages, gap in about_full(found):
        name = f"twice {pages}, {gap} apart" if gap else f"{pages} in a row"
        real, mine = overfull(found.counts, pages, gap), averaged(made, "overfull", pages, gap)
        lines.append(f"| {name} | {real:.1%} | {mine:.1%} |")
    return "\n".join(lines)


def main() -> None:
    gpu = asked_gpu(__doc__)
    found = recorded(gpu)
    print(facts(found, gpu))
    print()
    print(tables(found, modelled(gpu)))


if __name__ == "__main__":
    main()
