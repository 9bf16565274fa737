"""The few lines of a Triton kernel that turn program_id into an order."""

from __future__ import annotations

from typing import Any

from iosim.base.errors import InputError, unknown_name
from iosim.base.records import replace
from iosim.kernel.kernel import Kernel
from iosim.kernel.schedule import Order, Schedule
from iosim.studies.orders.code import code
from iosim.studies.orders.entry import OrderEntry, OrderRanking
from iosim.studies.orders.space import pinned_fields
from iosim.studies.requests import PINNED


def remap(order: OrderRanking | OrderEntry | Schedule | Kernel | str, **settings: Any) -> str:
    """Lines that turn `program_id` into an order: they set `head` and `block`, and say which key block step t has.

        >>> print(iosim.triton.remap(iosim.orders(gpu="h200", heads=8, seq_len="32k", causal=True)))
        >>> print(iosim.triton.remap("head", section_heads=4, heavy_first=True))

    The kernel is launched on a grid of one axis and has `blocks` (query blocks of a head) and `heads` (batch x query
    heads) among its arguments.

    Args:
        order: a ranking, whose best order is taken, one of its entries, the schedule of a kernel, or what runs fastest:
            "query", "head" or "batch".
        settings: beside such a word, what `iosim.orders` keeps: section_heads, heavy_first, fold, direction, scheduler,
            cluster.

    Raises:
        InputError: a word that is not known, or settings beside an order that says them already.
    """
    for name in settings:
        if name not in PINNED[1:]:
            raise unknown_name("setting", name, PINNED[1:])
    if isinstance(order, str):
        return code(replace(Schedule(), **pinned_fields({"order": order, **settings})), "triton")
    named = [name for name, value in settings.items() if value is not None]
    if named:
        accepted = f"one of them, or `order` as a word: {', '.join(Order)}"
        raise InputError(
            f"`{named[0]}` contradicts `order`, which says it already; accepted: {accepted}"
        )
    if isinstance(order, OrderRanking):
        order = order.best
    if isinstance(order, OrderEntry):
        return code(order.parts[0].schedule, "triton")
    return code(order.schedule if isinstance(order, Kernel) else order, "triton")
