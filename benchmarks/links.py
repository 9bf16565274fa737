"""Attention over two H200s, measured and predicted; what their links reach.

    python benchmarks/links.py          predicted against measured
    python benchmarks/links.py --fit    latency and achieved shares of NVLink, fitted on messages and collectives alone
    python benchmarks/links.py --table FILE.csv    of another table that experiments/links.py recorded on two H200s
    python benchmarks/links.py --steps  what messages and merges add to a ring's steps, as shares (h200x2_ring_steps.csv)
    python benchmarks/links.py --public schedules over eight GPUs that others timed (published_ring.csv)

The rows are h200x2_links.csv. Nothing was fitted on its attention, nor on anything of h200x2_links_2.csv, which was
recorded on two other H200s after the model was as it is: those rows are the check.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from recorders import measurements

import iosim
from iosim import AttentionProblem, load_profile
from iosim.studies.distributed.links import COLLECTIVES, load_link
from iosim.studies.distributed.timing import ChunkTimes

MIB = 1 << 20
GPU = "h200-sxm"
METHODS = {"ring": "ring", "zigzag": "zigzag", "ulysses": "ulysses", "all_gather_kv": "all-gather"}
RECEIVED = {"exchange": 1.0, "all_gather": 1.0, "reduce_scatter": 0.5, "all_to_all": 0.5}
"""Of a row's MiB, what a GPU receives."""
TABLE = measurements("h200x2_links.csv")
HEAD_DIM = 128
SMALL = AttentionProblem(seq_q=128, head_dim=HEAD_DIM)
"""Any problem: `ChunkTimes` wants one, and times of copies do not look at it."""
LEAST = {"exchange": 64.0}
"""MiB from which the link, not the processor, decides."""


class Row(NamedTuple):
    what: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


def table() -> list[dict[str, str]]:
    with TABLE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def messages() -> Iterator[tuple[str, float, float]]:
    """(what, bytes received, seconds) of rows that the link decides."""
    for row in table():
        if row["what"] in RECEIVED and float(row["MiB"]) >= LEAST.get(row["what"], 16.0):
            yield (
                row["what"].replace("_", "-"),
                float(row["MiB"]) * MIB * RECEIVED[row["what"]],
                float(row["ms"]) / 1e3,
            )


def attention() -> Iterator[Row]:
    """The rows of attention, predicted with FlashAttention-2 under a load of seconds."""
    for row in table():
        if row["what"] in METHODS:
            sizes = {
                "heads": int(row["heads"]),
                "seq_len": int(row["tokens"]),
                "causal": row["causal"] == "1",
            }
            (ring_call,) = iosim.ring(
                gpu=GPU,
                num_gpus=2,
                kernel="fa2",
                head_dim=128,
                dtype="bf16",
                schedule=[METHODS[row["what"]]],
                **sizes,
            )
            name = f"{row['what']}, {sizes['heads']} heads, {sizes['seq_len']:,} tokens{', causal' * sizes['causal']}"
            yield Row(name, float(row["ms"]) / 1e3, ring_call.seconds)


def fit() -> tuple[float, dict[str, float]]:
    """The latency of all, to a microsecond, and by kind the share of NVLink's bandwidth, with the least squares of
    predicted / measured - 1."""
    points = defaultdict(list)
    width = load_link("nvlink", load_profile(GPU)).bandwidth_bytes_per_s
    for collective, received, seconds in messages():
        points[collective].append((received / seconds, 1 / seconds))
    best = (np.inf, 0.0, {})
    for latency in np.arange(0, 100e-6, 1e-6):
        squares, shares = 0.0, {}
        for collective, samples in points.items():
            a = np.array([x for x, _ in samples])
            rest = 1 - latency * np.array([y for _, y in samples])
            slope = a @ rest / (a @ a)
            squares += float(((a * slope - rest) ** 2).sum())
            shares[collective] = float(1 / slope / width)
        best = min(best, (squares, float(latency), shares), key=lambda candidate: candidate[0])
    return best[1:]


def public() -> Iterator[Row]:
    """Schedules over eight GPUs of ring-flash-attention, causal, with FlashAttention-2. Nothing is fitted on them."""
    with measurements("published_ring.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        (result,) = iosim.ring(
            gpu=row["gpu"],
            num_gpus=8,
            kernel="fa2",
            head_dim=128,
            dtype="bf16",
            causal=True,
            passes=row["passes"],
            heads=int(row["heads"]),
            kv_heads=int(row["kv_heads"]),
            seq_len=8 * int(row["tokens_per_gpu"]),
            schedule=[row["schedule"]],
        )
        name = f"{row['source'].split()[0][9:]} {row['gpu']} {row['passes']} {row['schedule']}"
        yield Row(name, float(row["measured_ms"]) / 1e3, result.seconds)


class StepShares(NamedTuple):
    """What a row of h200x2_ring_steps.csv says: time of merges over that of their bytes at HBM, time that messages add
    over that of the messages alone."""

    name: str
    sum_passes: float
    unhidden: float


def step_shares() -> Iterator[StepShares]:
    """By case and pass; loops that the processor decides, whose steps are short, are left out."""
    loops: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    with measurements("h200x2_ring_steps.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = tuple(row[c] for c in ("passes", "case", "tokens", "heads", "kv_heads", "steps"))
            loops[key][row["leaves_out"]] = float(row["ms"]) / 1e3
    link, times = (
        load_link("nvlink", load_profile(GPU)),
        ChunkTimes(SMALL, "fa2", load_profile(GPU)),
    )
    for (passes, case, *sizes), seconds in loops.items():
        tokens, heads, kv_heads, steps = map(int, sizes)
        if tokens < 8192:
            continue
        queries, keys = (tokens * n * HEAD_DIM for n in (heads, kv_heads))
        # Elements that a step adds up: half of the queries in a zigzag's late steps, half of the keys in its early ones.
        sums = [queries / 2 if case == "late" else queries]
        messages_s = link.seconds(4 * keys)
        if passes == "bwd":
            sums += 2 * [keys / 2 if case == "early" else keys]
            messages_s += link.seconds(8 * keys)  # dK and dV in fp32
        once = sum(times.copied(6 * elements, 4 * elements) for elements in sums)
        more = {name: seconds["nothing"] - seconds[name] for name in ("merge", "exchange")}
        yield StepShares(
            f"{passes} {case} {heads} heads",
            more["merge"] / (steps - 1) / once,
            more["exchange"] / (steps - 1) / messages_s,
        )


def main() -> None:
    global TABLE
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", action="store_true", help="fit latency and shares")
    parser.add_argument("--steps", action="store_true", help="shares of a ring's steps")
    parser.add_argument("--public", action="store_true", help="schedules that others timed")
    parser.add_argument(
        "--table",
        type=Path,
        default=TABLE,
        help="rows to compare with (default: the recorded ones)",
    )
    options = parser.parse_args()
    TABLE = options.table
    if options.fit:
        latency, shares = fit()
        print(
            f"latency_s = {latency:.2g}\n"
            + "\n".join(f"{collective}: {shares[collective]:.2f}" for collective in COLLECTIVES)
        )
        return
    if options.steps:
        for shares in step_shares():
            print(
                f"{shares.name:24s} merges {shares.sum_passes:4.1f}x  messages {shares.unhidden:+.0%}"
            )
        return
    if options.public:
        for row in public():
            print(
                f"{row.what:60s} {1e3 * row.measured_s:8.2f} ms {1e3 * row.predicted_s:8.2f} ms {row.error:+6.1%}"
            )
        return
    link = load_link("nvlink", load_profile(GPU))
    link_rows = [
        Row(f"{collective}, {received / MIB:g} MiB", seconds, link.seconds(received, collective))
        for collective, received, seconds in messages()
    ]
    for row in (*link_rows, *attention()):
        print(
            f"{row.what:48s} {1e3 * row.measured_s:9.3f} ms  {1e3 * row.predicted_s:9.3f} ms  {row.error:+6.1%}"
        )


if __name__ == "__main__":
    main()
