"""What autotuning by prediction saves and costs: two Triton kernels, every configuration against iosim's few.

    python experiments/triton_autotune.py --out triton_autotune.csv
    python experiments/triton_autotune.py --picks        what iosim would keep; needs neither Triton nor a GPU

For each case `triton.autotune` runs twice, each time with an empty cache of compiled kernels of its own: over
all configurations, and with `prune_configs_by` of `iosim.triton.TritonModel`. So that a case does not take minutes, the
configurations of the former are compiled by several processes beforehand, and the seconds that each took are added up;
of the latter everything is as it comes. A row of the table is a configuration of a case.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from iosim import AttentionProblem
from iosim.evidence.measure.machine import write_provenance
from iosim.integrations.triton.kernel import Config, rank
from iosim.integrations.triton.model import TritonModel

GPU = "h200"
KEPT = 4
BLOCK_M, BLOCK_N, NUM_WARPS, NUM_STAGES = (32, 64, 128, 256), (32, 64, 128), (4, 8), (2, 3)
WARM_MS, TIMED_MS = 5, 40
COLUMNS = (
    "kernel",
    "batch",
    "heads",
    "kv_heads",
    "seq",
    "head_dim",
    "causal",
    "dtype",
    "block_m",
    "block_n",
    "warps",
    "stages",
    "ms",
    "compile_s",
    "registers",
    "spilled_words",
    "smem_bytes",
    "kept",
    "predicted_ms",
    "pruned_s",
    "all_s",
    "pruned_ms",
    "error",
)


@dataclass(frozen=True)
class Case:
    """One kernel on one problem."""

    kernel: str
    heads: int
    kv_heads: int
    seq: int
    head_dim: int
    causal: bool
    dtype: str

    @property
    def problem(self) -> AttentionProblem:
        mask = "causal" if self.causal else "none"
        return AttentionProblem(
            heads=self.heads,
            kv_heads=self.kv_heads,
            seq_q=self.seq,
            head_dim=self.head_dim,
            mask=mask,
            dtype=self.dtype,
        )

    @property
    def names(self) -> tuple[str, str]:
        return ("BLOCK_M", "BLOCK_N") if self.kernel == "tutorial" else ("TILE_Q", "TILE_K")

    def model(self) -> TritonModel:
        return TritonModel(GPU, problem=self.problem, names=self.names)


CASES = (
    Case("tutorial", 32, 32, 4096, 64, False, "fp16"),
    Case("tutorial", 16, 16, 8192, 128, True, "fp16"),
    Case("grouped", 32, 8, 4096, 128, False, "bf16"),
    Case("grouped", 32, 8, 8192, 64, True, "bf16"),
)


def space() -> Iterator[Config]:
    for block_m, block_n, warps, stages in product(BLOCK_M, BLOCK_N, NUM_WARPS, NUM_STAGES):
        yield Config(block_m, block_n, warps, stages)


def kept(case: Case) -> list[tuple[Config, float]]:
    """What the model keeps of the configurations, with its milliseconds, best first."""
    ranked = rank(case.problem, case.model().profile, space())
    return [(ranked_config.config, ranked_config.time_s * 1e3) for ranked_config in ranked[:KEPT]]


class Bench:
    """A case's kernel and its tensors on the GPU."""

    def __init__(self, case: Case, tensors: bool = True) -> None:
        import torch
        from triton_gqa import grouped_forward

        from iosim.integrations.triton.forward import flash_forward

        self.case = case
        self.function = flash_forward if case.kernel == "tutorial" else grouped_forward
        dtype = torch.float16 if case.dtype == "fp16" else torch.bfloat16
        torch.manual_seed(1)

        def random(heads: int) -> Any:
            shape = (1, heads, case.seq, case.head_dim) if tensors else (1, 1, 16, 16)
            return torch.randn(shape, device="cuda", dtype=dtype)

        self.q, self.k, self.v = random(case.heads), random(case.kv_heads), random(case.kv_heads)
        self.out = torch.full_like(self.q, float("nan"))
        self.lse = torch.empty(self.q.shape[:3], device="cuda", dtype=torch.float32)

    def arguments(self) -> dict[str, Any]:
        c = self.case
        scale = self.case.head_dim**-0.5
        if c.kernel == "tutorial":
            return {
                "sm_scale": scale,
                "M": self.lse,
                "Z": 1,
                "H": c.heads,
                "Q": self.q,
                "K": self.k,
                "V": self.v,
                "Out": self.out,
                "N_CTX": c.seq,
                "HEAD_DIM": c.head_dim,
                "STAGE": 3 if c.causal else 1,
            }
        return {
            "q_ptr": self.q,
            "k_ptr": self.k,
            "v_ptr": self.v,
            "o_ptr": self.out,
            "scale": scale,
            "seq": c.seq,
            "GROUP": c.heads // c.kv_heads,
            "WIDTH": c.head_dim,
            "CAUSAL": c.causal,
        }

    def grid(self, meta: dict[str, Any]) -> tuple[int, int, int]:
        c = self.case
        if c.kernel == "tutorial":
            return (-(-c.seq // meta["BLOCK_M"]), c.heads, 1)
        return (c.heads, -(-c.seq // meta["TILE_Q"]), 1)

    def meta(self, config: Config) -> dict[str, int]:
        return dict(zip(self.case.names, (config.block_m, config.block_n), strict=True))

    def error(self) -> float:
        """Relative distance of the output from PyTorch's."""
        import torch

        right = torch.nn.functional.scaled_dot_product_attention(
            self.q, self.k, self.v, is_causal=self.case.causal, enable_gqa=True
        ).float()
        return float((self.out.float() - right).norm() / right.norm())


def compiled(task: tuple[int, Config, str]) -> dict[str, Any]:
    """Compiles one configuration into a cache; what the compiler and the driver say of it."""
    number, config, cache = task
    os.environ["TRITON_CACHE_DIR"] = cache
    bench = Bench(CASES[number], tensors=False)
    begin = time.perf_counter()
    row: dict[str, Any] = {"config": config, "case": number}
    try:
        compiled_kernel = bench.function.warmup(
            **bench.arguments(),
            **bench.meta(config),
            grid=(1,),
            num_warps=config.num_warps,
            num_stages=config.num_stages,
        )
        row["compile_s"] = time.perf_counter() - begin
        row["smem_bytes"] = compiled_kernel.metadata.shared
        compiled_kernel._init_handles()
        row |= {"registers": compiled_kernel.n_regs, "spilled_words": compiled_kernel.n_spills}
    except Exception as error:  # a configuration that does not compile or fit is a row as well
        row.setdefault("compile_s", time.perf_counter() - begin)
        row["error"] = type(error).__name__
    return row


def tuned(
    bench: Bench, configs: list[Config], prune: dict[str, Any] | None, cache: str
) -> tuple[float, Any]:
    """(seconds, autotuner) of one autotuned call with the compiled kernels of `cache`."""
    import torch
    import triton

    triton.knobs.cache.dir = cache
    os.environ["TRITON_CACHE_DIR"] = cache
    function = triton.JITFunction(bench.function.fn)  # remembers nothing that was compiled before
    choices = [
        triton.Config(bench.meta(c), num_warps=c.num_warps, num_stages=c.num_stages)
        for c in configs
    ]

    def timed(call: Callable[[], Any], quantiles: Any) -> Any:
        return triton.testing.do_bench(call, warmup=WARM_MS, rep=TIMED_MS, quantiles=quantiles)

    tuner = triton.autotune(choices, key=[], prune_configs_by=prune, do_bench=timed)(function)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    tuner[bench.grid](**bench.arguments())
    torch.cuda.synchronize()
    return time.perf_counter() - begin, tuner


def run_case(
    number: int, reports: dict[Config, dict[str, Any]], cache: str
) -> Iterator[dict[str, Any]]:
    """The rows of a case."""
    case = CASES[number]
    bench, configs = Bench(case), list(space())
    with tempfile.TemporaryDirectory() as fresh:
        pruned_s, few = tuned(bench, configs, case.model().prune_configs_by(KEPT), fresh)
    pruned_error = bench.error()
    bench.out.fill_(float("nan"))
    bench_s, every = tuned(bench, configs, None, cache)
    all_s = bench_s + sum(r["compile_s"] for r in reports.values())
    ms = {_config(c, case): t[0] for c, t in every.configs_timings.items()}
    picked = _config(few.best_config, case)
    chosen = dict(kept(case))
    error = max(pruned_error, bench.error())
    print(
        f"{case}: all {all_s:.1f} s ({bench_s:.1f} of them timing), pruned {pruned_s:.2f} s",
        flush=True,
    )
    print(
        f"    best {min(ms.values()):.4f} ms, picked {picked.text()} {ms[picked]:.4f} ms; error {error:.1e}",
        flush=True,
    )
    for config in configs:
        report = reports.get(config, {})
        yield {
            "kernel": case.kernel,
            "batch": 1,
            "heads": case.heads,
            "kv_heads": case.kv_heads,
            "seq": case.seq,
            "head_dim": case.head_dim,
            "causal": int(case.causal),
            "dtype": case.dtype,
            "block_m": config.block_m,
            "block_n": config.block_n,
            "warps": config.num_warps,
            "stages": config.num_stages,
            "ms": f"{ms[config]:.5f}" if ms.get(config, float("inf")) < float("inf") else "",
            "compile_s": f"{report.get('compile_s', 0):.3f}",
            "registers": report.get("registers", ""),
            "spilled_words": report.get("spilled_words", ""),
            "smem_bytes": report.get("smem_bytes", ""),
            "kept": int(config in chosen),
            "predicted_ms": f"{chosen[config]:.5f}" if config in chosen else "",
            "pruned_s": f"{pruned_s:.3f}",
            "all_s": f"{all_s:.3f}",
            "pruned_ms": f"{ms[picked]:.5f}" if config == picked else "",
            "error": report.get("error", ""),
        }


def _config(config: Any, case: Case) -> Config:
    m, n = (config.kwargs[name] for name in case.names)
    return Config(m, n, config.num_warps, config.num_stages)


def measure(out: Path, jobs: int) -> None:
    import torch
    import triton

    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as cache:
        tasks = [(number, config, cache) for number in range(len(CASES)) for config in space()]
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            reports = list(pool.map(compiled, tasks, chunksize=2))
        print(f"{len(tasks)} compiled in {time.perf_counter() - begin:.1f} s", flush=True)
        with out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            for number in range(len(CASES)):
                of_case = {r["config"]: r for r in reports if r["case"] == number}
                writer.writerows(run_case(number, of_case, cache))
                file.flush()
    write_provenance(
        out,
        {
            "gpu": torch.cuda.get_device_name(),
            "pytorch": torch.__version__,
            "triton": triton.__version__,
            "python": platform.python_version(),
            "date": str(datetime.now(UTC).date()),
            "command": "python experiments/triton_autotune.py",
            "timing": f"triton.testing.do_bench, median after {WARM_MS} ms, of {TIMED_MS} ms; it clears the L2",
            "compiling": f"all configurations: seconds added up, {jobs} processes at once; pruned: as autotune does it",
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("triton_autotune.csv"))
    parser.add_argument("--jobs", type=int, default=14, help="processes that compile")
    parser.add_argument(
        "--picks", action="store_true", help="print what iosim keeps, and measure nothing"
    )
    args = parser.parse_args()
    if args.picks:
        for case in CASES:
            print(
                case, *(f"    {c.text(case.names)}  {ms:.4f} ms" for c, ms in kept(case)), sep="\n"
            )
    else:
        measure(args.out, args.jobs)


if __name__ == "__main__":
    main()
