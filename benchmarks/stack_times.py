"""Times of serving stacks' attention calls that others measured, beside predictions.

    python benchmarks/stack_times.py                 medians by table, GPU and kernel, of the rows that nothing has seen
    python benchmarks/stack_times.py --open          the same of the other half, on which constants were fitted
    python benchmarks/stack_times.py --rows          every row
    python benchmarks/stack_times.py --draw FOLDER   draws the rows anew out of AIConfigurator's tables

The rows: experiments/measurements/published_stacks.csv. Of each table, GPU, framework, kernel and type at most 60, in
the order of a hash of their shape; every other one is held out. A row of the first two tables holds the append of K and
V, the attention and its combine, and one call is a CUDA graph that is replayed from a warm L2.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path

from recorders import measurements
from serving_error import predicted

from iosim.base.errors import InputError
from iosim.base.files import write_whole
from iosim.hardware.profile import load_profile
from iosim.kernel.serving import read_stack
from iosim.prediction.replays import Replays
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem
from iosim.studies.latency.latency import latency_of

TABLE = "published_stacks.csv"
COLUMNS = ("table", "gpu", "framework", "version", "kernel", "attn_dtype", "kv_cache_dtype", "batch",
           "new_tokens_per_seq", "cached_tokens", "heads", "kv_heads", "head_dim", "window_size", "latency_ms")  # fmt: skip
TABLES = {"context": "aic_attention_context.csv", "generation": "aic_attention_generation.csv",
          "encoder": "aic_encoder_attention.csv"}  # fmt: skip
GPUS = {"a100_sxm": "a100-sxm-80gb", "l40s": "l40s", "h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm",
        "b200_sxm": "b200", "b300_sxm": "b300", "gb200": "gb200", "gb300": "b300",
        "rtx_pro_6000_server": "rtx-pro-6000-server"}  # fmt: skip
"""The tables' name of a GPU -> its profile. NB: a GB300 stands as a B300."""
KERNELS = {
    ("vllm", "vllm_flash_attn"): ("vllm", "vllm-fa2", 64),
    ("vllm", "vllm_flash_attn_fa2"): ("vllm", "vllm-fa2", 64),
    ("vllm", "vllm_flash_attn_fa3"): ("vllm", "vllm-fa3", 64),
    ("vllm", "vllm_triton_attn"): ("vllm", "vllm-triton", 64),
    ("vllm", "vllm_flashinfer_fiprefill"): ("flashinfer", "flashinfer", 64),
    ("vllm", "vllm_flashinfer_fidecode"): ("flashinfer", "flashinfer", 64),
    ("sglang", "flash_attention"): ("sglang", "fa3-sm80", 64),
    ("sglang", "fa3"): ("sglang", "sglang-fa3", 64),
    ("sglang", "flashinfer"): ("sglang-flashinfer", "flashinfer", 1),
    ("trtllm", "torch_flow"): ("trtllm", "xqa", 64),
    ("sglang", "flash_attention_v4"): (None, "fa4-varlen", None),
    ("vllm", "vllm_vit_flash_attn_fa4"): (None, "fa4-varlen", None),
    ("sglang", "flash_attention_v3"): ("sglang", "sglang-fa3", None),
    ("vllm", "vllm_vit_flash_attn_fa3"): ("sglang", "vllm-fa3", None),
    ("vllm", "vllm_vit_flash_attn_fa2"): (None, "fa2", None),
}
"""(framework, the tables' kernel) -> stack, the catalog's kernel, tokens of a page."""
DRAWN = 60
PLAIN_GAP_S = 1.0e-6
"""From call to call where a library is called without a stack's cache. Fitted on 180 open rows of FlashAttention-2 and
FlashAttention-4."""
LONG_S = 3e-4
"""From which a call counts as long."""
GRACE_GAP_S = 3.5e-6
"""More from call to call of several launches in vLLM where the host is a Grace CPU. Fitted on 120 open rows of its Triton
kernel on a GB200 and a GB300; on a B200 and a B300 they need none."""
CUDA_CORES_BELOW = 4
"""Heads of a group from which SGLang decodes on tensor cores, where its cache has 16 bits (should_use_tensor_core)."""
BLACKWELL = 100
"""Compute capability from which SGLang's FlashInfer backend takes CUTLASS's kernel for prefill, TensorRT-LLM its own
for decoding."""
WIDEST_GROUP = 32
"""Of TensorRT-LLM's rows of XQA: wider ones take ten times as long, by another kernel."""


def is_dc(cc: int) -> bool:
    return BLACKWELL <= cc < 120


@dataclass(frozen=True)
class Row:
    """A published time."""

    values: dict[str, str]
    held_out: bool

    @property
    def gpu(self) -> str:
        return GPUS[self.values["gpu"]]

    @property
    def measured_s(self) -> float:
        return float(self.values["latency_ms"]) * 1e-3

    def size(self, name: str) -> int:
        return int(self.values[name])

    @property
    def problem(self) -> AttentionProblem:
        new, window, page = self.size("new_tokens_per_seq"), self.size("window_size"), None if self.ragged else self.page
        mask = {"mask": "window", "window": window - 1} if window else {"mask": "causal"}
        if self.values["table"] == "encoder":
            mask = {"mask": "none"}
        fp8 = self.values["kv_cache_dtype"] == "fp8"
        whole = fp8 and (self.values["attn_dtype"] == "fp8" or self.values["kernel"] in ("vllm_flash_attn_fa3", "fa3"))
        return AttentionProblem(
            batch=self.size("batch"), heads=self.size("heads"), kv_heads=self.size("kv_heads"), seq_q=new,
            seq_k=new + self.size("cached_tokens"), head_dim=self.size("head_dim"), dtype="fp8" if whole else "bf16",
            page_size=page, cache_dtype="fp8" if fp8 and not whole and not self.ragged else None, **mask,
        )  # fmt: skip

    @property
    def ragged(self) -> bool:
        """Whether it is SGLang's prefill by FlashInfer, which without a prefix reads the new tokens themselves."""
        return self.values["table"] == "context" and self.values["kernel"] == "flashinfer"

    @property
    def page(self) -> int | None:
        return KERNELS[self.values["framework"], self.values["kernel"]][2]

    @property
    def kernel(self) -> str | None:
        """The catalog's kernel that a row is of; None where it is of none."""
        _, name, _ = KERNELS[self.values["framework"], self.values["kernel"]]
        if self.values["table"] == "encoder":
            return None if name == "xqa" else name
        decodes, group = self.values["table"] == "generation", self.size("heads") // self.size("kv_heads")
        blackwell = is_dc(load_profile(self.gpu).cc)
        if self.values["kernel"] == "flashinfer":
            if decodes and self.size("window_size") or blackwell and not decodes:
                return None  # SGLang hands over the keys of a window alone
            if decodes and group < CUDA_CORES_BELOW and self.values["kv_cache_dtype"] == "bfloat16":
                return "flashinfer-decode"
        if name == "xqa" and (self.values["gpu"] == "a100_sxm" or blackwell or not decodes or not 1 < group <= WIDEST_GROUP):
            return None
        return name

    def predicted(self) -> tuple[float, Prediction]:
        """Seconds of the call, and of its launches. Raises InputError: the kernel does not run it."""
        name = self.kernel
        if name is None:
            raise InputError("no kernel of the catalog")
        appends = self.values["table"] != "encoder"
        made = predicted(self.problem, name, self.gpu, appends, Replays())
        stack = KERNELS[self.values["framework"], self.values["kernel"]][0]
        if stack is None:
            return made.time_s + PLAIN_GAP_S, made
        casts = self.values["attn_dtype"] != "fp8"  # else made before the call
        parts = latency_of(read_stack(stack), made, appends).parts
        on_grace = self.values["framework"] == "vllm" and self.values["gpu"] in ("gb200", "gb300")
        seconds = sum(part.seconds for part in parts if casts or not part.name.startswith("cast"))
        return seconds + GRACE_GAP_S * on_grace, made


def shape_hash(values: dict[str, str]) -> str:
    """A hash of all but the time."""
    return hashlib.sha256(",".join(values[name] for name in COLUMNS[:-1]).encode()).hexdigest()


def drawn(folder: Path) -> Iterator[dict[str, str]]:
    """The rows of AIConfigurator's three tables that are kept."""
    cells: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for table, file_name in TABLES.items():
        with open(folder / file_name, encoding="utf-8", newline="") as file:
            for values in csv.DictReader(file):
                if table == "encoder":
                    values |= {"batch": values["batch_size"], "new_tokens_per_seq": values["seq_len"],
                               "cached_tokens": "0", "heads": values["num_heads"], "kv_heads": values["num_heads"],
                               "window_size": "0", "kv_cache_dtype": values["attn_dtype"]}  # fmt: skip
                values = {"table": table} | {name: values[name] for name in COLUMNS[1:]}
                if (values["framework"], values["kernel"]) in KERNELS and Row(values, False).kernel:
                    cells.setdefault(tuple(values[name] for name in COLUMNS[:7]), []).append(values)
    for _, rows in sorted(cells.items()):
        yield from sorted(rows, key=shape_hash)[:DRAWN]


def rows(held_out: bool) -> list[Row]:
    """Of each cell of the recorded table, in its order, every other row is held out."""
    seen: dict[tuple[str, ...], int] = {}
    found = []
    with open(measurements(TABLE), encoding="utf-8", newline="") as file:
        for values in csv.DictReader(file):
            key = tuple(values[name] for name in COLUMNS[:7])
            seen[key] = seen.get(key, 0) + 1
            found.append(Row(values, held_out=seen[key] % 2 == 0))
    return [row for row in found if row.held_out == held_out]
