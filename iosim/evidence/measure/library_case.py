"""Calls of PyTorch's attention kernels as data: what is drawn at random, and one or two of every build. No GPU.

`random` draws calls from the distribution that `drawn` states, the same for a seed on every machine; `builds` are those
of builds.toml.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from iosim.base.errors import InputError
from iosim.base.records import asdict, dataclass
from iosim.base.schema import read_toml
from iosim.evidence.columns import PROBLEM
from iosim.evidence.crossed import crossed
from iosim.evidence.measure.case import DTYPE_NAMES
from iosim.problem.attention import AttentionProblem

IMPLEMENTATIONS = {
    "flash": "pytorch_flash",
    "efficient": "pytorch_mem_efficient",
    "cudnn": "cudnn",
    "flex": "pytorch_flex",
}
BACKWARD = "_backward"
COLUMNS = (*PROBLEM, "window", "seq_lens")
LONGEST = 131_072
MOST_BYTES, MOST_FLOPS, MOST_FLOPS_SLOW = 4e9, 6e12, 2e12
"""A drawn call is drawn again where its tensors or its operations exceed these; the memory-efficient kernel, which
takes four times as long, has the last one."""
KINDS = (("prefill", 0.46), ("decode", 0.17), ("backward", 0.22), ("packed", 0.08), ("flex", 0.07))
BACKENDS = {
    "prefill": (("flash", 0.36), ("efficient", 0.34), ("cudnn", 0.3)),
    "decode": (("flash", 0.4), ("efficient", 0.2), ("cudnn", 0.4)),
    "backward": (("flash", 0.45), ("efficient", 0.35), ("cudnn", 0.2)),
    "packed": (("flash", 0.7), ("efficient", 0.3)),
    "flex": (("flex", 1.0),),
}
WIDEST = {"flash": 256, "efficient": 256, "cudnn": 128, "flex": 256}
"""Largest of the head dimensions that are drawn: multiples of 8 up to here; powers of two for flex."""

T = TypeVar("T")


@dataclass(frozen=True)
class LibraryCase:
    """One call of a backend. `passes` bwd: the forward has run before, uncounted. `seq_lens`: packed sequences, whose
    sums are `seq_q` and `seq_k`. A causal diagonal ends in the lower right corner."""

    backend: str
    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    dtype: str = "bf16"
    mask: str = "none"
    window: int | None = None
    passes: str = "fwd"
    seq_lens: tuple[int, ...] = ()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LibraryCase:
        return cls(**{**data, "seq_lens": tuple(data["seq_lens"])})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def implementation(self) -> str:
        return IMPLEMENTATIONS[self.backend] + (BACKWARD if self.passes == "bwd" else "")

    @property
    def problem(self) -> AttentionProblem:
        packed = ("seq_q", "seq_k") if self.seq_lens else ("seq_lens",)
        return AttentionProblem(
            **{k: v for k, v in asdict(self).items() if k not in ("backend", *packed)}
        )

    @property
    def tensor_bytes(self) -> int:
        """Bytes of Q, K, V and O, and for a backward of their gradients."""
        tokens = 2 * self.heads * self.seq_q + 2 * self.kv_heads * self.seq_k
        size = 4 if self.dtype == "fp32" else 2
        return self.batch * tokens * self.head_dim * size * (3 if self.passes == "bwd" else 1)

    def columns(self) -> dict[str, str]:
        row = asdict(self) | {
            "implementation": self.implementation,
            "causal": int(self.mask == "causal"),
        }
        row |= {"dtype": DTYPE_NAMES[self.dtype], "seq_lens": " ".join(map(str, self.seq_lens))}
        return {name: "" if row[name] is None else str(row[name]) for name in COLUMNS}


# Random draws


def drawn(seed: int, calls: int) -> list[LibraryCase]:
    """So many calls, each drawn by itself: the kind (KINDS), the backend (BACKENDS), then

    lengths  log-uniform from 1 to LONGEST, half of them odd, a quarter multiples of 128; K's drawn by itself in a third
    heads    key/value heads log-uniform from 1 to 32, in groups of 1 (half), 2, 4 or 8 (flash and cuDNN alone)
    batch    log-uniform from 1 to 64; for decoding to 256, with 1 query (half) or up to 16
    head_dim 64 or 128 (half), or any multiple of 8 up to WIDEST
    dtype    bf16 (60 %), fp16; the memory-efficient kernel takes fp32 in a tenth
    mask     none, causal, each a half; flex: none, causal or a window, each a third

    A call whose tensors or operations are too many is drawn again. Raises InputError where it is none."""
    if calls < 1:
        raise InputError(f"`calls` {calls} is out of range; accepted: 1 or more")
    rng = random.Random(seed)
    cases: list[LibraryCase] = []
    # rejection: the generator goes on, so that the list depends on the seed alone
    while len(cases) < calls:
        case = _draw(rng)
        max_flops = MOST_FLOPS_SLOW if case.backend == "efficient" else MOST_FLOPS
        if case.tensor_bytes <= MOST_BYTES and case.problem.matmul_flops() <= max_flops:
            cases.append(case)
    return cases


def _pick(rng: random.Random, weighted: Sequence[tuple[T, float]]) -> T:
    at = rng.random() * sum(weight for _, weight in weighted)
    for value, weight in weighted:
        at -= weight
        if at < 0:
            return value
    return weighted[-1][0]


def _even(rng: random.Random, values: Sequence[T]) -> T:
    return _pick(rng, [(value, 1.0) for value in values])


def _log_uniform(rng: random.Random, low: int, high: int) -> int:
    return min(high, int(math.exp(rng.uniform(math.log(low), math.log(high + 1)))))


def _length(rng: random.Random, longest: int = LONGEST) -> int:
    length, kind = _log_uniform(rng, 1, longest), rng.random()
    # odd lengths are those whose last tiles are ragged
    if kind < 0.5:
        return min(longest - 1, length) | 1
    return max(2, length // 2 * 2) if kind < 0.75 else max(128, length // 128 * 128)


def _draw(rng: random.Random) -> LibraryCase:
    kind = _pick(rng, KINDS)
    backend = _pick(rng, BACKENDS[kind])
    kv_heads = _log_uniform(rng, 1, 32)
    grouped = backend in ("flash", "cudnn") and rng.random() < 0.5
    group = _even(rng, (2, 4, 8)) if grouped else 1
    batch = _log_uniform(rng, 1, 256 if kind == "decode" else 64)
    head_dim = _head_dim(rng, backend)
    dtype = "bf16" if rng.random() < 0.6 else "fp16"
    if backend == "efficient" and rng.random() < 0.1:
        dtype = "fp32"
    sizes: dict[str, Any] = {"backend": backend, "heads": kv_heads * group, "kv_heads": kv_heads}
    sizes |= {
        "head_dim": head_dim,
        "dtype": dtype,
        "passes": "bwd" if kind == "backward" else "fwd",
    }
    causal: dict[str, Any] = {"mask": "causal" if rng.random() < 0.5 else "none"}
    if kind == "packed":
        lens = tuple(_length(rng, 16_384) for _ in range(_log_uniform(rng, 2, 24)))
        return LibraryCase(
            batch=1, seq_q=sum(lens), seq_k=sum(lens), seq_lens=lens, **sizes, **causal
        )
    if kind == "decode":
        few = 1 if rng.random() < 0.5 else _log_uniform(rng, 1, 16)
        return LibraryCase(batch=batch, seq_q=few, seq_k=max(few, _length(rng)), **sizes)
    seq_q = _length(rng)
    if kind == "flex":
        mask = _even(rng, ("none", "causal", "window"))
        window = _log_uniform(rng, 16, 8_192) if mask == "window" else None
        return LibraryCase(batch=batch, seq_q=seq_q, seq_k=seq_q, mask=mask, window=window, **sizes)
    seq_k = _length(rng) if rng.random() < 1 / 3 else seq_q
    if causal["mask"] == "causal":
        seq_q, seq_k = (
            (seq_k, seq_k) if backend == "cudnn" else (min(seq_q, seq_k), max(seq_q, seq_k))
        )
    return LibraryCase(batch=batch, seq_q=seq_q, seq_k=seq_k, **sizes, **causal)


def _head_dim(rng: random.Random, backend: str) -> int:
    if rng.random() < 0.5:
        return 64 if rng.random() < 0.4 else 128
    if backend == "flex":
        return _even(rng, (16, 32, 64, 128, 256))
    return 8 * (1 + int(rng.random() * (WIDEST[backend] // 8)))


def builds() -> Iterator[LibraryCase]:
    for table in read_toml(Path(__file__).with_name("builds.toml"))["call"]:
        for point in crossed(table["each"]):
            row = {"batch": 1, "heads": 16, **table, **point}
            row["kv_heads"], seq = row["heads"], row.pop("seq", None)
            del row["each"]
            yield LibraryCase(**({"seq_q": seq, "seq_k": seq} | row))
