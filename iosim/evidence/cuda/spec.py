"""What is instantiated: the template parameters of each kernel, their limits, and the shared memory that follows.

The arithmetic mirrors the traits structs of the CUDA sources (`FwdTraits`, `BwdTraits`); the resource table's
`static_smem_bytes` and `dynamic_smem_bytes` hold the two together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from iosim.base.errors import InputError
from iosim.base.records import dataclass, fields
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
HEAD_DIMS = (64, 96, 128, 256)
Accepted = Mapping[str, Sequence[object]]
MASK_AND_DTYPE: Accepted = {"mask": tuple(MASKS), "dtype": DTYPES}
Codes = dict[str, dict[str, int]]
CODES: Codes = {"mask": MASKS, "dtype": {"fp16": 0, "bf16": 1, "fp32": 2}}
"""Template parameters that are words, and what stands for each in a macro."""


class Spec:
    """One instantiation of one source file: a frozen dataclass whose fields are the template parameters."""

    source: ClassVar[str]
    """File name in `kernels/`."""
    functions: ClassVar[tuple[str, ...]]
    """The kernels in it, the main one first."""
    accepted: ClassVar[Accepted] = {}
    codes: ClassVar[Codes] = CODES
    dtype_macro: ClassVar[str] = "BF16"

    @property
    def dynamic_shared_bytes(self) -> int:
        return 0

    def defines(self) -> dict[str, int]:
        macros = {"dtype": self.dtype_macro}
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        # words become the numbers that the sources compare, flags 0 and 1
        codes = {name: self.codes.get(name, {}).get(value, value) for name, value in values.items()}
        return {macros.get(name, name.upper()): int(code) for name, code in codes.items()}

    def check(self, cc: str) -> None:
        major, _, minor = cc.partition(".")
        if (
            not (major.isdigit() and minor.rstrip("a").isdigit())
            or float(f"{major}.{minor.rstrip('a')}") < 7.5
        ):
            raise InputError(
                f"compute capability '{cc}' is not supported; accepted: 7.5 and later, such as 8.0 or 9.0"
            )
        self.check_fields()

    def check_fields(self) -> None:
        for name, values in self.accepted.items():
            one_of(name, getattr(self, name), values)

    def check_shared(self, name: str, cc: str, margin: int = 0) -> None:
        need, have = self.dynamic_shared_bytes + margin, shared_bytes_per_cta(cc)
        if have is not None and need > have:
            raise InputError(
                f"{name} needs {need} bytes of shared memory; a CTA of compute capability {cc} has {have}"
            )


def one_of(option: str, value: Any, accepted: Sequence[object]) -> None:
    if value not in accepted:
        raise InputError(
            f"{option} {value} is not built; accepted: {', '.join(map(str, accepted))}"
        )


@dataclass(frozen=True)
class FwdSpec(Spec):
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
    accepted: ClassVar[Accepted] = {
        "head_dim": HEAD_DIMS,
        "warps": (2, 4, 8),
        "stages": (1, 2, 3, 4),
        **MASK_AND_DTYPE,
    }

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def dynamic_shared_bytes(self) -> int:
        # Q once, K and V per stage, two bytes per element
        return (self.block_q + 2 * self.stages * self.block_k) * self.head_dim * 2

    def check(self, cc: str) -> None:
        super().check(cc)
        name = f"tile {self.block_q}x{self.block_k} with {self.warps} warps"
        if self.block_q < 1 or self.block_q % (16 * self.warps):
            raise InputError(
                f"{name} is not built; block_q must be a multiple of 16 * warps = {16 * self.warps}"
            )
        if self.block_k < 16 or self.block_k % 16:
            raise InputError(f"{name} is not built; block_k must be a multiple of 16")
        if cc == "7.5" and self.dtype == "bf16":
            raise InputError(
                "dtype bf16 has no tensor-core product on compute capability 7.5; accepted: fp16"
            )
        self.check_shared(
            f"{name}, {self.stages} stages, head_dim {self.head_dim}", cc, STATIC_BYTES_MARGIN
        )


@dataclass(frozen=True)
class BwdSpec(Spec):
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
    accepted: ClassVar[Accepted] = {"head_dim": (64, 128), "warps": (4, 8), **MASK_AND_DTYPE}

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def dynamic_shared_bytes(self) -> int:
        # K and V stay; Q and dO are double-buffered; then dS and the row statistics
        key_tiles = 2 * self.block_k * self.head_dim * 2
        query_tiles = 4 * self.block_q * self.head_dim * 2
        return key_tiles + query_tiles + self.block_q * self.block_k * 2 + 4 * self.block_q * 4

    def check(self, cc: str) -> None:
        if cc == "7.5":
            raise InputError("flash_bwd is built for compute capability 8.0 and later, not 7.5")
        super().check(cc)
        name = f"backward tile {self.block_q}x{self.block_k} with {self.warps} warps"
        if self.block_k != 16 * self.warps:
            raise InputError(f"{name} is not built; block_k must be 16 * warps = {16 * self.warps}")
        if self.block_q not in (32, 64, 128) or self.block_q > self.block_k:
            raise InputError(
                f"{name} is not built; block_q must be 32, 64 or 128 and at most block_k"
            )
        self.check_shared(name, cc, STATIC_BYTES_MARGIN)


@dataclass(frozen=True)
class NaiveSpec(Spec):
    head_dim: int
    dtype: str = "bf16"
    bypass_l1: bool = False
    """Read every tensor past L1, where CTAs that share an SM would find each other's tiles."""

    source = "naive.cu"
    functions = ("naive_scores", "naive_softmax", "naive_values")
    accepted: ClassVar[Accepted] = {"head_dim": HEAD_DIMS, "dtype": ("fp16", "bf16", "fp32")}
    dtype_macro = "ELEMENT"


@dataclass(frozen=True)
class MicroSpec(Spec):
    source = "microbench.cu"
    functions = (
        "micro_scan",
        "micro_fill",
        "micro_link",
        "micro_chase",
        "micro_exp",
        "micro_tensor",
        "micro_empty",
    )


@dataclass(frozen=True)
class MinimalSpec(Spec):
    """The minimal kernel: fp32, 32x32, one thread a row."""

    head_dim: int

    source = "minimal.cu"
    functions = ("minimal_fwd",)
    accepted: ClassVar[Accepted] = {"head_dim": (32, 64, 96, 128)}

    @property
    def dynamic_shared_bytes(self) -> int:
        # one column of padding keeps threads of a warp off one another's banks
        return (2 * 32 * self.head_dim + 32 * (self.head_dim + 1) + 32 * 33) * 4

    def check(self, cc: str) -> None:
        super().check(cc)
        self.check_shared(f"minimal at head_dim {self.head_dim}", cc)
