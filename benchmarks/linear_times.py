"""Times of gated delta rule and Kimi delta attention that others measured, beside predictions.

    python benchmarks/linear_times.py                 medians by GPU, of the rows that nothing was fitted on
    python benchmarks/linear_times.py --cells         the same by framework
    python benchmarks/linear_times.py --fit           fits PRODUCT_CYCLES again, on the other half
    python benchmarks/linear_times.py --draw FOLDER   draws the rows anew out of AIConfigurator's tables

The rows: experiments/measurements/published_linear_attention.csv. Of each GPU, framework and kernel at most 40, in the
order of a hash of their shape: every other one is judged, and no constant has seen it.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from recorders import measurements

from iosim import AttentionProblem, Prediction, load_profile, resolve
from iosim.base.files import write_whole
from iosim.base.progress import progress
from iosim.catalog.algorithms import options_of
from iosim.catalog.algorithms.delta_rule import DeltaOptions
from iosim.prediction.predictor import predict
from iosim.readers.timing import pass_time

TABLE = "published_linear_attention.csv"
COLUMNS = (
    "table",
    "gpu",
    "framework",
    "version",
    "kernel",
    "phase",
    "batch_size",
    "seq_len",
    "num_k_heads",
    "num_v_heads",
    "latency_ms",
)
KERNELS = {
    ("sglang", "chunk_gated_delta_rule"): "gdn",
    ("vllm", "chunk_gated_delta_rule_triton"): "gdn",
    ("trtllm", "chunk_gated_delta_rule"): "trtllm-gdn",
    ("sglang", "fused_recurrent_gated_delta_rule_packed_decode"): "gdn",
    ("vllm", "fused_recurrent_gated_delta_rule_packed_decode"): "gdn",
    ("sglang", "chunk_kda"): "kda",
    ("vllm", "chunk_kda_with_fused_gate"): "kda",
    ("sglang", "fused_recurrent_kda_packed_decode"): "kda",
    ("vllm", "fused_recurrent_kda_packed_decode"): "kda",
}
"""Kernels of the tables that the catalog has; others are no Triton kernels of fla, or the
type of their state is not recorded."""
UNKNOWN = ("rtx_pro_6000_server",)
"""GPUs without a profile."""
HEAD_DIM = 128
DRAWN = 40
ODD = (("gdn", "context", "sglang", "h200_sxm"),)
"""Cells of which many rows take two to four times as long as the same call on an H100: not fitted on."""
PRODUCT_CYCLES = (600.0, 700.0, 800.0, 900.0, 1000.0, 1100.0, 1200.0, 1300.0, 1400.0)
"""Values that are tried."""


@dataclass(frozen=True)
class Row:
    """A published time."""

    values: dict[str, str]
    judged: bool

    @property
    def cell(self) -> tuple[str, str, str, str]:
        """(table, phase, framework, GPU)."""
        v = self.values
        return v["table"], v["phase"], v["framework"], v["gpu"]

    @property
    def seconds(self) -> float:
        return float(self.values["latency_ms"]) / 1e3

    def prediction(self, **conditions: str) -> Prediction:
        v = self.values
        new = int(v["seq_len"])
        problem = AttentionProblem(
            batch=int(v["batch_size"]),
            heads=int(v["num_v_heads"]),
            kv_heads=int(v["num_k_heads"]),
            seq_q=new,
            head_dim=HEAD_DIM,
            dtype="bf16",
            mask="causal",
            layout="bshd",
        )
        kernel = KERNELS[v["framework"], v["kernel"]]
        gpu = v["gpu"].replace("_", "-")
        resolved = resolve(kernel, problem, load_profile(gpu))
        if v["phase"] == "context":  # of one token, too
            resolved = resolved.with_(
                options=replace(options_of(resolved, DeltaOptions), step_tokens=0)
            )
        return predict(problem, resolved, gpu, l2_start="warm", launched="graph", **conditions)


def shape_hash(values: dict[str, str]) -> str:
    """A hash of all but the time."""
    return hashlib.sha256(",".join(values[name] for name in COLUMNS[:-1]).encode()).hexdigest()


def drawn(folder: Path) -> Iterator[dict[str, str]]:
    """The rows of AIConfigurator's two tables that are kept."""
    cells: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for table in ("gdn", "kda"):
        with open(folder / f"aic_{table}.csv", encoding="utf-8", newline="") as file:
            for values in csv.DictReader(file):
                if (values["framework"], values["kernel"]) in KERNELS and values[
                    "gpu"
                ] not in UNKNOWN:
                    values = {"table": table, **values}
                    key = tuple(values[name] for name in ("table", "gpu", "framework", "kernel"))
                    cells.setdefault(key, []).append(values)
    for _, rows in sorted(cells.items()):
        yield from sorted(rows, key=shape_hash)[:DRAWN]


def rows() -> list[Row]:
    """The rows of the recorded table; of each cell, in the order of the table, every other one is judged."""
    seen: dict[tuple[str, ...], int] = {}
    timed_rows = []
    with open(measurements(TABLE), encoding="utf-8", newline="") as file:
        for values in csv.DictReader(file):
            key = tuple(values[name] for name in ("table", "gpu", "framework", "kernel"))
            seen[key] = seen.get(key, 0) + 1
            timed_rows.append(Row(values, judged=seen[key] % 2 == 0))
    return timed_rows


def predicted(which: Sequence[Row]) -> list[tuple[Row, Prediction]]:
    return [(row, row.prediction()) for row in progress("predicting")(which)]


def judged() -> list[tuple[Row, Prediction]]:
    """The rows that no constant has seen, with their predictions."""
    return predicted([row for row in rows() if row.judged])


def ratio(row: Row, prediction: Prediction) -> float:
    """Predicted over measured, at the present constants."""
    return prediction.call.time(prediction.traffic, prediction.conditions).total_s / row.seconds


def fit() -> None:
    """Prints PRODUCT_CYCLES with the least mean |log(predicted / measured)| over the open rows of prefill, by unit."""
    open_rows = [
        row
        for row in rows()
        if not row.judged and row.values["phase"] == "context" and row.cell not in ODD
    ]
    pairs = predicted(open_rows)
    best: dict[str, tuple[float, float]] = {}
    for product in PRODUCT_CYCLES:
        pass_time.PRODUCT_CYCLES = product
        for unit in ("tcgen05", "other"):
            errors = [abs(math.log(ratio(*pair))) for pair in pairs if _unit(pair[1]) == unit]
            best[unit] = min(best.get(unit, (math.inf,) * 2), (statistics.mean(errors), product))
    for unit, (error, product) in best.items():
        print(f"{unit}: products {product}, mean |log| {error:.3f}")


def _unit(prediction: Prediction) -> str:
    return "tcgen05" if prediction.profile.cc in pass_time.TCGEN05_CC else "other"


def cells(pairs: Sequence[tuple[Row, Prediction]]) -> list[str]:
    """A table of the rows by what was called, who called it and on which GPU."""
    lines = [
        "| kernel | phase | framework | GPU | rows | median | median of sizes | p90 |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for (kernel, phase, framework, gpu), errors in sorted(
        by_cell(pairs, lambda row: row.cell).items()
    ):
        ninth = sorted(map(abs, errors))[int(0.9 * (len(errors) - 1))]
        lines.append(
            f"| {kernel} | {phase} | {framework} | {gpu} | {len(errors)} | {_medians(errors)} | "
            f"{100 * ninth:.0f} % |"
        )
    return lines


def by_cell(
    pairs: Sequence[tuple[Row, Prediction]], key: Callable[[Row], tuple[str, ...]]
) -> dict[tuple[str, ...], list[float]]:
    """Errors, predicted over measured less one, by what `key` says of a row."""
    errors_by_cell: dict[tuple[str, ...], list[float]] = {}
    for row, prediction in pairs:
        errors_by_cell.setdefault(key(row), []).append(prediction.time_s / row.seconds - 1)
    return errors_by_cell


def _medians(errors: Sequence[float], between: str = " | ") -> str:
    both = (
        f"{100 * statistics.median(errors):+.0f} %",
        f"{100 * statistics.median(map(abs, errors)):.0f} %",
    )
    return between.join(both)


def section(pairs: Sequence[tuple[Row, Prediction]]) -> list[str]:
    """The section of docs/validation-others.md: medians by GPU of the judged rows, without the odd cells."""
    errors = by_cell(
        [pair for pair in pairs if pair[0].cell not in ODD],
        lambda row: (row.values["gpu"], row.values["table"], row.values["phase"]),
    )
    heads = [(table, phase) for table in ("gdn", "kda") for phase in ("context", "generation")]
    odd = by_cell([pair for pair in pairs if pair[0].cell in ODD], lambda row: row.cell)
    sizes = [abs(error) for cell in errors.values() for error in cell]
    lines = [
        "",
        "## Gated delta rule and Kimi delta attention",
        "",
        f"Times of AIConfigurator's tables (`experiments/measurements/{TABLE}`), kernels of flash-linear-attention in",
        "SGLang, vLLM and TensorRT-LLM. Three constants of the time model were fitted on every other row of prefill;",
        f"these are the {len(sizes)} others, off by {100 * statistics.median(sizes):.0f} % (median). Of each cell: "
        "median, median of sizes, rows.",
        "`python benchmarks/linear_times.py --cells` tells frameworks apart.",
        "",
        "| GPU | GDN, prefill | GDN, decode | KDA, prefill | KDA, decode |",
        "| --- | --- | --- | --- | --- |",
    ]
    for gpu in sorted({cell[0] for cell in errors}):
        errors_by_gpu = (errors[gpu, *head] for head in heads)
        lines.append(
            " | ".join(
                [
                    f"| {gpu}",
                    *(
                        f"{_medians(errors_here, ', ')}, {len(errors_here)}"
                        for errors_here in errors_by_gpu
                    ),
                ]
            )
            + " |"
        )
    left_out = "; ".join(
        f"{cell[2]}'s prefill on {cell[3]}, {_medians(errors_here, ', ')}"
        for cell, errors_here in odd.items()
    )
    return [
        *lines,
        "",
        "Bytes were counted on an H100 after the predictions (`python experiments/linear.py --predict h100 --beside",
        "experiments/measurements/h100_linear.csv`). SM<->L2 reads are within 1 % in the launches norm, cumsum,",
        "kkt_solve, recompute and output. The walk of states reads less than predicted (46 % in the median), since",
        "tuned tiles take more columns; kkt_solve stores 10 of the 16 blocks of a square; KDA's solve stores six times",
        "what is predicted.",
        "",
        f"Left out, since many calls take two to four times as long as the same on an H100: {left_out}.",
        "FlashInfer's and FlashKDA's kernels, and GPUs without a profile, are not in the table.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draw", type=Path, metavar="FOLDER")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--cells", action="store_true", help="frameworks apart")
    options = parser.parse_args()
    if options.draw:
        lines = [
            ",".join(COLUMNS),
            *(",".join(values[name] for name in COLUMNS) for values in drawn(options.draw)),
        ]
        write_whole(measurements(TABLE), "\n".join(lines) + "\n")
    elif options.fit:
        fit()
    else:
        print("\n".join((cells if options.cells else section)(judged())))


if __name__ == "__main__":
    main()
