"""Predicted against published latencies of serving stacks, by GPU, stack and phase; before and after calibration.

    python benchmarks/serving_error.py            the table of docs/generated/serving-errors.md
    python benchmarks/serving_error.py --write    writes it

The latencies (published_latency.csv, from the data of NVIDIA's AIConfigurator, Apache-2.0) are of one attention call of
vLLM or SGLang, replayed from a CUDA graph. Rows are numbered as they stand, from 1: calibrations are fitted on 20 odd
ones, drawn by a fixed rule; all errors are of even ones.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from recorders import measurements

from iosim import AttentionProblem, Overrides, Prediction, load_profile, resolve
from iosim.catalog.serving import read_stack
from iosim.prediction.call import Call
from iosim.prediction.predictor import default_method, hbm_traffic
from iosim.prediction.replays import Replays
from iosim.readers.bounds import memory
from iosim.studies.latency.calibration import Calibration
from iosim.studies.latency.fit import Timed, fit, mean_error
from iosim.studies.latency.latency import latency_of
from iosim.studies.requests import Conditions

GPUS = {"a100_sxm": "a100-sxm-80gb", "l40s": "l40s", "h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm"}
PLACE = Path(__file__).resolve().parents[1] / "docs" / "generated" / "serving-errors.md"
ROWS = 20
DRAWS = 10
PLAYED = 2.0
"""Warm starts are replayed where tensors are up to so many times the L2; others find nothing of use there."""
PHASES = ("prefill", "decode")
Key = tuple[str, str]


@dataclass(frozen=True)
class Row:
    """A published latency beside its prediction."""

    number: int
    gpu: str
    source: str
    phase: str
    timed: Timed

    @property
    def stack(self) -> str:
        return self.source.split("/")[0]


def predicted(
    problem: AttentionProblem,
    kernel: str,
    gpu: str,
    append: bool,
    replays: Replays,
    clocks: str = "boost",
) -> Prediction:
    """A call as `iosim latency` predicts it, but with the capacity rule where little can be warm."""
    profile = load_profile(gpu)
    call = Call.of(problem, resolve(kernel, problem, profile, Overrides(append_kv=append)), profile)
    size = sum(tensor.bytes for tensor in call.chain.tensors.values())
    if size <= PLAYED * profile.need("l2_bytes"):
        hbm, _, played = hbm_traffic(call, default_method(call.chain)[0], "warm", replays)
    else:
        hbm, played = call.capacity("warm"), None
    traffic = call.counted + hbm
    time = call.time(traffic, Conditions(l2_start="warm", launched="graph", clocks=clocks))
    return Prediction(
        call=call,
        traffic=traffic,
        hbm_bounds=call.bounds,
        l2_start="warm",
        method="replay",
        time=time,
        time_specification=time,
        memory_bytes=memory(call.chain),
        replay=played,
        notes=(),
    )


def rows() -> Iterator[Row]:
    """Every published row with its prediction."""
    replays = Replays()
    with measurements("published_latency.csv").open(newline="", encoding="utf-8") as file:
        for number, r in enumerate(csv.DictReader(file), 1):
            prefill = r["phase"] == "prefill"
            gpu = GPUS[r["gpu"]]
            stack = read_stack(r["source"].split("/")[0])
            problem = AttentionProblem(
                batch=int(r["batch_size"]),
                heads=int(r["num_heads"]),
                kv_heads=int(r["num_key_value_heads"]),
                seq_q=int(r["seq"]) if prefill else 1,
                seq_k=int(r["seq"]),
                head_dim=int(r["head_dim"]),
                dtype="bf16",
                mask="causal",
                page_size=stack.page_size,
            )
            prediction = predicted(
                problem, stack.kernel(load_profile(gpu)), gpu, stack.append_kv, replays
            )
            seconds = float(r["latency"]) * 1e-3
            yield Row(
                number,
                gpu,
                r["source"],
                r["phase"],
                Timed.of(latency_of(stack, prediction), seconds),
            )


def prior(stack: str) -> Calibration:
    return Calibration(read_stack(stack).call_gap_s)


def calibrated(fitted: list[Row], stack: str) -> list[Calibration]:
    """Constants by several draws of 20 rows: every so many-th row, from another one each time."""
    step = max(1, len(fitted) // ROWS)
    draws = (
        [fitted[(start + n * step) % len(fitted)] for n in range(ROWS)] for start in range(DRAWS)
    )
    return [fit([row.timed for row in draw], prior(stack)) for draw in draws]


def shown(values: Iterable[float]) -> str:
    errors = list(values)
    return f"{statistics.fmean(errors):.1%}" if errors else "-"


def table(all_rows: list[Row]) -> str:
    """The table: mean errors of even rows, with shipped constants and after calibration by 20 odd ones."""
    groups: dict[Key, list[Row]] = defaultdict(list)
    for row in all_rows:
        groups[row.source, row.gpu].append(row)
    lines = [
        "| stack | GPU | phase | rows held out | mean error | median | after 20 rows |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    before: dict[str, list[float]] = defaultdict(list)
    after: dict[str, list[float]] = defaultdict(list)
    for (source, gpu), members in groups.items():
        odd, even = ([row for row in members if row.number % 2 == side] for side in (1, 0))
        constants = calibrated(odd, members[0].stack)
        for phase in PHASES:
            held = [row.timed for row in even if row.phase == phase]
            default_constants = prior(members[0].stack)
            signed = [call.predicted_s(default_constants) / call.measured_s - 1 for call in held]
            fitted = [mean_error(held, constant) for constant in constants]
            lines.append(
                f"| {source} | {gpu} | {phase} | {len(held)} | {shown(map(abs, signed))} | "
                f"{statistics.median(signed):+.1%} | {shown(fitted)} |"
            )
            before[phase] += map(abs, signed)
            after[phase] += [statistics.fmean(fitted)] * len(held)
    lines += [
        f"| all | all | {phase} | {len(before[phase])} | {shown(before[phase])} | - | {shown(after[phase])} |"
        for phase in PHASES
    ]
    return "\n".join(lines)


def page(all_rows: list[Row]) -> str:
    return (
        "# Errors of latencies in serving stacks\n\nMade by `python benchmarks/serving_error.py --write`. Mean of "
        "|predicted / measured - 1| over the even-numbered rows of published_latency.csv; the last column's constants "
        f"are fitted on {ROWS} odd-numbered ones, in the mean of {DRAWS} draws.\n\n{table(all_rows)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write", action="store_true", help="write docs/generated/serving-errors.md"
    )
    args = parser.parse_args()
    rows_judged = list(rows())
    if args.write:
        PLACE.write_text(page(rows_judged), encoding="utf-8")
    else:
        print(table(rows_judged))


if __name__ == "__main__":
    main()
