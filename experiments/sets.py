"""Which lines share a set of the L2: `python experiments/sets.py --out h200_l2_sets.npz`; and which of a set's lines
stay: `python experiments/sets.py --orders --out h200_l2_orders.csv`.

A test (sets.cu) reads a target line, then others, then times the target: a short load found it in the L2, a long one
came from device memory. From a target:

1. Lines in a row are read after it, ever fewer or more, until the fewest that drive it out are known. The last of them
   is the last that its set takes.
2. Those of them that share its set: without any one of them the target stays. Segments are left out one at a time, then
   halves of those that mattered, down to lines. There are as many as the set has ways.
3. All but one of these and one more line drive the target out exactly if that line shares the set. So every page is
   tried, then halves of what drove it out. What is found is tried once more, line by line.

A target counts as failed where all but one of the lines of step 2, with or without the last, do not tell one from the
other: other traffic disturbed it. It is then tried from other pages, and dropped after BASES.

With --orders, one warp loads and stores lines of such a set in the orders of ORDERS; then one line is timed. Lines are
drawn at random and differ from test to test; the set is filled with others before. A line is `near` where its home is
the SM's side of the L2, `far` where it is the other: its first load from device memory tells, the quickest of TRIES.
A far line may be found near, as a copy, at its home, or in memory.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from experiment import compiled, run_script, write_provenance

from iosim import InputError
from iosim.base.files import write_whole
from iosim.evidence.cuda import driver

HERE = Path(__file__).resolve().parent
PAGE = 2 << 20
LINE = 128
LINES = PAGE // LINE
"""Lines of a page."""
PAGES = 1024
BASES = (64, 400, 820)
"""First pages of the lines that drive a target out."""
WIDTH = 32
"""Pages from a base on: enough to drive out anything."""
TARGETS = 400
SEED = 7
MARGIN = 70
"""Cycles over a load that finds its line, from which on it did not."""
MOST_WAYS, MOST_LINES = 32, 4 * PAGES
"""Of a set, and of the buffer in a set; more than these mean that a search was disturbed."""
PARTS = 64
"""Segments that the lines in a row are cut into at first."""

ORDERS = {
    "1 near load, then near loads": ("near 1",),
    "1 near load, then far loads": ("near 1",),
    "1 far load, then near loads": ("far 1",),
    "1 far load, then far loads": ("far 1",),
    "1 near store, then near loads": ("near 1",),
    "1 far store, then near loads": ("far 1",),
    "1 far store, then far loads": ("far 1",),
    "16 near loads, 1 near store, then near loads": ("near 1", "near 2"),
    "16 near loads, 1 far store, then near loads": ("near 1", "near 2"),
    "4 near stores, then near loads": ("near 1", "near 4"),
    "8 near stores, then near loads": ("near 1", "near 5", "near 8"),
    "12 near stores, then near loads": ("near 1", "near 12"),
    "16 near stores, then near loads": ("near 1", "near 9", "near 16"),
    "32 near stores, then near loads": ("near 16", "near 17", "near 32"),
    "8 near loads, 8 near stores, then near loads": ("near 1", "near 8", "near 16"),
    "8 near stores, 8 near loads, then near loads": ("near 1", "near 8", "near 9", "near 16"),
}
"""Orders, and which lines are asked for: those of a side are numbered as they come. One is found near, far or in
memory."""
MOST_THEN = 28
"""Loads at the end of an order, each of another line: none to so many."""
ORDER_TARGETS = 40
BEFORE = 32
"""Lines of either side that are loaded before an order, so that nothing is left of the one before."""
LEAST_LINES = BEFORE + 32 + MOST_THEN
"""Of a side, for the longest order."""
TRIES = 5
"""First loads from device memory: anything else that goes on lengthens one."""
STEPS = {"load": 0, "store": 1, "timed": 2}
STEP_AT = 28
FLUSH_BYTES = 1 << 30

Segment = tuple[int, int]
"""First line, lines."""
Step = tuple[str, str, int]
"""What is done, to a near or a far line, and which of them."""
Int32 = npt.NDArray[np.int32]


class SetsParams(ctypes.Structure):
    """`SetsParams` of sets.cu."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("data", "target", "keep", "begin", "first", "lines", "cycles")
        ),
        ("tests", ctypes.c_int32),
        ("keeps", ctypes.c_int32),
    )


class OrdersParams(ctypes.Structure):
    """`OrdersParams` of sets.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("data", "steps", "cycles")),
        ("count", ctypes.c_int32),
    )


class Probe:
    """A buffer of PAGES pages, and the kernels that time its lines."""

    def __init__(self, cubin: Path) -> None:
        import torch

        self._kernel, self._orders = (
            driver.Function(cubin, "sets"),
            driver.Function(cubin, "orders"),
        )
        self._data = torch.zeros(PAGES * PAGE, device="cuda", dtype=torch.uint8)
        if self._data.data_ptr() % PAGE:
            raise InputError("the buffer does not begin with a page")

    def cycles(
        self, target: int, tests: Sequence[Sequence[Segment]], keep: Sequence[int] = ()
    ) -> Int32:
        """How long the target's load took after `keep` and the segments of each test."""
        import torch

        def on_gpu(values: Sequence[int] | npt.NDArray[Any]) -> Any:
            return torch.from_numpy(np.array(values, dtype=np.int32)).cuda()

        segments = np.array([s for test in tests for s in test] or [(0, 0)])
        begin = np.cumsum([0, *(len(test) for test in tests)])
        arrays = [
            on_gpu(a)
            for a in (
                np.full(len(tests), target),
                [*keep, 0],
                begin,
                segments[:, 0],
                segments[:, 1],
            )
        ]
        out = torch.zeros(len(tests), device="cuda", dtype=torch.int32)
        p = SetsParams(
            self._data.data_ptr(),
            *(a.data_ptr() for a in arrays),
            out.data_ptr(),
            len(tests),
            len(keep),
        )
        torch.cuda.synchronize()
        self._kernel.launch((1, 1, 1), 1024, p, 0, 0)
        torch.cuda.synchronize()
        times: Int32 = out.cpu().numpy()
        return times

    def timed(self, lines: Sequence[int] | Int32, steps: Sequence[int] | Int32) -> Int32:
        """Cycles of the timed loads among so many steps, one after the other."""
        import torch

        steps_array = torch.from_numpy(
            np.asarray(lines, dtype=np.int32) | np.asarray(steps, dtype=np.int32) << STEP_AT
        ).cuda()
        out = torch.zeros_like(steps_array)
        p = OrdersParams(
            self._data.data_ptr(), steps_array.data_ptr(), out.data_ptr(), steps_array.numel()
        )
        torch.cuda.synchronize()
        self._orders.launch((1, 1, 1), 32, p, 0, 0)
        torch.cuda.synchronize()
        times: Int32 = out.cpu().numpy()[np.asarray(steps) == STEPS["timed"]]
        return times

    def flush(self) -> None:
        """Drives everything out of the L2."""
        import torch

        torch.zeros(FLUSH_BYTES, device="cuda", dtype=torch.uint8).add_(1)
        torch.cuda.synchronize()


@dataclass(frozen=True)
class Found:
    """What is known of a target's set: lines that fill it, all lines of the buffer that fall into it (the target is not
    among them), and cycles of loads that found the target and that did not."""

    target: int
    fills: list[int]
    lines: list[int]
    hit: float
    miss: float


def halved(
    segments: list[Segment],
    matter: Callable[[list[Segment], list[int]], npt.NDArray[np.bool_]],
    limit: int,
) -> list[int]:
    """The lines of `segments` that matter, found by halving those segments that do.

    `matter` is given the segments that are left and the lines that are found by then. Where more than `most` of them
    matter, the search was disturbed and gives no line.
    """
    lines_found: list[int] = []
    while segments:
        survivors = [
            s for s, yes in zip(segments, matter(segments, lines_found), strict=True) if yes
        ]
        lines_found += [first for first, count in survivors if count == 1]
        if len(survivors) > limit:
            return []
        split = [(first, count, count // 2) for first, count in survivors if count > 1]
        segments = [
            half for first, count, n in split for half in ((first, n), (first + n, count - n))
        ]
    return sorted(lines_found)


def fewest(goes: Callable[[int], bool], limit: int) -> int:
    """The least number for which `goes` holds, as it does for `most` and for all numbers from the least on."""
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if goes(middle) else (middle, high)
    return high


def cut(pages: int, lines: set[int]) -> list[Segment]:
    """Pages as segments, without some lines."""
    segments: list[Segment] = []
    for page in range(pages):
        start = page * LINES
        for line in (*sorted(n for n in lines if n // LINES == page), start + LINES):
            if line > start:
                segments.append((start, line - start))
            start = line + 1
    return segments


def study(probe: Probe, target: int, base: int) -> Found | None:
    """The target's set, by lines from page `base` on; None where it failed."""
    start, enough = base * LINES, WIDTH * LINES
    hit = float(np.median(probe.cycles(target, [[]] * 64)))
    miss = float(np.median(probe.cycles(target, [[(start, enough)]] * 4)))
    if miss < hit + 2 * MARGIN:
        return None

    def gone(tests: list[list[Segment]], keep: Sequence[int] = ()) -> npt.NDArray[np.bool_]:
        return probe.cycles(target, tests, keep) > hit + MARGIN

    length = fewest(lambda n: bool(gone([[(start, n)]])[0]), enough)
    part_lines = -(-length // PARTS)
    parts = [(start + n, min(part_lines, length - n)) for n in range(0, length, part_lines)]

    def holds(segments: list[Segment], lines_found: list[int]) -> npt.NDArray[np.bool_]:
        others = [(n, 1) for n in lines_found]
        return ~gone([others + [other for other in segments if other != s] for s in segments])

    fills = halved(parts, holds, MOST_WAYS)
    if not 1 < len(fills) <= MOST_WAYS:
        return None
    *keep, last = fills
    if gone([[(last, 1)], [], [(last, 1)], []], keep).tolist() != [True, False, True, False]:
        return None
    others = cut(PAGES, {*fills, target, target ^ 1})
    seen = halved(others, lambda segments, _: gone([[s] for s in segments], keep), MOST_LINES)
    if not seen:
        return None
    again = gone([[(n, 1)] for n in seen], keep)
    lines = sorted(fills + [n for n, yes in zip(seen, again, strict=True) if yes])
    return Found(target, fills, lines, hit, miss)


def targets(count: int) -> list[int]:
    """Even lines drawn at random: a target's neighbour, which is read with it, is the odd one after it."""
    return [int(n) & ~1 for n in np.random.default_rng(SEED).integers(0, PAGES * LINES, count)]


def bases(target: int) -> list[int]:
    """Where to begin, by the target in turn; never with pages that hold it."""
    free = [base for base in BASES if not base <= target // LINES < base + WIDTH]
    turn = target // 2 % len(free)
    return free[turn:] + free[:turn]


def studied(probe: Probe, count: int) -> tuple[list[Found], list[int]]:
    """The sets of `count` targets, and the targets that failed."""
    probed, failed = [], []
    for target in targets(count):
        probe_result = next(
            (f for base in bases(target) if (f := study(probe, target, base))), None
        )
        if probe_result is None:
            failed.append(target)
        else:
            probed.append(probe_result)
    if not probed:
        raise InputError("no target's set was found")
    return probed, failed


def record(out: Path, probe: Probe, count: int) -> dict[str, str]:
    """Studies `count` targets; gives how many failed, in words."""
    probed, failed = studied(probe, count)
    np.savez_compressed(
        out,
        target=np.array([f.target for f in probed], dtype=np.int32),
        ways=np.array([len(f.fills) for f in probed], dtype=np.int32),
        count=np.array([len(f.lines) for f in probed], dtype=np.int32),
        lines=np.concatenate([np.array(f.lines, dtype=np.int32) for f in probed]),
        hit_cycles=np.array([f.hit for f in probed]),
        miss_cycles=np.array([f.miss for f in probed]),
        failed=np.array(failed, dtype=np.int32),
    )
    return {"failed": f"{len(failed)} of {count} lines, dropped"}


def order_steps(order: str, then: int) -> list[Step]:
    """Loads and stores of an order that ends with `then` loads, each of a line that was not used before."""
    steps: list[Step] = []
    used = {side: itertools.count(1) for side in ("near", "far")}
    for part in order.replace("then", str(then)).split(", "):
        count, side, action = part.split()
        steps += [(action.removesuffix("s"), side, next(used[side])) for _ in range(int(count))]
    return steps


def questions() -> list[tuple[str, int, str]]:
    """(order, loads at its end, line that is asked for) of all tests of a set."""
    return [
        (order, then, question)
        for order in ORDERS
        for question in ORDERS[order]
        for then in range(MOST_THEN + 1)
    ]


@dataclass(frozen=True)
class Sides:
    """Near and far lines of a set, and cycles of first loads of them from device memory (medians)."""

    near: Int32
    far: Int32
    near_cycles: float
    far_cycles: float

    def test(
        self, order: str, then: int, question: str, random: np.random.Generator
    ) -> tuple[list[int], list[int]]:
        """(lines, steps) of a test, on lines drawn at random: the last is timed."""
        drawn = {
            "near": random.permutation(self.near).tolist(),
            "far": random.permutation(self.far).tolist(),
        }
        before = [(STEPS["load"], side, -n) for side in drawn for n in range(1, BEFORE + 1)]
        done = [
            (STEPS[action], side, number - 1) for action, side, number in order_steps(order, then)
        ]
        side, number = question.split()
        steps = [*before, *done, (STEPS["timed"], side, int(number) - 1)]
        return [drawn[side][number] for _, side, number in steps], [
            action for action, _, _ in steps
        ]


def sides(probe: Probe, probed: Found, random: np.random.Generator) -> tuple[Sides, Int32]:
    """A set's lines by home; and how many pages' two lines there have one home, and how many two."""
    lines = np.array(probed.lines, dtype=np.int32)
    least = np.full(lines.size, np.iinfo(np.int32).max, dtype=np.int32)
    for _ in range(TRIES):
        turn = random.permutation(lines.size)
        probe.flush()
        least[turn] = np.minimum(
            least[turn], probe.timed(lines[turn], np.full(lines.size, STEPS["timed"]))
        )
    near, far = (
        float(n) for n in np.percentile(least, [25, 75])
    )  # about half of the lines are near
    at_home = least < (near + far) / 2
    _, page, count = np.unique(lines // LINES, return_inverse=True, return_counts=True)
    nears = np.bincount(page, weights=at_home)[count == 2]
    drawn_sides = Sides(lines[at_home], lines[~at_home], near, far)
    return drawn_sides, np.array([np.sum(nears != 1), np.sum(nears == 1)], dtype=np.int32)


def asked_of(probe: Probe, side: Sides, random: np.random.Generator) -> list[str] | None:
    """Where each question's line was found; None where near, far and memory are not told apart."""

    def cycles(several: list[tuple[str, int, str]]) -> Int32:
        tests = [side.test(*question, random) for question in several]
        return probe.timed(
            [n for lines, _ in tests for n in lines], [n for _, steps in tests for n in steps]
        )

    if min(side.near.size, side.far.size) < LEAST_LINES:
        return None
    order = "1 far load, then near loads"
    hit, home = (float(np.median(cycles([(order, then, "far 1")] * 16))) for then in (0, MOST_THEN))
    if not hit + MARGIN < home < side.far_cycles - MARGIN:
        return None
    limits = {
        "near": [(hit + side.near_cycles) / 2] * 2,
        "far": [(hit + home) / 2, (home + side.far_cycles) / 2],
    }
    several = questions()
    return [
        ("near", "far", "memory")[
            int(np.searchsorted(limits[question.split()[0]], n, side="right"))
        ]
        for (_, _, question), n in zip(several, cycles(several), strict=True)
    ]


def record_orders(out: Path, probe: Probe, count: int) -> dict[str, str]:
    """Asks the sets of `count` targets; gives how many failed and what homes pages' lines have, in words."""
    random = np.random.default_rng(SEED)
    answers = []
    pairs = np.zeros(2, dtype=np.int32)
    for result in studied(probe, count)[0]:
        side, of_pages = sides(probe, result, random)
        if (answer := asked_of(probe, side, random)) is not None:
            answers.append(answer)
            pairs += of_pages
    if not answers:
        raise InputError("no set's lines were told apart")
    rows = []
    for (order, then, question), of_sets in zip(
        questions(), zip(*answers, strict=True), strict=True
    ):
        times = Counter(of_sets)
        rows.append(
            {"order": order, "then": then, "asked": question}
            | {n: times[n] for n in ("near", "far", "memory")}
        )
    write_whole(out, pd.DataFrame(rows).to_csv(index=False))
    return {
        "failed": f"{count - len(answers)} of {count} lines, dropped",
        "pages_with_two_lines_of_one_home": str(pairs[0]),
        "pages_with_two_lines_of_two_homes": str(pairs[1]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument(
        "--out", type=Path, help="NPZ to write, CSV with --orders; its provenance goes beside it"
    )
    parser.add_argument("--orders", action="store_true", help="ask which lines of a set stay")
    parser.add_argument(
        "--lines", type=int, help=f"how many target lines: {TARGETS}, with --orders {ORDER_TARGETS}"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be looked for; needs no GPU"
    )
    arguments = parser.parse_args()
    default = ORDER_TARGETS if arguments.orders else TARGETS
    count = default if arguments.lines is None else arguments.lines
    if arguments.dry_run:
        pages = len({target // LINES for target in targets(count)})
        print(f"{count} lines of {pages} pages, among {PAGES * LINES:,} lines of {PAGES:,} pages")
        if arguments.orders:
            print(f"{len(questions())} questions to the set of each")
        return
    if arguments.out is None:
        parser.error("--out FILE is needed")
    out: Path = arguments.out
    driver.use_device()
    with tempfile.TemporaryDirectory() as name:
        probe = Probe(compiled(HERE / "sets.cu", Path(name) / "sets.cubin"))
        facts = (record_orders if arguments.orders else record)(out, probe, count)
    options = f"{' --orders' * arguments.orders} --out {out.name}{f' --lines {count}' * (count != default)}"
    write_provenance(
        out,
        f"python experiments/sets.py{options}",
        seed=str(SEED),
        buffer=f"{PAGES} pages of 2 MiB in a row; line n is bytes [128 n, 128 n + 128)",
        **facts,
    )


if __name__ == "__main__":
    run_script(main)
