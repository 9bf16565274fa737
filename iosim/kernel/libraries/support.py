"""What a library kernel runs: GPUs, types, widths, passes, caches, and what it takes besides Q, K and V.

A catalog file lists under `requires.takes` the names of `AttentionProblem.terms` that its kernel reads;
`requires.dropout` is false where it has none, and `requires.one_score_tensor` is true where bias and masks come as one
tensor, as PyTorch's `attn_mask` does.
"""

from __future__ import annotations

from iosim.base.errors import InputError
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.libraries.loader import Entry, entry, entry_names
from iosim.problem.attention import AttentionProblem

SCORE_TENSORS = ("bias", "alibi", "key_padding", "mask_tensor")
"""The terms that come as a tensor beside Q, K and V."""


def check_features(data: Entry, problem: AttentionProblem) -> None:
    """Refuse what the kernel does not read or do. Raises InputError: names the catalog's kernels that take it."""
    requires, name = data["requires"], data["name"]
    taken = requires.get("takes", ())
    for term, asked in problem.terms.items():
        if term not in taken:
            raise InputError(f"`{asked}`: kernel {name} does not take it; accepted by: {_others(term)}")
    if problem.dropout and not requires.get("dropout", True):
        raise InputError(f"`dropout` {problem.dropout:g}: kernel {name} has none; accepted by: {_with_dropout()}")
    one = [asked for term, asked in problem.terms.items() if term in SCORE_TENSORS]
    if requires.get("one_score_tensor") and len(one) > 1:
        raise InputError(f"`{one[1]}` beside `{one[0]}`: kernel {name} takes one tensor of scores; accepted: one of "
                         "them (add the masks to the bias)")  # fmt: skip


def _others(term: str) -> str:
    return ", ".join(n for n in entry_names() if term in entry(n)["requires"].get("takes", ()))


def _with_dropout() -> str:
    return ", ".join(n for n in entry_names() if entry(n)["requires"].get("dropout", True))


def check_cache(data: Entry, problem: AttentionProblem) -> None:
    """Refuse a cache that the library's kernel does not read; whether it reads pages and latent ones, its file says.
    Raises InputError: pages of a size that it does not take, no latent cache, or widths other than those it is made
    for."""
    requires, name, page = data["requires"], data["name"], problem.page_size
    if requires.get("latent_only") and not problem.latent_kv:
        raise InputError(f"`kernel` {name}: it reads one latent K/V; accepted with it: `latent_kv=True`")
    widths = requires.get("widths")
    if widths and [problem.head_dim, problem.head_dim_v] != widths:
        raise InputError(f"`head_dim` {problem.head_dim}, `head_dim_v` {problem.head_dim_v}: not made for kernel "
                         f"{name}; accepted: {widths[0]} and {widths[1]}")  # fmt: skip
    if page is None:
        return
    if page not in requires.get("page_sizes", (page,)):
        raise InputError(f"`page_size` {page}: not supported by kernel {name}; accepted: "
                         f"{', '.join(map(str, requires['page_sizes']))}")  # fmt: skip
    if page % requires.get("page_multiple", 1):
        raise InputError(f"`page_size` {page}: not supported by kernel {name}; accepted: multiples of "
                         f"{requires['page_multiple']}")  # fmt: skip


def check_support(data: Entry, problem: AttentionProblem, profile: HardwareProfile) -> int | None:
    """The compiled head dimension (None: any), once the kernel is known to run there. Raises InputError: the GPU, the
    dtype or the head dimension is one that the kernel is not made for."""
    requires, name = data["requires"], data["name"]
    needs = f"{data['title'].split(',')[0]} needs"
    if profile.cc < requires.get("min_cc", 0):
        raise InputError(f"`kernel` {name}: {needs} cc {_cc(requires['min_cc'])} or later; {profile.name} has "
                         f"cc {_cc(profile.cc)}; accepted there: {_kernels_there(problem, profile)}")  # fmt: skip
    if "max_cc" in requires and profile.cc > requires["max_cc"]:
        raise InputError(f"`kernel` {name}: {needs} cc {_cc(requires['max_cc'])}; {profile.name} has "
                         f"cc {_cc(profile.cc)}; accepted there: {_kernels_there(problem, profile)}")  # fmt: skip
    if problem.dtype not in requires["dtypes"]:
        raise InputError(f"`dtype` {problem.dtype}: not supported by kernel {name}; accepted: "
                         f"{', '.join(requires['dtypes'])}")  # fmt: skip
    check_features(data, problem)
    if problem.passes not in requires.get("passes", (problem.passes,)):
        raise InputError(f"`passes` {problem.passes}: kernel {name} has no model of it; accepted: "
                         f"{', '.join(requires['passes'])}")  # fmt: skip
    dtype_cc = requires.get("dtype_min_cc", {}).get(problem.dtype, 0)
    if profile.cc < dtype_cc:
        there = ", ".join(d for d in requires["dtypes"] if _runs(data, d, profile.cc))
        raise InputError(f"`dtype` {problem.dtype}: kernel {name} needs cc {_cc(dtype_cc)} or later for it; "
                         f"{profile.name} has cc {_cc(profile.cc)}; accepted there: {there}")  # fmt: skip
    if requires.get("rows_need_keys") and leaves_rows_without_keys(problem):
        raise InputError(f"`offset` {problem.offset}: the mask leaves queries without keys, for which "
                         f"kernel {name} writes nothing")  # fmt: skip
    check_cache(data, problem)
    widest = max(problem.head_dim, problem.head_dim_v)
    compiled: list[int] | None = requires.get("head_dims")
    if compiled is None:
        if widest > requires["max_head_dim"]:
            raise InputError(f"`head_dim` {widest}: kernel {name} goes up to {requires['max_head_dim']}")
        return None
    fitting = [d for d in compiled if d >= widest]
    if not fitting:
        raise InputError(f"`head_dim` {widest}: kernel {name} is compiled for {', '.join(map(str, compiled))}")
    return min(fitting)


def _runs(data: Entry, dtype: str, cc: int) -> bool:
    requires = data["requires"]
    first = max(requires.get("min_cc", 0), requires.get("dtype_min_cc", {}).get(dtype, 0))
    return first <= cc <= requires.get("max_cc", cc) and dtype in requires["dtypes"]


def _kernels_there(problem: AttentionProblem, profile: HardwareProfile) -> str:
    return ", ".join(n for n in entry_names() if _runs(entry(n), problem.dtype, profile.cc))


def leaves_rows_without_keys(problem: AttentionProblem) -> bool:
    return problem.pair_mask.leaves_rows_empty(problem.seq_q, problem.seq_k)


def _cc(cc: int) -> str:
    return f"{cc // 10}.{cc % 10}"
