"""Training steps of PyTorch on a GPU: saved storages, bytes asked of the allocator, times. Needs a CUDA GPU and torch.

    python benchmarks/training_on_gpu.py --out rows.csv          # the small models, for bytes
    python benchmarks/training_on_gpu.py --times --out rows.csv  # larger ones, for seconds as well

A row has what PyTorch counts: `requested_bytes` of torch.cuda.memory_stats at the peak of forward, backward and step,
beyond what lived before the step, after a first step that fills cuBLAS' workspace. The last line says how many rows
iosim.studies.training predicts to the byte. experiments/measurements/h200_training_bytes.csv and
h200_training_times.csv are its output on an H200 with PyTorch 2.11;
tests/studies/training/test_prediction.py compares them with the predictions.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import torch  # noqa: E402
from torch_decoder import Step, saved_storages  # noqa: E402

import iosim.studies.training.graph as saved  # noqa: E402
from iosim.studies.training.graph import Kind  # noqa: E402
from iosim.studies.training.model import Decoder, Setup  # noqa: E402
from iosim.studies.training.plan import plan  # noqa: E402
from iosim.studies.training.timeline import play  # noqa: E402

SMALL = (
    {},
    {
        "gated": True,
        "activation": "silu",
        "norm": "rms",
        "positions": "none",
        "bias": False,
        "tied": False,
    },
    {"vocabulary": 0, "activation": "relu"},
)
OPTIMIZERS = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
REPEATS = 5
VOCABULARY = 50304
"""A multiple of 64: products over an odd number of columns take other, slower kernels."""


def small() -> Iterator[tuple[Decoder, Setup]]:
    """Shapes that differ in all that changes what is saved."""
    for attention, number, recompute, (batch, heads, kv), more in itertools.product(
        ("naive", "flash"),
        ("fp32", "bf16", "amp-bf16", "amp-fp16"),
        ("none", "full", "attention"),
        ((1, 4, 4), (2, 4, 4), (2, 1, 1), (2, 4, 2)),
        SMALL,
    ):
        if number == "fp32" and attention == "flash" and kv != heads:
            continue  # the memory-efficient kernel takes no grouped heads
        model = Decoder(
            layers=2, width=128, heads=heads, kv_heads=kv, **({"vocabulary": 512} | more)
        )
        yield (
            model,
            Setup(
                batch=batch, seq_len=192, attention=attention, precision=number, recompute=recompute
            ),
        )


def large() -> Iterator[tuple[Decoder, Setup]]:
    """Shapes on which a step takes milliseconds."""
    for width, layers, tokens in (
        (1024, 4, 2048),
        (1024, 4, 8192),
        (2048, 4, 4096),
        (4096, 2, 2048),
    ):
        for attention, number in itertools.product(
            ("naive", "flash"), ("fp32", "bf16", "amp-bf16")
        ):
            for recompute in ("none", "full"):
                model = Decoder(
                    layers=layers, width=width, heads=width // 64, vocabulary=VOCABULARY
                )
                yield (
                    model,
                    Setup(
                        seq_len=tokens, attention=attention, precision=number, recompute=recompute
                    ),
                )


def counted(kind: str) -> int:
    return int(torch.cuda.memory_stats()[f"requested_bytes.all.{kind}"])


def measured(model: Decoder, setup: Setup, times: bool) -> dict[str, Any]:
    """What PyTorch counts for one step after the first."""
    results: dict[str, Any] = {}
    if not times:
        results["saved_sizes"] = saved_storages(Step(model, setup, "cuda"))
    step = Step(model, setup, "cuda")
    optimizer = OPTIMIZERS[setup.optimizer](step.network.parameters(), lr=1e-4)

    def once() -> dict[str, int]:
        optimizer.zero_grad()
        base, peaks = counted("current"), {}
        torch.cuda.reset_peak_memory_stats()
        result = step.forward()
        peaks["forward"] = counted("peak") - base
        torch.cuda.reset_peak_memory_stats()
        step.backward(result)
        peaks["backward"] = counted("peak") - base
        torch.cuda.reset_peak_memory_stats()
        optimizer.step()
        peaks["step"] = counted("peak") - base
        return peaks

    once()
    results |= once()
    results["reserved"] = int(torch.cuda.max_memory_reserved())
    if times:
        results["seconds"] = timed(step, optimizer)
    return results


def timed(step: Step, optimizer: torch.optim.Optimizer) -> float:
    """The median of `REPEATS` steps, by the host's clock between two synchronizations."""
    taken = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        optimizer.zero_grad()
        step.backward(step.forward())
        optimizer.step()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return sorted(taken)[REPEATS // 2]


def predicted(model: Decoder, setup: Setup) -> dict[str, Any]:
    graph = plan(model, setup)
    line = play(graph)
    fixed = (Kind.PARAMETER, Kind.OPTIMIZER, Kind.INPUT)
    first = line.events[0].by_kind
    base = sum(first.get(k, 0) for k in fixed)
    return {"saved_sizes": sorted(s.bytes for s in saved.saved_storages(graph))} | {
        phase: peak - base for phase, peak in line.phase_peaks().items()
    }


def changed(setting: Decoder | Setup, default: Decoder | Setup) -> str:
    """JSON of the fields that are not the default."""
    defaults = default.to_dict()
    return json.dumps(
        {k: v for k, v in setting.to_dict().items() if v != defaults[k] and k != "head_dim"}
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True)
    parser.add_argument("--times", action="store_true")
    args = parser.parse_args()
    rows = []
    equal = 0
    for model, setup in large() if args.times else small():
        try:
            mine = predicted(model, setup)
            theirs = measured(model, setup, args.times)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            print(f"{model} {setup}: {error}", file=sys.stderr)
            continue
        equal += all(mine[k] == v for k, v in theirs.items() if k in mine)
        row: dict[str, Any] = {"model": changed(model, Decoder()), "setup": changed(setup, Setup())}
        if not args.times:
            row["saved"] = sum(theirs["saved_sizes"])
        rows.append(row | {k: v for k, v in theirs.items() if k != "saved_sizes"})
        torch.cuda.empty_cache()
    with open(args.out, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: {len(rows)} rows, {equal} equal in all bytes"
    )


if __name__ == "__main__":
    main()
