"""Seconds of commands that take some: `python benchmarks/bench_report.py`.

Whole processes, imports included: README's report from an empty cache and again, tiles on four GPUs, and validation.
Wall and CPU seconds of the best of three runs; of what begins with an empty cache, of one.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPORT = (
    "report",
    "--gpu",
    "t4,l4,a100,h100",
    "--kernel",
    "naive,cutlass,fa2",
    "--seq-len",
    "512:64k:x2",
    "--out",
)
RUNS = 3


def seconds(words: tuple[str, ...], cache: str, runs: int = RUNS) -> tuple[float, float]:
    """(wall, CPU) seconds of `iosim` with these words and a cache of its own."""
    times = []
    for _ in range(runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begin = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "iosim", *words],
            check=True,
            capture_output=True,
            env={**os.environ, "IOSIM_CACHE": cache},
        )
        wall = time.perf_counter() - begin
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append((wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return min(times)


def main() -> None:
    print("| whole process | wall, s | CPU, s | asked for |")
    print("| --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        cache = str(Path(folder, "cache"))
        out.mkdir()
        seconds(("profiles", "list"), "off", 1)  # its modules are compiled
        for stage, words, runs, target in (
            ("README's report, empty cache", (*REPORT, str(out)), 1, "12 s on two cores"),
            ("and again", (*REPORT, str(out)), RUNS, "1.5 s"),
            (
                "`iosim tiles --gpu t4,l4,a100,h100`",
                ("tiles", "--gpu", "t4,l4,a100,h100"),
                RUNS,
                "2.5 s",
            ),
            ("`iosim validate`", ("validate",), RUNS, "12 s"),
        ):
            wall, cpu = seconds(words, cache, runs)
            print(f"| {stage} | {wall:.2f} | {cpu:.2f} | {target} |")


if __name__ == "__main__":
    main()
