"""Whole models under the profiler: HBM bytes of a step as one range, and what `iosim.torch.TrafficMode` says of it.

    python experiments/torch_traffic.py predict OUT.csv [SET]    on any machine, on meta tensors
    ncu ... python experiments/torch_traffic.py ranges [SET]     on the GPU: a range a case, L2 flushed before each
    ncu ... python experiments/torch_traffic.py kernels NAME [SET]   on the GPU: one model's step, kernel by kernel
    python experiments/torch_traffic.py list OUT.csv [SET]       on the GPU: kernels and times, by PyTorch's profiler
    python experiments/torch_traffic.py join RANGES.csv LIST.csv OUT.csv [SET]
    python experiments/torch_traffic.py table OUT.csv NAME=KERNELS.csv ...
    python experiments/torch_traffic.py compare [SET [COUNTED.csv]]  predictions beside what was counted

SET is `models` (torch_models.py) where none is given, or `transformers` or `later` (torch_transformers.py). The
profiler's options are OPTIONS below, and for single kernels KERNEL_OPTIONS, whose one pass leaves the L2 as it was.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch_models
import torch_transformers

METRICS = "dram__bytes_read.sum,dram__bytes_write.sum"
OPTIONS = f"--replay-mode app-range --cache-control all --clock-control none --metrics {METRICS}"
KERNEL_OPTIONS = f"--replay-mode kernel --cache-control none --clock-control none --profile-from-start off --metrics {METRICS}"
FLUSH_BYTES = 1 << 30
CUDNN = "9.19.0"
"""The version that was there."""
MEASUREMENTS = Path(__file__).resolve().parent / "measurements"
COUNTED = {
    "models": "h200_torch_traffic.csv",
    "transformers": "h200_torch_transformers.csv",
    "later": "h200_torch_transformers_later.csv",
}
IN_PLACE = MEASUREMENTS / "h200_torch_kernels.csv"
ATTENTION_KERNELS = {"cudnn_generated": "cudnn", "pytorch_flash": "fa2"}
WARM_UPS = 3
COLUMNS = ("what", "name", "backend", "passes")
Case = tuple[str, str, str, str]


def cases(which: str = "models") -> list[Case]:
    """What is predicted and counted, in order."""
    if which == "models":
        return torch_models.cases()
    return [
        ("transformers", name, "default", passes)
        for name in (torch_transformers.LATER if which == "later" else torch_transformers.CASES)
        for passes in torch_transformers.PASSES
    ]


def prepared(
    kind: str, name: str, backend: str, passes: str, device: str
) -> tuple[Callable[[], Any], Any]:
    """(one step, the model or None)."""
    if kind == "transformers":
        return torch_transformers.call(name, passes, device)
    if kind == "model":
        return torch_models.model_call(name, passes, device)
    return torch_models.attention_call(name, backend, passes, device), None


def on_gpu(case: Case, begin: Callable[[], None], end: Callable[[], None]) -> None:
    """One step of a case between `begin` and `end`, after others without, from an L2 full of what nobody needs."""
    step, model = prepared(*case, "cuda")
    filler = torch.zeros(FLUSH_BYTES // 4, device="cuda")
    for _ in range(WARM_UPS):
        tensors = step()
        del tensors
        if model is not None:
            model.zero_grad(set_to_none=True)
    filler.sum()
    torch.cuda.synchronize()
    begin()
    tensors = step()
    torch.cuda.synchronize()
    end()
    del tensors, step, model, filler
    torch.cuda.empty_cache()


def ranges(which: str = "models") -> None:
    """A range a case."""
    runtime: Any = torch.cuda.cudart()
    for case in cases(which):
        on_gpu(case, runtime.cudaProfilerStart, runtime.cudaProfilerStop)


def kernels(name: str, which: str = "models") -> None:
    """The kernels of one model's step."""
    runtime: Any = torch.cuda.cudart()
    kind = "model" if which == "models" else which
    on_gpu((kind, name, "default", "fwd+bwd"), runtime.cudaProfilerStart, runtime.cudaProfilerStop)


def listed(out: str, which: str = "models") -> None:
    """Kernels of every case with their times, and the versions of what ran."""
    from torch.profiler import ProfilerActivity, profile

    rows = []
    for case in cases(which):
        profiler = profile(activities=[ProfilerActivity.CUDA])
        on_gpu(case, profiler.start, profiler.stop)
        on_device = [
            e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA
        ]
        for event in sorted(on_device, key=lambda e: e.time_range.start):
            rows.append([*case, event.name[:160], f"{event.time_range.elapsed_us():.3f}"])
    write(out, (*COLUMNS, "kernel", "us"), rows)
    print(
        torch.__version__,
        torch.version.cuda,
        "cudnn",
        torch.backends.cudnn.version(),
        torch.cuda.get_device_name(),
    )


def predicted(case: Case, gpu: str = "h200", cudnn: str | None = CUDNN) -> Any:
    """What TrafficMode says of a case."""
    from iosim.torch import TrafficMode

    step, _ = prepared(*case, "meta")
    with TrafficMode(gpu=gpu, cudnn=cudnn) as t:
        tensors = step()
    del tensors
    return t.result


def predict(out: str, which: str = "models") -> None:
    """What TrafficMode says of every case, as a table."""
    columns = (
        "kernel",
        "operators",
        "hbm_read",
        "hbm_write",
        "attention_read",
        "attention_write",
        "seconds",
    )
    rows = []
    for case in cases(which):
        result = predicted(case)
        attention = result.attention
        kernels = "+".join(dict.fromkeys(r.kernel or "math" for r in attention.rows))
        rows.append(
            [
                *case,
                kernels,
                len(result.rows),
                result.hbm.read,
                result.hbm.write,
                attention.hbm.read,
                attention.hbm.write,
                f"{result.time_s:.9f}",
            ]
        )
    write(out, (*COLUMNS, *columns), rows)


def raw_page(path: str) -> list[tuple[str, int, int]]:
    """(name, bytes read, bytes written) of each row of the profiler's raw page in CSV."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith('"ID"'))
    units, *rows = csv.DictReader(lines[start:])
    scale = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}

    def bytes_of(row: Mapping[str, str], metric: str) -> int:
        return round(float(row[metric].replace(",", "")) * scale[units[metric]])

    read, written = METRICS.split(",")
    return [(row["Kernel Name"], bytes_of(row, read), bytes_of(row, written)) for row in rows]


def join(ranges: str, kernel_list: str, out: str, which: str = "models") -> None:
    """Counted bytes of the profiler's raw page beside the kernels that ran, their number and the sum of their times."""
    counted = raw_page(ranges)
    assert len(counted) == len(cases(which)), f"{len(counted)} ranges of {len(cases(which))} cases"
    with open(kernel_list, encoding="utf-8", newline="") as file:
        listed_rows = list(csv.DictReader(file))
    rows = []
    for case, (_, read, written) in zip(cases(which), counted, strict=True):
        mine = [row for row in listed_rows if tuple(row[c] for c in COLUMNS) == case]
        names = dict.fromkeys(
            short
            for row in mine
            for word, short in ATTENTION_KERNELS.items()
            if word in row["kernel"]
        )
        seconds = sum(float(row["us"]) for row in mine) / 1e6
        rows.append([*case, "+".join(names), len(mine), read, written, f"{seconds:.9f}"])
    write(out, (*COLUMNS, "kernel", "launches", "hbm_read", "hbm_write", "seconds"), rows)


def table(out: str, *pages: str) -> None:
    """Raw pages of single kernels as one table; each page is NAME=PAGE.csv."""
    rows = [
        [name, n, kernel[:120], read, written]
        for name, path in (page.split("=", 1) for page in pages)
        for n, (kernel, read, written) in enumerate(raw_page(path), start=1)
    ]
    write(out, ("name", "launch", "kernel", "hbm_read", "hbm_write"), rows)


def compare(which: str = "models", counted: str = "") -> None:
    """Counted bytes read and written, and how far predicted ones are off; of seconds, too."""
    with open(counted or MEASUREMENTS / COUNTED[which], encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    print(
        f"{'what':13}{'model':10}{'backend':9}{'pass':9}{'read':>10}{'off':>8}{'written':>11}{'off':>8}{'both':>8}"
        f"{'time':>8}"
    )
    for row in rows:
        case = (row["what"], row["name"], row["backend"], row["passes"])
        result = predicted(case)
        print(
            line(case, (int(row["hbm_read"]), int(row["hbm_write"])), result.hbm)
            + f"{100 * (result.time_s / float(row['seconds']) - 1):+7.1f}%"
        )
    if which == "models":
        in_place()


def line(case: Case, counted: tuple[int, int], predicted: Any) -> str:
    """Counted bytes and how far those are off that a prediction says."""
    read, written = counted
    off = [
        100 * (x / y - 1)
        for x, y in (
            (predicted.read, read),
            (predicted.write, written),
            (predicted.total, read + written),
        )
    ]
    return (
        f"{case[0]:13}{case[1]:10}{case[2]:9}{case[3]:9}{read / 1e6:7,.0f} MB{off[0]:+7.1f}%"
        f"{written / 1e6:8,.0f} MB{off[1]:+7.1f}%{off[2]:+7.1f}%"
    )


def in_place() -> None:
    """Attention of the GPT-2's training step where it runs, forward and backward: predicted against counted bytes."""
    with open(IN_PLACE, encoding="utf-8", newline="") as file:
        counted = [
            row
            for row in csv.DictReader(file)
            if row["name"] == "gpt2" and "cudnn" in row["kernel"]
        ]
    attention = predicted(("model", "gpt2", "default", "fwd+bwd")).attention
    for phase, words in (
        ("forward", ("fprop",)),
        ("backward", ("bprop", "compute_dot_do_o", "convert_dq")),
    ):
        mine = [row for row in counted if any(word in row["kernel"] for word in words)]
        traffic = (
            sum(int(row["hbm_read"]) for row in mine),
            sum(int(row["hbm_write"]) for row in mine),
        )
        print(line(("in place", "gpt2", "default", phase), traffic, attention.phase(phase).hbm))


def write(path: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        table.writerows(rows)


COMMANDS: Mapping[str, Callable[..., None]] = {
    "predict": predict,
    "ranges": ranges,
    "kernels": kernels,
    "list": listed,
    "join": join,
    "table": table,
    "compare": compare,
}

if __name__ == "__main__":
    COMMANDS[sys.argv[1]](*sys.argv[2:])
