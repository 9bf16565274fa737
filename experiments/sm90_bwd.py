"""Instantiations and launches of flash_bwd_sm90. Launching needs a Hopper GPU."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from sm90 import Hopper, HopperSpec, Ragged, Sm90Order, TensorMap

from iosim import InputError
from iosim.evidence.cuda.launch import Launch, Shape, laid_out
from iosim.evidence.cuda.spec import CODES, DTYPES, MASKS

OVERLAPS = {"same_queries": 0, "former_queries": 1}
SUMS = {"copied": 0, "ordered": 1, "added": 2}
CONSUMERS, REGISTERS = 2, 240
"""Warpgroups that compute, 64 keys each, and the registers of their threads."""
QUERY_THREADS = 256
"""Of a CTA of the kernels before and after."""

ACCEPTED: dict[str, tuple[object, ...]] = {
    "head_dim": (64, 128),
    "block_q": (64, 128),
    "stages": (1, 2, 3),
    "score_stages": (1, 2),
    "mask": tuple(MASKS),
    "dtype": DTYPES,
    "sums": tuple(SUMS),
    "overlap": tuple(OVERLAPS),
}


@dataclass(frozen=True)
class Sm90BwdSpec(HopperSpec):
    """One `flash_bwd_sm90`; mirrors `flash90::BwdTraits`."""

    head_dim: int
    block_q: int
    stages: int = 2
    """Of Q and dO."""
    score_stages: int = 1
    """Of dS."""
    mask: str = "none"
    dtype: str = "bf16"
    sums: str = "copied"
    """How shares of dQ are added: copied (from shared memory by the copy engine), ordered (the same, in the order of
    the key blocks, so that every run gives the same bits) or added (from the registers)."""
    overlap: str = "former_queries"
    """Which product runs while a warpgroup takes exponentials: dP of the same queries, or dQ of those before."""

    source = "flash_bwd_sm90.cu"
    functions = ("flash_bwd_sm90", "flash_bwd_sm90_rows", "flash_bwd_sm90_query")
    accepted = ACCEPTED
    codes = CODES | {"sums": SUMS, "overlap": OVERLAPS}
    block_k = 64 * CONSUMERS
    threads = 128 * (CONSUMERS + 1)

    @property
    def dynamic_shared_bytes(self) -> int:
        keys = 2 * self.block_k * self.head_dim * 2
        queries = 2 * self.stages * self.block_q * self.head_dim * 2
        scores = self.score_stages * self.block_k * self.block_q * 2
        dq = 0 if self.sums == "added" else self.block_q * self.head_dim * 4
        barriers = 2 + 4 * self.stages + 2 * self.score_stages + 2 * CONSUMERS
        return keys + queries + scores + dq + self.stages * self.block_q * 8 + 8 * barriers

    @property
    def live_registers(self) -> int:
        """Of a consumer's thread: dK, dV, scores and dP."""
        return self.head_dim + self.block_q

    def check(self, cc: str) -> None:
        super().check(cc)
        if self.head_dim * self.block_q < 64 * 128:
            raise InputError(
                f"{self.tile} leaves a warpgroup less than 64 columns of dQ; block_q must be 128"
            )
        if self.overlap == "former_queries" and self.stages < 2:
            why = (
                "has no room for the next Q while this one is in use; former_queries needs 2 stages"
            )
            raise InputError(f"{self.tile} {why}")
        self.check_tile(self.live_registers, REGISTERS)


def fastest_backward(
    head_dim: int, mask: str = "none", dtype: str = "bf16", ordered: bool = False
) -> Sm90BwdSpec:
    """The instantiation that was fastest on an H200 (`bench_bwd_sm90.py sweep`)."""
    if head_dim == 64:
        return Sm90BwdSpec(
            64, 128, 2, 1, mask, dtype, "ordered" if ordered else "added", "former_queries"
        )
    return Sm90BwdSpec(
        head_dim, 64, 2, 1, mask, dtype, "ordered" if ordered else "copied", "same_queries"
    )


MAPPED = ("q", "k", "v", "d_o", "dk", "dv")


class Sm90BwdParams(ctypes.Structure):
    """`flash90::BwdParams`; its alignment makes it 960 bytes."""

    _fields_ = (
        *((name, TensorMap) for name in MAPPED),
        *laid_out(
            c_void_p="o d_o_rows dq lse rows dq_sum turns bounds_q bounds_k",
            c_int64="row head_stride batch_stride",
            c_int32="batch heads group seq_q seq_k window section blocks direction key_blocks head_blocks lse_head",
            c_float="scale scale2",
        ),
        ("padding", ctypes.c_char * 40),
    )


@dataclass(frozen=True)
class Workspace:
    """Device memory that a call needs besides its tensors, in bytes; what lies there before does not matter."""

    rows: int
    dq_sum: int
    turns: int


class Sm90Backward(Hopper[Sm90BwdSpec]):
    """A compiled and loaded `flash_bwd_sm90` with the kernels before and after it."""

    def load(self) -> None:
        self.main = self.function("flash_bwd_sm90", self.spec.dynamic_shared_bytes)
        self.rows, self.query = (
            self.function("flash_bwd_sm90_rows"),
            self.function("flash_bwd_sm90_query"),
        )

    def head_blocks(self, shape: Shape, ragged: Ragged | None = None) -> int:
        """Query blocks that the workspaces hold of a head, and of all sequences where lengths vary."""
        if ragged is None:
            return -(-shape.seq_q // self.spec.block_q)
        return ragged.all_q // self.spec.block_q + shape.batch

    def workspace(self, shape: Shape, ragged: Ragged | None = None) -> Workspace:
        blocks = self.head_blocks(shape, ragged) * (shape.heads if ragged else shape.all_heads)
        return Workspace(
            blocks * self.spec.block_q * 8,
            blocks * self.spec.block_q * shape.head_dim * 4,
            blocks * 8,
        )

    def launches(
        self,
        shape: Shape,
        addresses: dict[str, int],
        order: Sm90Order | None = None,
        scale: float | None = None,
        ragged: Ragged | None = None,
    ) -> list[Launch]:
        """Row sums, then dK, dV and the shares of dQ, then dQ. Raises InputError where the shape, scale or order is
        not one that this instantiation computes. `shape`: with `ragged`, batch is the number of sequences, and seq_q
        and seq_k are the longest. `addresses`: of `q k v o d_o lse dq dk dv`, of `rows` and `dq_sum`, and where
        ordered of `turns`, all as large as `workspace` says. `lse` is fp32 [batch, heads, seq_q], or with `ragged`
        [heads, all rows]. `order`: of the key blocks, whose heads are key/value heads; the heaviest is the first."""
        spec = self.spec
        d = shape.head_dim
        order = order or Sm90Order("query")
        scale = self.scale_of(shape, scale)
        if spec.sums == "ordered" and order.blocks != "heavy_first":
            raise InputError(f"blocks {order.blocks} cannot add in order; accepted: heavy_first")
        maps = {}
        for name in MAPPED:
            rows = spec.block_k if name in "kv" else 64 if name in ("dk", "dv") else spec.block_q
            maps[name] = self.map_of(shape, addresses[name], ragged, rows, name in ("q", "d_o"))
        key_blocks = -(-shape.seq_k // spec.block_k)
        kv_heads = shape.batch * shape.kv_heads
        row, head = (shape.heads * d, d) if ragged else (d, shape.seq_q * d)
        tensors = {name: addresses[name] for name in ("o", "dq", "lse", "rows", "dq_sum")}
        p = Sm90BwdParams(
            **{
                **self.parameters(shape, order, ragged, scale, kv_heads),
                **maps,
                **tensors,
                "d_o_rows": addresses["d_o"],
                "turns": addresses.get("turns"),
                "row": row,
                "head_stride": head,
                "batch_stride": shape.heads * shape.seq_q * d,
                "key_blocks": key_blocks,
                "head_blocks": self.head_blocks(shape, ragged),
                "scale": scale,
            }
        )
        queries = (-(-shape.seq_q // spec.block_q), shape.heads, shape.batch)
        return [
            Launch(self.rows, queries, QUERY_THREADS, p, 0),
            Launch(
                self.main, (key_blocks * kv_heads, 1, 1), spec.threads, p, spec.dynamic_shared_bytes
            ),
            Launch(self.query, queries, QUERY_THREADS, p, 0),
        ]
