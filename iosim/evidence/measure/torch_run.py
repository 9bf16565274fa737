"""Makes calls on the GPU for `run`: the project's own kernels, whole chains, and PyTorch's kernels.

Own kernels and chains are held against float64 on fresh inputs first. Each call is then made with the profiler on, in
an NVTX range that has its number. A range of the profiler is one call between cudaProfilerStart and cudaProfilerStop,
in a process that starts again for every pass, so its inputs are the same each time. PyTorch's kernels are called once
without the profiler before, for what is compiled or chosen at a first call; where the plan says so, that is all: such
processes, side by side, fill the caches of compiled kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from iosim.base.errors import InputError
from iosim.evidence.cuda.compiler import cache_key
from iosim.evidence.measure import harness
from iosim.evidence.measure.case import TOLERANCE, Case
from iosim.evidence.measure.chain_case import OWN, ChainCase
from iosim.evidence.measure.harness import TORCH_DTYPES, inputs, reference_rows, relative
from iosim.evidence.measure.library_case import LibraryCase

BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
SEED, WARM_UPS = 7, 2
CAUSAL_LOWER_RIGHT = 2
"""A value of the memory-efficient kernel's `custom_mask_type`."""

aten: Any = torch.ops.aten

Tensors = dict[str, torch.Tensor]
Call = Mapping[str, Any]
Answer = dict[str, Any]


def run_in_torch(
    kind: str, calls: list[Answer], *, end: float | None = None, **how: Any
) -> Iterator[Answer]:
    """Makes the calls of a plan, `{"call", "case"}` each, of one kind of KINDS; gives a line each. From `end` on, in
    seconds of the epoch, no call is begun."""
    torch.autograd.set_multithreading_enabled(False)  # a range holds what its own thread launches
    make, refusals = KINDS[kind]
    for planned in calls:
        if end is not None and time.time() > end:
            break
        answer: Answer = {"call": planned["call"]}
        try:
            answer |= make(planned["case"], planned["call"], **how)
        except refusals as error:
            answer["left_out"] = (str(error).strip().splitlines() or [type(error).__name__])[0][
                :200
            ]
        torch.cuda.empty_cache()
        yield answer


@contextmanager
def profiled(call: int) -> Iterator[None]:
    """The profiler is on meanwhile, until all launches have ended, in a range that has the call's number."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    runtime.cudaProfilerStart()
    with torch.cuda.nvtx.range(f"iosim call {call}"):
        yield
        torch.cuda.synchronize()
    runtime.cudaProfilerStop()


# The project's own kernels


def _own(planned: Call, call: int, *, warm: bool) -> Answer:
    case = Case.from_dict(planned)
    harness.refuse_wrong(case)
    t = inputs(case, call)
    w = harness.workspace(case, t)
    built = harness.loaded(case.spec).built
    sources, launches = cache_key(case.spec, built.cc, built.compiler)[:12], []
    for launch in harness.launches(case, t | w):
        if warm:
            launch.run()
        with profiled(call):
            launch.run()
        name = launch.function.name
        spilled = str(built.resources[name].spill_store_bytes)
        launches.append(
            {
                "kernel": name,
                "grid": str(launch.grid),
                "spill_store_bytes": spilled,
                "sources": sources,
            }
        )
    return {"launches": launches}


# Chains


def prepared_chain(case: ChainCase, seed: int) -> tuple[Tensors, Callable[[], Tensors]]:
    t = inputs(case.problem, seed)
    if case.chain == OWN:
        return t, _own_chain(case, t)
    both = case.passes == "fwd+bwd"
    if both:
        g = torch.Generator(t["q"].device).manual_seed(seed + 1)
        t["d_o"] = torch.randn(t["q"].shape, generator=g, device=t["q"].device).to(
            TORCH_DTYPES[case.dtype]
        )
    leaves = [t[name].requires_grad_(both) for name in "qkv"]

    def run() -> Tensors:
        with torch.set_grad_enabled(both):
            o = _attend(case.chain, *leaves)
        if not both:
            return {"o": o}
        gradients = torch.autograd.grad(o, leaves, t["d_o"])
        return {"o": o.detach(), **dict(zip(("dq", "dk", "dv"), gradients, strict=True))}

    return t, run


def _attend(chain: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    if chain == "naive":
        return torch.softmax((q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2), dim=-1) @ v
    with sdpa_kernel(BACKENDS[chain]):
        return scaled_dot_product_attention(q, k, v)


def _own_chain(case: ChainCase, t: Tensors) -> Callable[[], Tensors]:
    made_of = t | harness.workspace(case.problem, t)
    planned = harness.launches(case.problem, made_of)

    def run() -> Tensors:
        for launch in planned:
            launch.run()
        return {"o": made_of["o"]}

    return run


def errors(case: ChainCase, seed: int) -> dict[str, float]:
    t, run = prepared_chain(case, seed)
    got = run()
    t = {name: x.detach() for name, x in t.items()}
    rows = reference_rows(case.problem)
    want = {"o": harness.reference(case.problem, t, rows)[0]}
    if case.passes == "fwd+bwd":
        want |= harness.gradients(case.problem, t)
    return {
        name: relative(got[name][:, :, rows] if name == "o" else got[name], x)
        for name, x in want.items()
    }


def _once(case: ChainCase, call: int) -> None:
    _, run = prepared_chain(case, SEED)
    for _ in range(WARM_UPS):
        run()
    with profiled(call):
        result = run()
    del result


def checked(case: ChainCase) -> None:
    error_of = errors(case, harness.fresh_seed())
    if not all(error <= TOLERANCE[case.dtype] for error in error_of.values()):
        raise InputError(f"wrong against float64: {error_of}")


def _chain(planned: Call, call: int, *, profile: list[int]) -> Answer:
    case = ChainCase(**planned)
    checked(case)
    torch.cuda.empty_cache()
    if call in profile:
        _once(case, call)
    return {}


def _range(planned: Call, call: int) -> Answer:
    _once(ChainCase(**planned), call)
    return {}


# PyTorch's kernels


def _library(planned: Call, call: int, *, profile: bool) -> Answer:
    attend = prepared(LibraryCase.from_dict(planned), call)
    try:
        attend()
        torch.cuda.synchronize()
        if profile:
            with profiled(call):
                attend()
    finally:
        torch._dynamo.reset()
    return {}


def prepared(case: LibraryCase, seed: int) -> Callable[[], Any]:
    torch.manual_seed(seed)
    backward = case.passes == "bwd"
    shapes = [(case.heads, case.seq_q), (case.kv_heads, case.seq_k), (case.kv_heads, case.seq_k)]
    dtype = TORCH_DTYPES[case.dtype]
    if case.seq_lens:
        q, k, v = (
            torch.randn(rows, heads, case.head_dim, device="cuda", dtype=dtype)
            for heads, rows in shapes
        )
        return _packed(case, q, k, v)
    leaves = [
        torch.randn(
            case.batch,
            heads,
            rows,
            case.head_dim,
            device="cuda",
            dtype=dtype,
            requires_grad=backward,
        )
        for heads, rows in shapes
    ]
    forward = FORWARDS[case.backend](case, *leaves)
    if not backward:
        return forward
    out = forward()
    d_out = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, leaves, d_out, retain_graph=True)


def _flash(
    case: LibraryCase, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> Callable[[], Any]:
    causal = case.mask == "causal"
    return lambda: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[0]


def _cudnn(
    case: LibraryCase, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> Callable[[], torch.Tensor]:
    causal, trains = case.mask == "causal", case.passes == "bwd"
    return lambda: aten._scaled_dot_product_cudnn_attention(q, k, v, None, trains, 0.0, causal)[0]


def _efficient(
    case: LibraryCase, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> Callable[[], Any]:
    """The call that scaled_dot_product_attention makes; with lengths that differ, that of torch.nn.attention.bias."""
    causal, trains = case.mask == "causal", case.passes == "bwd"
    if not causal or case.seq_q == case.seq_k:
        return lambda: aten._scaled_dot_product_efficient_attention(
            q, k, v, None, trains, 0.0, causal
        )[0]

    def run() -> Any:
        results = aten._efficient_attention_forward(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            None,
            None,
            None,
            None,
            None,
            0.0,
            CAUSAL_LOWER_RIGHT,
            trains,
        )
        return results[0].transpose(1, 2)

    return run


def _packed(
    case: LibraryCase, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> Callable[[], Any]:
    ends = torch.tensor([0, *case.seq_lens], device="cuda").cumsum(0, dtype=torch.int32)
    longest, causal = max(case.seq_lens), case.mask == "causal"
    if case.backend == "flash":
        return lambda: aten._flash_attention_forward(
            q, k, v, ends, ends, longest, longest, 0.0, causal, False
        )
    q, k, v = q[None], k[None], v[None]
    kind = CAUSAL_LOWER_RIGHT if causal else 0
    return lambda: aten._efficient_attention_forward(
        q, k, v, None, ends, ends, longest, longest, 0.0, kind, False
    )


def _flex(
    case: LibraryCase, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> Callable[[], Any]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    window = case.window

    def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
        return i >= j

    def windowed(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (i >= j) & (i - j <= window)

    blocks = None
    if case.mask != "none":
        keeps = causal if case.mask == "causal" else windowed
        blocks = create_block_mask(keeps, None, None, case.seq_q, case.seq_k, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(q, k, v, block_mask=blocks, enable_gqa=case.heads != case.kv_heads)


Makes = Callable[..., Callable[[], Any]]
FORWARDS: dict[str, Makes] = {
    "flash": _flash,
    "efficient": _efficient,
    "cudnn": _cudnn,
    "flex": _flex,
}
REFUSED = (InputError, RuntimeError)
"""PyTorch raises RuntimeError for a refusal or short memory."""
KINDS: dict[str, tuple[Callable[..., Answer], tuple[type[Exception], ...]]] = {
    "own": (_own, REFUSED),
    "chain": (_chain, REFUSED),
    "range": (_range, ()),
    "library": (
        _library,
        (Exception,),
    ),  # whatever a backend or a compiler has against the call is its reason
}
"""What makes a call of a kind, and which of its failures are the call's own."""
