"""Calls that others timed (`published_attention_times.csv`), as problems and kernels of the catalog.

A file's sources say which library ran; where its times show that another build of it did, the rule stands here with
its reason. No time reaches a prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel
from iosim.kernel.libraries import Overrides, resolve
from iosim.problem.attention import AttentionProblem

SIZES = ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "head_dim_v", "window", "window_right",
         "page_size")  # fmt: skip
WHEEL_A30 = "attention_latency_a30_fa2_nvbench.csv"
"""flash-attn 2.6.3. Its head_dim 160 has a kernel of its own, 128x32 with 4 warps on cc 8.0
(flash_fwd_launch_template.h, run_mha_fwd_hdim160); later versions run that width in the kernel for 192."""
VARLEN = "attention_latency_h100_a6000_llmservingsim.csv"
"""flash_attn_varlen_func of the flash-attn wheel: no splits without pages, and a CTA a query head, since times grow
with batch x heads whatever the number of key heads. On the RTX A6000 a step takes the same time whether a query attends
alone or 32 do, that of the tile without a mask (128x32), and 960 tokens take what all their pairs take: no mask there.
What PyTorch's build for cc 9.0 spills is not known of the wheel's: none."""


def problem_of(row: Mapping[str, str]) -> AttentionProblem:
    """The problem of a row; what the row leaves out is the default."""
    sizes: dict[str, Any] = {name: int(row[name]) for name in SIZES if row.get(name)}
    if row["kernel"] == "flashmla":
        sizes["latent_kv"] = True
    mask = "none" if row["file"] == VARLEN and row["gpu"] == "rtx-a6000" else row["mask"]
    return AttentionProblem(**sizes, dtype=row["dtype"], mask=mask, passes=row.get("pass") or "fwd")


def kernel_of(row: Mapping[str, str], problem: AttentionProblem) -> Kernel:
    """The kernel of a row.

    Raises:
        InputError: the kernel cannot run the problem on the row's GPU.
    """
    settings: dict[str, Any] = {"splits": int(row["splits"])} if row.get("splits") else {}
    if row["file"] == WHEEL_A30 and row["head_dim"] == "160":
        settings |= {"tile": (128, 32), "warps": 4}
    if row["file"] == VARLEN:
        settings |= {"pack_group": False, "splits": 1}
    kernel = resolve(row["kernel"], problem, load_profile(row["gpu"]), Overrides(**settings) if settings else None)
    return kernel.with_(spill=None) if row["file"] == VARLEN else kernel
