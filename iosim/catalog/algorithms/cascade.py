"""`cascade`: attention over keys that all sequences of a batch share, and over those of each, merged afterwards.

As FlashInfer's MultiLevelCascadeAttentionWrapper runs two levels (flashinfer-ai/flashinfer, flashinfer/cascade.py,
`run`): first every sequence's own keys ("main"), then the shared ones, for which all queries are one long sequence
("shared.main"), each a call of `flash` with splits of its own; then a launch that reads both outputs and log-sum-exps
and writes the merged ones in place of the first ("merge": include/flashinfer/attention/cascade.cuh,
MergeStateInPlaceKernel). Without shared keys it is the first call alone.

NB: block tables are left out, as of sequences of different lengths.
"""

from __future__ import annotations

from iosim.base.errors import InputError
from iosim.base.records import dataclass, replace
from iosim.catalog.algorithms import flash, flash_options
from iosim.catalog.algorithms.common import row_pass
from iosim.catalog.algorithms.registry import Packs, algorithm, options_of
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Chain, Domain, Launch, LaunchRole, Resources, Role, Rows, Tensor
from iosim.kernel.options import number
from iosim.problem.attention import AttentionProblem

SHARED = "shared"
LANE_BYTES, MOST_THREADS = 16, 1024


@dataclass(frozen=True)
class CascadeOptions(flash_options.FlashOptions):
    """What the call over shared keys has of its own."""

    shared_tile: tuple[int, ...] = ()
    """Rows of queries and of keys; none: the kernel's."""
    shared_splits: int = number(1, 1)
    shared_merged_bytes: int = number(0, 0)
    shared_key_warps: int = number(1, 1, 32)


def levels(
    problem: AttentionProblem, *, pages: bool = False
) -> tuple[AttentionProblem, AttentionProblem | None]:
    """The call over each sequence's own keys, and that over the shared ones, None where there are none; with `pages`
    as a library's rules see them."""
    shared = problem.shared_prefix
    if shared is None:
        return problem, None
    # Each sequence needs keys of its own: under a causal mask those of its own queries.
    cached = min(k - (q if problem.mask == "causal" else 1) for q, k in problem.sequences)
    if shared > cached:
        why = f"leaves a sequence no keys of its own for its queries; accepted in two calls: up to {cached}"
        raise InputError(f"`shared_prefix` {shared} {why}")
    by_sequence = problem.with_(shared_prefix=None, page_size=problem.page_size if pages else None)
    # First level: packed sequences without the shared keys. Second: all queries as one sequence over
    # the shared keys, which all lie before them, so that nothing is masked.
    lens, lens_k = zip(*((q, k - shared) for q, k in problem.sequences), strict=True)
    by_sequence = by_sequence.with_(
        batch=1, seq_q=sum(lens), seq_k=sum(lens_k), seq_lens=lens, seq_lens_k=lens_k
    )
    alone = {"batch": 1, "seq_lens": None, "seq_lens_k": None, "mask": "none"}
    return by_sequence, by_sequence.with_(seq_k=shared, **alone)


TAKES = ("cache_dtype", "page_size", "seq_lens", "shared_prefix")


@algorithm("cascade", takes=TAKES, options=CascadeOptions, splits=True, packs=Packs.WHERE_ASKED)
def plan_cascade(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The launches of a forward. Raises InputError: a backward."""
    if problem.backward:
        raise InputError(
            f"`passes` {problem.passes}: kernel '{kernel.name}' serves inference; accepted: fwd"
        )
    by_sequence, shared = levels(problem)
    if shared is None:
        return flash.forward(by_sequence, kernel)
    options = options_of(kernel, CascadeOptions)
    first = flash.forward(by_sequence, replace(kernel, writes_lse=True))
    rows, keys = options.shared_tile or (kernel.tile.block_q, kernel.tile.block_k)
    tile = Tile(rows, keys, kernel.tile.warps, kernel.tile.stages)
    again = replace(options, merged_bytes=options.shared_merged_bytes)
    loop = replace(kernel.loop, key_warps=options.shared_key_warps)
    kernel = replace(
        kernel, tile=tile, splits=options.shared_splits, options=again, loop=loop, writes_lse=True
    )
    second = flash.forward(shared, kernel)
    # Both calls' tensors side by side; Q is one memory under two names.
    both = {**first.tensors} | {
        f"{name}_{SHARED}": _shared(t) for name, t in second.tensors.items()
    }
    tensors = {
        n: replace(t, along=Rows.OWN) if t.role is Role.INPUT else t for n, t in both.items()
    }
    tensors["LSE"] = replace(tensors["LSE"], role=Role.TEMP)
    return Chain(
        tensors,
        (*first.launches, *map(_over_shared, second.launches), _merge(by_sequence)),
        first.notes,
    )


def _shared(tensor: Tensor) -> Tensor:
    """A tensor of the call over shared keys; Q is the other call's."""
    view, role = tensor.name if tensor.name == "Q" else "", tensor.role
    return replace(
        tensor,
        name=f"{tensor.name}_{SHARED}",
        role=Role.TEMP if role is Role.OUTPUT else role,
        view_of=view,
    )


def _over_shared(launch: Launch) -> Launch:
    accesses = tuple(replace(a, tensor=f"{a.tensor}_{SHARED}") for a in launch.accesses)
    return replace(launch, name=f"{SHARED}.{launch.name}", accesses=accesses, role=LaunchRole.OTHER)


def _merge(problem: AttentionProblem) -> Launch:
    """A CTA a token, with a thread for 16 bytes of a head's row."""
    heads, width = problem.heads, problem.head_dim_v * problem.output_type.bytes
    names = ("O", f"O_{SHARED}", "LSE", f"LSE_{SHARED}")
    domain = Domain(1, 1, problem.seq_q * heads, 1, heads, 1)
    threads = min(MOST_THREADS, heads * -(-width // LANE_BYTES))
    return row_pass("merge", domain, names, ("O", "LSE"), resources=Resources(threads))
