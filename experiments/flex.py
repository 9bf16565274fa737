"""Profiles FlexAttention over block masks: `python experiments/flex.py --out FILE.csv`, on a GPU with PyTorch and ncu.

`--backward` profiles the one launch of dK, dV and dQ instead; `--predict h100` writes what iosim says of the same rows.
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

from iosim.evidence.columns import METRICS
from iosim.evidence.cuda.ncu import find_ncu, import_report, parse_raw

WINDOW_GLOBAL = {"window": 1024, "global_tokens": 256}
CASES: tuple[tuple[int, int, int, int, str, dict[str, int]], ...] = (
    # heads, kv_heads, tokens, head_dim, mask and its words
    (16, 16, 16384, 128, "butterfly", {}),
    (16, 16, 16384, 128, "strided", {}),
    (16, 16, 16384, 128, "window+global", WINDOW_GLOBAL),
    (8, 8, 65536, 128, "butterfly", {}),
    (8, 8, 65536, 128, "strided", {}),
    (8, 8, 65536, 128, "window+global", WINDOW_GLOBAL),
    (16, 4, 16384, 64, "butterfly", {}),
)
KERNELS = {False: "regex:flex_attention", True: "regex:triton_tem.*flex_attention_backward"}
NAMES = (
    "hbm_read",
    "hbm_write",
    "l2_read",
    "l2_write",
    "l2_slice_read",
    "l2_slice_write",
    "l2_slice_miss",
    "l2_fabric",
    "seconds",
)
COLUMNS = (
    "call",
    "launch",
    "implementation",
    "batch",
    "heads",
    "kv_heads",
    "seq_q",
    "seq_k",
    "head_dim",
    "causal",
    "dtype",
    "block_q",
    "block_k",
    "warps",
    "stages",
    "note",
    "kernel",
    "grid",
    "block",
    "registers",
    "smem_bytes",
    *NAMES,
)


def note(mask: str, words: dict[str, int]) -> str:
    """What `iosim validate` reads the mask from."""
    return ", ".join([f"mask {mask}", *(f"{name} {value}" for name, value in words.items())])


def block_mask(tokens: int, mask: str, words: dict[str, int]) -> Any:
    """A FlexAttention BlockMask of full blocks."""
    import numpy as np
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    from iosim import AttentionProblem

    pair_mask = AttentionProblem(seq_q=tokens, mask=mask, **words).pair_mask
    n = pair_mask.shape[0]
    count = np.diff(pair_mask.indptr)
    indices = np.zeros((n, n), dtype=np.int32)
    indices[pair_mask.rows, np.arange(pair_mask.nnz) - pair_mask.indptr[pair_mask.rows]] = (
        pair_mask.indices
    )

    def on_gpu(array: Any, *shape: int) -> torch.Tensor:
        return torch.tensor(array, dtype=torch.int32, device="cuda").reshape(1, 1, *shape)

    none = np.zeros_like(count), np.zeros_like(indices)
    return BlockMask.from_kv_blocks(
        on_gpu(none[0], n),
        on_gpu(none[1], n, n),
        on_gpu(count, n),
        on_gpu(indices, n, n),
        BLOCK_SIZE=(pair_mask.block_q, pair_mask.block_k),
    )


def launch_all(backward: bool) -> None:
    """One call a case: what the profiler watches. The log-sum-exp is asked for, as training does."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    torch.manual_seed(0)
    compiled = torch.compile(flex_attention, dynamic=False)
    for heads, kv_heads, tokens, head_dim, mask, words in CASES:
        like = {"device": "cuda", "dtype": torch.bfloat16, "requires_grad": backward}
        q = torch.randn(1, heads, tokens, head_dim, **like)
        k, v = (torch.randn(1, kv_heads, tokens, head_dim, **like) for _ in range(2))
        blocks = block_mask(tokens, mask, words)
        out, _ = compiled(q, k, v, block_mask=blocks, enable_gqa=heads != kv_heads, return_lse=True)
        if backward:
            out.backward(torch.randn_like(out))
        torch.cuda.synchronize()
        print(f"{mask}, {tokens} tokens, head_dim {head_dim}", flush=True)


def predictions(gpu: str, backward: bool) -> list[dict[str, object]]:
    """What iosim says of the rows."""
    from iosim import AttentionProblem, predict

    rows: list[dict[str, object]] = []
    for n, (heads, kv_heads, tokens, head_dim, mask, words) in enumerate(CASES, 1):
        shape = {"heads": heads, "kv_heads": kv_heads, "seq_q": tokens, "head_dim": head_dim}
        problem = AttentionProblem(
            **shape, dtype="bf16", mask=mask, passes="bwd" if backward else "fwd", **words
        )
        prediction = predict(problem, kernel="flex", gpu=gpu, method="replay")
        of = ("bwd.main", "bwd.dq") if backward else ("main",)
        traffic = {
            f"{level}_{way}": sum(prediction.traffic.total(level, way, launch=name) for name in of)
            for level in ("hbm", "l2")
            for way in ("read", "write")
        }
        seconds = sum(t.total_s for t in prediction.time.launches if t.name in of)
        rows.append(
            {
                "call": n,
                "launch": 1,
                "implementation": "iosim",
                "batch": 1,
                **shape,
                "seq_k": tokens,
                "dtype": "bfloat16",
                "note": note(mask, words),
                **traffic,
                "seconds": f"{seconds:.6g}",
            }
        )
    return rows


def profile(backward: bool) -> list[dict[str, object]]:
    """The table's rows. One plain run compiles the kernels, in this process's children alone, before ncu watches."""
    compiles = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    launches_all = [sys.executable, __file__, "--launch", *["--backward"] * backward]
    subprocess.run(launches_all, check=True, env=compiles)
    metrics = ",".join(metric for metric, _ in METRICS.values())
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "flex.ncu-rep"
        command = [
            str(find_ncu()),
            "--cache-control",
            "all",
            "--clock-control",
            "none",
            "-k",
            KERNELS[backward],
            "--metrics",
            metrics,
            "-o",
            str(report),
            *launches_all,
        ]
        subprocess.run(command, check=True, env=compiles)
        launches, notes = parse_raw(import_report(report))
    for text in notes:
        print(text, file=sys.stderr)
    if len(launches) != len(CASES):
        sys.exit(f"{len(launches)} launches were seen, {len(CASES)} made")
    rows: list[dict[str, object]] = []
    for n, (profiled, (heads, kv_heads, tokens, head_dim, mask, words)) in enumerate(
        zip(launches, CASES, strict=True), 1
    ):
        columns = {name: profiled.column(name) for name in (*NAMES, "registers", "smem_bytes")}
        rows.append(
            {
                "call": n,
                "launch": 1,
                "implementation": f"pytorch_flex{'_backward' * backward}",
                "batch": 1,
                "heads": heads,
                "kv_heads": kv_heads,
                "seq_q": tokens,
                "seq_k": tokens,
                "head_dim": head_dim,
                "dtype": "bfloat16",
                "note": note(mask, words),
                "kernel": profiled.kernel[:34],
                "grid": profiled.grid,
                "block": profiled.block,
                **{
                    name: v if name == "seconds" or v is None else round(v)
                    for name, v in columns.items()
                },
            }
        )
    return rows


def main() -> None:
    """Profile and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="the table")
    parser.add_argument("--launch", action="store_true", help="only run the kernels")
    parser.add_argument("--backward", action="store_true", help="of the backward")
    parser.add_argument("--predict", metavar="GPU", help="write predictions, without a GPU")
    args = parser.parse_args()
    if args.launch:
        launch_all(args.backward)
        return
    rows = predictions(args.predict, args.backward) if args.predict else profile(args.backward)
    with open(args.out, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
