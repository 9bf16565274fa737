"""Runs every `bench_*.py` beside it and writes what they print to `results.md`: `python benchmarks/run.py [NAME ...]`.

Names (`cli`, `count`, ...) choose some of them; their sections are then replaced and the others kept.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.md"


def machine() -> str:
    """The machine in general terms: what a reader needs to judge the numbers, and nothing that names it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{platform.system()} on {platform.machine()}, {cores} cores; "
        f"Python {platform.python_version()}, NumPy {version('numpy')}"
    )


def result(script: Path) -> str:
    """What a benchmark prints: Markdown tables as they are, other output as a block of code."""
    done = subprocess.run([sys.executable, str(script)], check=True, capture_output=True, text=True)
    text = done.stdout.strip()
    return text if text.startswith("|") else f"```\n{text}\n```"


def old_sections() -> dict[str, str]:
    """Sections of the results that are there already, by name."""
    if not RESULTS.exists():
        return {}
    return dict(
        re.findall(
            r"^## (\w+)\n\n(.*?)\n(?=\n## |\Z)", RESULTS.read_text(encoding="utf-8"), re.M | re.S
        )
    )


def main() -> None:
    scripts = {p.stem.removeprefix("bench_"): p for p in sorted(HERE.glob("bench_*.py"))}
    wanted = sys.argv[1:] or list(scripts)
    unknown = [name for name in wanted if name not in scripts]
    if unknown:
        sys.exit(f"no benchmark {', '.join(unknown)}; there are: {', '.join(scripts)}")
    sections = old_sections()
    for name in wanted:
        print(f"running {name}", file=sys.stderr)
        sections[name] = (
            f"`python benchmarks/bench_{name}.py`, {machine()}.\n\n{result(scripts[name])}"
        )
    body = "\n".join(f"## {name}\n\n{sections[name]}\n" for name in scripts if name in sections)
    RESULTS.write_text(
        f"# Results\n\nWritten by `python benchmarks/run.py`.\n\n{body}", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
