"""Profiles flash-linear-attention's gated delta rule and Kimi delta attention, launch by launch, beside predictions:

    pip install --no-deps flash-linear-attention fla-core      # with PyTorch and Triton
    python experiments/linear.py --out FILE.csv                # on a GPU with ncu
    python experiments/linear.py --predict h100                # what is predicted of the same launches; no GPU
    python experiments/linear.py --predict h100 --beside FILE.csv  # predicted over counted, less 1: medians by launch

A row is a launch of one call, from a flushed L2, its tiles tuned by fla before; launches are named as iosim has them.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from experiment import FROM_EMPTY, counts, profiled, record, run_script

from iosim import AttentionProblem, InputError, predict
from iosim.evidence.cuda.ncu import parse_raw

COUNTED = ("hbm_read", "hbm_write", "l2_read", "l2_write", "seconds", "registers", "smem_bytes")
OPTIONS = (*FROM_EMPTY, "--profile-from-start", "off")
LAUNCHES = {
    "l2norm": "norm",
    "cumsum": "cumsum",
    "FillFunctor": "fill",
    "kkt_solve": "kkt_solve",
    "token_parallel": "kkt",
    "inter_solve": "solve",
    "recompute_w_u": "recompute",
    "fwd_kernel_h": "state",
    "fwd_kernel_o": "output",
    "fused_recurrent": "step",
}
"""Part of a kernel's name -> the launch."""


class Call(NamedTuple):
    kernel: str
    batch: int
    heads: int
    kv_heads: int
    tokens: int
    head_dim: int = 128

    @property
    def problem(self) -> AttentionProblem:
        """The call, after other tokens: it reads a state and writes one."""
        return AttentionProblem(
            batch=self.batch,
            heads=self.heads,
            kv_heads=self.kv_heads,
            seq_q=self.tokens,
            seq_k=self.tokens + 1,
            head_dim=self.head_dim,
            dtype="bf16",
            mask="causal",
            layout="bshd",
        )


CALLS = (
    *(Call("gdn", 1, 32, 16, tokens) for tokens in (64, 1000, 4096, 32768)),
    Call("gdn", 8, 32, 16, 2048),
    Call("gdn", 1, 32, 32, 8192),
    Call("gdn", 4, 16, 4, 4096, 64),
    *(Call("kda", 1, 32, 32, tokens) for tokens in (64, 1000, 8192)),
    Call("kda", 8, 12, 12, 2048),
    Call("gdn", 8, 32, 16, 1),
    Call("gdn", 128, 32, 16, 1),
    Call("kda", 64, 32, 32, 1),
)


def launch_all() -> None:
    """Every call, tuned first, between start and stop of the profiler."""
    import torch
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
    from fla.ops.kda import chunk_kda, fused_recurrent_kda

    by_name: dict[tuple[str, bool], Any] = {
        ("gdn", False): chunk_gated_delta_rule,
        ("gdn", True): fused_recurrent_gated_delta_rule,
        ("kda", False): chunk_kda,
        ("kda", True): fused_recurrent_kda,
    }
    runtime: Any = torch.cuda.cudart()
    torch.manual_seed(0)
    for call in CALLS:
        b, t, h, g, d = call.batch, call.tokens, call.heads, call.kv_heads, call.head_dim
        q, k, v = (torch.randn(b, t, n, d, device="cuda", dtype=torch.bfloat16) for n in (g, g, h))
        gate = (b, t, h, d) if call.kernel == "kda" else (b, t, h)
        options = {
            "g": torch.nn.functional.logsigmoid(torch.randn(*gate, device="cuda")),
            "beta": torch.rand(b, t, h, device="cuda"),
            "initial_state": torch.randn(b, h, d, d, device="cuda"),
            "output_final_state": True,
            "use_qk_l2norm_in_kernel": True,
        }
        with torch.no_grad():
            for watched in (False, True):
                torch.cuda.synchronize()
                if watched:
                    runtime.cudaProfilerStart()
                by_name[call.kernel, t == 1](q, k, v, **options)
                torch.cuda.synchronize()
                if watched:
                    runtime.cudaProfilerStop()
        print(*call, flush=True)


def named(kernel: str) -> str:
    """The launch that a kernel is; itself where none is known."""
    return next((launch for part, launch in LAUNCHES.items() if part in kernel), kernel)


def measured(folder: Path) -> pd.DataFrame:
    """A row a launch. Raises InputError: other calls were seen than made."""
    launches, _ = parse_raw(profiled([__file__, "--launch"], OPTIONS, COUNTED, folder))
    rows: list[dict[str, Any]] = []
    call, before = -1, ""
    for measured_launch in launches:
        launch = named(measured_launch.kernel)
        if launch == "norm":
            launch = "norm_k" if before == "norm_q" else "norm_q"
        call = call + (launch in ("norm_q", "step"))
        before = launch
        rows.append(
            {
                "call": call,
                **CALLS[min(max(call, 0), len(CALLS) - 1)]._asdict(),
                "launch": launch,
                "name": re.sub(r"\W+", " ", measured_launch.kernel)[:80],
                "grid": "x".join(map(str, measured_launch.grid)),
                "threads": measured_launch.block[0],
                **counts(measured_launch, COUNTED),
                "seconds": measured_launch.column("seconds"),
            }
        )
    if call + 1 != len(CALLS):
        raise InputError(f"{call + 1} calls were seen, {len(CALLS)} made")
    return pd.DataFrame(rows)


def predicted(gpu: str) -> pd.DataFrame:
    """The same rows, as predicted."""
    rows = []
    for number, call in enumerate(CALLS):
        p = predict(call.problem, call.kernel, gpu)
        for launch, time in zip(p.chain.launches, p.time.launches, strict=True):
            traffic = {
                f"{level}_{way}": p.traffic.total(level, way, launch=launch.name)
                for level in ("hbm", "l2")
                for way in ("read", "write")
            }
            rows.append(
                {
                    "call": number,
                    **call._asdict(),
                    "launch": launch.name,
                    **traffic,
                    "seconds": time.total_s,
                }
            )
    return pd.DataFrame(rows)


def beside(file: Path, gpu: str) -> pd.DataFrame:
    """Median of predicted / counted - 1 by launch, where 2 MB or more were counted; of seconds, wherever."""
    both = pd.read_csv(file).merge(
        predicted(gpu), on=["call", "launch"], suffixes=("", "_predicted")
    )
    medians = {}
    for quantity, least in (*((name, 2e6) for name in COUNTED[:4]), ("seconds", 0.0)):
        rows = both[both[quantity] > least]
        errors = rows[f"{quantity}_predicted"] / rows[quantity] - 1
        medians[quantity] = errors.groupby(rows["launch"]).median().round(3)
    return pd.DataFrame(medians)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("--out", type=Path, help="CSV to write; its provenance goes beside it")
    parser.add_argument("--launch", action="store_true", help="make the launches; for the profiler")
    parser.add_argument("--predict", metavar="GPU", help="print what is predicted; needs no GPU")
    parser.add_argument(
        "--beside", type=Path, metavar="CSV", help="with --predict: errors beside this table"
    )
    options = parser.parse_args()
    if options.predict and options.beside:
        print(beside(options.beside, options.predict).to_string())
    elif options.predict:
        print(predicted(options.predict).to_csv(index=False), end="")
    elif options.launch:
        launch_all()
    elif options.out is None:
        parser.error("--out FILE is needed")
    else:
        record(
            options.out, measured, f"python experiments/linear.py --out {options.out.name}", OPTIONS
        )


if __name__ == "__main__":
    run_script(main)
