"""What the commands on one attention call are asked for: a record each, whose fields say all about themselves.

The command line makes its options of them and `import iosim` its keywords. Loads nothing heavy, so that a command line
can be parsed, and refused, at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iosim.base.fields import Kind, about, fields_of, like
from iosim.kernel.conditions import CONDITIONS, Conditions
from iosim.kernel.overrides import OVERRIDES, Overrides
from iosim.studies.requests import OfModel, OfProblem

if TYPE_CHECKING:
    from iosim.hardware.profile import HardwareProfile
    from iosim.kernel.kernel import Kernel
    from iosim.problem.attention import AttentionProblem
    from iosim.studies.models.layers import Layers

PINNED = ("order", "heavy_first", "fold", "section_heads", "direction", "scheduler", "cluster")
"""Settings that a search of orders keeps where they are given."""
MATRIX_UNITS = ("mma.sync", "wgmma")
DEFAULT_COMPILED = 16


@dataclass(frozen=True, kw_only=True)
class PredictRequest(OfProblem, Conditions):
    """Every problem, of a model all of its layers, on every GPU with every kernel."""

    gpu: Sequence[str | HardwareProfile]
    kernel: Sequence[str | Kernel]
    overrides: Overrides | None = None


@dataclass(frozen=True, kw_only=True)
class ExplainRequest(PredictRequest):
    """Why calls move what they move."""

    time: bool = about(False, Kind.FLAG, "where the time goes, launch by launch, in place of the bytes")


@dataclass(frozen=True, kw_only=True)
class TraceRequest(PredictRequest):
    """What happens inside the replay of calls."""

    launch: str | None = about(
        None, Kind.NAME, "trace this launch of the chain alone", metavar="NAME", default_text="all"
    )
    bins: int = about(200, Kind.WHOLE, "time bins", metavar="N")


@dataclass(frozen=True, kw_only=True)
class SweepRequest(OfModel):
    """A row for every combination of values, for the rows of a file, or for the layers of a model."""

    problems: Any = about(
        None,
        Kind.NAME,
        "a CSV or Parquet file, a row a problem, with columns named as options are: seq_len, heads, kernel, gpu, ...; "
        "each row with every combination of the options given",
        metavar="FILE",
    )
    values: Mapping[str, Any]
    """Of fields, settings, `gpu` and `kernel`, each one value or several."""
    l2_start: str = like(CONDITIONS["l2_start"], "cold")
    method: str | None = like(
        CONDITIONS["method"],
        default_text="replay where that takes seconds; bounds and capacity take a million rows in seconds and give no "
        "times",
    )
    out: Any = about(None, Kind.FILE, "a .csv or .parquet file, which appears with the last row", option=None)
    jobs: int | None = about(
        None, Kind.WHOLE, "processes", metavar="N", default_text="one a core where the rows are worth it"
    )
    dask: str | None = about(
        None,
        Kind.NAME,
        "scheduler of a Dask cluster, such as tcp://host:8786, whose workers do the work",
        metavar="ADDRESS",
    )
    fresh: bool = about(False, Kind.FLAG, "begin anew where --out was begun")


@dataclass(frozen=True, kw_only=True)
class CompareRequest(OfModel):
    """Kernels and GPUs side by side."""

    problems: Sequence[AttentionProblem] = ()
    kernel: Sequence[str]
    gpu: Sequence[str]
    baseline: str | None = about(
        None,
        Kind.NAME,
        "what ratios are to",
        metavar="KERNEL[@GPU]",
        default_text="the first kernel over N x N tensors, on each row's GPU",
    )
    l2_start: str = like(CONDITIONS["l2_start"], "cold")
    method: str | None = like(CONDITIONS["method"])


@dataclass(frozen=True, kw_only=True)
class TilesRequest(OfModel):
    """Tiles for a problem, ranked, or one of them."""

    problem: AttentionProblem
    gpu: str | HardwareProfile
    kind: Layers | None = None
    """The layers of a model whose problem it is."""
    tile: Sequence[tuple[int, int]] | None = like(
        OVERRIDES["tile"],
        help="only these tiles, such as 96x48: whether each fits, what it is short of, its bytes and rank, and the "
        "nearest that fits",
    )
    warps: int | None = like(OVERRIDES["warps"])
    stages: int | None = like(OVERRIDES["stages"])
    matrix_unit: str = about(
        MATRIX_UNITS[0],
        Kind.WORD,
        "what computes the products: mma.sync, or wgmma on cc 9.0",
        words=MATRIX_UNITS,
        metavar="UNIT",
    )
    library: bool = about(
        True, Kind.FLAG, "whether the library kernels with their own tiles are predicted, too", option=None
    )
    compile: int | None = about(
        None,
        Kind.WHOLE,
        "compile the first N tiles of which no build is recorded, and rank them with what the compiler says: nvcc, or "
        f"Triton with --triton; without a number {DEFAULT_COMPILED}",
        bare=DEFAULT_COMPILED,
        metavar="N",
    )


def _pinned(name: str) -> Any:
    return like(OVERRIDES[name], help=f"keep this one: {OVERRIDES[name].help}")


@dataclass(frozen=True, kw_only=True)
class OrdersRequest(OfModel):
    """Orders of a kernel, ranked; one order for several problems."""

    problems: Sequence[AttentionProblem]
    kernel: str | Kernel
    gpu: str | HardwareProfile
    counts: Sequence[float] | None = None
    """How many layers of a model each problem stands for."""
    weights: Sequence[float] | None = about(
        None,
        Kind.NUMBERS,
        "how often each of several problems is called: one order for all of them",
        metavar="W,...",
        default_text="once; with a model as often as it has such layers",
    )
    tile: Sequence[tuple[int, int]] | None = like(
        OVERRIDES["tile"], help="tiles to try beside the kernel's own, such as 128x64,64x64"
    )
    order: str | None = _pinned("order")
    heavy_first: bool | None = _pinned("heavy_first")
    fold: bool | None = _pinned("fold")
    section_heads: int | None = _pinned("section_heads")
    direction: str | None = _pinned("direction")
    scheduler: str | None = _pinned("scheduler")
    cluster: int | None = _pinned("cluster")
    l2_start: str = like(CONDITIONS["l2_start"], "cold")

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", ORDERS["weights"].check(self.weights))


def _amount(meaning: str, example: str) -> Any:
    return about(None, Kind.NAME, f"{meaning}, such as {example}", metavar="AMOUNT")


@dataclass(frozen=True, kw_only=True)
class ClaimRequest:
    """Numbers from elsewhere, and what they are of."""

    problem: AttentionProblem
    kernel: str
    gpu: str | HardwareProfile
    overrides: Overrides | None = None
    hbm: str | None = _amount("bytes that are said to move between HBM and the L2", "4.3GB")
    l2: str | None = _amount("bytes that are said to move between the L2 and the SMs", "2.2GB")
    time: str | None = _amount("time that a call is said to take", "1.4ms")
    flops: str | None = _amount("operations that a call is said to take", "137GFLOP")
    tolerance: str | float | None = about(
        None,
        Kind.TEXT,
        "how far a count may be from it, such as 2%",
        metavar="SHARE",
        default_text="1 %, or half a unit of its last digit up to 5 %",
    )
    layers: int | None = about(
        None, Kind.WHOLE, "layers of the model, where the number may be of all of them", metavar="N"
    )


EXPLAIN, TRACE, SWEEP = map(fields_of, (ExplainRequest, TraceRequest, SweepRequest))
COMPARE, TILES, ORDERS, CLAIM = map(fields_of, (CompareRequest, TilesRequest, OrdersRequest, ClaimRequest))
CLAIMS: Mapping[str, str] = {"hbm": "4.3GB", "l2": "2.2GB", "time": "1.4ms", "flops": "137GFLOP"}
"""Quantities that are claimed, with an example each."""
