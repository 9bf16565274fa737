"""The first pick of tiles against the best that was measured, on an H200: iosim's own kernel and Triton forwards.

    python benchmarks/picks.py

`iosim tiles` and the Triton ranker rank all tiles that were measured, those that spill among them. Registers, spills
and shared memory are the compiler's (`kernels/resources.csv`; columns of the Triton sweeps); no
time is an input. Beside it the first pick of the same ranking were spills free.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from recorders import measurements

from iosim import AttentionProblem, Tile, load_profile
from iosim.catalog.resource_table import WORD_BYTES, BuildReport, build_report
from iosim.integrations.triton.kernel import Config, configured, rank
from iosim.prediction.call import Call
from iosim.studies.requests import Conditions
from iosim.studies.tiles.pick import pick_tiles

GPU = "h200"
PROBLEM = ("kernel", "heads", "kv_heads", "seq", "head_dim", "causal", "dtype")
FEW = 4
"""Picks that a user may well measure."""
FIVE = 5
"""Tiles among which the best one that others measured should be."""


@dataclass(frozen=True)
class Sweep:
    """Measured milliseconds of one problem's tiles, and how they rank."""

    name: str
    problem: AttentionProblem
    measured: dict[Tile, float]
    spilling: int
    reported: list[Tile]
    before: list[Tile]

    def share(self, ranked: list[Tile], first: int = 1) -> float:
        """Speed of the best of the `first` picks over that of the best tile."""
        return min(self.measured.values()) / min(self.measured[t] for t in ranked[:first])


def own_sweeps() -> Iterator[Sweep]:
    """Problems of which iosim's own forward was measured with every tile."""
    problems: dict[tuple[str, ...], list[dict[str, str]]] = {}
    with measurements("h200_iosim_kernels.csv").open(newline="", encoding="utf-8") as file:
        for r in csv.DictReader(file):
            if r["implementation"] == "flash_fwd" and r["note"] == "sweep":
                problems.setdefault(
                    (r["heads"], r["seq_q"], r["head_dim"], r["causal"]), []
                ).append(r)
    for (heads, seq, head_dim, causal), rows in problems.items():
        problem = AttentionProblem(
            heads=int(heads),
            seq_q=int(seq),
            head_dim=int(head_dim),
            dtype="bf16",
            mask="causal" if causal == "1" else "none",
        )
        measured = {_tile(r, "block_q", "block_k"): float(r["seconds"]) * 1e3 for r in rows}
        ranked = [c.tile for c in pick_tiles(problem, GPU, library=False).candidates]
        free = _free_of_spills(problem, measured)
        before = [c.tile for c in pick_tiles(problem, GPU, library=False, reports=free).candidates]
        yield Sweep(
            "iosim's own",
            problem,
            measured,
            sum(int(r["spill_store_bytes"] or 0) > 0 for r in rows),
            [t for t in ranked if t in measured],
            [t for t in before if t in measured],
        )


def _free_of_spills(problem: AttentionProblem, tiles: Iterable[Tile]) -> dict[Tile, BuildReport]:
    """The recorded builds, as if spills took nothing."""
    reports = {tile: build_report(problem, tile, load_profile(GPU)) for tile in tiles}
    return {tile: replace(r, frame_bytes=0) for tile, r in reports.items() if r is not None}


def triton_sweep() -> Sweep:
    """A Triton forward of which 42 tiles were measured."""
    with measurements("triton_tiles_d64_time.csv").open(newline="", encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["BM"]]
    problem = AttentionProblem(heads=32, seq_q=4096, head_dim=64, dtype="bf16")
    return _triton(
        "Triton",
        problem,
        [
            (_tile(r, "BM", "BN"), float(r["ms"]), _report(r, "regs", "spills", "smem"))
            for r in rows
        ],
    )


def autotuned() -> Iterator[Sweep]:
    """The problems of experiments/triton_autotune.py."""
    problems: dict[tuple[str, ...], list[dict[str, str]]] = {}
    with measurements("h200_triton_autotune.csv").open(newline="", encoding="utf-8") as file:
        for r in csv.DictReader(file):
            if r["ms"]:
                problems.setdefault(tuple(r[name] for name in PROBLEM), []).append(r)
    for (kernel, heads, kv_heads, seq, head_dim, causal, dtype), rows in problems.items():
        problem = AttentionProblem(
            heads=int(heads),
            kv_heads=int(kv_heads),
            seq_q=int(seq),
            head_dim=int(head_dim),
            dtype=dtype,
            mask="causal" if causal == "1" else "none",
        )
        yield _triton(
            f"Triton, {kernel}",
            problem,
            [
                (
                    _tile(r, "block_m", "block_n"),
                    float(r["ms"]),
                    _report(r, "registers", "spilled_words", "smem_bytes"),
                )
                for r in rows
            ],
        )


def _triton(
    name: str, problem: AttentionProblem, rows: list[tuple[Tile, float, BuildReport]]
) -> Sweep:
    configs = {
        tile: Config(tile.block_q, tile.block_k, tile.warps, tile.stages) for tile, _, _ in rows
    }
    reports = {configs[tile]: report for tile, _, report in rows}
    free = {config: replace(report, frame_bytes=0) for config, report in reports.items()}
    ranked, before = (
        [t.config.tile for t in rank(problem, GPU, configs.values(), reports=known)]
        for known in (reports, free)
    )
    spilling = sum(report.frame_bytes > 0 for report in reports.values())
    return Sweep(name, problem, {tile: ms for tile, ms, _ in rows}, spilling, ranked, before)


def _report(row: dict[str, str], registers: str, words: str, shared: str) -> BuildReport:
    """What the driver said: it gives spills in words of a thread's frame."""
    frame = WORD_BYTES * _whole(row[words])
    return BuildReport(_whole(row[registers]), _whole(row[shared]), frame)


def _whole(text: str) -> int:
    return int(float(text))


def _tile(row: dict[str, str], block_q: str, block_k: str) -> Tile:
    return Tile(*(_whole(row[name]) for name in (block_q, block_k, "warps", "stages")))


def rows(sweeps: list[Sweep]) -> Iterator[list[Any]]:
    for s in sweeps:
        p, first = s.problem, s.reported[0]
        label = f"{s.name}: {p.heads} heads x {p.seq_q:,}, head_dim {p.head_dim}, {p.mask}"
        yield [
            label,
            f"{len(s.measured)} ({s.spilling})",
            f"{first} {first.warps} warps {first.stages} stages",
            f"{s.share(s.reported):.3f}",
            f"{s.share(s.reported, FEW):.3f}",
            f"{s.share(s.before):.3f}",
        ]
    shares = [s.share(s.reported) for s in sweeps]
    bare = [s.share(s.before) for s in sweeps]
    fours = [s.share(s.reported, FEW) for s in sweeps]
    yield ["mean", "", "", *(f"{statistics.fmean(x):.3f}" for x in (shares, fours, bare))]
    yield ["least", "", "", *(f"{min(x):.3f}" for x in (shares, fours, bare))]


def page(sweeps: list[Sweep]) -> str:
    head = [
        "problem",
        "tiles (that spill)",
        "first pick",
        "its speed over the best's",
        f"best of the first {FEW}",
        "first pick were spills free",
    ]
    lines = [
        f"| {' | '.join(map(str, cells))} |"
        for cells in (head, ["---"] * 3 + ["---:"] * 3, *rows(sweeps))
    ]
    return (
        "# Picks of tiles against measurements\n\nAn H200; every tile "
        "that was measured is in the list, those that spill among\nthem. Registers, spills and shared memory are the "
        "compiler's; no time is an input. Sources:\nkernels/measurements/h200_iosim_kernels.csv (the rows of its "
        "sweep), experiments/measurements/triton_tiles_d64_time.csv,\n"
        "experiments/measurements/h200_triton_autotune.csv.\n\n" + "\n".join(lines) + "\n"
    )


def autotuning() -> str:
    """What `triton.autotune` took with iosim's few configurations and with all of them, and the speed it ended with."""
    problems: dict[tuple[str, ...], list[dict[str, str]]] = {}
    with measurements("h200_triton_autotune.csv").open(newline="", encoding="utf-8") as file:
        for r in csv.DictReader(file):
            problems.setdefault(tuple(r[name] for name in PROBLEM), []).append(r)
    head = [
        "kernel and problem",
        "configurations",
        "compiled",
        "seconds for all",
        "seconds for those kept",
        "speed over the best's",
    ]
    lines = [head, ["---"] + ["---:"] * 5]
    for (kernel, heads, kv_heads, seq, head_dim, causal, dtype), rows in problems.items():
        picked = next(float(r["pruned_ms"]) for r in rows if r["pruned_ms"])
        best = min(float(r["ms"]) for r in rows if r["ms"])
        mask = "causal" if causal == "1" else "full"
        lines.append(
            [
                f"{kernel}: {heads} heads ({kv_heads}) x {int(seq):,}, head_dim {head_dim}, {mask}, {dtype}",
                str(len(rows)),
                str(sum(r["kept"] == "1" for r in rows)),
                f"{float(rows[0]['all_s']):.1f}",
                f"{float(rows[0]['pruned_s']):.1f}",
                f"{best / picked:.3f}",
            ]
        )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


IBM = "ibm-triton"
BLOCKS = (16, 32, 64, 128, 256)
WARPS = (2, 4, 8)
STAGES = (1, 2, 4, 6, 8)
"""Of published configurations, no more keys than rows; whether values are loaded early is not of the model."""
LEFT_OUT, LEAST_KEYS = 64, 32
"""Rows of a tile that were not tried on an H100, and the fewest keys."""
IN_A_GRAPH = Conditions(l2_start="warm", launched="graph")
"""As they were timed."""


def published() -> Iterator[list[str]]:
    """Where others' best tile of a Triton forward stands in iosim's order, and its predicted over its measured time."""
    configs = [
        c
        for parts in product(BLOCKS, BLOCKS, WARPS, STAGES)
        if (c := Config(*parts)).block_m >= c.block_n
    ]
    with measurements("published_triton_tiles.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for r in rows:
        profile = load_profile(r["gpu"])
        problem = AttentionProblem(
            heads=int(r["heads"]),
            kv_heads=int(r["kv_heads"]),
            seq_q=int(r["seq"]),
            head_dim=int(r["head_dim"]),
            dtype="fp16",
            mask="causal" if r["causal"] == "1" else "none",
        )
        best = tuple(int(r[name]) for name in ("block_m", "block_n", "num_warps"))
        times: dict[tuple[int, ...], float] = {}
        tried = [
            c
            for c in configs
            if r["gpu"] != "h100" or (c.block_m != LEFT_OUT and c.block_n >= LEAST_KEYS)
        ]
        for t in rank(problem, r["gpu"], tried, IBM):
            times.setdefault((t.config.block_m, t.config.block_n, t.config.num_warps), t.time_s)
        place = [*times].index(best) + 1
        call = Call.of(
            problem, configured(Config(*best, int(r["num_stages"])), problem, profile, IBM), profile
        )
        predicted_s = call.time(call.counted + call.capacity("warm"), IN_A_GRAPH).total_s
        yield [
            r["gpu"],
            f"{problem.seq_q:,}",
            str(problem.kv_heads),
            f"{best[0]}x{best[1]}",
            str(best[2]),
            f"{place} of {len(times)}",
            f"{predicted_s * 1e3 / float(r['best_ms']):.2f}",
        ]


def published_page() -> str:
    picked_rows = list(published())
    head = [
        "GPU",
        "tokens",
        "key heads",
        "best tile",
        "warps",
        "its place",
        "predicted over measured",
    ]
    lines = [head, ["---"] * 2 + ["---:"] * 5, *picked_rows]
    for gpu in dict.fromkeys(row[0] for row in picked_rows):
        places = [int(row[5].split()[0]) for row in picked_rows if row[0] == gpu]
        ratio = statistics.median(float(row[6]) for row in picked_rows if row[0] == gpu)
        among = f"{sum(p <= FIVE for p in places)} of {len(places)} among {FIVE}"
        lines.append([gpu, "", "", "", "", among, f"{ratio:.2f}"])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    text = page([*own_sweeps(), triton_sweep(), *autotuned()])
    text += (
        "\n## Autotuning\n\n`triton.autotune` on an H200 (Triton 3.6) with `prune_configs_by` of "
        '`TritonModel("h200")`, top_k 4, and without. Seconds for\nall are those of compiling each, added up, and of '
        "timing all; seconds for those kept are as they come, predicting\nincluded "
        "(`experiments/triton_autotune.py`).\n\n" + autotuning() + "\n"
        "\n## Others\n\nThe best of a few hundred configurations of a Triton forward, causal, 32 heads of 128, fp16 "
        "(published_triton_tiles.csv):\nits place among tiles in iosim's order, registers estimated.\n\n"
        + published_page()
        + "\n"
    )
    print(text)


if __name__ == "__main__":
    main()
