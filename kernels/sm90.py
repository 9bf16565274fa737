"""Instantiations and launches of flash_fwd_sm90: its knobs, its tensor maps, its orders. Launching needs a Hopper GPU."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from iosim.errors import InputError
from iosim.kernelbuild import driver
from iosim.kernelbuild.compiler import Built, build
from iosim.kernelbuild.launch import Launch, Shape
from iosim.kernelbuild.spec import DIRECTIONS, DTYPES, MASKS

LOG2_E = 1.4426950408889634
BLOCKS = {"light_first": 0, "heavy_first": 1, "fold": 2}
SCHEDULES = {"one_tile": 0, "static": 1, "dynamic": 2}
PIPELINES = {"sequential": 0, "interleaved": 1, "overlapped": 2, "eager": 3}
TURNS = {"free": 0, "products": 1, "exponentials": 2}
SHARED_BYTES = 232_448
RAGGED = 1 << 30
_FLOAT16, _BFLOAT16, _SWIZZLE_128, _L2_256 = 6, 9, 3, 3


@dataclass(frozen=True)
class Sm90Spec:
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
    pipeline: str = "overlapped"
    turns: str = "products"
    poly: int = 0
    """Of 8 exponentials, how many are computed by a polynomial."""

    source = "flash_fwd_sm90.cu"
    functions = ("flash_fwd_sm90",)

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

    def defines(self) -> dict[str, int]:
        return {
            "HEAD_DIM": self.head_dim,
            "CONSUMERS": self.consumers,
            "BLOCK_K": self.block_k,
            "STAGES": self.stages,
            "Q_STAGES": self.q_stages,
            "MASK": MASKS[self.mask],
            "BF16": int(self.dtype == "bf16"),
            "SCHEDULE": SCHEDULES[self.schedule],
            "CLUSTER": self.cluster,
            "PIPELINE": PIPELINES[self.pipeline],
            "TURNS": TURNS[self.turns],
            "POLY": self.poly,
        }

    def check(self, cc: str) -> None:
        if cc != "9.0a":
            raise InputError(f"flash_fwd_sm90 is built for compute capability 9.0a, not {cc}")
        accepted: dict[str, tuple[object, ...]] = {
            "head_dim": (64, 128, 256), "consumers": (2, 3, 4), "block_k": (64, 80, 96, 128, 160, 176, 192),
            "stages": (2, 3, 4), "q_stages": (1, 2), "mask": tuple(MASKS), "dtype": DTYPES,
            "schedule": tuple(SCHEDULES), "cluster": (1, 2), "pipeline": tuple(PIPELINES), "turns": tuple(TURNS),
            "poly": tuple(range(9)),
        }  # fmt: skip
        for name, values in accepted.items():
            if getattr(self, name) not in values:
                raise InputError(
                    f"{name} {getattr(self, name)} is not built; accepted: {', '.join(map(str, values))}"
                )
        if self.cluster == 2 and self.block_k % 32:
            raise InputError(f"block_k {self.block_k} is no multiple of 32, of which each CTA of a cluster loads half")
        if self.dynamic_shared_bytes > SHARED_BYTES:
            raise InputError(f"{self} needs {self.dynamic_shared_bytes} bytes of shared memory; a CTA has {SHARED_BYTES}")
        most = {2: 232, 3: 160, 4: 112}[self.consumers]
        if self.live_registers + 28 > most:
            raise InputError(f"{self} keeps {self.live_registers} registers of a thread live; there is room for {most - 28}")


def fastest(head_dim: int, mask: str = "none", dtype: str = "bf16") -> Sm90Spec:
    """The instantiation that was fastest on an H200 (`bench_sm90.py sweep`)."""
    if head_dim == 64 and mask == "none":
        return Sm90Spec(64, 4, 64, 4, 2, mask, dtype, pipeline="eager")
    if head_dim == 64:
        return Sm90Spec(64, 3, 128, 4, 2, mask, dtype, turns="free")
    if head_dim == 128:
        return Sm90Spec(128, 2, 128, 2, 2, mask, dtype, pipeline="sequential", turns="free")
    return Sm90Spec(256, 2, 64, 2, 1, mask, dtype, pipeline="eager")


@dataclass(frozen=True)
class Sm90Order:
    """How tiles are numbered and how each walks its keys. `remap` lists tile numbers, query blocks fastest, instead."""

    order: str = "head"
    blocks: str = "heavy_first"
    section_heads: int = 0
    direction: str = "ascending"

    def section(self, all_heads: int) -> int:
        return 1 if self.order == "query" else min(self.section_heads or all_heads, all_heads)


class _TensorMap(ctypes.Structure):
    _fields_ = (("bits", ctypes.c_uint64 * 16),)


class Sm90Params(ctypes.Structure):
    """`flash90::Params`; its alignment makes it 640 bytes."""

    _fields_ = (
        *((name, _TensorMap) for name in "qkvo"),
        *((name, ctypes.c_void_p) for name in ("lse", "bounds_q", "bounds_k", "remap", "counter")),
        *(
            (name, ctypes.c_int32)
            for name in (
                "batch", "heads", "group", "seq_q", "seq_k", "window", "section", "blocks", "direction",
                "query_blocks", "tiles", "lse_head",
            )
        ),
        ("scale2", ctypes.c_float),
        ("padding", ctypes.c_char * 36),
    )  # fmt: skip


@dataclass(frozen=True)
class Ragged:
    """Sequences of different lengths, one after the other: q and o [all rows, heads, head_dim], k and v likewise."""

    longest_q: int
    longest_k: int
    all_q: int
    all_k: int
    bounds_q: int
    """Device address of [batch + 1] int32: where each sequence starts, and the end."""
    bounds_k: int


def tensor_map(dtype: str, address: int, dims: Sequence[int], strides: Sequence[int], rows: int) -> _TensorMap:
    """A map of 16-bit elements in five dimensions, innermost first, whose boxes are `rows` rows of 64 columns.

    Args:
        strides: of all dimensions but the innermost, in elements.
    """
    memory = ctypes.create_string_buffer(192)
    start = -ctypes.addressof(memory) % 64
    place = ctypes.c_void_p(ctypes.addressof(memory) + start)
    driver.use_device()
    driver._call(
        "cuTensorMapEncodeTiled", place, _BFLOAT16 if dtype == "bf16" else _FLOAT16, 5, ctypes.c_void_p(address),
        (ctypes.c_uint64 * 5)(*dims), (ctypes.c_uint64 * 4)(*(2 * s for s in strides)),
        (ctypes.c_uint32 * 5)(64, rows, 1, 1, 1), (ctypes.c_uint32 * 5)(1, 1, 1, 1, 1), 0, _SWIZZLE_128, _L2_256, 0,
    )  # fmt: skip
    return _TensorMap.from_buffer_copy(memory.raw[start : start + 128])


def dense_map(dtype: str, address: int, shape: tuple[int, int, int, int], rows: int) -> _TensorMap:
    """The map of a contiguous [batch, heads, seq, head_dim]."""
    batch, heads, seq, d = shape
    return tensor_map(dtype, address, (d, seq, heads, batch, 1), (d, seq * d, heads * seq * d, heads * seq * d), rows)


def ragged_map(dtype: str, address: int, every: int, heads: int, d: int, rows: int) -> _TensorMap:
    """The map of [all rows, heads, head_dim] that cuts off at the end of each sequence (flash_fwd_sm90.cuh says how)."""
    row = heads * d
    return tensor_map(dtype, address, (d, RAGGED, heads, every + 1, 2 * RAGGED - 1), (row, d, row, 2**34 - row), rows)


@dataclass(frozen=True)
class Sm90Launch(Launch):
    """One launch, which keeps the scheduler's counter alive."""

    counter: driver.Buffer


@dataclass
class Sm90Forward:
    """A compiled and loaded `flash_fwd_sm90`."""

    spec: Sm90Spec
    built: Built = field(init=False)

    def __post_init__(self) -> None:
        self.built = build(self.spec, "9.0a")
        self.main = driver.Function(self.built.cubin, "flash_fwd_sm90", self.spec.dynamic_shared_bytes)
        self.counter = driver.Buffer(4)

    def launch(
        self, shape: Shape, addresses: dict[str, int], order: Sm90Order | None = None, scale: float | None = None,
        ragged: Ragged | None = None, remap: int | None = None,
    ) -> Sm90Launch:
        """The launch of one call. `addresses`: `q k v o`, and `lse` where it is wanted.

        Args:
            shape: with `ragged`, batch is the number of sequences and seq_q, seq_k the longest.
            remap: device address of an int32 table of all tiles, instead of the order's numbering.
        """
        spec, order = self.spec, order or Sm90Order()
        if shape.head_dim != spec.head_dim:
            raise InputError(f"head_dim {shape.head_dim} is not the {spec.head_dim} that this kernel was built for")
        if (shape.window is not None) != (spec.mask == "window"):
            raise InputError(f"window {shape.window} does not fit a kernel built for mask {spec.mask}")
        scale = 1 / math.sqrt(shape.head_dim) if scale is None else scale
        query_blocks = -(-shape.seq_q // (spec.cluster * spec.block_q))
        tiles = query_blocks * shape.all_heads
        maps = {}
        for name in "qkvo":
            heads = shape.heads if name in "qo" else shape.kv_heads
            rows = 64 if name in "qo" else spec.block_k // spec.cluster
            seq, d, address = shape.seq_q if name in "qo" else shape.seq_k, shape.head_dim, addresses[name]
            if ragged is None:
                maps[name] = dense_map(spec.dtype, address, (shape.batch, heads, seq, d), rows)
            else:
                every = ragged.all_q if name in "qo" else ragged.all_k
                maps[name] = ragged_map(spec.dtype, address, every, heads, d, rows)
        p = Sm90Params(
            **maps, lse=addresses.get("lse"), bounds_q=ragged and ragged.bounds_q, bounds_k=ragged and ragged.bounds_k,
            remap=remap, counter=self.counter.address, batch=shape.batch, heads=shape.heads,
            group=shape.heads // shape.kv_heads, seq_q=shape.seq_q, seq_k=shape.seq_k, window=shape.window or 0,
            section=order.section(shape.all_heads), blocks=BLOCKS[order.blocks], direction=DIRECTIONS[order.direction],
            query_blocks=query_blocks, tiles=tiles, lse_head=ragged.all_q if ragged else shape.seq_q,
            scale2=scale * LOG2_E,
        )  # fmt: skip
        groups = tiles if spec.schedule == "one_tile" else min(tiles, driver.multiprocessors() // spec.cluster)
        return Sm90Launch(self.main, (groups * spec.cluster, 1, 1), spec.threads, p, spec.dynamic_shared_bytes, self.counter)
