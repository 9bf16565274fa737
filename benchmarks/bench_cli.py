"""Whole-process time of the command line beside that of importing NumPy: `python benchmarks/bench_cli.py [runs]`.

`iosim predict --method capacity` should take at most 3 times as long as `python -c "import numpy"`. Runs of the
commands alternate, so that a busy moment of the machine hits all of them; medians are printed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

RUNS = 15
CLI = ("-m", "iosim")
COMMANDS: dict[str, tuple[str, ...]] = {
    'python -c "import numpy"': ("-c", "import numpy"),
    "python -c pass": ("-c", "pass"),
    "iosim --help": (*CLI, "--help"),
    "iosim predict --method capacity (naive and fa2)": (*CLI, "predict", "--method", "capacity"),
    "iosim predict --method capacity, 64k tokens, fwd+bwd": (
        *CLI, "predict", "--method", "capacity", "--seq-len", "64k", "--causal", "--pass", "fwd+bwd",
    ),
    "iosim profiles list": (*CLI, "profiles", "list"),
    "iosim reproduce": (*CLI, "reproduce"),
}  # fmt: skip


def seconds(arguments: tuple[str, ...]) -> float:
    """Wall time of one Python process; compiled modules come from the cache, as for an installed program."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, cwd=os.path.dirname(__file__))
    return time.perf_counter() - start


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    for arguments in COMMANDS.values():
        seconds(arguments)
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(runs):
        for name, arguments in COMMANDS.items():
            times[name].append(seconds(arguments))
    median = {name: statistics.median(values) for name, values in times.items()}
    base = next(iter(median.values()))
    print(f"| whole process | median of {runs}, ms | times `import numpy` |")
    print("| --- | ---: | ---: |")
    for name, value in median.items():
        print(f"| `{name}` | {value * 1e3:.0f} | {value / base:.2f} |")


if __name__ == "__main__":
    main()
