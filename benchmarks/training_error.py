"""Predicted beside recorded training steps of an H200: bytes, seconds, and what the caching allocator reserves.

    python benchmarks/training_error.py

Prints a Markdown table from experiments/measurements/h200_training_*.csv. Nothing is fitted to these rows.
"""

from __future__ import annotations

import csv
import json
from statistics import median

from recorders import measurements

from iosim import load_profile
from iosim.studies.training import Decoder, Kind, Setup, plan
from iosim.studies.training.frontier import step_seconds
from iosim.studies.training.timeline import allocated, play

HELD = (Kind.PARAMETER, Kind.INPUT, Kind.OPTIMIZER)


def main() -> None:
    gpu = load_profile("h200")
    groups: dict[tuple[str, str], list[tuple[bool, float, float]]] = {}
    with open(measurements("h200_training_times.csv"), encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            model = Decoder(**json.loads(row["model"]))
            setup = Setup(**json.loads(row["setup"]))
            line = play(plan(model, setup))
            base = sum(line.events[0].by_kind.get(k, 0) for k in HELD)
            equal = all(b - base == int(row[p]) for p, b in line.phase_peaks().items())
            seconds = sum(step_seconds(model, setup, gpu).values()) / float(row["seconds"])
            reserved = allocated(line.requests).reserved / int(row["reserved"])
            groups.setdefault((setup.attention, setup.precision), []).append(
                (equal, seconds, reserved)
            )
    print(
        "| attention | precision | steps | peaks equal | seconds, predicted / measured: median (range) | "
        "reserved, predicted / measured: median (range) |\n| --- | --- | --- | --- | --- | --- |"
    )
    for (attention, number), cases in groups.items():
        equal, seconds, reserved = zip(*cases, strict=True)
        cells = [f"{median(x):.2f} ({min(x):.2f} to {max(x):.2f})" for x in (seconds, reserved)]
        print(f"| {attention} | {number} | {len(cases)} | {sum(equal)} | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()
