"""What the experiments of this folder share: compiling a source for this machine's GPU, running themselves under the
profiler, a table's provenance, and how they end."""

from __future__ import annotations

import argparse
import datetime
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from iosim import InputError
from iosim.base.data import data_dir
from iosim.base.files import write_whole
from iosim.evidence.columns import METRICS
from iosim.evidence.cuda import driver
from iosim.evidence.cuda.compiler import compiler_version, find_nvcc
from iosim.evidence.cuda.ncu import Profiled, import_report
from iosim.evidence.measure import machine
from iosim.evidence.measure.collect import run_profiler
from iosim.evidence.measure.machine import profiler_version

FROM_EMPTY = ("--clock-control", "none", "--cache-control", "all")
"""Options of the profiler: the GPU's own clocks, and every launch from a flushed L2."""


def compiled(
    source: Path,
    cubin: Path,
    defines: Mapping[str, Any] | None = None,
    *,
    accelerated: bool = False,
) -> Path:
    """Compiles a source to `cubin`; gives `cubin`.

    Args:
        accelerated: for the instructions that only this GPU's own generation has (wgmma).

    Raises:
        InputError: no nvcc, or what it says.
    """
    flags = [f"-D{name}={value}" for name, value in (defines or {}).items()]
    architecture = (
        "sm_" + driver.compute_capability().replace(".", "") + ("a" if accelerated else "")
    )
    command = [
        str(find_nvcc()),
        f"-arch={architecture}",
        "-std=c++17",
        "-O3",
        "-cubin",
        f"-I{data_dir('kernels')}",
        *flags,
        "-o",
        str(cubin),
        str(source),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"nvcc: {done.stderr.strip().splitlines()[-1]}")
    return cubin


def profiled(
    command: Sequence[str],
    options: Sequence[str],
    counted: Sequence[str],
    folder: Path,
    leaves: Path | None = None,
) -> str:
    """Runs a script of this folder under the profiler; gives the raw page of the report.

    Args:
        own: the script and its arguments.
        options: the profiler's, but for what is counted.
        counted: columns of the tidy table.
        folder: where the report goes.
        leaves: a file that the script writes, if any.

    Raises:
        InputError: the profiler refuses, or there is no report, or not what the script leaves.
    """
    report = folder / "report"
    metrics = ",".join(METRICS[name][0] for name in counted)
    printed = run_profiler(
        [*options, "--metrics", metrics, "-f", "-o", str(report)], [sys.executable, *command]
    )
    exported = report.with_suffix(".ncu-rep")
    if not exported.is_file() or (leaves is not None and not leaves.is_file()):
        raise InputError(f"the profiler left no report: {printed.strip()[-300:]}")
    return import_report(exported)


def counts(launch: Profiled, counted: Sequence[str]) -> dict[str, int]:
    """What the profiler counted of a launch, by column of the tidy table; 0 where its report lacks one."""
    return {name: round(launch.column(name) or 0) for name in counted}


def replayed(run: Callable[[], object], replays: int) -> float:
    """Seconds of a CUDA graph of what `run` launches on PyTorch's stream: the median of `replays`, after one more."""
    import torch

    stream = torch.cuda.Stream()  # what a first call makes is made outside of the graph
    with torch.cuda.stream(stream):
        run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    seconds = []
    for _ in range(replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(seconds)


def record(
    out: Path,
    measure: Callable[[Path], pd.DataFrame],
    command: str,
    options: Sequence[str],
    **more: str,
) -> None:
    """Writes the table that `measure` makes of PyTorch's kernels in an empty folder, and its provenance.

    `options` are those of the profiler that decide what is counted; see `write_provenance` for the others.
    """
    import torch

    with tempfile.TemporaryDirectory() as name:
        table = measure(Path(name))
    write_whole(out, table.to_csv(index=False))
    driver.use_device()
    write_provenance(
        out,
        command,
        pytorch=torch.__version__,
        profiler=profiler_version(),
        profiler_options=" ".join(options),
        **more,
    )


def record_ranges(
    doc: str,
    ranges: str,
    launch_all: Callable[[], None],
    measure: Callable[[Path], pd.DataFrame],
    options: Sequence[str],
    notes: Mapping[str, str],
) -> None:
    """The command line of a script that counts ranges of launches: --launch makes them, for the profiler, --dry-run says
    how many there are, and --out records what `measure` makes of them, with `notes` in its provenance."""
    parser = argparse.ArgumentParser(description=doc.split(":")[0])
    parser.add_argument("--out", type=Path, help="CSV to write; its provenance goes beside it")
    parser.add_argument("--launch", action="store_true", help="make the launches; for the profiler")
    parser.add_argument("--dry-run", action="store_true", help="count the ranges; needs no GPU")
    arguments = parser.parse_args()
    if arguments.dry_run:
        print(ranges)
        return
    if arguments.launch:
        launch_all()
        return
    if arguments.out is None:
        parser.error("--out FILE is needed")
    out: Path = arguments.out
    command = f"python experiments/{Path(sys.argv[0]).name} --out {out.name}"
    record(out, measure, command, options, **notes)


def write_provenance(out: Path, command: str, **more: str) -> None:
    """Writes into the folder's provenance.toml of a table: GPU, driver, compiler, day, command, and `more`."""
    properties = driver.properties()
    provenance = {
        "gpu": properties["gpu"],
        "driver": properties["driver_cuda"],
        "cuda_compiler": compiler_version(find_nvcc()),
        "date": datetime.date.today().isoformat(),
        "command": command,
        **more,
    }
    machine.write_provenance(out, provenance)


def run_script(main: Callable[[], None]) -> None:
    """Runs a script's `main`; what it finds wrong is told in one line, and the script ends with 2."""
    try:
        main()
    except InputError as error:
        print(f"{Path(sys.argv[0]).stem}: {error}", file=sys.stderr)
        sys.exit(2)
