"""Predictions beside library calls that nobody chose: drawn at random by `iosim measure --plan random` on two GPUs.

    python benchmarks/random_draws.py                  the tables of the last draw of both GPUs
    python benchmarks/random_draws.py --write          writes the page docs/generated/random-draws.md
    python benchmarks/random_draws.py --gpu h200 --draw 2
    python benchmarks/random_draws.py --all            times over all draws of both GPUs, by backend and pass: of those
                                                       that mechanisms were looked for in, and of the later ones

A draw is predicted before it is counted, compared once, and only then looked at for mechanisms. Of the H100's first,
every fourth call was open while mechanisms were looked for. What was mended after a draw: 1, the times of backward
passes; 2, the times of narrow builds, of short calls under a mask and of locks; 3, cuDNN's decoding and the stores of
narrow heads; 4, drift, the times of backward passes and FlexAttention; 5, stores of short tiles and of packed
sequences, FlexAttention's short queries, what tiles and passes wait for; 6, tiles fetched ahead, first loads, an SM's
draw of HBM, packed sequences, spills of the memory-efficient backward; 7 of the H100 alone, nothing; 8 of the H100,
CTAs that share an SM and the times of backward passes; 9 of the H100 and 7 of the H200, what the L2 and code hold up;
8 and 9 of the H200, locks in turn, products of fp32 and sectors fetched twice; 10 and 11 of the H100, cuDNN's tiles and
decoding, code of FlashAttention-2, CUTLASS's first loads and locks. Draws 12 and later of the H100, 10 and later of the
H200 were looked at once, when all of this stood; their rows of FlashAttention-2 and FlexAttention were listed again as
code that is fetched anew and short queries were looked for, and set no number. One later call of FlexAttention was
why builds of 32 registers were looked for in machine code; what they spill is of another GPU's call.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from iosim import load_profile
from iosim.base.files import write_whole
from iosim.evidence.validate import Comparison, Residual, compare, read

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "docs" / "generated" / "random-draws.md"
MEASUREMENTS = ROOT / "kernels" / "measurements"
LATER = ROOT / "experiments" / "measurements"
SEEDS = {
    "h100": (
        1001,
        4004,
        64530,
        90211,
        92326,
        7698,
        78959,
        89385,
        35042,
        95064,
        81367,
        48863,
        41203,
        39127,
        81305,
    ),
    "h200": (
        2002,
        3003,
        69708,
        31717,
        71612,
        97107,
        71320,
        70410,
        82216,
        90139,
        59799,
        10532,
        49175,
        66603,
        27148,
        44909,
    ),
}
"""GPU -> the seeds of its draws, in their order."""
HELD_OUT_FROM = {"h100": 12, "h200": 10}
"""GPU -> its first draw that was looked at once alone, when all that it is held against stood."""
QUANTITIES = {
    "l2_read": "SM<->L2 read",
    "l2_write": "SM<->L2 write",
    "hbm_read": "HBM read",
    "hbm_write": "HBM write",
}
MOST_MISSED = 12
"""Launches that the page names of those that are furthest off; without `--write` it is all."""
NEAR_RELATIVE, NEAR_BYTES, TIME_AIM = 0.05, 2_000_000, 0.15
SHORT_S = 30e-6
"""Calls under it are told apart: they take what launches take."""
BACKENDS = {
    "flash": "FlashAttention-2",
    "mem_efficient": "memory-efficient",
    "cudnn": "cuDNN",
    "flex": "FlexAttention",
}
Group = tuple[str, str, str]


@dataclass(frozen=True)
class Drawn:
    """The comparison of a GPU's calls."""

    gpu: str
    seed: int
    comparison: Comparison
    calls: int


def drawn(gpu: str, draw: int = 0) -> Drawn:
    """The recorded calls of a GPU's draw, counted from 1, beside their predictions; 0: the last."""
    n = draw or len(SEEDS[gpu])
    rows = list(
        read(MEASUREMENTS / f"{gpu}_random.csv" if n == 1 else LATER / f"{gpu}_random_{n}.csv")
    )
    return Drawn(
        gpu, SEEDS[gpu][n - 1], compare(rows, load_profile(gpu)), len({row.call for row in rows})
    )


def group(residual: Residual, gpu: str) -> Group:
    """(GPU, backend, pass) of a row."""
    name, _, backward = residual.row.implementation.removeprefix("pytorch_").partition("_backward")
    problem = residual.problem
    passes = (
        "backward"
        if backward or problem.backward
        else "decode"
        if problem.longest_q == 1
        else "forward"
    )
    return gpu.upper(), BACKENDS[name], passes


def near(residual: Residual) -> bool:
    """Within 5 % or 2 MB, whichever is more."""
    return abs(residual.difference) <= max(NEAR_RELATIVE * residual.measured, NEAR_BYTES)


def statistics(residuals: Sequence[Residual]) -> list[str]:
    """Launches, those of 2 MB and more, their median, 95th percentile and most, and the share of all that is near."""
    errors = [r.error for r in residuals if r.error is not None]
    cells = [_percent(f(errors)) if errors else "-" for f in (np.median, _p95, np.max)]
    return [
        f"{len(residuals):,}",
        f"{len(errors):,}",
        *cells,
        _percent(float(np.mean([near(r) for r in residuals]))),
    ]


def _p95(values: Sequence[float]) -> float:
    return float(np.percentile(values, 95))


def _percent(share: float) -> str:
    return f"{100 * share:.3g}"


def by_group(all_drawn: Iterable[Drawn], quantity: str) -> dict[Group, list[Residual]]:
    by_group_errors: dict[Group, list[Residual]] = defaultdict(list)
    for drawn in all_drawn:
        for residual in drawn.comparison.residuals:
            if residual.quantity == quantity:
                by_group_errors[group(residual, drawn.gpu)].append(residual)
    return dict(sorted(by_group_errors.items()))


def call_times(drawn: Drawn) -> dict[Group, list[float]]:
    """Errors of the times of whole calls, all of whose launches have a prediction."""
    left_out = {s.row.call for s in drawn.comparison.skipped}
    calls: dict[int, list[Residual]] = defaultdict(list)
    for r in drawn.comparison.residuals:
        if r.quantity == "time" and r.row.call not in left_out:
            calls[r.row.call].append(r)
    errors: dict[Group, list[float]] = defaultdict(list)
    for members in calls.values():
        measured = sum(r.measured for r in members)
        error = sum(r.predicted for r in members) / measured - 1
        short = measured < SHORT_S
        errors[
            (drawn.gpu.upper(), "all", "under 30 us") if short else group(members[0], drawn.gpu)
        ].append(error)
        if not short:
            errors[drawn.gpu.upper(), "all", "30 us and longer"].append(error)
    return errors


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    words = ["---" if n < 3 else "---:" for n in range(len(header))]
    return [f"| {' | '.join(line)} |" for line in (header, words, *rows)]


HEADER = ("GPU", "backend", "pass", "launches", "of 2 MB", "median", "p95", "most", "near")


def in_short(all_drawn: Sequence[Drawn]) -> list[str]:
    """The page's first table: HBM reads, and the share of all that is near, by backend and pass, GPU after GPU."""
    by_quantity = {quantity: by_group(all_drawn, quantity) for quantity in QUANTITIES}
    for drawn in all_drawn:
        for quantity, groups in by_quantity.items():
            groups[drawn.gpu.upper(), "all", "all"] = [
                r for r in drawn.comparison.residuals if r.quantity == quantity
            ]
    kinds = dict.fromkeys((backend, passes) for _, backend, passes in by_quantity["hbm_read"])
    gpus = [draw.gpu.upper() for draw in all_drawn]
    lines = []
    for kind in sorted(kinds, key=lambda kind: (kind[0] == "all", kind)):
        errors_of_kind = [
            _short({q: groups.get((gpu, *kind), []) for q, groups in by_quantity.items()})
            for gpu in gpus
        ]
        lines.append((*kind, *beside(errors_of_kind)))
    errors = ("HBM read, median error %", "p95 error %", "largest error %")
    near_of = ("HBM read", "HBM write", "SM<->L2 read", "SM<->L2 write")
    shares = (f"{name} within 5 % or 2 MB, % of launches" for name in near_of)
    return table(("backend", "pass", "launches", *errors, *shares), lines)


def _short(of: dict[str, list[Residual]]) -> list[str]:
    """A GPU's cells in a row of the page's first table, in per cent."""
    errors = [r.error for r in of["hbm_read"] if r.error is not None]
    cells = [f"{100 * f(errors):.2g}" if errors else "-" for f in (np.median, _p95, np.max)]
    for quantity in ("hbm_read", "hbm_write", "l2_read", "l2_write"):
        residuals = of[quantity]
        cells.append(
            f"{100 * float(np.mean([near(r) for r in residuals])):.0f}" if residuals else "-"
        )
    return [str(len(of["hbm_read"])), *cells]


def claims(all_drawn: Sequence[Drawn], quantity: str) -> list[str]:
    """The table of a quantity: by GPU, backend and pass, then by GPU, keys that thrash apart."""
    lines = [
        (*key, *statistics(residuals)) for key, residuals in by_group(all_drawn, quantity).items()
    ]
    for drawn in all_drawn:
        every = [r for r in drawn.comparison.residuals if r.quantity == quantity]
        lines.append((drawn.gpu.upper(), "all", "all", *statistics(every)))
        if quantity.startswith("hbm"):
            thrashing = [r for r in every if r.regime == "thrashing"]
            others = [r for r in every if r.regime != "thrashing"]
            lines.append((drawn.gpu.upper(), "all", "keys thrash", *statistics(thrashing)))
            lines.append((drawn.gpu.upper(), "all", "all others", *statistics(others)))
    return table(HEADER, lines)


def times(all_drawn: Sequence[Drawn]) -> list[str]:
    """The table of the times of whole calls, GPU after GPU."""
    cells: dict[tuple[str, ...], dict[str, list[str]]] = defaultdict(dict)
    for drawn in all_drawn:
        for (gpu, *kind), errors in call_times(drawn).items():
            sizes = np.abs(errors)
            figures = [
                float(np.mean(sizes)),
                float(np.median(sizes)),
                _p95(list(sizes)),
                float(sizes.max()),
            ]
            signed, within = (
                f"{100 * float(np.median(errors)):+.1f}",
                _percent(float(np.mean(sizes <= TIME_AIM))),
            )
            cells[tuple(kind)][gpu] = [str(len(errors)), *map(_percent, figures), signed, within]
    words = (
        "calls",
        "mean",
        "median",
        "p95",
        "most",
        "median, signed",
        f"within {_percent(TIME_AIM)} %",
    )
    lines = [
        (*kind, *beside(of_gpu.get(draw.gpu.upper(), ["-"] * len(words)) for draw in all_drawn))
        for kind, of_gpu in sorted(cells.items())
    ]
    return table(("backend", "pass", *words), lines)


def over_all_draws() -> list[str]:
    """Mean sizes of the errors of calls of 30 us and longer, by backend and pass, over all draws of both GPUs."""
    errors: dict[tuple[str, ...], dict[bool, list[float]]] = defaultdict(
        lambda: {False: [], True: []}
    )
    for gpu, seeds in SEEDS.items():
        for n in range(1, len(seeds) + 1):
            for (_, *kind), of_calls in call_times(drawn(gpu, n)).items():
                errors[tuple(kind)][n >= HELD_OUT_FROM[gpu]] += of_calls
    lines = []
    for kind, parts in sorted(errors.items()):
        cells = []
        for sizes in (np.abs(parts[later]) for later in (False, True)):
            figures = (
                [_percent(float(f(sizes))) for f in (np.mean, np.median)]
                if len(sizes)
                else ["-"] * 2
            )
            cells += [str(len(sizes)), *figures]
        lines.append((*kind, *cells))
    words = ("calls", "mean %", "median %")
    return table(("backend", "pass", *words, *(f"later {word}" for word in words)), lines)


def beside(rows: Iterable[Sequence[str]]) -> list[str]:
    """Rows of GPUs as one, with slashes between."""
    return ["/".join(cells) for cells in zip(*rows, strict=True)]


def missed(all_drawn: Sequence[Drawn], limit: int | None) -> list[str]:
    """The launches whose reads are further off than 5 % and 2 MB, the furthest in bytes first."""
    residuals = [
        (abs(r.difference), drawn.gpu, r)
        for drawn in all_drawn
        for r in drawn.comparison.residuals
        if r.quantity in ("hbm_read", "l2_read") and not near(r)
    ]
    lines = []
    for _, gpu, r in sorted(residuals, key=lambda f: -f[0])[:limit]:
        p = r.problem
        sizes = (
            f"{p.batch} x {p.heads}/{p.kv_heads}, {p.seq_q:,} x {p.seq_k:,}, {p.head_dim}, {p.mask}"
        )
        who = gpu.upper(), str(r.row.call), r.row.implementation.removeprefix("pytorch_"), r.launch
        megabytes = f"{r.measured / 1e6:,.1f}", f"{r.predicted / 1e6:,.1f}"
        lines.append((*who, sizes, QUANTITIES[r.quantity], *megabytes, r.regime))
    where = ("GPU", "call", "kernel", "launch", "batch x heads, tokens, head_dim, mask", "quantity")
    return table((*where, "counted, MB", "predicted, MB", "regime"), lines)


def left_out(all_drawn: Sequence[Drawn]) -> list[str]:
    calls: dict[tuple[str, str], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for drawn in all_drawn:
        for skipped in drawn.comparison.skipped:
            calls[skipped.row.implementation.removeprefix("pytorch_"), skipped.reason][
                drawn.gpu
            ].add(skipped.row.call)
    counts = (
        (key, "/".join(str(len(of_gpu[draw.gpu])) for draw in all_drawn))
        for key, of_gpu in sorted(calls.items())
    )
    return table(("backend", "reason", "calls"), [(*key, count) for key, count in counts])


def page(all_drawn: Sequence[Drawn], title: str, brief: bool = False) -> str:
    """The page of some draws; `brief`, without the tables of each quantity, and with the first of the misses."""
    draws = " and ".join(
        f"{drawn.calls} on an {drawn.gpu.upper()} (seed {drawn.seed})" for drawn in all_drawn
    )
    quantities = () if brief else tuple(QUANTITIES)
    sections: list[tuple[str, Callable[[], list[str]]]] = [
        ("In short", lambda: in_short(all_drawn)),
        *((QUANTITIES[q], lambda q=q: claims(all_drawn, q)) for q in quantities),  # type: ignore[misc]
        ("Times of calls, under the profiler", lambda: times(all_drawn)),
        (
            "Reads that are further off than 5 % and 2 MB",
            lambda: missed(all_drawn, MOST_MISSED if brief else None),
        ),
        ("Launches without a prediction", lambda: left_out(all_drawn)),
    ]
    lines = [
        f"# {title}",
        "",
        f"Library calls of PyTorch 2.11 drawn by `iosim measure --plan random`: {draws}. Made by `python",
        "benchmarks/random_draws.py --write`. An error is |predicted - counted| / counted in %, of a launch that moves",
        "2 MB or more; near, within 5 % or 2 MB, counts all launches. GPUs stand with a slash between.",
        *(
            ["Without `--write` it prints each GPU's tables, and all that is further off."]
            if brief
            else []
        ),
    ]
    for name, make in sections:
        lines += ["", f"## {name}", "", *make()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--write", action="store_true", help=f"write {PLACE.name}")
    parser.add_argument("--gpu", choices=sorted(SEEDS), help="of one GPU")
    parser.add_argument(
        "--draw",
        type=int,
        choices=range(1, len(SEEDS["h100"]) + 1),
        default=0,
        help="an earlier draw",
    )
    parser.add_argument("--all", action="store_true", help="times over all draws of both GPUs")
    arguments = parser.parse_args()
    if arguments.all:
        sys.stdout.write("\n".join(over_all_draws()) + "\n")
        return
    title = "Calls drawn at random"
    if arguments.write:
        write_whole(PLACE, page([drawn(gpu) for gpu in SEEDS], title, brief=True))
    else:
        chosen = [
            g for g in SEEDS if arguments.gpu in (None, g) and arguments.draw <= len(SEEDS[g])
        ]
        sys.stdout.write(page([drawn(gpu, arguments.draw) for gpu in chosen], title))


if __name__ == "__main__":
    main()
