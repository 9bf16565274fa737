"""Series of PyTorch's calls that differ in one thing, beside predictions: `python benchmarks/series.py [SERIES ...]`.

Prints a Markdown table of experiments/measurements/h100_series.csv (experiments/series.py), and as `builds` of
h200_flex_loops.csv (experiments/flex_loops.py). Calls found their data in the L2 where it fits. `LOCKED_LOADS` was
fitted to the series `queries`, and to draws of library calls; nothing was to the others.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Mapping

from recorders import measurements

from iosim import AttentionProblem, HardwareProfile, load_profile, resolve
from iosim.prediction.call import Call
from iosim.studies.requests import Conditions

NAMES = {
    "pytorch_flash": "fa2",
    "pytorch_mem_efficient": "cutlass",
    "cudnn": "cudnn",
    "pytorch_flex": "flex",
}
TYPES = {"bfloat16": "bf16", "float32": "fp32"}
WINDOW = 256
TABLES = {"h100_series.csv": "h100-sxm", "h200_flex_loops.csv": "h200-sxm"}
SIZES = ("batch", "heads", "seq_q", "seq_k", "head_dim")


def rows() -> Iterator[tuple[HardwareProfile, dict[str, str]]]:
    """The calls, each with its GPU. Of a kernel's loops the first stands for its call."""
    builds = {
        "series": "builds",
        "implementation": "pytorch_flex",
        "batch": "1",
        "keys_lie": "heads",
    }
    for name, gpu in TABLES.items():
        with measurements(name).open(encoding="utf-8", newline="") as file:
            profile = load_profile(gpu)
            yield from (
                (profile, builds | row)
                for row in csv.DictReader(file)
                if row.get("loop", "0") in ("0", "-1")
            )


def predicted_s(row: Mapping[str, str], gpu: HardwareProfile) -> float:
    """Seconds of the main launch of the call that a row measured."""
    name = row["implementation"].removesuffix("_backward")
    problem = AttentionProblem(
        **{size: int(row[size]) for size in SIZES},
        kv_heads=1 if row["keys_lie"] == "shared" else int(row["heads"]),
        dtype=TYPES[row["dtype"]],
        mask=row["mask"],
        window=WINDOW if row["mask"] == "window" else None,
        passes="bwd" if row["implementation"] != name else "fwd",
    )
    call = Call.of(problem, resolve(NAMES[name], problem, gpu), gpu)
    time = call.time(call.counted + call.capacity("warm"), Conditions(l2_start="warm"))
    return max(launch.total_s for launch in time.launches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("series", nargs="*", help="these alone")
    chosen = parser.parse_args().series
    words = (
        "series",
        "implementation",
        "heads",
        "tokens",
        "head_dim",
        "mask",
        "measured, us",
        "predicted",
    )
    print(f"| {' | '.join(words)} |\n|{' --- |' * len(words)}")
    for gpu, row in rows():
        if chosen and row["series"] not in chosen:
            continue
        off = predicted_s(row, gpu) / float(row["seconds"]) - 1
        tokens = f"{row['seq_q']} x {row['seq_k']}"
        labels = (row[name] for name in ("series", "implementation", "heads"))
        cells = (
            *labels,
            tokens,
            row["head_dim"],
            row["mask"],
            f"{1e6 * float(row['seconds']):.1f}",
            f"{off:+.0%}",
        )
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
