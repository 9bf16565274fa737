"""Counts what serving kernels move: `python experiments/serving.py --out FILE.csv`, on a GPU with PyTorch, Triton and
ncu.

A Triton kernel of the steps of vLLM's unified attention (tiles of 16 rows of whole tokens, 32 keys, or 16 segments of
the keys for one query token), over shuffled pages of 16 bits and of fp8, and FlexAttention's decoding. One launch a
case, its L2 flushed before; outputs are compared with PyTorch's attention. Beside the counters stands what iosim
predicts for `vllm-triton` and `flex`.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
import triton.language as tl

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

KV_HEADS, PAGE, ROWS, SEGMENTS, TOLERANCE = 8, 64, 16, 16, 3e-2
CASES = tuple(
    # kernel, batch, group, query tokens, keys, head_dim, cache
    ("vllm-triton", batch, group, seq_q, seq_k, d, cache)
    for batch, group, seq_q, seq_k, d in (
        (1, 1, 4096, 4096, 128),
        (1, 4, 4096, 4096, 128),
        (1, 3, 4096, 4096, 128),
        (4, 4, 512, 4096, 64),
        (1, 4, 1, 32768, 128),
        (8, 4, 1, 8192, 128),
        (64, 4, 1, 4096, 128),
        (8, 8, 1, 8192, 64),
    )
    for cache in ("bf16", "fp8")
) + tuple(
    ("flex", batch, 4, seq_q, 8192, 128, "bf16") for batch, seq_q in ((1, 1), (8, 1), (1, 16))
)
WATCHED = "regex:^unified|^triton_tem"
METRICS = {
    "l2_read": "l1tex__m_xbar2l1tex_read_bytes.sum",
    "l2_write": "l1tex__m_l1tex2xbar_write_bytes.sum",
    "hbm_read": "dram__bytes_read.sum",
    "seconds": "gpu__time_duration.sum",
}


@triton.jit
def unified(
    q,
    k,
    v,
    table,
    out,
    tops,
    totals,
    scale,
    unit,
    seq_q,
    seq_k,
    HEADS: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    PG: tl.constexpr,
    BQ: tl.constexpr,
    R: tl.constexpr,
    BN: tl.constexpr,
    NS: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """CTA (query block of a sequence, key/value head, segment)."""
    blocks = tl.cdiv(seq_q, BQ)
    b = tl.program_id(0) // blocks
    h = tl.program_id(1)
    part = tl.program_id(2)
    first = tl.program_id(0) % blocks * BQ
    rows = tl.arange(0, R)
    cols = tl.arange(0, D)
    steps = tl.arange(0, BN)
    token = first + rows // G
    inside = (token < seq_q) & (rows < BQ * G)
    at = ((b * seq_q + token) * HEADS + h) * G + rows % G
    tile = tl.load(q + at[:, None] * D + cols[None, :], mask=inside[:, None], other=0.0)
    top = tl.full([R], float("-inf"), tl.float32)
    total = tl.zeros([R], tl.float32)
    sums = tl.zeros([R, D], tl.float32)
    last = tl.minimum(seq_k - seq_q + first + BQ, seq_k)
    per_split = tl.cdiv(seq_k, NS * BN)
    for n in range(part * per_split, tl.minimum((part + 1) * per_split, tl.cdiv(last, BN))):
        keys = n * BN + steps
        in_range = keys < last
        page = tl.load(table + b * tl.cdiv(seq_k, PG) + keys // PG, mask=in_range, other=0).to(
            tl.int64
        )
        where = ((page * PG + keys % PG) * HEADS + h)[:, None] * D + cols[None, :]
        key = tl.load(k + where, mask=in_range[:, None], other=0.0)
        value = tl.load(v + where, mask=in_range[:, None], other=0.0)
        if WIDEN:
            key = (key.to(tl.float32) * tl.load(unit)).to(tile.dtype)
            value = (value.to(tl.float32) * tl.load(unit)).to(tile.dtype)
        scores = tl.dot(tile, tl.trans(key)) * scale
        scores = tl.where(
            inside[:, None] & (keys[None, :] <= seq_k - seq_q + token[:, None]),
            scores,
            float("-inf"),
        )
        new = tl.maximum(top, tl.max(scores, 1))
        new = tl.where(new > float("-inf"), new, 0.0)
        weights = tl.exp(scores - new[:, None])
        shrink = tl.exp(top - new)
        total = total * shrink + tl.sum(weights, 1)
        sums = sums * shrink[:, None] + tl.dot(weights.to(tile.dtype), value)
        top = new
    if NS == 1:
        tl.store(out + at[:, None] * D + cols[None, :], sums / total[:, None], mask=inside[:, None])
    else:
        place = at * NS + part
        tl.store(out + place[:, None] * D + cols[None, :], sums, mask=inside[:, None])
        tl.store(tops + place, top, mask=inside)
        tl.store(totals + place, total, mask=inside)


def run(kernel: str, batch: int, group: int, seq_q: int, seq_k: int, d: int, cache: str) -> None:
    """One launch, checked. Exits where the output is wrong."""
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, generator=generator)

    kind = torch.float8_e4m3fn if cache == "fp8" else torch.bfloat16
    q = normal(batch, seq_q, KV_HEADS * group, d)
    k, v = (normal(batch, seq_k, KV_HEADS, d).to(kind) for _ in range(2))
    heads_first = [x.to(q.dtype).transpose(1, 2) for x in (q, k, v)]
    mask = torch.ones(seq_q, seq_k, device="cuda", dtype=torch.bool).tril(seq_k - seq_q)
    right = torch.nn.functional.scaled_dot_product_attention(
        *heads_first, attn_mask=mask, enable_gqa=True
    )
    if kernel == "flex":
        from torch.nn.attention.flex_attention import flex_attention

        attend = torch.compile(flex_attention, dynamic=False)(*heads_first, enable_gqa=True)
        right = torch.nn.functional.scaled_dot_product_attention(*heads_first, enable_gqa=True)
    else:
        pages = seq_k // PAGE
        slots = torch.randperm(batch * pages, device="cuda", generator=generator)
        pools = [
            torch.empty(batch * pages, PAGE, KV_HEADS, d, device="cuda", dtype=kind)
            for _ in range(2)
        ]
        for pool, x in zip(pools, (k, v), strict=True):
            pool.view(torch.uint8)[slots] = x.reshape(pool.shape).view(torch.uint8)
        segments = SEGMENTS if seq_q == 1 and batch * KV_HEADS <= 128 else 1
        out = torch.empty(
            *q.shape[:3],
            segments,
            d,
            device="cuda",
            dtype=torch.float32 if segments > 1 else q.dtype,
        )
        tops, totals = (torch.empty(*q.shape[:3], segments, device="cuda") for _ in range(2))
        tokens = ROWS // group
        unified[(batch * -(-seq_q // tokens), KV_HEADS, segments)](
            q,
            *pools,
            slots.to(torch.int32),
            out,
            tops,
            totals,
            d**-0.5,
            torch.ones(1, device="cuda"),
            seq_q,
            seq_k,
            HEADS=KV_HEADS,
            G=group,
            D=d,
            PG=PAGE,
            BQ=tokens,
            R=ROWS,
            BN=16 if segments > 1 else 32,
            NS=segments,
            WIDEN=cache == "fp8",
        )
        if segments > 1:
            weights = torch.exp(tops - tops.amax(-1, keepdim=True))
            out = (out * weights[..., None]).sum(3) / (totals * weights).sum(3)[..., None]
        attend = out.reshape(q.shape).transpose(1, 2)
    error = (attend.float() - right.float()).abs().max().item()
    if not error < TOLERANCE:
        sys.exit(f"{kernel}, {batch} x {seq_q} x {seq_k}, {cache}: off by {error}")


def profile() -> list[dict[str, float]]:
    """The counters of every case's main launch, in order; a plain run compiles before."""
    alone = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    subprocess.run([sys.executable, __file__, "--launch"], check=True, env=alone)
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "serving.ncu-rep"
        command = [
            "ncu",
            "--cache-control",
            "all",
            "--clock-control",
            "none",
            "-k",
            WATCHED,
            "--metrics",
            ",".join(METRICS.values()),
            "-o",
            str(report),
            sys.executable,
            __file__,
            "--launch",
        ]
        subprocess.run(command, check=True, env=alone)
        page = ["ncu", "--import", str(report), "--csv", "--page", "raw", "--print-units", "base"]
        text = subprocess.run(page, check=True, capture_output=True, text=True).stdout
    table = list(csv.DictReader(text[text.index('"ID"') :].splitlines()))
    units = table.pop(0)
    scale = {"byte": 1.0, "nsecond": 1e-9, "ns": 1e-9}
    return [
        {n: float(row[m].replace(",", "")) * scale[units[m]] for n, m in METRICS.items()}
        for row in table
    ]


def predicted(
    kernel: str, batch: int, group: int, seq_q: int, seq_k: int, d: int, cache: str, gpu: str
) -> list[float]:
    """Bytes into the SMs and out of them, and from HBM, of the main launch; and its seconds."""
    from iosim import AttentionProblem, predict

    of_a_cache = {
        "page_size": PAGE,
        "cache_dtype": "fp8" if cache == "fp8" else None,
        "mask": "causal",
    }
    problem = AttentionProblem(
        batch=batch,
        heads=KV_HEADS * group,
        kv_heads=KV_HEADS,
        seq_q=seq_q,
        seq_k=seq_k,
        head_dim=d,
        dtype="bf16",
        **(of_a_cache if kernel == "vllm-triton" else {}),
    )
    prediction = predict(problem, gpu=gpu, kernel=kernel)
    ways = (("l2", "read"), ("l2", "write"), ("hbm", "read"))
    traffic = [prediction.traffic.total(level, way, launch="main") for level, way in ways]
    return [*traffic, next(t.total_s for t in prediction.time.launches if t.name == "main")]


def main() -> None:
    """Profile the launches and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="the table")
    parser.add_argument("--gpu", default="h100-sxm", help="the profile to predict with")
    parser.add_argument("--launch", action="store_true", help="only run the kernels")
    args = parser.parse_args()
    if args.launch:
        for case in CASES:
            run(*case)
        return
    profiled = profile()
    if len(profiled) != len(CASES):
        sys.exit(f"{len(profiled)} launches were seen, {len(CASES)} made")
    names = ("kernel", "batch", "group", "seq_q", "seq_k", "head_dim", "cache")
    with open(args.out, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            [*names, "kv_heads", "triton", *METRICS, *(f"predicted_{name}" for name in METRICS)]
        )
        for case, row in zip(CASES, profiled, strict=True):
            writer.writerow(
                [*case, KV_HEADS, triton.__version__, *row.values(), *predicted(*case, args.gpu)]
            )


if __name__ == "__main__":
    main()
