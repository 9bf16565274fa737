"""What is measured: calls of the project's kernels as data, in groups that can be run apart.

`quick` is a small group that touches every kernel; `full` is all the others. `iosim measure --dry-run` prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from iosim.base.errors import InputError
from iosim.base.records import replace
from iosim.evidence.cuda.launch import Order, Shape
from iosim.evidence.cuda.resources import LIVE_LIMIT, live_registers, tuned
from iosim.evidence.cuda.spec import BwdSpec, FwdSpec, MinimalSpec, NaiveSpec
from iosim.evidence.measure.case import Case

TILES = {
    64: FwdSpec(64, 128, 128, 4, 2, min_ctas=2),
    96: FwdSpec(96, 128, 64, 4, 2, min_ctas=2),
    128: FwdSpec(128, 128, 64, 4, 2, min_ctas=2),
    256: FwdSpec(256, 128, 64, 8, 1),
}
DECODE_TILES = {
    64: FwdSpec(64, 64, 64, 4, 2, split=True, min_ctas=3),
    128: FwdSpec(128, 64, 64, 4, 2, split=True, min_ctas=2),
}
BWD_TILES = {64: BwdSpec(64, 128, 128, 8), 128: BwdSpec(128, 64, 128, 8)}
HEAVY = Order("head", heavy_first=True)
DIRECTIONS = ("ascending", "descending", "alternating")


def forward(
    head_dim: int,
    seq: int | tuple[int, int],
    heads: int | tuple[int, int],
    causal: bool = False,
    order: Order | None = None,
    window: int | None = None,
    batch: int = 1,
    note: str = "",
    **changes: object,
) -> Case:
    """A forward call with the default tile of its head_dim; `changes` go into the spec."""
    seq_q, seq_k = seq if isinstance(seq, tuple) else (seq, seq)
    q_heads, kv_heads = heads if isinstance(heads, tuple) else (heads, heads)
    mask = "window" if window is not None else "causal" if causal else "none"
    spec = replace(TILES[head_dim], mask=mask, **changes)  # type: ignore[arg-type]
    order = order or (HEAVY if causal else Order())
    return Case(spec, Shape(batch, q_heads, kv_heads, seq_q, seq_k, head_dim, window), order, causal, note)


def lengths() -> Iterator[Case]:
    sizes = [(seq, 32) for seq in (512, 1024, 2048, 4096, 8192)]
    sizes += [(16384, 16), (32768, 8), (65536, 8), (131072, 1)]
    for (seq, heads), head_dim in product(sizes, (64, 128)):
        yield forward(head_dim, seq, heads)
        yield forward(head_dim, seq, heads, causal=True)
        yield forward(head_dim, seq, heads, causal=True, order=Order(direction="descending"))
    for seq, heads in sizes[3:6]:
        yield forward(64, seq, heads, dtype="fp16")
        yield forward(128, seq, heads, causal=True, dtype="fp16")
    for seq, causal in product((1024, 4096, 16384), (False, True)):
        yield forward(256, seq, 8, causal)
    for seq, causal in product((1000, 4096), (False, True)):
        yield forward(96, seq, 16, causal)
    for seq, batch in ((512, 16), (2048, 4)):
        yield forward(128, seq, 16, batch=batch)
        yield forward(64, seq, 16, causal=True, batch=batch)


def shapes() -> Iterator[Case]:
    """Grouped heads, windows, odd and unequal lengths."""
    for seq, head_dim, causal in product((2048, 8192, 32768), (64, 128), (False, True)):
        yield forward(head_dim, seq, (32, 8) if seq < 32768 else (16, 4), causal)
    for order in (Order(), HEAVY, Order("head", heavy_first=True, section_heads=4)):
        yield forward(128, 16384, (32, 4), causal=True, order=order)
    for seq, window, head_dim in product((8192, 32768), (1024, 4096), (64, 128)):
        yield forward(head_dim, seq, 8, causal=True, window=window, order=Order())
    for seq, causal in product((777, 1000, 4095, 4097, 5000), (False, True)):
        yield forward(128 if seq % 2 else 64, seq, 16, causal)
    for unequal, causal in product(((1000, 3000), (3000, 1000), (128, 16384)), (False, True)):
        yield forward(128, unequal, 16, causal)


def decode() -> Iterator[Case]:
    """One query token a head: alone, and with the heads of a group packed as the rows of one tile."""
    sizes = ((1, 4096), (1, 32768), (8, 4096), (8, 32768), (64, 4096))
    for (batch, seq_k), head_dim in product(sizes, (64, 128)):
        for splits in (1, 4, 16) if batch < 64 else (1, 2):
            shape = Shape(batch, 8, 8, 4, seq_k, head_dim)
            yield Case(DECODE_TILES[head_dim], shape, Order(splits=splits), note="packed, 32 query heads")
        if batch == 8:
            yield Case(DECODE_TILES[head_dim], Shape(batch, 32, 8, 1, seq_k, head_dim), Order(splits=4))


def orders() -> Iterator[Case]:
    """Every order and direction where they matter: keys and values of some heads beyond the L2, or long causal rows."""
    causal_orders = (
        Order(), Order(heavy_first=True), Order("head"), HEAVY, Order("head", True, 2), Order("head", True, 4),
    )  # fmt: skip
    for persistent, order, direction in product((False, True), causal_orders, DIRECTIONS):
        yield forward(128, 65536, 8, True, replace(order, direction=direction), persistent=persistent)
    plain_orders = (Order(), Order("head"), Order("head", section_heads=2))
    for persistent, order, direction in product((False, True), plain_orders, DIRECTIONS):
        yield forward(128, 65536, 4, False, replace(order, direction=direction), persistent=persistent)
    for order, direction in product(causal_orders, DIRECTIONS):
        yield forward(64, 32768, 16, True, replace(order, direction=direction))
    for order, direction in product((Order(), HEAVY), DIRECTIONS):
        yield forward(128, 16384, (32, 4), True, replace(order, direction=direction))
        yield forward(128, 131072, 1, order == HEAVY, replace(order, direction=direction))
    for order in (Order(), HEAVY):
        yield forward(128, 65536, 8, True, order, note="repeat")
        yield forward(128, 65536, 8, True, order, note="repeat")


def tiles() -> Iterator[Case]:
    """A sweep of tiles on four problems, each built for as many CTAs an SM as the resource table has for it."""
    problems = ((64, 4096, 32, False), (64, 16384, 8, True), (128, 4096, 32, True), (128, 16384, 8, False))
    blocks = product((64, 128, 192, 256), (16, 32, 48, 64, 96, 128, 192, 256), (4, 8), (1, 2, 3))
    for block_q, block_k, warps, stages in blocks:
        for head_dim, seq, heads, causal in problems:
            spec = FwdSpec(head_dim, block_q, block_k, warps, stages, "causal" if causal else "none")
            fits = block_q % (16 * warps) == 0 and spec.dynamic_shared_bytes <= 232_000
            if not fits or live_registers(spec) > LIVE_LIMIT or (stages == 3 and block_k > 64):
                continue
            shape, order = Shape(1, heads, heads, seq, seq, head_dim), HEAVY if causal else Order()
            yield Case(tuned(spec, "9.0"), shape, order, causal, "sweep")


def others() -> Iterator[Case]:
    for seq, head_dim in product((512, 1024, 2048, 4096, 8192), (64, 128)):
        yield Case(NaiveSpec(head_dim), Shape(1, 8, 8, seq, seq, head_dim))
    yield Case(NaiveSpec(64), Shape(1, 8, 8, 2048, 2048, 64), causal=True)
    for seq, heads in ((512, 8), (512, 64), (512, 264), (1024, 8), (1024, 132), (2048, 8)):
        yield Case(MinimalSpec(64), Shape(1, heads, heads, seq, seq, 64))


def backward() -> Iterator[Case]:
    sizes = ((512, 32), (1024, 32), (2048, 16), (4096, 16), (8192, 8), (16384, 4))
    for (seq, heads), head_dim, causal in product(sizes, (64, 128), (False, True)):
        spec = replace(BWD_TILES[head_dim], mask="causal" if causal else "none")
        yield Case(spec, Shape(1, heads, heads, seq, seq, head_dim), causal=causal)
        if seq in (1024, 4096):
            yield Case(replace(spec, deterministic=True), Shape(1, heads, heads, seq, seq, head_dim), causal=causal)
    for head_dim in (64, 128):
        spec = replace(BWD_TILES[head_dim], mask="causal")
        yield Case(spec, Shape(1, 16, 4, 4096, 4096, head_dim), causal=True)
        yield Case(spec, Shape(1, 8, 8, 4097, 4097, head_dim), causal=True)


def cliff() -> Iterator[Case]:
    """Keys and values in use from well under the L2 to well over it: many heads in step, or one long head at a time."""
    both = ("ascending", "alternating")
    for heads, persistent, direction in product((4, 6, 8, 9, 10, 12, 16, 24), (False, True), both):
        yield forward(128, 8192, heads, False, Order("head", direction=direction), persistent=persistent)
    for seq, direction in product((32768, 49152, 57344, 65536, 81920, 98304), both):
        yield forward(128, seq, 2, False, Order(direction=direction))
        yield forward(128, seq, 2, True, Order(heavy_first=True, direction=direction))


def quick() -> Iterator[Case]:
    """A minute's worth: every kernel once or twice, and the orders and directions where keys outgrow the L2."""
    for head_dim, causal in product((64, 128), (False, True)):
        yield forward(head_dim, 4096, 32, causal)
    yield forward(128, 2048, (32, 8), causal=True)
    yield forward(128, 1000, 16, causal=True)
    yield forward(128, 4096, 8, causal=True, window=1024, order=Order())
    yield forward(96, 2048, 16)
    yield forward(256, 2048, 8)
    for order, direction in product((Order(heavy_first=True), HEAVY), ("ascending", "alternating")):
        yield forward(128, 16384, 16, True, replace(order, direction=direction))
    yield forward(128, 16384, 8, persistent=True)
    yield Case(DECODE_TILES[128], Shape(1, 8, 8, 4, 32768, 128), Order(splits=16), note="packed, 32 query heads")
    yield Case(replace(BWD_TILES[128], mask="causal"), Shape(1, 16, 16, 2048, 2048, 128), causal=True)
    yield Case(BWD_TILES[64], Shape(1, 16, 16, 2048, 2048, 64))
    yield Case(NaiveSpec(64), Shape(1, 8, 8, 1024, 1024, 64))
    yield Case(MinimalSpec(64), Shape(1, 64, 64, 512, 512, 64))


GROUPS: dict[str, Callable[[], Iterator[Case]]] = {
    "lengths": lengths, "shapes": shapes, "decode": decode, "orders": orders, "others": others, "tiles": tiles,
    "backward": backward, "cliff": cliff,
}  # fmt: skip
"""The parts of the plan `full`."""


def named(words: Sequence[str]) -> list[Case]:
    """The calls of plans and groups: `quick`, `full`, or names of GROUPS. Raises InputError where a name is none of
    these."""
    plans: dict[str, Callable[[], Iterator[Case]]] = {
        "quick": quick, "full": lambda: (case for group in GROUPS.values() for case in group()), **GROUPS,
    }  # fmt: skip
    for word in words:
        if word not in plans:
            raise InputError(f"`plan` '{word}' is not known; accepted: {', '.join(plans)}")
    return [case for word in words for case in plans[word]()]
