"""Profiles FlexAttention over block masks: `python experiments/flex.py --out FILE.csv`, on a GPU with PyTorch and ncu.

A row is a launch, its L2 flushed before, in the columns of `h200_library_kernels.csv`; `note` names the mask in the
words of `AttentionProblem`, from which `iosim.problem.masks` makes the blocks.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from iosim.evidence.cuda.ncu import METRICS, find_ncu, import_report, parse_raw

WINDOW_GLOBAL = {"window": 1024, "global_tokens": 256}
CASES: tuple[tuple[int, int, int, int, str, dict[str, int]], ...] = (
    # heads, kv_heads, tokens, head_dim, mask and its words
    (16, 16, 16384, 128, "butterfly", {}), (16, 16, 16384, 128, "strided", {}),
    (16, 16, 16384, 128, "window+global", WINDOW_GLOBAL), (8, 8, 65536, 128, "butterfly", {}),
    (8, 8, 65536, 128, "strided", {}), (8, 8, 65536, 128, "window+global", WINDOW_GLOBAL),
    (16, 4, 16384, 64, "butterfly", {}),
)  # fmt: skip
KERNEL = "regex:flex_attention"
NAMES = ("hbm_read", "hbm_write", "l2_read", "l2_write", "l2_slice_read", "l2_slice_write", "l2_slice_miss",
         "l2_fabric", "seconds")  # fmt: skip
COLUMNS = ("call", "launch", "implementation", "batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "causal",
           "dtype", "block_q", "block_k", "warps", "stages", "note", "kernel", "grid", "block", "registers",
           "smem_bytes", *NAMES)  # fmt: skip


def note(mask: str, words: dict[str, int]) -> str:
    """What `iosim validate` reads the mask from."""
    return ", ".join([f"mask {mask}", *(f"{name} {value}" for name, value in words.items())])


def block_mask(tokens: int, mask: str, words: dict[str, int]) -> Any:
    """A FlexAttention BlockMask of full blocks."""
    import numpy as np
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    from iosim.problem.attention import AttentionProblem
    from iosim.problem.masks import BlockMask as Blocks

    made = AttentionProblem(seq_q=tokens, mask=mask, **words).pair_mask
    assert isinstance(made, Blocks)
    n = made.shape[0]
    count = np.diff(made.indptr)
    indices = np.zeros((n, n), dtype=np.int32)
    indices[made.rows, np.arange(made.nnz) - made.indptr[made.rows]] = made.indices

    def on_gpu(array: Any, *shape: int) -> torch.Tensor:
        return torch.tensor(array, dtype=torch.int32, device="cuda").reshape(1, 1, *shape)

    none = np.zeros_like(count), np.zeros_like(indices)
    return BlockMask.from_kv_blocks(on_gpu(none[0], n), on_gpu(none[1], n, n), on_gpu(count, n),
                                    on_gpu(indices, n, n), BLOCK_SIZE=(made.block_q, made.block_k))  # fmt: skip


def launch_all() -> None:
    """One call a case: what the profiler watches. The log-sum-exp is asked for, as training does."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    torch.manual_seed(0)
    compiled = torch.compile(flex_attention, dynamic=False)
    for heads, kv_heads, tokens, head_dim, mask, words in CASES:
        q = torch.randn(1, heads, tokens, head_dim, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn(1, kv_heads, tokens, head_dim, device="cuda", dtype=q.dtype) for _ in range(2))
        blocks = block_mask(tokens, mask, words)
        compiled(q, k, v, block_mask=blocks, enable_gqa=heads != kv_heads, return_lse=True)
        torch.cuda.synchronize()
        print(f"{mask}, {tokens} tokens, head_dim {head_dim}", flush=True)


def profile() -> list[dict[str, object]]:
    """The table's rows. One plain run compiles the kernels, in this process's children alone, before ncu watches."""
    compiles = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    subprocess.run([sys.executable, __file__, "--launch"], check=True, env=compiles)
    metrics = ",".join(metric for metric, _ in METRICS.values())
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "flex.ncu-rep"
        command = [str(find_ncu()), "--cache-control", "all", "--clock-control", "none", "-k", KERNEL, "--metrics",
                   metrics, "-o", str(report), sys.executable, __file__, "--launch"]  # fmt: skip
        subprocess.run(command, check=True, env=compiles)
        launches, notes = parse_raw(import_report(report))
    for text in notes:
        print(text, file=sys.stderr)
    if len(launches) != len(CASES):
        sys.exit(f"{len(launches)} launches were seen, {len(CASES)} made")
    rows: list[dict[str, object]] = []
    for n, (found, (heads, kv_heads, tokens, head_dim, mask, words)) in enumerate(zip(launches, CASES, strict=True), 1):
        columns = {name: found.column(name) for name in (*NAMES, "registers", "smem_bytes")}
        rows.append({
            "call": n, "launch": 1, "implementation": "pytorch_flex", "batch": 1, "heads": heads, "kv_heads": kv_heads,
            "seq_q": tokens, "seq_k": tokens, "head_dim": head_dim, "dtype": "bfloat16", "note": note(mask, words),
            "kernel": found.kernel[:34], "grid": found.grid, "block": found.block,
            **{name: v if name == "seconds" or v is None else round(v) for name, v in columns.items()},
        })  # fmt: skip
    return rows


def main() -> None:
    """Profile and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="the table")
    parser.add_argument("--launch", action="store_true", help="only run the kernels")
    args = parser.parse_args()
    if args.launch:
        launch_all()
        return
    rows = profile()
    with open(args.out, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
