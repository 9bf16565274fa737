"""Runs the project's own kernels and whole chains for `run`, each held against float64 on fresh inputs first.

A chain's check is launched again, where the plan says so, with the profiler on, behind a launch that marks where a call
begins. A range is one call between cudaProfilerStart and cudaProfilerStop; the profiler starts that process again for
every pass, so its inputs are the same each time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
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

BACKENDS = {
    "math": SDPBackend.MATH, "flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
}  # fmt: skip
SEED, WARM_UPS = 7, 2

Tensors = dict[str, torch.Tensor]
Call = dict[str, Any]


@contextmanager
def profiled() -> Iterator[None]:
    """The profiler is on meanwhile, until all launches have ended."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    runtime.cudaProfilerStart()
    yield
    torch.cuda.synchronize()
    runtime.cudaProfilerStop()


def fresh_seed() -> int:
    """A seed that was not asked for."""
    return int.from_bytes(os.urandom(3), "little")


def tried(lines: Callable[..., Iterator[Call]], *given: Any) -> Iterator[Call]:
    """What `lines` has to say of a call; where it fails, `left_out`."""
    try:
        yield from lines(*given)
    except (InputError, RuntimeError) as error:  # torch raises RuntimeError for a refusal or short memory
        yield {"left_out": str(error).splitlines()[0]}
    torch.cuda.empty_cache()


# The project's own kernels


def launches_of(calls: list[Call], warm: bool) -> Iterator[Call]:
    """Checks and profiles calls; a line a launch."""
    for call in calls:
        case = Case.from_dict(call["case"])
        row = case.columns() | {"call": str(call["call"])}
        yield from (row | line for line in tried(_launches, case, call["call"], warm))


def _launches(case: Case, seed: int, warm: bool) -> Iterator[Call]:
    """Launches a call that is right with the profiler on; gives what the launches are."""
    good, error_of = harness.trusted(case, seed=fresh_seed())
    torch.cuda.empty_cache()
    if not good:
        raise InputError(f"wrong against float64: {error_of}")
    t = inputs(case, seed)
    w = harness.workspace(case, t)
    built = harness.loaded(case.spec).built
    sources = cache_key(case.spec, built.cc, built.compiler)[:12]
    rows = []
    for index, launch in enumerate(harness.launches(case, t | w), start=1):
        if warm:
            launch.run()
        with profiled():
            launch.run()
        spill = str(built.resources[launch.function.name].spill_store_bytes)
        row = {"launch": str(index), "kernel": launch.function.name, "grid": str(launch.grid)}
        rows.append(row | {"spill_store_bytes": spill, "sources": sources})
    yield from rows


# Chains


def prepared(case: ChainCase, seed: int) -> tuple[Tensors, Callable[[], Tensors]]:
    """Inputs of a call, and the call: each run makes all launches of the chain and gives O (and dq, dk, dv)."""
    t = inputs(case.problem, seed)
    if case.chain == OWN:
        return t, _own(case, t)
    both = case.passes == "fwd+bwd"
    if both:
        g = torch.Generator(t["q"].device).manual_seed(seed + 1)
        t["d_o"] = torch.randn(t["q"].shape, generator=g, device=t["q"].device).to(TORCH_DTYPES[case.dtype])
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


def _own(case: ChainCase, t: Tensors) -> Callable[[], Tensors]:
    made_of = t | harness.workspace(case.problem, t)
    planned = harness.launches(case.problem, made_of)

    def run() -> Tensors:
        for launch in planned:
            launch.run()
        return {"o": made_of["o"]}

    return run


def errors(case: ChainCase, seed: int) -> dict[str, float]:
    """Relative errors of a call's outputs against float64, on inputs of this seed."""
    t, run = prepared(case, seed)
    got = run()
    t = {name: x.detach() for name, x in t.items()}
    rows = reference_rows(case.problem)
    want = {"o": harness.reference(case.problem, t, rows)[0]}
    if case.passes == "fwd+bwd":
        want |= harness.gradients(case.problem, t)
    return {name: relative(got[name][:, :, rows] if name == "o" else got[name], x) for name, x in want.items()}


def checked(case: ChainCase) -> None:
    """Raises InputError where a call's outputs are not attention's, on fresh inputs."""
    error_of = errors(case, fresh_seed())
    if not all(error <= TOLERANCE[case.dtype] for error in error_of.values()):
        raise InputError(f"wrong against float64: {error_of}")


def once(case: ChainCase, *, mark: bool) -> None:
    """One call with the profiler on, after WARM_UPS without; with `mark`, behind a launch that does nothing."""
    _, run = prepared(case, SEED)
    for _ in range(WARM_UPS):
        run()
    with profiled():
        if mark:
            torch.cuda._sleep(1)  # type: ignore[no-untyped-call]
        kept = run()
    del kept


def check_all(calls: list[Call]) -> Iterator[Call]:
    """Checks calls, and makes those to be profiled; a line each."""
    for call in calls:
        yield from tried(_check, ChainCase(**call["case"]), call["profile"])


def _check(case: ChainCase, profile: bool) -> Iterator[Call]:
    checked(case)
    torch.cuda.empty_cache()
    if profile:
        once(case, mark=True)
    yield {}


def make_range(case: Call) -> Iterator[Call]:
    """The one call of a range."""
    once(ChainCase(**case), mark=False)
    yield {}
