"""The first pick of tiles against the best that was measured, on an H200: iosim's own kernel and a Triton forward.

    python benchmarks/picks.py            the table of docs/generated/picks.md
    python benchmarks/picks.py --write    writes it

`iosim tiles` and the Triton ranker rank all tiles that were measured, those that spill among them. Registers, spills
and shared memory are the compiler's (`kernels/resources.csv`; columns regs, spills and smem of the Triton sweep); no
time is an input. Beside it the first pick of the same ranking were spills free.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recorders import measurements

from iosim.hardware.profile import load_profile
from iosim.integrations.triton.kernel import Config, rank
from iosim.kernel.kernel import Tile
from iosim.kernel.resource_table import BuildReport, build_report
from iosim.problem.attention import AttentionProblem
from iosim.studies.tiles.pick import pick_tiles

GPU = "h200"
PLACE = Path(__file__).resolve().parents[1] / "docs" / "generated" / "picks.md"
FEW = 4
"""Picks that a user may well measure."""


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
                problems.setdefault((r["heads"], r["seq_q"], r["head_dim"], r["causal"]), []).append(r)
    for (heads, seq, head_dim, causal), rows in problems.items():
        problem = AttentionProblem(
            heads=int(heads), seq_q=int(seq), head_dim=int(head_dim), dtype="bf16",
            mask="causal" if causal == "1" else "none",
        )  # fmt: skip
        measured = {_tile(r, "block_q", "block_k"): float(r["seconds"]) * 1e3 for r in rows}
        ranked = [c.tile for c in pick_tiles(problem, GPU, library=False).candidates]
        free = _free_of_spills(problem, measured)
        before = [c.tile for c in pick_tiles(problem, GPU, library=False, reports=free).candidates]
        yield Sweep("iosim's own", problem, measured, sum(int(r["spill_store_bytes"] or 0) > 0 for r in rows),
                    [t for t in ranked if t in measured], [t for t in before if t in measured])  # fmt: skip


def _free_of_spills(problem: AttentionProblem, tiles: Iterable[Tile]) -> dict[Tile, BuildReport]:
    """The recorded builds, as if spills took nothing."""
    found = {tile: build_report(problem, tile, load_profile(GPU)) for tile in tiles}
    return {tile: replace(r, spill_store_bytes=0, spill_load_bytes=0) for tile, r in found.items() if r is not None}


def triton_sweep() -> Sweep:
    """The Triton forward whose tiles were measured."""
    with measurements("triton_tiles_d64_time.csv").open(newline="", encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["BM"]]
    problem = AttentionProblem(heads=32, seq_q=4096, head_dim=64, dtype="bf16")
    configs, reports = {}, {}
    for r in rows:
        tile = _tile(r, "BM", "BN")
        config = Config(tile.block_q, tile.block_k, tile.warps, tile.stages)
        frame = 4 * _whole(r["spills"])
        configs[config] = float(r["ms"])
        reports[config] = BuildReport(_whole(r["regs"]), frame, frame, _whole(r["smem"]), frame)
    gpu = load_profile(GPU)
    reported = [t.config.tile for t in rank(problem, gpu, configs, reports=reports)]
    free = {config: replace(r, frame_bytes=0) for config, r in reports.items()}
    before = [t.config.tile for t in rank(problem, gpu, configs, reports=free)]
    measured = {c.tile: ms for c, ms in configs.items()}
    return Sweep("Triton", problem, measured, sum(_whole(r["spills"]) > 0 for r in rows), reported, before)


def _whole(text: str) -> int:
    return int(float(text))


def _tile(row: dict[str, str], block_q: str, block_k: str) -> Tile:
    return Tile(*(_whole(row[name]) for name in (block_q, block_k, "warps", "stages")))


def rows(sweeps: list[Sweep]) -> Iterator[list[Any]]:
    for s in sweeps:
        p, first = s.problem, s.reported[0]
        what = f"{s.name}: {p.heads} heads x {p.seq_q:,}, head_dim {p.head_dim}, {p.mask}"
        yield [what, f"{len(s.measured)} ({s.spilling})",
               f"{first} {first.warps} warps {first.stages} stages", f"{s.share(s.reported):.3f}",
               f"{s.share(s.reported, FEW):.3f}", f"{s.share(s.before):.3f}"]  # fmt: skip
    shares = [s.share(s.reported) for s in sweeps]
    bare = [s.share(s.before) for s in sweeps]
    fours = [s.share(s.reported, FEW) for s in sweeps]
    yield ["mean", "", "", *(f"{statistics.fmean(x):.3f}" for x in (shares, fours, bare))]
    yield ["least", "", "", *(f"{min(x):.3f}" for x in (shares, fours, bare))]


def page(sweeps: list[Sweep]) -> str:
    head = ["problem", "tiles (that spill)", "first pick", "its speed over the best's", f"best of the first {FEW}",
            "first pick were spills free"]  # fmt: skip
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (head, ["---"] * 3 + ["---:"] * 3, *rows(sweeps))]
    return (
        "# Picks of tiles against measurements\n\nMade by `python benchmarks/picks.py --write`. An H200; every tile that "
        "was measured is in\nthe list, those that spill among them. Registers, spills and shared memory are the "
        "compiler's; no time is an\ninput. Sources: kernels/measurements/h200_iosim_kernels.csv (the rows of its sweep),\n"
        "experiments/measurements/triton_tiles_d64_time.csv.\n\n" + "\n".join(lines) + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/generated/picks.md")
    args = parser.parse_args()
    text = page([*own_sweeps(), triton_sweep()])
    print(text)
    if args.write:
        PLACE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
