"""Times without the profiler: device events, the median of many calls, the L2 flushed or as the call before left it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from iosim.base.errors import InputError
from iosim.base.progress import Progress, silent
from iosim.evidence.measure.case import Case, flops
from iosim.evidence.measure.harness import inputs, launches, refuse_wrong, workspace
from iosim.evidence.measure.machine import prebuild
from iosim.evidence.measure.table import TIME_COLUMNS, Table, missing, next_call

QUEUE_CYCLES = 400_000
"""The GPU idles this long before each timed call, so that short calls are queued before they start, not meanwhile."""
REPEATS, WARM_UPS = 15, 3
FLUSH_BYTES = 1 << 28
SAVE_EVERY = 10


def median_ms(call: Callable[[], object], flush: bool, repeats: int = REPEATS) -> float:
    """Median device time of `call` in milliseconds; with `flush` the L2 is overwritten before each."""
    scratch = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda") if flush else None
    for _ in range(WARM_UPS):
        call()
    pairs = []
    for _ in range(repeats):
        if scratch is not None:
            # more than any L2 holds, so that nothing of the call's tensors stays
            scratch.zero_()
        torch.cuda._sleep(QUEUE_CYCLES)  # type: ignore[no-untyped-call]
        start, end = _event(), _event()
        start.record()
        call()
        end.record()
        pairs.append((start, end))
    # one wait at the end: a wait after each call would let the GPU fall idle
    torch.cuda.synchronize()
    return float(statistics.median(start.elapsed_time(end) for start, end in pairs))


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def case_ms(case: Case, flush: bool) -> float:
    """Median ms of a call, all its launches, with its memset where it needs one."""
    t = inputs(case, seed=7)
    tensors = t | workspace(case, t)
    stream = torch.cuda.current_stream().cuda_stream
    planned = launches(case, tensors)

    def call() -> None:
        if "dq_sum" in tensors:
            tensors["dq_sum"].zero_()
        for launch in planned:
            launch.run(stream)

    return median_ms(call, flush)


def time_plan(
    out: Path,
    cases: Sequence[Case],
    cc: str,
    l2_start: str,
    command: str = "",
    progress: Progress = silent,
) -> Table:
    """Times the calls that `out` lacks, each checked against float64 first, and adds them to it. `l2_start`: warm
    (the call before was the same) or cold (256 MiB overwritten before each call)."""
    table = Table(
        out,
        TIME_COLUMNS,
        {
            "command": command,
            "timing": f"device events around each call, median of {REPEATS} after {WARM_UPS}; the GPU idles before each",
            "l2_start": "warm: the call before was the same one; cold: 256 MiB were overwritten before each call",
            "check": "every call against float64 before it was timed",
            "inputs": "random normal",
        },
    )
    todo = missing(cases, table.rows, l2_start)
    prebuild((case.spec for case in todo), cc)
    for case in progress(todo):
        try:
            refuse_wrong(case)
            ms = case_ms(case, l2_start == "cold")
        except (
            InputError,
            RuntimeError,
        ) as error:  # torch raises RuntimeError where memory is short
            table.left_out.append(
                f"{case.implementation} {case.shape}: {str(error).splitlines()[0]}"
            )
            continue
        finally:
            torch.cuda.empty_cache()
        timed = {"call": str(next_call(table.rows)), "l2_start": l2_start, "ms": f"{ms:.4f}"}
        table.add([case.columns() | timed | {"tflops": f"{flops(case) / ms / 1e9:.1f}"}])
        if table.measured % SAVE_EVERY == 0:
            table.save()
    if table.measured:
        table.save()
    return table
