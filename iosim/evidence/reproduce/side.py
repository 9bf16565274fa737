"""A side of a claim: a problem on a kernel on a GPU as a paper's table names them, and every number iosim has of it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from iosim.base.records import cached_property, fields
from iosim.catalog.algorithms import naive, options_for, options_of, plan
from iosim.catalog.algorithms.uniform import SharedValueOptions
from iosim.catalog.libraries import Overrides, resolve
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Chain, LaunchRole
from iosim.kernel.overrides import OVERRIDES
from iosim.prediction.predictor import predict
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem
from iosim.readers.bounds import HbmBounds, bounds, memory
from iosim.readers.formula.closed_form import closed_form

STANDARD = "standard"
"""A kernel of papers and of no library: attention through N x N tensors, each product reading its operands once."""
WHOLE_TENSOR = 1 << 31
"""A product's tile as large as any tensor."""
DIVIDED = {
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "MB": 10**6,
    "GB": 10**9,
    "GFLOP": 10**9,
    "TFLOP/s": 1e12,
}
TIMES = {"ms": 1e3, "us": 1e6, "percent": 100, "%": 100}
PROBLEM = tuple(field.name for field in fields(AttentionProblem))
"""Keys of a row that are the problem's; those of `Overrides` are the kernel's."""
SIDE = (
    *PROBLEM,
    *OVERRIDES,
    "gpu",
    "kernel",
    "options",
    "writes_lse",
    "spills",
    "passes_over_scores",
    "backward_passes_over_scores",
    "method",
    "clocks",
    "quantity",
    "level",
    "tensors",
    "without",
    "outside",
    "also",
    "copies",
)
"""All keys of a row that decide a side's numbers."""


def scaled(value: float, unit: str) -> float:
    """Bytes, operations, seconds or a share in a unit; in other units as it stands."""
    return value / DIVIDED[unit] if unit in DIVIDED else value * TIMES.get(unit, 1)


class Amount(float):
    """A number that texts write in a unit: `{of.time.us:,.0f}`."""

    def __getattr__(self, unit: str) -> float:
        if unit not in DIVIDED and unit not in TIMES:
            raise AttributeError(unit)
        return scaled(self, unit)


class Side:
    """What the keys of a row name. Numbers are worked out as they are asked for, bytes, seconds and operations."""

    def __init__(self, keys: Mapping[str, Any]) -> None:
        self.keys = keys

    @cached_property
    def problem(self) -> AttentionProblem:
        return AttentionProblem(**{name: self.keys[name] for name in PROBLEM if name in self.keys})

    @cached_property
    def gpu(self) -> HardwareProfile:
        return load_profile(self.keys["gpu"])

    @cached_property
    def kernel(self) -> Kernel:
        if self.keys["kernel"] == STANDARD:
            return standard_kernel(self.gpu, self.problem, *self.keys.get("passes_over_scores", ()))
        overrides = {name: self.keys[name] for name in OVERRIDES if name in self.keys}
        kernel = resolve(self.keys["kernel"], self.problem, self.gpu, Overrides(**overrides))
        if "options" in self.keys:
            kernel = kernel.with_(options=options_for(kernel.algorithm, self.keys["options"]))
        if not self.keys.get("spills", True):
            kernel = kernel.with_(spill=None)
        return kernel.with_(writes_lse=kernel.writes_lse and self.keys.get("writes_lse", True))

    @cached_property
    def chain(self) -> Chain:
        if self.keys["kernel"] != STANDARD:
            return plan(self.problem, self.kernel)
        passes = self.keys.get("backward_passes_over_scores")
        backward = None if passes is None else standard_kernel(self.gpu, self.problem, *passes)
        return standard(self.problem, self.kernel, backward)

    @cached_property
    def prediction(self) -> Prediction:
        more = {name: self.keys[name] for name in ("method", "clocks") if name in self.keys}
        return predict(self.problem, self.kernel, self.gpu, **more)

    def __getattr__(self, name: str) -> Amount:
        """One of NUMBERS."""
        if name not in NUMBERS:
            raise AttributeError(name)
        return Amount(NUMBERS[name](self))

    @property
    def query_blocks(self) -> int:
        return -(-self.problem.seq_q // self.kernel.tile.block_q)

    @property
    def value_heads_per_tile(self) -> int:
        return (
            options_of(self.kernel, SharedValueOptions).value_heads_per_tile or self.problem.heads
        )

    def tensor_sum(self, names: Iterable[str]) -> int:
        return sum(self.chain.tensors[name].bytes for name in names)


NUMBERS: Mapping[str, Callable[[Side], float]] = {
    # At the row's `level`.
    "total": lambda s: s.prediction.total(s.keys["level"]),
    "read": lambda s: s.prediction.total(s.keys["level"], "read"),
    "written": lambda s: s.prediction.total(s.keys["level"], "write"),
    "time": lambda s: s.prediction.time.total_s,
    "flops": lambda s: s.prediction.flops,
    # Of the problem's products, and of a chain's without a mask.
    "matmul_flops": lambda s: s.problem.matmul_flops(),
    "product_flops": lambda s: s.chain.product_flops,
    "speed": lambda s: s.problem.matmul_flops() / s.prediction.time.total_s,
    # The main launch by itself.
    "main_speed": lambda s: (
        s.problem.matmul_flops() / s.prediction.times_of(LaunchRole.MAIN)[0].total_s
    ),
    "workspace": lambda s: s.prediction.memory_bytes["workspace"],
    # With the tensors of the row's `also`, that an older call left.
    "peak": lambda s: memory(s.chain)["peak"] + s.tensor_sum(s.keys.get("also", ())),
    # None of them freed.
    "held": lambda s: s.tensor_sum(s.chain.tensors),
    "tensor_bytes": lambda s: s.tensor_sum(s.keys["tensors"]),
    # Each input read once and each output written once; by the kernel's own account, what it moves beside them, too.
    "compulsory": lambda s: _sum(bounds(s.problem, s.chain, closed_form(s.chain), added_bytes=0)),
    "predicted_compulsory": lambda s: _sum(s.prediction.hbm_bounds),
    # Between SMs and L2, but for the tensors `without` and the launches `outside`.
    "moved": lambda s: moved(
        s.chain, without=s.keys.get("without", ()), outside=s.keys.get("outside", ())
    ),
    # With so many launches that each read an N x d tensor and write its copy.
    "moved_with_copies": lambda s: s.moved + 2 * s.keys["copies"] * s.tensor_sum("Q"),
    "moved_with_all": lambda s: moved(s.chain),
}


def _sum(least: HbmBounds) -> int:
    return least.compulsory_read + least.compulsory_write


def standard_kernel(profile: HardwareProfile, problem: AttentionProblem, *passes: str) -> Kernel:
    kernel = resolve("naive", problem, profile)
    return kernel.with_(
        options=options_for("naive", {"gemm_tile": (WHOLE_TENSOR, WHOLE_TENSOR), "passes": passes})
    )


def standard(problem: AttentionProblem, kernel: Kernel, backward: Kernel | None = None) -> Chain:
    """The chain of `kernel`; of both passes, with `backward`'s options in the second."""
    if problem.passes == "fwd":
        return naive.forward(problem, kernel)
    return naive.forward(problem, kernel).then(naive.backward(problem, backward or kernel))


def moved(chain: Chain, *, without: Container[str] = (), outside: Container[str] = ()) -> int:
    """Bytes between SMs and L2, read and written, but for the tensors `without` and the launches `outside`."""
    return sum(
        int(r.bytes)
        for r in closed_form(chain)
        if r.tensor not in without and r.launch not in outside
    )
