"""`default`: the kernel that a problem runs with where none is asked for, one rule for every command and for Python.

The first of an order of library kernels that takes the problem on the GPU: what is made for its generation before what
is made for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from iosim.base.errors import InputError
from iosim.base.words import DEFAULT
from iosim.catalog.libraries.loader import chooses, entry, is_choice
from iosim.catalog.libraries.resolver import AND, resolve
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel
from iosim.problem.attention import AttentionProblem

ORDER = ("flashmla", "mla", "fa3", "fa4", "fa4-256", "fa2", "cutlass", "flash")
"""The last is FlashAttention-2's algorithm with any tile, which takes nearly everything."""
AMD_ORDER = ("aiter", "ck", "flash")
SINKS_ORDER = ("vllm-fa3", "fa4", "vllm-triton", "flash")
"""With a learned sink a head: those of vLLM's kernels, as the libraries' own have no place for one before Blackwell."""
CACHE_ORDER = ("flashmla", "mla", "flashinfer", "vllm-triton", "flash")
"""With a cache of another type than the queries: FlashInfer's and vLLM's kernels widen its numbers as they read."""
FEW_QUERIES = 256
"""Query tokens below which keys in greater number are split: the rows of FlashAttention-4's tile."""


SUITS: Mapping[str, Callable[[AttentionProblem], bool]] = {
    "fa3": lambda p: p.passes == "fwd" or p.head_dim == p.head_dim_v,
    **dict.fromkeys(
        ("fa4", "fa4-256"), lambda p: p.longest_q >= min(FEW_QUERIES, p.longest_k)
    ),  # it splits no keys
    "fa2": lambda p: p.head_dim == p.head_dim_v,
    "aiter": lambda p: "fwd" not in p.passes or p.head_dim == 128,  # narrower ones go to ck
}
"""What a library does not run, or not well, though its kernel in the catalog takes it."""
LIBRARIES = ("fa4", "fa4-256", "fa3", "cudnn", "fa2", "cutlass", "flashinfer", "flashmla", "flex")
"""Kernels of libraries that a GPU may be asked for besides its own."""
NOTE = "default kernel: "


def is_suited(name: str, problem: AttentionProblem) -> bool:
    return name not in SUITS or SUITS[name](problem)


def order_of(problem: AttentionProblem, profile: HardwareProfile) -> tuple[str, ...]:
    """The kernels that are tried in turn; where queries pick keys, the library that has an indexer first."""
    if profile.is_amd:
        return AMD_ORDER
    if problem.compress_ratio is not None:
        return ("dsv4", *ORDER)
    if problem.sinks:
        return SINKS_ORDER
    if problem.shared_prefix is not None:
        return ("flashinfer-cascade", *ORDER)
    order = ORDER if problem.cache_dtype is None else CACHE_ORDER
    return order if problem.index_heads is None else ("dsa", *order)


def default_kernel(problem: AttentionProblem, profile: HardwareProfile) -> str:
    """The name of the kernel that a GPU runs a problem with where none is asked for: of both passes the one that takes
    both, else on AMD's GPUs, whose libraries pass a call on to each other, one for each."""
    suited = _first_suited(problem, profile)
    if suited is None and problem.passes == "fwd+bwd" and profile.is_amd:
        parts = [
            _first_suited(problem.with_(passes=direction), profile) for direction in ("fwd", "bwd")
        ]
        suited = AND.join(part for part in parts if part) if all(parts) else None
    return suited or ORDER[-1]


def _first_suited(problem: AttentionProblem, profile: HardwareProfile) -> str | None:
    # Tried for good: a kernel that resolves takes the problem. The last of the order takes all.
    for name in order_of(problem, profile)[:-1]:
        with suppress(InputError):
            if is_suited(name, problem):
                resolve(name, problem, profile)
                return name
    return None


def with_sinks(problem: AttentionProblem, kernel: str | Kernel) -> AttentionProblem:
    """The forward of a layer that has learned sinks, as a kernel runs it: without them where one that was asked for by
    name has no place for them, or is no catalog's."""
    if isinstance(kernel, Kernel) or problem.passes != "fwd":
        return problem.with_(sinks=False)
    takes = kernel == DEFAULT or (
        not is_choice(kernel) and "sinks" in entry(kernel)["requires"].get("takes", ())
    )
    return problem.with_(sinks=takes)


@chooses(DEFAULT)
def _default(problem: AttentionProblem, profile: HardwareProfile) -> tuple[str, str]:
    name = default_kernel(problem, profile)
    tried = ", ".join(order_of(problem, profile))
    if AND in name:
        return (
            name,
            f"{NOTE}{name}, one for each pass, as none of {tried} takes both on {profile.name}",
        )
    return name, f"{NOTE}{name}, the first of {tried} that takes the problem on {profile.name}"


def told(kernels: Iterable[tuple[Kernel, HardwareProfile]]) -> str:
    """A sentence on those of some kernels that nobody asked for: which one each GPU has; empty where all were named."""
    names: dict[str, dict[str, None]] = {}
    for kernel, profile in kernels:
        if any(note.startswith(NOTE) for note in kernel.notes):
            names.setdefault(profile.name, {})[kernel.name] = None
    by_default = [f"{' and '.join(kernel_names)} on {gpu}" for gpu, kernel_names in names.items()]
    return (
        f"Kernel{'s' if len(by_default) > 1 else ''} by default: {', '.join(by_default)}"
        if by_default
        else ""
    )
