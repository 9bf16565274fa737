"""Profiles library kernels as they decode: `python experiments/decode.py --out FILE.csv`, on a GPU with PyTorch and
ncu.

PyTorch's flash and cuDNN backends with one or a few query tokens and grouped heads. A row is a launch, its L2 flushed
before, in the columns of `h200_library_kernels.csv`; grids tell how many splits a library chose and what it packs.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from iosim.evidence.columns import METRICS
from iosim.evidence.cuda.ncu import find_ncu, import_report, parse_raw

BACKENDS = {"pytorch_flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
SHAPES = (
    # batch, heads, kv_heads, seq_q, seq_k, head_dim
    (1, 32, 8, 1, 8192, 128), (4, 32, 8, 1, 8192, 128), (16, 32, 8, 1, 2048, 128), (1, 16, 2, 1, 131072, 128),
    (8, 32, 32, 1, 4096, 128), (1, 32, 4, 1, 32768, 64), (1, 32, 8, 4, 8192, 128), (8, 32, 8, 2, 16384, 64),
    (3, 8, 8, 1, 5000, 64), (1, 64, 8, 1, 1024, 128), (32, 16, 2, 1, 16384, 128),
)  # fmt: skip
SECOND = ("combine", "lean_reduction", "reduction")
"""Words in the names of launches that follow another in the same call."""
KERNELS = "regex:flash|sdpa|reduction|cudnn"
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


def launch_all(backend: str) -> None:
    """One call a shape: what the profiler watches."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    torch.manual_seed(0)
    for batch, heads, kv_heads, seq_q, seq_k, head_dim in SHAPES:
        q = torch.randn(batch, heads, seq_q, head_dim, device="cuda", dtype=torch.bfloat16)
        k, v = (
            torch.randn(batch, kv_heads, seq_k, head_dim, device="cuda", dtype=q.dtype)
            for _ in range(2)
        )
        with sdpa_kernel(getattr(SDPBackend, BACKENDS[backend])):
            scaled_dot_product_attention(q, k, v, enable_gqa=heads != kv_heads)
        torch.cuda.synchronize()


def profile(backend: str, first_call: int) -> list[dict[str, object]]:
    """Rows of one backend."""
    metrics = ",".join(metric for metric, _ in METRICS.values())
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "decode.ncu-rep"
        command = [
            str(find_ncu()),
            "--cache-control",
            "all",
            "--clock-control",
            "none",
            "-k",
            KERNELS,
            "--metrics",
            metrics,
            "-o",
            str(report),
            sys.executable,
            __file__,
            "--launch",
            backend,
        ]
        subprocess.run(command, check=True)
        launches, notes = parse_raw(import_report(report))
    for note in notes:
        print(note, file=sys.stderr)
    rows: list[dict[str, object]] = []
    call = launch = 0
    for profiled in launches:
        launch = launch + 1 if any(word in profiled.kernel for word in SECOND) else 1
        call += launch == 1
        batch, heads, kv_heads, seq_q, seq_k, head_dim = SHAPES[call - 1]
        columns = {name: profiled.column(name) for name in (*NAMES, "registers", "smem_bytes")}
        rows.append(
            {
                "call": first_call + call - 1,
                "launch": launch,
                "implementation": backend,
                "batch": batch,
                "heads": heads,
                "kv_heads": kv_heads,
                "seq_q": seq_q,
                "seq_k": seq_k,
                "head_dim": head_dim,
                "causal": 0,
                "dtype": "bfloat16",
                "kernel": profiled.kernel[:34].replace("void ", ""),
                "grid": profiled.grid,
                "block": profiled.block,
                **{n: v if n == "seconds" or v is None else round(v) for n, v in columns.items()},
            }
        )
    if call != len(SHAPES):
        sys.exit(f"{backend}: {call} calls were seen, {len(SHAPES)} made")
    return rows


def main() -> None:
    """Profile both backends and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="the table")
    parser.add_argument(
        "--launch", choices=tuple(BACKENDS), help="only run the kernels of a backend"
    )
    args = parser.parse_args()
    if args.launch:
        launch_all(args.launch)
        return
    rows: list[dict[str, object]] = []
    for n, backend in enumerate(BACKENDS):
        rows += profile(backend, n * len(SHAPES) + 1)
    with open(args.out, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
