"""What runs under the profiler: `python -m iosim.evidence.measure.profiled PLAN.json LAUNCHED.jsonl`.

Each call of the plan is checked against float64 on fresh inputs; only where it is right are its launches made again
with the profiler on, and a line for each launch written. A line without a kernel says why a call was not profiled.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

import torch

from iosim.base.errors import InputError
from iosim.evidence.cuda.compiler import cache_key
from iosim.evidence.measure.case import Case, describe
from iosim.evidence.measure.harness import inputs, launches, loaded, trusted, workspace


def run(calls: list[dict[str, Any]], warm: bool, out: TextIO) -> None:
    """Checks and profiles calls; `out` gets a JSON line a launch, or a line with `left_out`, the reason."""
    for call in calls:
        case = Case.from_dict(call["case"])
        row = describe(case) | {"call": str(call["call"])}
        try:
            good, errors = trusted(case, seed=int.from_bytes(os.urandom(3), "little"))
            torch.cuda.empty_cache()
            if not good:
                _say(out, row | {"left_out": f"wrong against float64: {errors}"})
                continue
            for row_of_launch in _profile(case, call["call"], warm):
                _say(out, row | row_of_launch)
        except (InputError, RuntimeError) as error:  # torch raises RuntimeError where memory is short
            _say(out, row | {"left_out": str(error).splitlines()[0]})
        torch.cuda.empty_cache()


def _profile(case: Case, seed: int, warm: bool) -> list[dict[str, str]]:
    """Launches the call with the profiler on; gives what the launches are."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    t = inputs(case, seed)
    w = workspace(case, t)
    torch.cuda.synchronize()
    built = loaded(case.spec).built
    sources = cache_key(case.spec, built.cc, built.compiler)[:12]
    rows = []
    for index, launch in enumerate(launches(case, t | w), start=1):
        if warm:
            launch.run()
            torch.cuda.synchronize()
        runtime.cudaProfilerStart()
        launch.run()
        torch.cuda.synchronize()
        runtime.cudaProfilerStop()
        spill = str(built.resources[launch.function.name].spill_store_bytes)
        row = {"launch": str(index), "kernel": launch.function.name, "grid": str(launch.grid)}
        rows.append(row | {"spill_store_bytes": spill, "sources": sources})
    return rows


def _say(out: TextIO, row: dict[str, str]) -> None:
    out.write(json.dumps(row) + "\n")
    out.flush()


def main() -> int:
    plan, launched = map(Path, sys.argv[1:3])
    request = json.loads(plan.read_text(encoding="utf-8"))
    with launched.open("w", encoding="utf-8") as out:
        run(request["calls"], request["warm"], out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
