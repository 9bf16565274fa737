"""Stalls, instructions and times of attention with score functions, in Triton and by FlexAttention, on a GPU:

    ncu --clock-control none --cache-control all --profile-from-start off --section WarpStateStats --section Occupancy \\
        --metrics ... --import-source no -o cases python experiments/score_functions.py
    ncu --import cases.ncu-rep --csv --page raw --print-units base > cases.csv
    python experiments/score_functions.py --table cases.csv --out h200_stalls.csv

The first runs each case once between a profiler's marks. A row of --out is a case: `spread` are those whose scores reach
the other way of tanh; a stall is in cycles of a warp an instruction.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "examples" / "kernels"))
COLUMNS = {
    "seconds": "gpu__time_duration.sum",
    "instructions": "smsp__inst_executed.sum",
    "xu_instructions": "smsp__inst_executed_pipe_xu.sum",
    "thread_instructions": "smsp__thread_inst_executed.sum",
    "cycles": "sm__cycles_elapsed.max",
    "cycles_active_mean": "sm__cycles_active.avg",
    "cycles_active_least": "sm__cycles_active.min",
    "cycles_active_most": "sm__cycles_active.max",
    "warps_active": "sm__warps_active.avg.per_cycle_active",
    "l2_read": "l1tex__m_xbar2l1tex_read_bytes.sum",
    "l2_write": "l1tex__m_l1tex2xbar_write_bytes.sum",
    "l2_slice_read_sectors": "lts__t_sectors_srcunit_tex_op_read.sum",
    "hbm_read": "dram__bytes_read.sum",
    "hbm_write": "dram__bytes_write.sum",
    "shared_load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared_store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "local_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
    "local_store_sectors": "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",
}
STALL, PER_ISSUE = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"


def attention(
    heads: int, tokens: int, width: int, rows: int, warps: int, stages: int, **more: Any
) -> Callable[[], Any]:
    """The forward of examples/kernels/plain.py, with 64 keys a step."""
    import plain
    import torch

    kind = more.pop("kind", "bfloat16")
    q, k, v = (
        torch.randn(heads, tokens, width, device="cuda").to(getattr(torch, kind)) for _ in range(3)
    )
    out = torch.empty_like(q)
    kernel = plain.attention[(-(-tokens // rows), heads)]
    constants = {"CAP": 0.0, "CAUSAL": False} | more
    return lambda: kernel(
        q,
        k,
        v,
        out,
        tokens * width,
        width,
        tokens,
        width**-0.5,
        **constants,
        HEAD_DIM=width,
        BLOCK_M=rows,
        BLOCK_N=64,
        num_warps=warps,
        num_stages=stages,
    )


def flex(width: int, kv_heads: int, mask: Callable[..., Any], spread: float = 0) -> Any:
    """FlexAttention over 4,096 tokens of 16 heads; with `spread` its scores, spread so far, pass through 20 tanh(s / 20)."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    call, tokens = torch.compile(flex_attention), 4096
    q = torch.randn(1, 16, tokens, width, device="cuda").mul(spread or 1).bfloat16()
    k, v = (torch.randn(1, kv_heads, tokens, width, device="cuda").bfloat16() for _ in range(2))
    blocks = create_block_mask(mask, None, None, tokens, tokens)

    def capped(score: Any, *_: Any) -> Any:
        return 20 * torch.tanh(score / 20)

    score = capped if spread else None
    return lambda: call(q, k, v, score_mod=score, block_mask=blocks, enable_gqa=kv_heads != 16)


def is_causal(_b: Any, _h: Any, i: Any, j: Any) -> Any:
    return i >= j


def is_near(_b: Any, _h: Any, i: Any, j: Any) -> Any:
    """A grid of 64 x 64, six to either side in both directions."""
    return ((i // 64 - j // 64).abs() <= 6) & ((i % 64 - j % 64).abs() <= 6)


CASES: dict[str, Callable[[], Any]] = {
    "capped": lambda: attention(16, 4096, 64, 64, 4, 3, CAP=20.0),
    "ragged": lambda: attention(16, 3001, 64, 128, 4, 2, kind="float16"),
    "two-stages": lambda: attention(32, 4096, 128, 128, 8, 2, CAUSAL=True),
    "one-stage": lambda: attention(32, 4096, 128, 128, 8, 1, CAUSAL=True),
    "flex-softcap": lambda: flex(128, 4, is_causal, spread=1),
    "flex-softcap-spread": lambda: flex(128, 4, is_causal, spread=30),
    "flex-natten": lambda: flex(64, 16, is_near),
    "flex-causal": lambda: flex(128, 4, is_causal),
}


def run() -> None:
    """Each case once, between marks, after it was compiled."""
    import torch

    torch.manual_seed(0)
    for case in CASES.values():
        call = case()
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def table(raw: Path, out: Path, names: list[str]) -> None:
    """What ncu wrote, a row a case."""
    rows = list(csv.reader(raw.open(newline="", encoding="utf-8")))
    head = next(n for n, row in enumerate(rows) if row and row[0] == "ID")
    stalls = [c for c in rows[head] if c.startswith(STALL) and c.endswith(PER_ISSUE)]
    columns = COLUMNS | {f"stall_{c[len(STALL) : -len(PER_ISSUE)]}": c for c in stalls}
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["case", *columns])
        for name, row in zip(names, rows[head + 2 :], strict=True):
            values = [float(row[rows[head].index(c)].replace(",", "")) for c in columns.values()]
            values[0] *= 1e-9  # ncu's base unit is the nanosecond
            writer.writerow([name, *(f"{value:.9g}" for value in values)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, help="what ncu wrote")
    parser.add_argument("--out", type=Path, help="the table to write")
    parser.add_argument("--names", help="cases in their order, comma-separated; by default all")
    args = parser.parse_args()
    if args.table:
        table(args.table, args.out, args.names.split(",") if args.names else list(CASES))
    else:
        run()


if __name__ == "__main__":
    main()
