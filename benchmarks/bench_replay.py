"""Speed of the replay: `python benchmarks/bench_replay.py`. Prints Markdown rows.

Asked for: 10 million tile accesses a second on one core, under 100 ms of simulation for a typical prediction, and under
0.6 s for the whole process of a default `iosim predict`. The last rows say why the engine is compiled C: what importing
numba alone costs, and numba's speed on the loop that takes the engine's time, a look-up in a set.
"""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from iosim import AttentionProblem, load_profile, resolve
from iosim.catalog.algorithms import plan
from iosim.prediction.call import Call
from iosim.readers.replay.engine import L2, Ctas
from iosim.readers.replay.l2 import model
from iosim.readers.replay.lowering import LoweredLaunch
from iosim.readers.replay.templates import Template

RUNS = 5
GPU = load_profile("h200-sxm")


def seconds(call: Callable[[], object], runs: int = RUNS) -> float:
    call()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def process(*arguments: str) -> float:
    return seconds(
        lambda: subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    )


def attention(kernel: str, seq_len: int, heads: int, mask: str) -> tuple[int, float]:
    """(tile accesses, seconds) of one replay."""
    problem = AttentionProblem(heads=heads, seq_q=seq_len, head_dim=128, mask=mask)
    chosen = resolve(kernel, problem, GPU)
    chain = plan(problem, chosen)
    accesses = sum(
        launch.accesses for launch in Call.of(problem, chosen, GPU, chain).replay().launches
    )
    return accesses, seconds(lambda: Call.of(problem, chosen, GPU, chain).replay())


def scan_of(objects: int, steps: int) -> tuple[L2, LoweredLaunch]:
    """One CTA that walks `objects` tiles of 16 KiB again and again."""
    zero = np.zeros(1, dtype=np.int32)
    low = LoweredLaunch(
        "scan",
        zero,
        zero + steps,
        (),
        (Template("x", 0, zero, 1),),
        (),
        zero.astype(np.uint8),
        zero,
        zero,
        indices=(np.arange(steps) % objects).astype(np.int32),
    )
    return L2(
        model(GPU), np.full(objects, 16384, dtype=np.int32), np.zeros(objects, dtype=np.uint8)
    ), low


def in_c(objects: int, steps: int) -> float:
    l2, low = scan_of(objects, steps)
    return seconds(lambda: l2.replay(low, Ctas(slots=1, sms=1, step_s=1e-7)))


def in_numba(objects: int, steps: int) -> tuple[float, float]:
    """(seconds to compile, seconds to run) look-ups alone: no events, copies or times."""
    from numba import njit

    @njit
    def walk(sets, order, ways, tags, used):  # type: ignore[no-untyped-def]
        missed = 0
        for line in order:
            at = sets[line]
            prefetched = False
            for w in range(ways):
                if tags[at, w] == line:
                    prefetched = True
                    used[at] |= 1 << w
                    break
            if not prefetched:
                missed += 1
                for w in range(ways):
                    if not (used[at] >> w) & 1:
                        break
                tags[at, w] = line
                used[at] |= 1 << w
            if used[at] == (1 << ways) - 1:
                used[at] = 1 << w
        return missed

    l2, low = scan_of(objects, steps)
    assert low.indices is not None
    sets, ways = l2.samples.set, l2.model.ways
    order = np.minimum(low.indices, sets.size - 1)

    def run() -> int:
        tags = np.full((l2.samples.sets, ways), -1, dtype=np.int32)
        used = np.zeros(l2.samples.sets, dtype=np.int64)
        return int(walk(sets, order, ways, tags, used))

    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin, seconds(run)


def main() -> None:
    print("| what | measured | asked for |")
    print("| --- | ---: | ---: |")
    for kernel, seq_len, heads, mask in (
        ("fa2", 4096, 32, "none"),
        ("cudnn", 4096, 32, "causal"),
        ("cudnn", 65536, 8, "causal"),
        ("fa2", 65536, 8, "causal"),
    ):
        accesses, took = attention(kernel, seq_len, heads, mask)
        target = "under 100 ms" if seq_len == 4096 else "10 million/s"
        print(
            f"| replay of {kernel}, {heads} heads, {seq_len} tokens, mask {mask} | {took * 1e3:.0f} ms, "
            f"{accesses / 1e6:.2f} million accesses, {accesses / took / 1e6:.1f} million/s | {target} |"
        )
    print(
        f"| `iosim predict`, whole process | {process('-m', 'iosim', 'predict') * 1e3:.0f} ms | under 600 ms |"
    )
    steps = 2_000_000
    took = in_c(1000, steps)
    print(f"| C engine, one CTA's scan | {steps / took / 1e6:.0f} million/s | 10 million/s |")
    if importlib.util.find_spec("numba"):
        compiling, took = in_numba(1000, steps)
        bare = process("-c", "import numpy")
        print(f"| numba, look-ups alone | {steps / took / 1e6:.0f} million/s | |")
        print(
            f"| `import numba`, beyond NumPy | {(process('-c', 'import numba') - bare) * 1e3:.0f} ms | |"
        )
        print(f"| numba, compiling the look-up | {compiling * 1e3:.0f} ms | |")


if __name__ == "__main__":
    main()
