"""Bytes of chains, in every way of counting: between SMs and L2, adds, bounds, HBM by the capacity rule, memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

from iosim.base.errors import InputError
from iosim.catalog.libraries import Overrides, resolve
from iosim.hardware.profile import load_profile
from iosim.prediction.call import Call
from iosim.problem.attention import AttentionProblem
from iosim.readers.bounds import memory
from iosim.readers.formula.closed_form import closed_form

GPUS = ("a100", "h100", "b200")
"""The first that a kernel runs on is taken."""
PROBLEMS: dict[str, dict[str, Any]] = {
    "whole": {"batch": 2, "heads": 4, "seq_q": 512, "head_dim": 64},
    "in the L2": {"heads": 8, "seq_q": 2048, "head_dim": 128},  # a tensor has 4 MiB
    "past the L2": {"heads": 32, "seq_q": 4096, "head_dim": 128},
    "ragged": {"heads": 6, "kv_heads": 2, "seq_q": 333, "seq_k": 700, "head_dim": 80, "mask": "causal"},
    "tall": {"heads": 2, "seq_q": 900, "seq_k": 300, "head_dim": 128, "mask": "causal", "offset": 0},
    "window": {"heads": 4, "seq_q": 1000, "head_dim": 96, "mask": "window", "window": 130},
    "wide values": {"heads": 2, "seq_q": 260, "head_dim": 64, "head_dim_v": 128},
    "dropout": {"heads": 2, "seq_q": 300, "head_dim": 64, "dropout": 0.1},
    "biased": {"batch": 3, "heads": 2, "seq_q": 300, "head_dim": 64, "bias": "tensor", "bias_grad": True},
    "alibi": {"heads": 2, "seq_q": 300, "head_dim": 64, "bias": "alibi", "mask": "causal"},
    "padded": {"batch": 2, "heads": 2, "seq_q": 300, "head_dim": 64, "key_padding": True},
    "mask read": {"heads": 2, "seq_q": 300, "head_dim": 64, "mask": "causal", "mask_storage": "bool"},
    "blocks": {"heads": 2, "seq_q": 4000, "head_dim": 64, "mask": "butterfly"},
    "packed": {"heads": 4, "head_dim": 64, "mask": "causal", "seq_lens": (100, 1, 700, 64)},
    "decode": {"batch": 2, "heads": 8, "kv_heads": 2, "seq_q": 1, "seq_k": 3000, "head_dim": 128},
    "paged": {"batch": 2, "heads": 8, "kv_heads": 2, "seq_q": 3, "seq_k": 3000, "head_dim": 128, "page_size": 256},
    "latent": {"heads": 16, "kv_heads": 1, "seq_q": 1, "seq_k": 1000, "head_dim": 576, "head_dim_v": 512,
               "latent_kv": True, "page_size": 64},
}  # fmt: skip
OVERRIDES = {"": None, " splits 3": Overrides(splits=3)}


profile = cache(load_profile)


@cache
def problem(name: str, passes: str, dtype: str) -> AttentionProblem:
    return AttentionProblem(**PROBLEMS[name], passes=passes, dtype=dtype)


def call(kernel: str, name: str, passes: str, over: Overrides | None) -> Call | None:
    """Of the first GPU and data type that take it."""
    for gpu, dtype in product(GPUS, ("fp16", "fp32", "fp8")):
        try:
            of = problem(name, passes, dtype)
            return Call.of(of, resolve(kernel, of, profile(gpu), over), profile(gpu))
        except InputError:
            continue
    return None


def moved(rows: Any) -> dict[str, int]:
    bytes_of: dict[str, int] = {}
    for row in rows:
        key = f"{row.launch} {row.tensor} {row.level} {row.direction}"
        bytes_of[key] = bytes_of.get(key, 0) + row.bytes
    return bytes_of


def cases() -> Iterator[tuple[str, Any]]:
    """None but those of each kernel."""
    yield from ()


def of_kernel(kernel: str) -> Iterator[tuple[str, Any]]:
    for name, passes, (words, over) in product(PROBLEMS, ("fwd", "bwd"), OVERRIDES.items()):
        kernel_call = call(kernel, name, passes, over)
        if kernel_call is None:
            continue
        counted = moved(kernel_call.counted)
        least = kernel_call.bounds.to_dict()
        hbm = [sum(moved(kernel_call.capacity(start)).values()) for start in ("cold", "warm")]
        alike = moved(closed_form(kernel_call.chain)) == counted
        yield (
            f"{kernel} {name} {passes}{words}",
            [counted, kernel_call.added, least, hbm, memory(kernel_call.chain), alike],
        )
