"""Instantiations and launches of flash_fwd_sm90: knobs, tensor maps, orders. Launching needs a Hopper GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from iosim import InputError
from iosim.evidence.cuda import driver
from iosim.evidence.cuda.launch import LOG2_E, Launch, Loaded, Sections, Shape, laid_out, sizes
from iosim.evidence.cuda.spec import CODES, DIRECTIONS, DTYPES, MASKS, ORDERS, Spec, one_of
from iosim.kernel.remap import place
from iosim.kernel.schedule import Schedule

CC = "9.0a"
SHARED_BYTES_PER_CTA = 232_448
CONSUMER_REGISTERS = {2: 232, 3: 160, 4: 112}
"""Of a thread, by how many warpgroups compute."""
SPARE_REGISTERS = 28
"""Of a thread, for all that is not output, scores or probabilities."""
BLOCKS = {"light_first": 0, "heavy_first": 1, "fold": 2}
SCHEDULES = {"one_tile": 0, "static": 1, "dynamic": 2}
PIPELINES = {"sequential": 0, "interleaved": 1, "overlapped": 2, "eager": 3}
TURNS = {"free": 0, "products": 1, "exponentials": 2}
MAP_TYPES = {"fp16": 6, "bf16": 9}
SWIZZLE_128, PROMOTE_TO_256 = 3, 3
"""What the driver's cuTensorMapEncodeTiled calls types, the swizzle and the promotion in the L2."""
RAGGED = 1 << 30
"""`flash90::kRagged`."""

ACCEPTED: dict[str, tuple[object, ...]] = {
    "head_dim": (64, 128, 256),
    "consumers": (2, 3, 4),
    "block_k": (64, 80, 96, 128, 160, 176, 192),
    "stages": (2, 3, 4),
    "q_stages": (1, 2),
    "mask": tuple(MASKS),
    "dtype": DTYPES,
    "schedule": tuple(SCHEDULES),
    "cluster": (1, 2),
    "pipeline": tuple(PIPELINES),
    "turns": tuple(TURNS),
    "poly": tuple(range(9)),
    "pack": (1, 2, 4, 8, 16),
}


class HopperSpec(Spec):
    """What both passes have in common: built for one architecture, with registers handed out by warpgroup."""

    dtype: str
    codes = CODES | {"schedule": SCHEDULES, "pipeline": PIPELINES, "turns": TURNS}

    @property
    def tile(self) -> str:
        """The tile in words."""
        forward: Any = self
        return f"tile {forward.block_q}x{forward.block_k}, {forward.stages} stages, head_dim {forward.head_dim}"

    def defines(self) -> dict[str, int]:
        return {**super().defines(), "SHARED_BYTES": self.dynamic_shared_bytes}

    def check(self, cc: str) -> None:
        """Raises `InputError` where the instantiation cannot exist."""
        if cc != CC:
            raise InputError(f"{self.functions[0]} is built for compute capability {CC}, not {cc}")
        self.check_fields()

    def check_tile(self, live: int, registers: int) -> None:
        """Raises `InputError` where shared memory, or the registers of a thread, do not hold it."""
        need, room = self.dynamic_shared_bytes, registers - SPARE_REGISTERS
        if need > SHARED_BYTES_PER_CTA:
            raise InputError(
                f"{self.tile} needs {need} bytes of shared memory; a CTA has {SHARED_BYTES_PER_CTA}"
            )
        if live > room:
            raise InputError(
                f"{self.tile} keeps {live} registers of a thread in use; it has {room} for them"
            )


@dataclass(frozen=True)
class Sm90Spec(HopperSpec):
    """One `flash_fwd_sm90`; mirrors `flash90::Traits`."""

    head_dim: int
    consumers: int = 2
    """Warpgroups that compute, 64 query rows each."""
    block_k: int = 128
    stages: int = 2
    q_stages: int = 2
    mask: str = "none"
    dtype: str = "bf16"
    schedule: str = "dynamic"
    cluster: int = 1
    """CTAs that share each key block, half of it copied by each."""
    pipeline: str = "sequential"
    turns: str = "free"
    poly: int = 0
    """Of 8 exponentials, how many are taken by a polynomial."""
    pack: int = 1
    """Query heads of a key/value head that share the rows of a tile, all of them; 1: none do."""

    source = "flash_fwd_sm90.cu"
    functions = ("flash_fwd_sm90",)
    accepted = ACCEPTED

    @property
    def block_q(self) -> int:
        return 64 * self.consumers

    @property
    def threads(self) -> int:
        return 128 * (self.consumers + 1)

    @property
    def dynamic_shared_bytes(self) -> int:
        tiles = (self.q_stages * self.block_q + 2 * self.stages * self.block_k) * self.head_dim * 2
        return tiles + 8 * (2 * self.q_stages + 4 * self.stages + 2) + 4 * (self.q_stages + 1)

    @property
    def live_registers(self) -> int:
        """Of a consumer's thread: output, scores and probabilities."""
        return self.head_dim // 2 + self.block_k // 2 + self.block_k // 4

    def check(self, cc: str) -> None:
        super().check(cc)
        if self.cluster == 2 and self.block_k % 32:
            raise InputError(
                f"block_k {self.block_k} is no multiple of 32; each CTA of a cluster copies half of it"
            )
        self.check_tile(self.live_registers, CONSUMER_REGISTERS[self.consumers])


def fastest(head_dim: int, mask: str = "none", dtype: str = "bf16") -> Sm90Spec:
    """The instantiation that was fastest on an H200 (`bench_sm90.py sweep`)."""
    if head_dim == 64 and mask == "none":
        return Sm90Spec(64, 4, 64, 4, 2, mask, dtype, pipeline="eager", turns="products")
    if head_dim == 64:
        return Sm90Spec(64, 3, 128, 4, 2, mask, dtype, turns="exponentials")
    if head_dim == 128:
        return Sm90Spec(128, 2, 128, 2, 2, mask, dtype)
    return Sm90Spec(256, 2, 64, 2, 1, mask, dtype, pipeline="eager", turns="products")


@dataclass(frozen=True)
class Sm90Order(Sections):
    """How tiles are numbered and how each walks its keys.

    `blocks` is the order of the query blocks: light_first, heavy_first (the longest processing time first, where
    causal) or fold (heaviest, lightest, second heaviest and so on).
    """

    order: str = "head"
    blocks: str = "heavy_first"
    section_heads: int = 0
    direction: str = "ascending"

    def __post_init__(self) -> None:
        for name, accepted in (
            ("order", ORDERS),
            ("blocks", tuple(BLOCKS)),
            ("direction", tuple(DIRECTIONS)),
        ):
            one_of(name, getattr(self, name), accepted)
        if self.section_heads < 0:
            raise InputError(f"section_heads {self.section_heads} must be at least 0")


def table_of(
    schedule: Schedule, query_blocks: int, all_heads: int, batch: int = 1
) -> npt.NDArray[np.int32]:
    """The remap table of any order: tile numbers, query blocks fastest, in the order in which to take them.
    `schedule`: without a cluster of its own: those of a kernel in clusters are numbered cluster by cluster.
    `query_blocks`: of a head, of a whole cluster's rows each. `all_heads`: batch x query heads."""
    number = np.arange(query_blocks * all_heads)
    plain_schedule = replace(schedule, cluster=1)
    head, block = place(plain_schedule, number, blocks=query_blocks, heads=all_heads, batch=batch)
    table: npt.NDArray[np.int32] = (head * query_blocks + block).astype(np.int32)
    return table


class TensorMap(ctypes.Structure):
    """A CUtensorMap."""

    _fields_ = (("bits", ctypes.c_uint64 * 16),)


class Sm90Params(ctypes.Structure):
    """`flash90::Params`; its alignment makes it 640 bytes."""

    _fields_ = (
        *((name, TensorMap) for name in "qkvo"),
        *laid_out(
            c_void_p="lse bounds_q bounds_k remap counter",
            c_int32="batch heads group seq_q seq_k window section blocks direction query_blocks tiles lse_head",
            c_float="scale2",
        ),
        ("padding", ctypes.c_char * 36),
    )


@dataclass(frozen=True)
class Ragged:
    """Sequences of different lengths, one after the other: q and o [all rows, heads, head_dim], k and v likewise.

    `bounds_q`, `bounds_k` are device addresses of [batch + 1] int32: where each sequence starts, and the end.
    """

    all_q: int
    all_k: int
    bounds_q: int
    bounds_k: int


def _tensor_map(
    dtype: str, address: int, dims: Sequence[int], strides: Sequence[int], rows: int, outer: int = 1
) -> TensorMap:
    """A map (Hopper's copies of boxes of a tensor) of 16-bit elements. Boxes are `rows` x `outer` rows of 64 columns,
    as wide as the 128-byte swizzle. `dims`, `strides`: in elements, innermost first, without the innermost stride."""
    driver.use_device()
    memory, rank = ctypes.create_string_buffer(192), len(dims)
    start = -ctypes.addressof(memory) % 64  # the driver wants its place on 64 bytes
    place_of_map = ctypes.c_void_p(ctypes.addressof(memory) + start)
    sizes_and_strides = (
        (ctypes.c_uint64 * rank)(*dims),
        (ctypes.c_uint64 * (rank - 1))(*(2 * s for s in strides)),
    )
    box = (ctypes.c_uint32 * rank)(64, rows, outer, 1, 1), (ctypes.c_uint32 * rank)(*([1] * rank))
    driver.call(
        "cuTensorMapEncodeTiled",
        place_of_map,
        MAP_TYPES[dtype],
        rank,
        ctypes.c_void_p(address),
        *sizes_and_strides,
        *box,
        0,
        SWIZZLE_128,
        PROMOTE_TO_256,
        0,
    )
    return TensorMap.from_buffer_copy(memory.raw[start : start + 128])


def dense_map(dtype: str, address: int, shape: tuple[int, int, int, int], rows: int) -> TensorMap:
    """The map of a contiguous [batch, heads, seq, head_dim]."""
    batch, heads, seq, d = shape
    return _tensor_map(
        dtype,
        address,
        (d, seq, heads, batch, 1),
        (d, seq * d, heads * seq * d, heads * seq * d),
        rows,
    )


def packed_map(dtype: str, address: int, shape: tuple[int, int, int, int], pack: int) -> TensorMap:
    """The map of a contiguous [batch, heads, seq, head_dim] whose boxes are 64 rows of `pack` heads, heads fastest."""
    batch, heads, seq, d = shape
    dims = (d, pack, seq, heads // pack, batch)
    strides = (seq * d, d, pack * seq * d, heads * seq * d)
    return _tensor_map(dtype, address, dims, strides, pack, 64 // pack)


def ragged_map(dtype: str, address: int, shape: tuple[int, int, int], rows: int) -> TensorMap:
    """The map of [all rows, heads, head_dim] that is cut off at each sequence's end (flash_fwd_sm90.cuh says how)."""
    every, heads, d = shape
    dims = (d, RAGGED, heads, every + 1, 2 * RAGGED - 1)
    row = heads * d
    return _tensor_map(dtype, address, dims, (row, d, row, 2**34 - row), rows)


@dataclass(frozen=True)
class Sm90Launch(Launch):
    """One launch, which keeps the tile counter alive."""

    counter: driver.Buffer


H = TypeVar("H", bound=HopperSpec)


class Hopper(Loaded[H]):
    """The loaded kernels of a pass on Hopper."""

    cc = CC

    def parameters(
        self, shape: Shape, order: Sm90Order, ragged: Ragged | None, scale: float, heads: int
    ) -> dict[str, Any]:
        """Fields that both passes fill alike; `heads` are those that the order's sections are made of."""
        return {
            **sizes(shape),
            "batch": shape.batch,
            "window": shape.window or 0,
            "section": order.section(heads),
            "blocks": BLOCKS[order.blocks],
            "direction": DIRECTIONS[order.direction],
            "bounds_q": ragged and ragged.bounds_q,
            "bounds_k": ragged and ragged.bounds_k,
            "lse_head": ragged.all_q if ragged else shape.seq_q,
            "scale2": scale * LOG2_E,
        }

    def map_of(
        self, shape: Shape, address: int, ragged: Ragged | None, rows: int, of_queries: bool
    ) -> TensorMap:
        """The map of a tensor of queries or of keys, whose boxes are so many rows."""
        dtype, heads, d = (
            self.spec.dtype,
            shape.heads if of_queries else shape.kv_heads,
            shape.head_dim,
        )
        if ragged is None:
            seq = shape.seq_q if of_queries else shape.seq_k
            return dense_map(dtype, address, (shape.batch, heads, seq, d), rows)
        return ragged_map(
            dtype, address, (ragged.all_q if of_queries else ragged.all_k, heads, d), rows
        )


class Sm90Forward(Hopper[Sm90Spec]):
    """A compiled and loaded `flash_fwd_sm90`, for one launch at a time: its launches share a counter."""

    def load(self) -> None:
        self.main = self.function("flash_fwd_sm90", self.spec.dynamic_shared_bytes)
        self.counter = driver.Buffer(4)

    def tiles(self, shape: Shape) -> int:
        """How many numbers a remap table holds: query blocks (of a whole cluster) fastest, then heads, then batch."""
        pack = self.spec.pack
        rows = self.spec.cluster * self.spec.block_q
        return -(-shape.seq_q * pack // rows) * (shape.all_heads // pack)

    def launch(
        self,
        shape: Shape,
        addresses: dict[str, int],
        order: Sm90Order | None = None,
        scale: float | None = None,
        ragged: Ragged | None = None,
        remap: int | None = None,
    ) -> Sm90Launch:
        """The launch of one call. Raises InputError where the shape or scale is not one that this instantiation
        computes. `shape`: with `ragged`, batch is the number of sequences, and seq_q and seq_k are the longest.
        `addresses`: of `q k v o`, and of `lse` (fp32) where it is wanted: [batch, heads, seq_q], or with `ragged`
        [heads, all rows]. `remap`: device address of an int32 table of all tiles' numbers in the order wanted
        (`table_of` makes it of any schedule), instead of `order`'s."""
        spec = self.spec
        order = order or Sm90Order()
        d = shape.head_dim
        scale = self.scale_of(shape, scale)
        if spec.pack > 1 and (spec.pack != shape.heads // shape.kv_heads or ragged is not None):
            lengths = "lengths that vary" if ragged else f"{shape.heads} heads on {shape.kv_heads}"
            raise InputError(
                f"pack {spec.pack} does not fit {lengths}; accepted: as many query heads a key/value head"
            )
        maps = {}
        for name in "qkvo":
            if name in "qo" and spec.pack > 1:
                packed = (shape.batch, shape.heads, shape.seq_q, d)
                maps[name] = packed_map(spec.dtype, addresses[name], packed, spec.pack)
            else:
                rows = 64 if name in "qo" else spec.block_k // spec.cluster
                maps[name] = self.map_of(shape, addresses[name], ragged, rows, name in "qo")
        tiles = self.tiles(shape)
        all_heads = shape.all_heads // spec.pack
        p = Sm90Params(
            **{
                **self.parameters(shape, order, ragged, scale, all_heads),
                **maps,
                "lse": addresses.get("lse"),
                "remap": remap,
                "counter": self.counter.address,
                "heads": shape.heads // spec.pack,
                "group": shape.heads // shape.kv_heads // spec.pack,
                "query_blocks": tiles // all_heads,
                "tiles": tiles,
            }
        )
        at_once = (
            tiles
            if spec.schedule == "one_tile"
            else min(tiles, driver.multiprocessors() // spec.cluster)
        )
        grid = (at_once * spec.cluster, 1, 1)
        return Sm90Launch(self.main, grid, spec.threads, p, spec.dynamic_shared_bytes, self.counter)
