"""Seconds and bytes of a report over 5 GPUs x 10 lengths x 3 kernels: `python benchmarks/bench_report.py`.

Each line is the best of three runs in one process; the last is a whole process, imports included.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from iosim.problem.attention import AttentionProblem
from iosim.studies.report import ReportRequest, build, render

GPUS = ("t4", "l4", "a100", "h100", "h200")
KERNELS = ("naive", "cutlass", "fa2")
RUNS = 3


def best_of(call: Callable[[], object]) -> float:
    """Shortest of RUNS calls, in seconds."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def whole_process() -> None:
    """The same report from the command line, into a directory that is thrown away."""
    words = [word for name in GPUS for word in ("--gpu", name)]
    words += [word for name in KERNELS for word in ("--kernel", name)]
    with tempfile.TemporaryDirectory() as out:
        command = [
            sys.executable,
            "-m",
            "iosim.commands.cli",
            "report",
            *words,
            "--seq-len",
            "512:256k:x2",
            "--out",
            out,
        ]
        subprocess.run(command, check=True, capture_output=True)


def main() -> None:
    """Print the table."""
    problems = tuple(AttentionProblem(heads=32, seq_q=512 << n, head_dim=128) for n in range(10))
    request = ReportRequest.of(GPUS, KERNELS, problems)
    report = build(request)
    size = {kind: len(render(report, kind).encode()) for kind in ("html", "md")}
    print(f"predictions        {len(report.points):8d}")
    print(f"build              {best_of(lambda: build(request)):8.3f} s")
    print(f"HTML               {best_of(lambda: render(report, 'html')):8.3f} s  {size['html']:,} bytes")
    print(f"Markdown           {best_of(lambda: render(report, 'md')):8.3f} s  {size['md']:,} bytes")
    print(f"whole process      {best_of(whole_process):8.3f} s  (at most 10 s is asked for)")


if __name__ == "__main__":
    main()
