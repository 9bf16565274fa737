"""Which row of a kernel's tables is taken: all it resolves to, by GPU and columns, as eight hexadecimal digits.

A GPU of every compute capability, every head dimension that libraries build, each data type, pass and mask: so that a
bound of one row (a GPU that it names, a size up to which it holds) is between two cases.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

from catalog_cases import described
from launch_cases import digits

from iosim.base.errors import InputError
from iosim.catalog.libraries import resolve
from iosim.hardware.profile import load_profile
from iosim.problem.attention import AttentionProblem

GPUS = (
    "v100-sxm2",
    "t4",
    "a100-sxm-80gb",
    "a10",
    "l4",
    "h100-sxm",
    "b200",
    "b300",
    "rtx-5090",
    "gb10",
    "mi300x",
    "mi355x",
)
"""One of each compute capability."""
COLUMNS = (32, 64, 80, 96, 128, 160, 192, 256, 512)
DTYPES = ("fp16", "fp32", "fp8")
DROPOUTS = (0.0, 0.1)
SEQ = 2048


@cache
def problems(columns: int) -> tuple[AttentionProblem, ...]:
    """Of every pass, and a step of decoding: a query against a cache."""
    whole = tuple(
        AttentionProblem(heads=8, seq_q=SEQ, head_dim=columns, dtype=d, mask=m, passes=p, dropout=r)
        for d, m, p, r in product(DTYPES, ("none", "causal"), ("fwd", "bwd"), DROPOUTS)
    )
    return whole + tuple(
        AttentionProblem(
            batch=4,
            heads=8,
            kv_heads=2,
            seq_q=1,
            seq_k=SEQ,
            head_dim=columns,
            dtype=d,
            page_size=p,
        )
        for d, p in product(DTYPES, (None, 64))
    )


def of_kernel(kernel: str) -> Iterator[tuple[str, Any]]:
    for gpu, columns in product(GPUS, COLUMNS):
        profile, chosen = load_profile(gpu), []
        for problem in problems(columns):
            try:
                chosen.append(described(resolve(kernel, problem, profile)))
            except InputError:
                chosen.append([])
        if any(chosen):
            yield f"{kernel} {gpu} {columns}", digits(chosen)


def cases() -> Iterator[tuple[str, Any]]:
    """None but those of each kernel."""
    yield from ()
