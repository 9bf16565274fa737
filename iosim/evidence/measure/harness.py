"""Runs the project's kernels on PyTorch tensors, and the float64 reference that every output is held against.

It needs PyTorch, and a GPU for all but the references; it knows nothing of the profiler.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import product
from typing import Any

import torch

from iosim.base.errors import InputError
from iosim.evidence.cuda.launch import Backward, Forward, Launch, Minimal, Naive
from iosim.evidence.cuda.spec import BwdSpec, FwdSpec, MinimalSpec, NaiveSpec, Spec
from iosim.evidence.measure.case import LSE_TOLERANCE, TOLERANCE, Case

TORCH_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
SAMPLED_PAIRS = 1 << 28
"""Score pairs beyond which the first, the last and 64 random query rows of every head stand for all."""


Loaded = Forward | Backward | Naive | Minimal


@cache
def loaded(spec: Spec) -> Loaded:
    kinds: Mapping[type, Callable[[Any], Loaded]]
    kinds = {FwdSpec: Forward, BwdSpec: Backward, NaiveSpec: Naive, MinimalSpec: Minimal}
    return kinds[type(spec)](spec)


def inputs(case: Case, seed: int, magnitude: float = 1.0) -> dict[str, torch.Tensor]:
    """Fresh random Q, K, V (and dO), [batch, heads, seq, head_dim]."""
    s, dtype = case.shape, TORCH_DTYPES[case.dtype]
    g = torch.Generator("cuda").manual_seed(seed)

    def normal(heads: int, seq: int) -> torch.Tensor:
        size = (s.batch, heads, seq, s.head_dim)
        return (torch.randn(size, generator=g, device="cuda", dtype=torch.float32) * magnitude).to(
            dtype
        )

    t = {
        "q": normal(s.heads, s.seq_q),
        "k": normal(s.kv_heads, s.seq_k),
        "v": normal(s.kv_heads, s.seq_k),
    }
    if isinstance(case.spec, BwdSpec):
        t["d_o"] = normal(s.heads, s.seq_q)
    return t


def workspace(case: Case, t: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Outputs and scratch of a call, poisoned with NaN, or as the kernel wants to find them."""
    s = case.shape

    def poison(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full(size, math.nan, device="cuda", dtype=dtype)

    def like(name: str) -> torch.Tensor:
        return torch.full_like(t[name], math.nan)

    # NaN where the kernel must write: an element that it skips shows in the error
    rows = poison(s.batch, s.heads, s.seq_q)
    if isinstance(case.spec, FwdSpec):
        w = {"o": like("q"), "lse": rows}
        if case.spec.split:
            size = (case.order.splits, s.batch, s.heads, s.seq_q)
            w |= {"o_partial": poison(*size, s.head_dim), "lse_partial": poison(*size)}
        return w
    if isinstance(case.spec, NaiveSpec):
        size = (s.batch, s.heads, s.seq_q, s.seq_k)
        return {
            "s": poison(*size, dtype=t["q"].dtype),
            "p": poison(*size, dtype=t["q"].dtype),
            "o": like("q"),
        }
    if isinstance(case.spec, MinimalSpec):
        o = torch.zeros_like(t["q"])
        return {"o": o, "sum": torch.zeros_like(rows), "top": torch.full_like(rows, -math.inf)}
    # the backward's inputs from the reference: an error of a forward is none of its own
    o, lse = reference(case, t)
    w = {"o": o.to(t["q"].dtype), "lse": lse.float().contiguous(), "rows": poison(*rows.shape, 2)}
    w |= {"dq": like("q"), "dk": like("k"), "dv": like("v")}
    if not case.spec.deterministic:  # type: ignore[attr-defined]
        w["dq_sum"] = torch.zeros(t["q"].shape, device="cuda", dtype=torch.float32)
    return w


def launches(
    case: Case, tensors: dict[str, torch.Tensor], scale: float | None = None
) -> list[Launch]:
    """The launches of a case over these tensors, which must outlive them."""
    addresses = {name: x.data_ptr() for name, x in tensors.items()}
    kernel = loaded(case.spec)
    if isinstance(kernel, Forward):
        return kernel.launches(case.shape, addresses, case.order, scale)
    if isinstance(kernel, Naive):
        return kernel.launches(case.shape, addresses, case.causal, scale)
    return kernel.launches(case.shape, addresses, scale)


def kept(case: Case, rows: torch.Tensor) -> torch.Tensor | None:
    """Which keys each of these query rows keeps, or None where all of them."""
    s = case.shape
    if not case.causal and s.window is None:
        return None
    back = rows[:, None] + (s.seq_k - s.seq_q) - torch.arange(s.seq_k, device=rows.device)[None, :]
    return (back >= 0) if s.window is None else (back >= 0) & (back <= s.window)


def reference(
    case: Case,
    t: dict[str, torch.Tensor],
    rows: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """O and LSE in float64 for some query rows (all by default), head by head."""
    s = case.shape
    rows = torch.arange(s.seq_q, device=t["q"].device) if rows is None else rows
    o = torch.zeros(
        (s.batch, s.heads, len(rows), s.head_dim), device=t["q"].device, dtype=torch.float64
    )
    lse = torch.zeros((s.batch, s.heads, len(rows)), device=t["q"].device, dtype=torch.float64)
    for b, h, _, _, _, v, scores in _heads(case, t, rows, scale):
        lse[b, h] = torch.logsumexp(scores, -1)
        # a row that keeps no key has lse -inf: clamped, its weights come out 0 and not NaN
        o[b, h] = torch.exp(scores - lse[b, h].clamp_min(-1e300)[:, None]) @ v
    return o, lse


def _heads(
    case: Case, t: dict[str, torch.Tensor], rows: torch.Tensor, scale: float | None = None
) -> Iterator[tuple[Any, ...]]:
    s = case.shape
    mask, scale = kept(case, rows), 1 / math.sqrt(s.head_dim) if scale is None else scale
    for b, h in product(range(s.batch), range(s.heads)):
        kv = h // (s.heads // s.kv_heads)
        q, k, v = t["q"][b, h, rows].double(), t["k"][b, kv].double(), t["v"][b, kv].double()
        scores = q @ k.T * scale
        yield b, h, kv, q, k, v, scores if mask is None else scores.masked_fill(~mask, -math.inf)


def gradients(case: Case, t: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    grads = {
        f"d{x}": torch.zeros(t[x].shape, device=t["q"].device, dtype=torch.float64) for x in "qkv"
    }
    for b, h, kv, q, k, v, scores in _heads(
        case, t, torch.arange(case.shape.seq_q, device=t["q"].device)
    ):
        d_o, p = t["d_o"][b, h].double(), torch.nan_to_num(torch.softmax(scores, -1))
        d_p = d_o @ v.T
        # dS = P * (dP - rowsum(P * dP)), then the chain rule through S = Q K^T / sqrt(d)
        d_s = p * (d_p - (p * d_p).sum(-1, keepdim=True)) / math.sqrt(case.shape.head_dim)
        grads["dv"][b, kv] += p.T @ d_o
        grads["dq"][b, h] = d_s @ k
        grads["dk"][b, kv] += d_s.T @ q
    return grads


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    """|got - want| / |want| in the Frobenius norm; NaN and infinities count as infinite."""
    error = (
        torch.linalg.norm(got.double() - want) / torch.linalg.norm(want).clamp_min(1e-30)
    ).item()
    return error if math.isfinite(error) else math.inf


def reference_rows(case: Case) -> torch.Tensor:
    """Query rows that are held against the reference: all, or a sample where there are too many pairs."""
    s = case.shape
    if s.batch * s.heads * s.seq_q * s.seq_k <= SAMPLED_PAIRS:
        return torch.arange(s.seq_q, device="cuda")
    # first and last rows have the masks' corners and the ragged tiles
    edge, rows = min(64, s.seq_q), torch.arange(s.seq_q, device="cuda")
    some = torch.randint(0, s.seq_q, (64,), device="cuda")
    picked: torch.Tensor = torch.unique(torch.cat([rows[:edge], rows[-edge:], some]))
    return picked


def check(
    case: Case, seed: int, magnitude: float = 1.0, scale: float | None = None
) -> dict[str, float]:
    """Runs a case once on fresh inputs and gives its errors: relative for tensors, largest absolute one for the LSE."""
    t = inputs(case, seed, magnitude)
    w = workspace(case, t)
    for launch in launches(case, t | w, scale):
        launch.run()
    torch.cuda.synchronize()
    if isinstance(case.spec, BwdSpec):
        want = gradients(case, t)
        return {name: relative(w[name], want[name]) for name in ("dq", "dk", "dv")}
    rows = reference_rows(case)
    o, lse = reference(case, t, rows, scale)
    errors = {"o": relative(w["o"][:, :, rows], o)}
    if "lse" in w:
        got = w["lse"][:, :, rows].double()
        # rows without a key are held apart: their lse must be -inf and their output 0
        empty = lse == -math.inf
        same = bool((got[empty] == -math.inf).all()) and bool(
            (w["o"][:, :, rows][empty] == 0).all()
        )
        errors["lse"] = (got - lse)[~empty].abs().max().item() if bool((~empty).any()) else 0.0
        errors["empty_rows"] = 0.0 if same else math.inf
    return errors


def trusted(case: Case, seed: int, **extremes: float) -> tuple[bool, dict[str, float]]:
    errors = check(case, seed, **extremes)
    limit = LSE_TOLERANCE * (50 if extremes else 1)
    good = all(
        error <= (limit if name == "lse" else TOLERANCE[case.dtype])
        for name, error in errors.items()
    )
    return good, errors


def refuse_wrong(case: Case) -> None:
    good, errors = trusted(case, fresh_seed())
    if not good:
        raise InputError(f"wrong against float64: {errors}")
    torch.cuda.empty_cache()


def fresh_seed() -> int:
    return int.from_bytes(os.urandom(3), "little")
