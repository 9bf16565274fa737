"""What is instantiated: the template parameters of each kernel, their limits, and the shared memory that follows.

The arithmetic mirrors the traits structs of the CUDA sources (`FwdTraits`, `BwdTraits`); the resource table's
`static_smem_bytes` and `dynamic_smem_bytes` hold the two together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from iosim.base.errors import InputError
from iosim.hardware.profile_file import capability_fact

BUILT = ("7.5", "8.0", "8.6", "8.9", "9.0")
"""Compute capabilities of the resource table."""


def shared_bytes_per_cta(cc: str) -> int | None:
    """Most shared memory that one CTA may ask for; None where it is not known."""
    return capability_fact(cc, "shared_memory_per_block_optin_bytes")


STATIC_BYTES_MARGIN = 128
"""Static shared memory of `flash_fwd` and `flash_bwd`, their loops' bookkeeping, with the tiles' alignment."""

MASKS = {"none": 0, "causal": 1, "window": 2}
ORDERS = ("query", "head")
DIRECTIONS = {"ascending": 0, "descending": 1, "alternating": 2}
DTYPES = ("fp16", "bf16")


class Spec(Protocol):
    """One instantiation of one source file."""

    @property
    def source(self) -> str:
        """File name in `kernels/`."""

    @property
    def functions(self) -> tuple[str, ...]:
        """The kernels in it, the main one first."""

    @property
    def dynamic_shared_bytes(self) -> int:
        """What the main kernel's launch asks for."""

    def defines(self) -> dict[str, int]:
        """The macros that choose the instantiation."""

    def check(self, cc: str) -> None:
        """Raises `InputError` where the instantiation cannot exist on compute capability `cc`."""


def _one_of(option: str, value: object, accepted: tuple[object, ...]) -> None:
    if value not in accepted:
        raise InputError(f"{option} {value} is not built; accepted: {', '.join(map(str, accepted))}")


def _check_cc(cc: str) -> None:
    major, _, minor = cc.partition(".")
    if not (major.isdigit() and minor.rstrip("a").isdigit()) or float(f"{major}.{minor.rstrip('a')}") < 7.5:
        raise InputError(f"compute capability '{cc}' is not supported; accepted: 7.5 and later, such as 8.0 or 9.0")


def _check_shared(name: str, cc: str, need: int) -> None:
    have = shared_bytes_per_cta(cc)
    if have is not None and need > have:
        raise InputError(f"{name} needs {need} bytes of shared memory; a CTA of compute capability {cc} has {have}")


@dataclass(frozen=True)
class FwdSpec:
    """One `flash_fwd`: a tile of `block_q` query rows by `block_k` key rows."""

    head_dim: int
    block_q: int
    block_k: int
    warps: int
    stages: int = 2
    mask: str = "none"
    dtype: str = "bf16"
    persistent: bool = False
    split: bool = False
    q_in_registers: bool = False
    min_ctas: int = 1
    """CTAs an SM must be able to hold: it caps the registers of a thread at 65536 / (threads * min_ctas)."""

    source = "flash_fwd.cu"
    functions = ("flash_fwd", "flash_combine")

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def dynamic_shared_bytes(self) -> int:
        return (self.block_q + 2 * self.stages * self.block_k) * self.head_dim * 2

    def defines(self) -> dict[str, int]:
        return {
            "HEAD_DIM": self.head_dim,
            "BLOCK_Q": self.block_q,
            "BLOCK_K": self.block_k,
            "WARPS": self.warps,
            "STAGES": self.stages,
            "MASK": MASKS[self.mask],
            "BF16": int(self.dtype == "bf16"),
            "PERSISTENT": int(self.persistent),
            "SPLIT": int(self.split),
            "Q_IN_REGISTERS": int(self.q_in_registers),
            "MIN_CTAS": self.min_ctas,
        }

    def check(self, cc: str) -> None:
        _check_cc(cc)
        _one_of("head_dim", self.head_dim, (64, 96, 128, 256))
        _one_of("warps", self.warps, (2, 4, 8))
        _one_of("stages", self.stages, (1, 2, 3, 4))
        _one_of("mask", self.mask, tuple(MASKS))
        _one_of("dtype", self.dtype, DTYPES)
        name = f"tile {self.block_q}x{self.block_k} with {self.warps} warps"
        if self.block_q < 1 or self.block_q % (16 * self.warps):
            raise InputError(f"{name} is not built; block_q must be a multiple of 16 * warps = {16 * self.warps}")
        if self.block_k < 16 or self.block_k % 16:
            raise InputError(f"{name} is not built; block_k must be a multiple of 16")
        if cc == "7.5" and self.dtype == "bf16":
            raise InputError("dtype bf16 has no tensor-core product on compute capability 7.5; accepted: fp16")
        need = self.dynamic_shared_bytes + STATIC_BYTES_MARGIN
        _check_shared(f"{name}, {self.stages} stages, head_dim {self.head_dim}", cc, need)


@dataclass(frozen=True)
class BwdSpec:
    """One `flash_bwd`: CTAs own `block_k` key rows and walk the query blocks of `block_q` rows."""

    head_dim: int
    block_q: int
    block_k: int
    warps: int
    mask: str = "none"
    dtype: str = "bf16"
    deterministic: bool = False
    min_ctas: int = 1

    source = "flash_bwd.cu"
    functions = ("flash_bwd", "flash_bwd_rows", "flash_bwd_query")

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def dynamic_shared_bytes(self) -> int:
        key_tiles = 2 * self.block_k * self.head_dim * 2
        query_tiles = 4 * self.block_q * self.head_dim * 2
        return key_tiles + query_tiles + self.block_q * self.block_k * 2 + 4 * self.block_q * 4

    def defines(self) -> dict[str, int]:
        return {
            "HEAD_DIM": self.head_dim,
            "BLOCK_Q": self.block_q,
            "BLOCK_K": self.block_k,
            "WARPS": self.warps,
            "MASK": MASKS[self.mask],
            "BF16": int(self.dtype == "bf16"),
            "DETERMINISTIC": int(self.deterministic),
            "MIN_CTAS": self.min_ctas,
        }

    def check(self, cc: str) -> None:
        _check_cc(cc)
        if cc == "7.5":
            raise InputError("flash_bwd is built for compute capability 8.0 and later, not 7.5")
        _one_of("head_dim", self.head_dim, (64, 128))
        _one_of("warps", self.warps, (4, 8))
        _one_of("mask", self.mask, tuple(MASKS))
        _one_of("dtype", self.dtype, DTYPES)
        name = f"backward tile {self.block_q}x{self.block_k} with {self.warps} warps"
        if self.block_k != 16 * self.warps:
            raise InputError(f"{name} is not built; block_k must be 16 * warps = {16 * self.warps}")
        if self.block_q not in (32, 64, 128) or self.block_q > self.block_k:
            raise InputError(f"{name} is not built; block_q must be 32, 64 or 128 and at most block_k")
        _check_shared(name, cc, self.dynamic_shared_bytes + STATIC_BYTES_MARGIN)


@dataclass(frozen=True)
class NaiveSpec:
    """The three kernels of naive attention: scores, softmax, values."""

    head_dim: int
    dtype: str = "bf16"
    bypass_l1: bool = False
    """Read every tensor past L1, where CTAs that share an SM would find each other's tiles."""

    source = "naive.cu"
    functions = ("naive_scores", "naive_softmax", "naive_values")
    dynamic_shared_bytes = 0

    def defines(self) -> dict[str, int]:
        element = {"fp16": 0, "bf16": 1, "fp32": 2}[self.dtype]
        return {"HEAD_DIM": self.head_dim, "ELEMENT": element, "BYPASS_L1": int(self.bypass_l1)}

    def check(self, cc: str) -> None:
        _check_cc(cc)
        _one_of("head_dim", self.head_dim, (64, 96, 128, 256))
        _one_of("dtype", self.dtype, ("fp16", "bf16", "fp32"))


@dataclass(frozen=True)
class MicroSpec:
    """The microbenchmarks; one build holds all of them."""

    source = "microbench.cu"
    functions = ("micro_scan", "micro_fill", "micro_link", "micro_chase", "micro_exp", "micro_tensor", "micro_empty")
    dynamic_shared_bytes = 0

    def defines(self) -> dict[str, int]:
        return {}

    def check(self, cc: str) -> None:
        _check_cc(cc)


@dataclass(frozen=True)
class MinimalSpec:
    """The minimal kernel: fp32, 32x32, one thread a row."""

    head_dim: int

    source = "minimal.cu"
    functions = ("minimal_fwd",)

    @property
    def dynamic_shared_bytes(self) -> int:
        return (2 * 32 * self.head_dim + 32 * (self.head_dim + 1) + 32 * 33) * 4

    def defines(self) -> dict[str, int]:
        return {"HEAD_DIM": self.head_dim}

    def check(self, cc: str) -> None:
        _check_cc(cc)
        _one_of("head_dim", self.head_dim, (32, 64, 96, 128))
        _check_shared(f"minimal at head_dim {self.head_dim}", cc, self.dynamic_shared_bytes)
