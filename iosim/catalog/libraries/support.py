"""What a library kernel runs: GPUs, types, widths, passes, caches, and what it takes besides Q, K and V.

A catalog file lists under `requires.takes` the names of `AttentionProblem.terms` that its kernel reads;
`requires.dropout` is false where it has none, and `requires.one_score_tensor` is true where bias and masks come as one
tensor, as PyTorch's `attn_mask` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from iosim.base.errors import InputError
from iosim.catalog.algorithms.registry import algorithm_of
from iosim.catalog.libraries.loader import Entry, entry, entry_names, on_gpu
from iosim.hardware.profile import HardwareProfile, cc_text
from iosim.problem.attention import AttentionProblem

SCORE_TENSORS = ("bias", "alibi", "key_padding", "mask_tensor")
"""The terms that come as a tensor beside Q, K and V."""

MAX_NAMED = 16
"""Kernels that a refusal names: a line stays one however many there are."""


def check_support(data: Entry, problem: AttentionProblem, profile: HardwareProfile) -> int | None:
    """The compiled head dimension (None: any), once the kernel is known to run there. Raises InputError: the first
    thing that is asked of it and that it is not made for."""
    for reason in _refusals(data, problem, profile):
        raise InputError(reason)
    compiled = data["requires"].get("head_dims")
    return (
        None
        if compiled is None
        else min(d for d in compiled if d >= max(problem.head_dim, problem.head_dim_v))
    )


def runs(data: Entry, problem: AttentionProblem, profile: HardwareProfile) -> bool:
    """True where the kernel of exactly this file can run the problem on the GPU."""
    return next(_refusals(data, problem, profile), None) is None


def runs_on_gpu(data: Entry, dtype: str, profile: HardwareProfile) -> bool:
    """True where the kernel, or the one that its file names for older GPUs, has code for the GPU and the input type: a
    loop over many kernels asks this first, since a refusal names every kernel that would do."""
    candidate = on_gpu(data, profile)
    return _on(candidate, profile.is_amd) and _runs(candidate, dtype, profile.cc)


def _refusals(data: Entry, problem: AttentionProblem, profile: HardwareProfile) -> Iterator[str]:
    # The first reason is the one that is told: GPU, then terms, pass, sizes.
    yield from _refused_gpu(data, problem, profile)
    yield from _refused_terms(data, problem)
    yield from _refused_pass(data, problem, profile)
    yield from _refused_sizes(data, problem, profile)


def _refused_gpu(data: Entry, problem: AttentionProblem, profile: HardwareProfile) -> Iterator[str]:
    requires, name = data["requires"], data["name"]

    def runs_there(candidate: Entry) -> bool:
        return runs_on_gpu(candidate, problem.dtype, profile)

    if not _on(data, profile.is_amd):
        yield f"`kernel` {name}: it does not run on {profile.name}; accepted there: {_kernels(runs_there)}"
    first, last = requires.get("min_cc", 0), requires.get("max_cc", profile.cc)
    has = f"{profile.name} has cc {cc_text(profile.cc)}; accepted there:"
    if not first <= profile.cc <= last:
        needed = f"{cc_text(first)} or later" if profile.cc < first else cc_text(last)
        able = _kernels(
            lambda candidate: (
                runs_there(candidate)
                and (problem.latent_kv or not candidate["requires"].get("latent_only"))
            )
        )
        title = data["title"].split(" (")[0].split(",")[0]
        if requires.get("runs_elsewhere"):
            yield f"`kernel` {name}: which kernels {title} has for cc {cc_text(profile.cc)} is not known; {has} {able}"
        yield f"`kernel` {name}: {title} needs cc {needed}; {has} {able}"


def _refused_terms(data: Entry, problem: AttentionProblem) -> Iterator[str]:
    """The input type, and what the problem has beside Q, K and V."""
    requires, name = data["requires"], data["name"]
    if problem.dtype not in requires["dtypes"]:
        yield f"`dtype` {problem.dtype}: not supported by kernel {name}; accepted: {', '.join(requires['dtypes'])}"
    for term, field_text in problem.terms.items():
        if term not in requires.get("takes", ()):
            yield f"`{field_text}`: kernel {name} does not take it; accepted by: {_kernels(_takes(term))}"
    if problem.dropout and not requires.get("dropout", True):
        others = _kernels(lambda candidate: candidate["requires"].get("dropout", True))
        yield f"`dropout` {problem.dropout:g}: kernel {name} has none; accepted by: {others}"
    tensors = [field_text for term, field_text in problem.terms.items() if term in SCORE_TENSORS]
    if requires.get("one_score_tensor") and len(tensors) > 1:
        hint = "accepted: one of them (add the masks to the bias)"
        yield f"`{tensors[1]}` beside `{tensors[0]}`: kernel {name} takes one tensor of scores; {hint}"


def _refused_pass(
    data: Entry, problem: AttentionProblem, profile: HardwareProfile
) -> Iterator[str]:
    requires, name = data["requires"], data["name"]
    if problem.passes not in requires.get("passes", (problem.passes,)):
        yield f"`passes` {problem.passes}: kernel {name} has no model of it; accepted: {', '.join(requires['passes'])}"
    if problem.mask not in requires.get("masks", (problem.mask,)):
        yield f"`mask` {problem.mask}: kernel {name} has no such mask; accepted: {', '.join(requires['masks'])}"
    first_of_type = requires.get("dtype_min_cc", {}).get(problem.dtype, 0)
    if profile.cc < first_of_type:
        types = ", ".join(d for d in requires["dtypes"] if _runs(data, d, profile.cc))
        has = f"{profile.name} has cc {cc_text(profile.cc)}; accepted there:"
        yield f"`dtype` {problem.dtype}: kernel {name} needs cc {cc_text(first_of_type)} or later for it; {has} {types}"
    if requires.get("rows_need_keys") and problem.pair_mask.leaves_rows_empty(
        problem.seq_q, problem.seq_k
    ):
        why = f"the mask leaves queries without keys, for which kernel {name} writes nothing"
        yield f"`offset` {problem.offset}: {why}"
    if requires.get("latent_only") and not problem.latent_kv:
        yield f"`kernel` {name}: it reads one latent K/V; accepted with it: `latent_kv=True`"


def _refused_sizes(
    data: Entry, problem: AttentionProblem, profile: HardwareProfile
) -> Iterator[str]:
    """Widths of heads, and pages of the cache."""
    requires, name, page = data["requires"], data["name"], problem.page_size
    widths = requires.get("widths")
    if widths and [problem.head_dim, problem.head_dim_v] != widths:
        why = f"not made for kernel {name}; accepted: {widths[0]} and {widths[1]}"
        yield f"`head_dim` {problem.head_dim}, `head_dim_v` {problem.head_dim_v}: {why}"
    if page is not None and page not in requires.get("page_sizes", (page,)):
        sizes = ", ".join(map(str, requires["page_sizes"]))
        yield f"`page_size` {page}: not supported by kernel {name}; accepted: {sizes}"
    if page is not None and page % requires.get("page_multiple", 1):
        yield f"`page_size` {page}: not supported by kernel {name}; accepted: multiples of {requires['page_multiple']}"
    widest = max(problem.head_dim, problem.head_dim_v)
    compiled = requires.get("head_dims")
    if widest > widest_head(data):
        if compiled is None:
            widths = f"goes up to {requires['max_head_dim']}"
        else:
            widths = f"is compiled for {', '.join(map(str, compiled))}"
        wide = _kernels(
            lambda other: (
                widest <= widest_head(other) and runs_on_gpu(other, problem.dtype, profile)
            )
        )
        yield f"`head_dim` {widest}: kernel {name} {widths}; accepted there: {wide or 'none'}"


def widest_head(data: Entry) -> int:
    """The most columns of a head that a kernel takes."""
    requires = data["requires"]
    return int(max(requires.get("head_dims") or [requires["max_head_dim"]]))


def _takes(term: str) -> Callable[[Entry], bool]:
    return lambda candidate: term in candidate["requires"].get("takes", ())


def _kernels(able: Callable[[Entry], bool]) -> str:
    """The kernels of attention that are able, up to `MAX_NAMED`; of a library's variants its first alone."""
    able_names = [
        n for n in entry_names() if able(entry(n)) and algorithm_of(entry(n)["algorithm"]).softmax
    ]
    # Variants are named fa3-...: the plain name stands for them.
    names = [n for n in able_names if not any(n.startswith(f"{other}-") for other in able_names)]
    if len(names) > MAX_NAMED:
        return f"{', '.join(names[:MAX_NAMED])} and others (iosim kernels list)"
    return ", ".join(names)


def _on(data: Entry, amd: bool) -> bool:
    return ("amd" if amd else "nvidia") in data["requires"].get("vendors", ("nvidia",))


def _runs(data: Entry, dtype: str, cc: int) -> bool:
    requires = data["requires"]
    first = max(requires.get("min_cc", 0), requires.get("dtype_min_cc", {}).get(dtype, 0))
    return first <= cc <= requires.get("max_cc", cc) and dtype in requires["dtypes"]
