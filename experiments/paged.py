"""Measures what a paged decode reads: `python experiments/paged.py --out FILE.csv`, on a GPU with PyTorch, Triton and
ncu.

A split-KV decode kernel in Triton looks up the block-table entry of every key row of a key block, as the Triton kernels
of serving stacks do; pages lie in a shuffled order. One launch a page size, each with the L2 flushed before: bytes into
the SMs, out of them and from HBM go to a table beside the shape. Outputs are compared with PyTorch's attention.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
import triton.language as tl

BATCH, KV_HEADS, GROUP, HEAD_DIM, SEQ, SPLITS, BLOCK_K = 8, 8, 4, 128, 8192, 4, 64
PAGES = (1, 4, 16, 64, 256)
ROWS = 16
METRICS = {
    "l2_read": "l1tex__m_xbar2l1tex_read_bytes.sum",
    "l2_write": "l1tex__m_l1tex2xbar_write_bytes.sum",
    "hbm_read": "dram__bytes_read.sum",
}
TOLERANCE = 2e-2


@triton.jit
def paged_decode(
    q,
    k,
    v,
    table,
    out,
    lse,
    scale,
    PAGE: tl.constexpr,
    PAGES: tl.constexpr,
    D: tl.constexpr,
    BN: tl.constexpr,
    PER: tl.constexpr,
    HEADS: tl.constexpr,
    G: tl.constexpr,
    R: tl.constexpr,
):
    """CTA (sequence x head, split): G query rows against PER keys; fp32 partial output and log-sum-exp."""
    unit = tl.program_id(0)
    split = tl.program_id(1)
    b, h = unit // HEADS, unit % HEADS
    rows = tl.arange(0, R)
    cols = tl.arange(0, D)
    tile = tl.load(
        q + (unit * G + rows)[:, None] * D + cols[None, :], mask=rows[:, None] < G, other=0.0
    )
    top = tl.full([R], float("-inf"), tl.float32)
    total = tl.zeros([R], tl.float32)
    sums = tl.zeros([R, D], tl.float32)
    for n in range(split * PER, (split + 1) * PER, BN):
        keys = n + tl.arange(0, BN)
        page = tl.load(table + b * PAGES + keys // PAGE).to(tl.int64)
        at = ((page * PAGE + keys % PAGE) * HEADS + h)[:, None] * D + cols[None, :]
        scores = tl.dot(tile, tl.trans(tl.load(k + at))) * scale
        new = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - new[:, None])
        shrink = tl.exp(top - new)
        total = total * shrink + tl.sum(weights, 1)
        sums = sums * shrink[:, None] + tl.dot(weights.to(tile.dtype), tl.load(v + at))
        top = new
    place = (split * tl.num_programs(0) + unit) * G + rows
    tl.store(
        out + place[:, None] * D + cols[None, :], sums / total[:, None], mask=rows[:, None] < G
    )
    tl.store(lse + place, top + tl.log(total), mask=rows < G)


def launch_all() -> None:
    """One launch a page size, each checked: what the profiler watches."""
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, generator=generator)

    q = normal(BATCH, KV_HEADS, GROUP, HEAD_DIM)
    k = normal(BATCH, SEQ, KV_HEADS, HEAD_DIM)
    v = normal(BATCH, SEQ, KV_HEADS, HEAD_DIM)
    right = torch.nn.functional.scaled_dot_product_attention(
        q, k.transpose(1, 2), v.transpose(1, 2)
    )
    for page in PAGES:
        pages = SEQ // page
        slots = torch.randperm(BATCH * pages, device="cuda", generator=generator)
        stored = [
            torch.empty(BATCH * pages, page, KV_HEADS, HEAD_DIM, device="cuda", dtype=q.dtype)
            for _ in range(2)
        ]
        for pool, rows in zip(stored, (k, v), strict=True):
            pool[slots] = rows.reshape(pool.shape)
        out = torch.empty(SPLITS, BATCH, KV_HEADS, GROUP, HEAD_DIM, device="cuda")
        lse = torch.empty(SPLITS, BATCH, KV_HEADS, GROUP, device="cuda")
        paged_decode[(BATCH * KV_HEADS, SPLITS)](
            q,
            *stored,
            slots.to(torch.int32).reshape(BATCH, pages),
            out,
            lse,
            HEAD_DIM**-0.5,
            PAGE=page,
            PAGES=pages,
            D=HEAD_DIM,
            BN=BLOCK_K,
            PER=SEQ // SPLITS,
            HEADS=KV_HEADS,
            G=GROUP,
            R=ROWS,
            num_warps=4,
            num_stages=2,
        )
        combined = (out * torch.softmax(lse, dim=0)[..., None]).sum(0)
        error = (combined - right.float()).abs().max().item()
        if not error < TOLERANCE:
            sys.exit(f"pages of {page}: off by {error}")


def profile() -> list[dict[str, float]]:
    """The counters of every launch, in order."""
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "paged.ncu-rep"
        command = [
            "ncu",
            "--cache-control",
            "all",
            "--clock-control",
            "none",
            "-k",
            "regex:paged_decode",
            "--metrics",
            ",".join(METRICS.values()),
            "-o",
            str(report),
            sys.executable,
            __file__,
            "--launch",
        ]
        subprocess.run(command, check=True)
        page = ["ncu", "--import", str(report), "--csv", "--page", "raw", "--print-units", "base"]
        text = subprocess.run(page, check=True, capture_output=True, text=True).stdout
    table = list(csv.DictReader(text[text.index('"ID"') :].splitlines()))
    units = table.pop(0)
    if any(units[m] != "byte" for m in METRICS.values()):
        sys.exit(f"the profiler counts in {[units[m] for m in METRICS.values()]}, not bytes")
    return [{name: float(row[m].replace(",", "")) for name, m in METRICS.items()} for row in table]


def main() -> None:
    """Profile the launches and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="the table")
    parser.add_argument("--launch", action="store_true", help="only run the kernels")
    args = parser.parse_args()
    if args.launch:
        launch_all()
        return
    shape = {
        "batch": BATCH,
        "heads": KV_HEADS * GROUP,
        "kv_heads": KV_HEADS,
        "seq_k": SEQ,
        "head_dim": HEAD_DIM,
        "dtype": "bfloat16",
        "block_k": BLOCK_K,
        "splits": SPLITS,
        "triton": triton.__version__,
    }
    with open(args.out, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["page_size", *shape, *METRICS], lineterminator="\n")
        writer.writeheader()
        for page, counters in zip(PAGES, profile(), strict=True):
            writer.writerow(
                {"page_size": page, **shape, **{n: round(v) for n, v in counters.items()}}
            )


if __name__ == "__main__":
    main()
