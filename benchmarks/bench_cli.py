"""CPU time of whole processes beside that of importing NumPy: `python benchmarks/bench_cli.py [runs]`.

`iosim predict --gpu h100 --kernel fa2 --seq-len 4096` should take at most twice as long as `python -c "import numpy"`,
user and system time together. Runs of the commands alternate, so that a busy moment of the machine hits all of them;
medians are printed.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys

RUNS = 15
CLI = ("-m", "iosim")
COMMANDS: dict[str, tuple[str, ...]] = {
    'python -c "import numpy"': ("-c", "import numpy"),
    "python -c pass": ("-c", "pass"),
    "iosim --help": (*CLI, "--help"),
    "iosim predict --gpu h100 --kernel fa2 --seq-len 4096": (
        *CLI,
        "predict",
        "--gpu",
        "h100",
        "--kernel",
        "fa2",
        "--seq-len",
        "4096",
    ),
    "iosim predict --method capacity (naive and fa2)": (*CLI, "predict", "--method", "capacity"),
    "iosim predict --method capacity, 64k tokens, fwd+bwd": (
        *CLI,
        "predict",
        "--method",
        "capacity",
        "--seq-len",
        "64k",
        "--causal",
        "--pass",
        "fwd+bwd",
    ),
    "iosim profiles list": (*CLI, "profiles", "list"),
    "iosim reproduce": (*CLI, "reproduce"),
}


def seconds(arguments: tuple[str, ...]) -> float:
    """CPU time of one Python process; compiled modules come from the cache, as for an installed program."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=os.path.dirname(__file__),
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


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
    print(f"| whole process | CPU, median of {runs}, ms | times `import numpy` |")
    print("| --- | ---: | ---: |")
    for name, value in median.items():
        print(f"| `{name}` | {value * 1e3:.0f} | {value / base:.2f} |")


if __name__ == "__main__":
    main()
