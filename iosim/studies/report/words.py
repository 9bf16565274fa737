"""Sentences of a report and of a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from iosim.base.units import length_text, some
from iosim.studies.report.collect import Omission
from iosim.studies.report.request import ReportRequest

LEVELS = (
    "SM<->L2 bytes cross between the SMs and L2 and follow from the tiles; HBM bytes cross between L2 and device "
    "memory and depend on what L2 keeps. They are two quantities: never added, and told apart wherever one chart has "
    "both."
)
EXACT = (
    "Each number comes from the command lines that its row names (P: predictions, H: hardware profiles, T: tiles), "
    "which are listed at the end; their JSON has the bytes as whole numbers, and so have the CSV downloads."
)


RATIOS = "Naive over it: the naive kernel's bytes over the row's; below 1x the row moves more than naive does."


def question(request: ReportRequest, base: str | None) -> str:
    """What the report answers."""
    if base is not None and len(request.kernels) > 1:
        return "How many bytes does tiled attention save?"
    return f"How many bytes does {' or '.join(request.kernels)} move?"


def subject(request: ReportRequest) -> str:
    """What a request computes, in one sentence."""
    p = request.problems[0]
    kv = "" if p.group == 1 else f" ({some(p.kv_heads, 'key/value head')})"
    width = str(p.head_dim) if p.head_dim == p.head_dim_v else f"{p.head_dim}/{p.head_dim_v}"
    known = {
        "none": "no mask",
        "causal": "causal mask",
        "window": f"window of {p.window}" if p.window_right is None else p.mask_text,
    }
    mask = known.get(p.mask, "") if p.seq_lens is None else ""
    mask = mask or f"mask {p.mask_text if len(request.lengths) == 1 else p.mask}"
    first, last = request.lengths[0], request.lengths[-1]
    span = (
        some(first, "token")
        if first == last
        else f"{first:,} to {some(last, 'token')} ({len(request.lengths)} lengths)"
    )
    keys = f", {some(request.other_keys, 'key')}" if request.other_keys else ""
    dropout = f", dropout {p.dropout:g}" if p.dropout else ""
    others = [asked for name, asked in p.terms.items() if name not in ("block_lists", "seq_lens", "looks_ahead")]
    terms = "".join(f", {asked.removesuffix('=True').replace('_', ' ').replace('=', ' ')}" for asked in others)
    by = "replay" if request.method is None else f"the method '{request.method}'"
    return (
        f"Attention, {p.passes}: batch {p.batch}, {some(p.heads, 'head')}{kv}, head_dim {width}, {p.dtype}, "
        f"{mask}{dropout}"
        f"{terms}, {span}{keys}. HBM by {by}, L2 {request.l2_start} at the start."
    )


def omission(o: Omission, lengths: Sequence[int] = ()) -> str:
    """Why a kernel is missing on a GPU; the lengths are named where it is not missing at all of `lengths`."""
    at = ", ".join(length_text(n) for n in o.lengths)
    where = "" if tuple(lengths) == o.lengths else f" (N = {at})"
    return f"{o.kernel} on {o.gpu}{where}: {o.reason}"
