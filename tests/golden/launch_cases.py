"""What each kernel's chains consist of, before anything is counted or timed: every launch with its domain, accesses,
resources and work, the tensors, and the arrays that a replay plays, each as eight hexadecimal digits of its text."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from iosim.base.errors import InputError
from iosim.base.records import fields, is_dataclass
from iosim.catalog.libraries import entry, resolve
from iosim.hardware.profile import load_profile
from iosim.kernel.launch import Chain
from iosim.prediction.call import Call
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay.lowering import lower

GPUS = ("a100", "h100", "b200", "t4", "rtx-5090", "mi300x", "mi355x")
PROBLEMS: dict[str, dict[str, Any]] = {
    "causal": {"batch": 2, "heads": 8, "seq_q": 512, "head_dim": 128, "mask": "causal"},
    "ragged": {"heads": 8, "kv_heads": 2, "seq_q": 333, "seq_k": 700, "head_dim": 64},
    "long": {"heads": 32, "kv_heads": 8, "seq_q": 8192, "head_dim": 128, "mask": "causal"},
    "narrow": {"heads": 16, "seq_q": 1100, "head_dim": 32},
    "wide": {"heads": 4, "seq_q": 640, "head_dim": 256, "mask": "causal"},
    "wide values": {"heads": 2, "seq_q": 260, "head_dim": 64, "head_dim_v": 128},
    "window": {"heads": 4, "seq_q": 1000, "head_dim": 64, "mask": "window", "window": 130},
    "dropout": {"heads": 2, "seq_q": 300, "head_dim": 64, "dropout": 0.1},
    "biased": {"batch": 3, "heads": 2, "seq_q": 300, "head_dim": 64, "bias": "tensor", "bias_grad": True},
    "mask read": {"heads": 2, "seq_q": 300, "head_dim": 64, "mask": "causal", "mask_storage": "bool"},
    "packed": {"heads": 4, "head_dim": 128, "mask": "causal", "seq_lens": (100, 1, 700, 64)},
    "decode": {"batch": 2, "heads": 8, "kv_heads": 2, "seq_q": 1, "seq_k": 3000, "head_dim": 128},
    "half sectors": {"heads": 4, "kv_heads": 2, "seq_q": 300, "head_dim": 72, "mask": "causal"},
    "half sectors apart": {"batch": 2, "heads": 2, "seq_q": 300, "head_dim": 136},
    "small": {"heads": 4, "seq_q": 128, "head_dim": 64, "mask": "causal"},
    "square": {"batch": 2, "heads": 8, "seq_q": 256, "head_dim": 64},
    "many": {"batch": 64, "heads": 8, "kv_heads": 1, "seq_q": 1, "seq_k": 900, "head_dim": 128},
    "paged": {"batch": 2, "heads": 8, "kv_heads": 2, "seq_q": 3, "seq_k": 3000, "head_dim": 128, "page_size": 64},
}  # fmt: skip
"""What a kernel does not take as it is, it may take with its own sizes (`own`)."""

LARGE = ("long", "narrow", "wide")
"""Problems whose chains are not lowered to arrays."""
SPILL_SLOTS = 7
"""CTAs that have local memory of their own."""

profile = cache(load_profile)


def text(value: Any) -> str:
    """A value with what its fields hold where that is not their default; floats with nine digits."""
    if is_dataclass(value):
        held = ((f, getattr(value, f.name)) for f in fields(value) if f.compare)
        words_of_fields = ", ".join(
            f"{f.name}={text(x)}" for f, x in held if not is_default(f.default, x)
        )
        return f"{type(value).__name__}({words_of_fields})"
    match value:
        case Enum():
            return value.name
        case float() | np.floating():
            return f"{float(value):.9g}"
        case np.ndarray() if value.dtype.kind == "f":
            return text(value.tolist())
        case np.ndarray():
            numbers = np.ascontiguousarray(value, dtype=np.int64)
            return f"{value.shape} {zlib.crc32(numbers.tobytes()):08x}"
        case Mapping():
            return "{" + ", ".join(f"{text(k)}: {text(v)}" for k, v in value.items()) + "}"
        case tuple() | list():
            return "(" + ", ".join(map(text, value)) + ")"
    return repr(value)


def is_default(default: Any, value: Any) -> bool:
    return type(default) is type(value) and not isinstance(value, np.ndarray) and default == value


def digits(value: Any) -> str:
    return f"{zlib.crc32(text(value).encode()):08x}"


def cases() -> Iterator[tuple[str, Any]]:
    """None but those of each kernel."""
    yield from ()


def own(kernel: str) -> dict[str, Any]:
    """What a kernel must be asked for: its example, its widths, a data type that it has."""
    requires: dict[str, Any] = entry(kernel).get("requires", {})
    values = {"dtype": requires.get("dtypes", ["fp16"])[0], **entry(kernel).get("example", {})}
    if "widths" in requires:
        values["head_dim"], values["head_dim_v"] = requires["widths"]
    if requires.get("latent_only") or "top_k" in values:
        values |= {"latent_kv": True, "kv_heads": 1}
    return values


def call(kernel: str, values: dict[str, Any]) -> tuple[str, Call] | None:
    """Of the first GPU that takes it, after one that the kernel's name says, so that all are asked."""
    begin = zlib.crc32(kernel.encode()) % len(GPUS)
    for gpu in (*GPUS[begin:], *GPUS[:begin]):
        try:
            of = AttentionProblem(**values)
            return gpu, Call.of(of, resolve(kernel, of, profile(gpu)), profile(gpu))
        except InputError:
            continue
    return None


def of_kernel(kernel: str) -> Iterator[tuple[str, Any]]:
    mine = own(kernel)
    for name, passes in product(PROBLEMS, ("fwd", "bwd")):
        launch_call = call(kernel, {"passes": passes} | mine | PROBLEMS[name])
        launch_call = launch_call or call(kernel, {"passes": passes} | PROBLEMS[name] | mine)
        if launch_call is not None:
            gpu, of = launch_call
            launches = [f"{launch.name} {digits(launch)}" for launch in of.chain.launches]
            tensors = digits(tuple(of.chain.tensors.values()))
            lowered_text = [] if name in LARGE else [lowered(of.chain)]
            yield (
                f"{kernel} {gpu} {name} {passes}",
                [*launches, f"tensors {tensors}", *lowered_text],
            )


def lowered(chain: Chain) -> str:
    """The digits of the arrays that a replay of the chain plays."""
    low = lower(chain, SPILL_SLOTS)
    return f"lowered {digits((low.tensors, low.size, low.owner, low.own_share, *low.launches))}"
