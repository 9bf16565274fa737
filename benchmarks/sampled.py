"""Long launches played in part and whole: `python benchmarks/sampled.py`. Prints Markdown rows, in six minutes."""

from __future__ import annotations

import time

from iosim.algorithms import plan
from iosim.catalog import resolve
from iosim.hardware import load_profile
from iosim.problem import AttentionProblem
from iosim.simulator.replay import Replay, replay

TOKENS, HEADS = 1 << 20, 8
CASES = (
    ("fa2", "h200", "causal"), ("fa2", "a100", "causal"), ("cudnn", "h200", "causal"), ("cudnn", "h200", "none"),
    ("fa2", "l4", "causal"),
)  # fmt: skip


def played(kernel: str, gpu: str, mask: str, *, part: bool) -> tuple[Replay, float]:
    problem = AttentionProblem(heads=HEADS, seq_q=TOKENS, head_dim=128, dtype="bf16", mask=mask)
    profile = load_profile(gpu)
    chosen = resolve(kernel, problem, profile)
    start = time.perf_counter()
    return replay(problem, chosen, plan(problem, chosen), profile, part=part), time.perf_counter() - start


def main() -> None:
    print("| kernel, GPU, mask | in part, seconds | whole, seconds | reads, in part over whole |")
    print("| --- | ---: | ---: | ---: |")
    for kernel, gpu, mask in CASES:
        some, quick = played(kernel, gpu, mask, part=True)
        every, slow = played(kernel, gpu, mask, part=False)
        ratio = some.traffic.total("hbm", "read") / every.traffic.total("hbm", "read")
        print(f"| {kernel}, {gpu}, {mask} | {quick:.1f} | {slow:.0f} | {ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main()
