"""The few lines of a Triton kernel that turn program_id into an order."""

from __future__ import annotations

from dataclasses import replace

from iosim.base.errors import InputError
from iosim.kernel.kernel import Kernel
from iosim.kernel.schedule import Order, Schedule
from iosim.studies.orders.code import triton
from iosim.studies.orders.entry import OrderEntry, OrderRanking
from iosim.studies.orders.space import pinned_fields


def remap(
    order: OrderRanking | OrderEntry | Schedule | Kernel | str, *, section_heads: int | None = None,
    heavy_first: bool | None = None, fold: bool | None = None, direction: str | None = None,
    scheduler: str | None = None, cluster: int | None = None,
) -> str:  # fmt: skip
    """Lines that turn `program_id` into an order: they set `head` and `block`, and say which key block step t has.

        >>> print(iosim.triton.remap(iosim.orders(gpu="h200", heads=8, seq_len="32k", causal=True)))
        >>> print(iosim.triton.remap("head", section_heads=4, heavy_first=True))

    The kernel is launched on a grid of one axis and has `blocks` (query blocks of a head) and `heads` (batch x query
    heads) among its arguments.

    Args:
        order: a ranking, whose best order is taken, one of its entries, the schedule of a kernel, or what runs fastest:
            "query", "head" or "batch". The others are for such a word.
        section_heads: heads of a section.
        heavy_first: long query blocks first.
        fold: the longest query block, the shortest, the second longest and so on.
        direction: of the key loop: "ascending", "descending" or "alternating".
        scheduler: how programs take tiles: "static", "persistent" or "dynamic".
        cluster: neighbouring CTAs that start together.

    Raises:
        InputError: a word that is not known, or settings beside an order that says them already.
    """
    given = {"section_heads": section_heads, "heavy_first": heavy_first, "fold": fold, "direction": direction,
             "scheduler": scheduler, "cluster": cluster}  # fmt: skip
    if isinstance(order, str):
        return triton(replace(Schedule(), **pinned_fields({"order": order, **given})))
    named = [name for name, value in given.items() if value is not None]
    if named:
        raise InputError(f"`{named[0]}` contradicts `order`, which says it already; accepted: one of them, or `order` "
                         f"as a word: {', '.join(Order)}")  # fmt: skip
    if isinstance(order, OrderRanking):
        order = order.best
    if isinstance(order, OrderEntry):
        return triton(order.parts[0].schedule)
    return triton(order.schedule if isinstance(order, Kernel) else order)
