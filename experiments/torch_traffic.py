"""Whole models under the profiler: HBM bytes of a step as one range, and what `iosim.torch.TrafficMode` says of it.

    python experiments/torch_traffic.py predict OUT.csv      on any machine, on meta tensors
    ncu ... python experiments/torch_traffic.py ranges       on the GPU: a range a case, L2 flushed before each
    ncu ... python experiments/torch_traffic.py kernels NAME on the GPU: the kernels of one model's step, one after the other
    python experiments/torch_traffic.py list OUT.csv         on the GPU: kernels and their times, by PyTorch's profiler
    python experiments/torch_traffic.py join RANGES.csv PREDICTED.csv OUT.csv

The profiler's options: OPTIONS below, and for single kernels KERNEL_OPTIONS, whose one pass leaves the L2 as it was.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch_models import attention_call, cases, model_call

METRICS = "dram__bytes_read.sum,dram__bytes_write.sum"
OPTIONS = f"--replay-mode app-range --cache-control all --clock-control none --metrics {METRICS}"
KERNEL_OPTIONS = (
    f"--replay-mode kernel --cache-control none --clock-control none --profile-from-start off --metrics {METRICS}"
)
FLUSH_BYTES = 1 << 30
WARM_UPS = 3
COLUMNS = ("what", "name", "backend", "passes")


def prepared(what: str, name: str, backend: str, passes: str, device: str) -> tuple[Callable[[], Any], Any]:
    """(one step, the model or None)."""
    if what == "model":
        return model_call(name, passes, device)
    return attention_call(name, backend, passes, device), None


def on_gpu(case: tuple[str, str, str, str], begin: Callable[[], None], end: Callable[[], None]) -> None:
    """One step of a case between `begin` and `end`, after others without, from an L2 full of what nobody needs."""
    step, model = prepared(*case, "cuda")
    filler = torch.zeros(FLUSH_BYTES // 4, device="cuda")
    for _ in range(WARM_UPS):
        kept = step()
        del kept
        if model is not None:
            model.zero_grad(set_to_none=True)
    filler.sum()
    torch.cuda.synchronize()
    begin()
    kept = step()
    torch.cuda.synchronize()
    end()
    del kept, step, model, filler
    torch.cuda.empty_cache()


def ranges() -> None:
    """A range a case."""
    runtime: Any = torch.cuda.cudart()
    for case in cases():
        on_gpu(case, runtime.cudaProfilerStart, runtime.cudaProfilerStop)


def kernels(name: str) -> None:
    """The kernels of one model's step."""
    runtime: Any = torch.cuda.cudart()
    on_gpu(("model", name, "default", "fwd+bwd"), runtime.cudaProfilerStart, runtime.cudaProfilerStop)


def listed(out: str) -> None:
    """Kernels of every case with their times, and the versions of what ran."""
    from torch.profiler import ProfilerActivity, profile

    rows = []
    for case in cases():
        profiler = profile(activities=[ProfilerActivity.CUDA])
        on_gpu(case, profiler.start, profiler.stop)
        on_device = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA]
        for event in sorted(on_device, key=lambda e: e.time_range.start):
            rows.append([*case, event.name[:160], f"{event.time_range.elapsed_us():.3f}"])
    write(out, (*COLUMNS, "kernel", "us"), rows)
    print(torch.__version__, torch.version.cuda, "cudnn", torch.backends.cudnn.version(), torch.cuda.get_device_name())


def predict(out: str, gpu: str = "h200", cudnn: str | None = None) -> None:
    """What TrafficMode says of every case."""
    from iosim.torch import TrafficMode

    rows = []
    for case in cases():
        step, _ = prepared(*case, "meta")
        with TrafficMode(gpu=gpu, cudnn=cudnn) as t:
            kept = step()
        del kept
        result = t.result
        attention = result.attention
        kernels = "+".join(dict.fromkeys(r.kernel or "math" for r in attention.rows))
        rows.append([*case, kernels, len(result.rows), result.hbm.read, result.hbm.write, attention.hbm.read,
                     attention.hbm.write, f"{result.time_s:.9f}"])  # fmt: skip
    write(out, (*COLUMNS, "kernel", "operators", "hbm_read", "hbm_write", "attention_read", "attention_write", "seconds"),
          rows)  # fmt: skip


def join(counted: str, predicted: str, out: str) -> None:
    """Counted bytes of the profiler's raw page beside the predicted ones."""
    lines = Path(counted).read_text(encoding="utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith('"ID"'))
    page = list(csv.DictReader(lines[start:]))
    units, found = page[0], page[1:]
    with open(predicted, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(found) == len(rows), f"{len(found)} ranges of {len(rows)} cases"
    scale = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
    joined = []
    for range_row, row in zip(found, rows, strict=True):
        bytes_of = [
            round(float(range_row[metric].replace(",", "")) * scale[units[metric]]) for metric in METRICS.split(",")
        ]
        joined.append([*(row[c] for c in COLUMNS), row["kernel"], *bytes_of, row["hbm_read"], row["hbm_write"]])
    write(out, (*COLUMNS, "kernel", "hbm_read", "hbm_write", "predicted_read", "predicted_write"), joined)


def write(path: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        table.writerows(rows)


COMMANDS: Mapping[str, Callable[..., None]] = {
    "predict": predict, "ranges": ranges, "kernels": kernels, "list": listed, "join": join,
}  # fmt: skip

if __name__ == "__main__":
    COMMANDS[sys.argv[1]](*sys.argv[2:])
