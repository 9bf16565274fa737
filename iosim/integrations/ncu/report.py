"""Reports of Nsight Compute read by the profiler's own Python module, `ncu_report` (pip install ncu-report)."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.integrations.ncu.rule import facts_of

MODULE = "ncu_report"
BESIDE = Path("/opt/nvidia/nsight-compute")
PLACES = "*/extras/python"
"""Where Nsight Compute's own installation keeps the module."""
NO_MODULE = 3
"""Exit code: there is no module, or it does not load."""


def module() -> Any:
    """The profiler's Python module; None where it is neither installed nor with a toolkit."""
    try:
        return importlib.import_module(MODULE)
    except (ImportError, OSError):
        pass
    for folder in sorted(BESIDE.glob(PLACES), reverse=True):
        sys.path.append(str(folder))
        try:
            return importlib.import_module(MODULE)
        except (ImportError, OSError):
            continue
        finally:
            sys.path.remove(str(folder))
    return None


def launches(path: Path) -> list[dict[str, Any]] | None:
    """The launches of a report, as the rule hands one on; None where there is no module. The module runs in a process
    of its own: what it cannot read may end it. Raises InputError where the module cannot read the report: it is none,
    or of a later version."""
    if importlib.util.find_spec(MODULE) is None and not any(BESIDE.glob(PLACES)):
        return None
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(path)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode == NO_MODULE:
        return None
    if done.returncode != 0:
        messages = done.stderr.strip().splitlines() or [
            f"it ended with exit code {done.returncode}"
        ]
        raise InputError(f"{MODULE} cannot read '{path.name}': {messages[-1][:300]}")
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def main() -> int:
    reader = module()
    if reader is None:
        return NO_MODULE
    report = reader.load_report(sys.argv[1])
    if report is None or not report.num_ranges():
        print("it is no report, or one of a later version", file=sys.stderr)
        return 1
    ranges = [report.range_by_idx(number) for number in range(report.num_ranges())]
    print(
        json.dumps(
            [
                facts_of(range_.action_by_idx(n))
                for range_ in ranges
                for n in range(range_.num_actions())
            ]
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
