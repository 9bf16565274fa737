"""Long launches played in coarse steps and whole: `python benchmarks/sampled.py`. Markdown rows, in twenty minutes.

`python benchmarks/sampled.py l4` plays the cases that name an L4.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from iosim import AttentionProblem, Overrides, load_profile, resolve
from iosim.prediction.call import Call
from iosim.readers.replay.play import Play
from iosim.readers.replay.replay import Replay

M = 1 << 20
CASES: tuple[tuple[str, str, dict[str, Any], str | None], ...] = (
    # kernel, GPU, problem, order of the grid where it is not the kernel's own
    ("fa2", "h200", {"seq_q": M, "heads": 8, "mask": "causal"}, None),
    ("fa2", "h200", {"seq_q": M, "heads": 8}, None),
    ("fa2", "a100", {"seq_q": M, "heads": 8, "mask": "causal"}, None),
    ("fa2", "a100", {"seq_q": M, "heads": 8}, None),
    ("cudnn", "h200", {"seq_q": M, "heads": 8, "mask": "causal"}, None),
    ("cudnn", "h200", {"seq_q": M, "heads": 8}, None),
    ("fa2", "l4", {"seq_q": M, "heads": 8, "mask": "causal"}, None),
    ("fa2", "l4", {"seq_q": M // 2, "heads": 4, "mask": "causal"}, None),
    ("fa2", "l4", {"seq_q": M // 2, "heads": 4}, None),
    ("fa2", "l4", {"seq_q": M // 2, "heads": 8, "kv_heads": 2, "mask": "causal"}, None),
    ("fa2", "l4", {"seq_q": M, "heads": 4, "mask": "window", "window": 131072}, None),
    ("fa2", "l4", {"seq_q": M // 4, "heads": 2, "mask": "causal", "passes": "bwd"}, None),
    ("fa2", "a10", {"seq_q": M // 2, "heads": 4, "mask": "causal"}, None),
    ("triton", "t4", {"seq_q": M // 2, "heads": 4, "mask": "causal", "dtype": "fp16"}, None),
    ("fa2", "rtx-4090", {"seq_q": M // 2, "heads": 4}, None),
    ("fa2", "h200", {"seq_q": M // 2, "heads": 4}, "head"),
    ("cudnn", "h200", {"seq_q": M // 2, "heads": 4, "mask": "causal"}, None),
    ("cudnn", "h200", {"seq_q": M // 2, "heads": 4}, None),
    # played for the first time when nothing was changed any more
    ("fa3", "h200", {"seq_q": M // 2, "heads": 4, "mask": "causal"}, None),
    ("fa2", "rtx-3090", {"seq_q": M // 2, "heads": 2, "mask": "causal"}, None),
    ("fa2", "l40s", {"seq_q": M // 2, "heads": 4, "mask": "causal"}, None),
    ("triton", "h100", {"seq_q": M // 2, "heads": 4, "mask": "causal"}, None),
    ("fa2", "l4", {"seq_q": M // 2, "heads": 4, "mask": "causal", "head_dim": 64}, None),
    ("triton", "b200", {"seq_q": M // 2, "heads": 2}, None),
    ("fa2", "a100", {"seq_q": M // 4, "heads": 4, "mask": "causal", "passes": "bwd"}, None),
)


def played(
    kernel: str, gpu: str, of: dict[str, Any], order: str | None, *, part: bool
) -> tuple[Replay, float]:
    problem = AttentionProblem(**{"head_dim": 128, "dtype": "bf16", **of})
    profile = load_profile(gpu)
    chosen = resolve(kernel, problem, profile, Overrides(order=order))
    start = time.perf_counter()
    return Call.of(problem, chosen, profile).replay(Play(part=part)), time.perf_counter() - start


def name(kernel: str, gpu: str, of: dict[str, Any], order: str | None) -> str:
    more = [f"{k} {v}" for k, v in of.items() if k in ("kv_heads", "head_dim", "passes")]
    more += [f"order {order}"] if order else []
    return ", ".join(
        [kernel, gpu, str(of.get("mask", "none")), f"{of['seq_q'] // 1024}K x {of['heads']}", *more]
    )


def main() -> None:
    print(
        "| kernel, GPU, mask, tokens x heads | in part, s | whole, s | reads, in part over whole | writes | time |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for case in CASES:
        if not all(word in name(*case) for word in sys.argv[1:]):
            continue
        some, quick = played(*case, part=True)
        every, slow = played(*case, part=False)
        read, written = (
            some.traffic.total("hbm", d) / every.traffic.total("hbm", d) for d in ("read", "write")
        )
        print(
            f"| {name(*case)} | {quick:.1f} | {slow:.0f} | {read:.3f} | {written:.3f} "
            f"| {some.seconds / every.seconds:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
