"""Builds what a bench needs, runs it as a worker that hands its rows over, and starts it anew where it hangs.

A worker prints `ITEM n` as it begins one, `ROW ...` for a row of the table, `WRONG ...` for a wrong result.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sm90 import CC

from iosim.base.files import write_whole
from iosim.evidence.cuda.compiler import build
from iosim.evidence.cuda.spec import Spec
from iosim.evidence.measure.machine import facts, write_provenance

SILENT_S, MOST_LOST = 30, 4
"""A worker that prints nothing for so long hangs; so many may."""


def prebuild(specs: Sequence[Spec]) -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda spec: build(spec, CC), dict.fromkeys(specs)))


def guarded(items: int, out: Path | None, columns: Sequence[str], notes: dict[str, str]) -> int:
    """Runs this script as a worker over the items, anew where one hangs or dies, and writes the rows it hands over.

    Returns:
        0 where every item came to its end and no line said WRONG.
    """
    start = lost = wrong = 0
    rows: list[str] = []
    while start < items and lost < MOST_LOST:
        worker = subprocess.Popen(
            [sys.executable, "-u", *sys.argv, "--worker", str(start)], stdout=subprocess.PIPE
        )
        assert worker.stdout is not None
        rest = b""
        while True:
            if not select.select([worker.stdout], [], [], SILENT_S)[0]:
                worker.kill()
            chunk = os.read(worker.stdout.fileno(), 1 << 16)
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            for line in (x.decode() for x in lines):
                if line.startswith("ITEM "):
                    start = int(line.split()[1]) + 1
                elif line.startswith("ROW "):
                    rows.append(line.removeprefix("ROW "))
                else:
                    wrong += line.startswith("WRONG")
                    print(line, flush=True)
        if worker.wait() == 0:
            break
        lost += 1
        print(f"LOST item {start - 1}, code {worker.returncode}", flush=True)
    if out is not None and not lost:
        write_whole(out, "\n".join([",".join(columns), *rows]) + "\n")
        write_provenance(out, facts() | {"command": " ".join(["python", *sys.argv]), **notes})
    return 1 if lost or wrong else 0
