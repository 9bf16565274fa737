"""One call of one of the project's kernels as data, and the columns of a row that the call decides. No GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iosim.base.records import asdict, dataclass, field
from iosim.evidence.columns import KNOBS, PROBLEM, TILE
from iosim.evidence.cuda.launch import Order, Shape
from iosim.evidence.cuda.spec import BwdSpec, FwdSpec, MinimalSpec, NaiveSpec, Spec
from iosim.problem.attention import AttentionProblem

DTYPE_NAMES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
TOLERANCE = {"fp16": 2e-3, "bf16": 1e-2, "fp32": 1e-5}
"""Largest |got - want| / |want| against float64, in the Frobenius norm, of an output that is believed."""
LSE_TOLERANCE = 2e-3
"""Largest absolute error of the log-sum-exp."""
KINDS: Mapping[str, type] = {
    "flash_fwd": FwdSpec,
    "flash_bwd": BwdSpec,
    "naive": NaiveSpec,
    "minimal": MinimalSpec,
}

BUILDS = {"deterministic": "deterministic", "bypass_l1": "bypass L1"}
"""Parameters of a spec that a row's note names."""


@dataclass(frozen=True)
class Case:
    spec: Spec
    shape: Shape
    order: Order = field(default_factory=Order)
    causal: bool = False
    note: str = ""

    @property
    def implementation(self) -> str:
        return next(name for name, kind in KINDS.items() if isinstance(self.spec, kind))

    @property
    def dtype(self) -> str:
        return str(getattr(self.spec, "dtype", "fp32"))

    @property
    def launches(self) -> int:
        """Each kernel of the source once, but the one that combines splits only where there are some."""
        return (
            1
            if isinstance(self.spec, FwdSpec) and not self.spec.split
            else len(self.spec.functions)
        )

    def to_dict(self) -> dict[str, Any]:
        return {"implementation": self.implementation, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Case:
        spec = KINDS[data["implementation"]](**data["spec"])
        return cls(
            spec, Shape(**data["shape"]), Order(**data["order"]), data["causal"], data["note"]
        )

    def columns(self) -> dict[str, str]:
        spec, o = self.spec, self.order
        words = [*(note for name, note in BUILDS.items() if getattr(spec, name, False)), self.note]
        row: dict[str, object] = dict.fromkeys((*PROBLEM, *TILE, *KNOBS), "")
        row |= {
            name: value
            for name in (*TILE, "min_ctas")
            if (value := getattr(spec, name, None)) is not None
        }
        row |= {name: value for name, value in asdict(self.shape).items() if value is not None}
        row |= {
            "implementation": self.implementation,
            "causal": int(self.causal),
            "dtype": DTYPE_NAMES[self.dtype],
        }
        row["note"] = ", ".join(word for word in words if word)
        if isinstance(spec, FwdSpec):
            row |= {"order": o.order, "heavy_first": int(o.heavy_first), "section": o.section_heads}
            row |= {
                "direction": o.direction,
                "persistent": int(spec.persistent),
                "splits": o.splits,
            }
        return {name: str(value) for name, value in row.items()}


def flops(case: Case) -> float:
    """Multiply-adds counted twice, over the kept pairs; the backward counts five products for the forward's two."""
    mask = "window" if case.shape.window is not None else "causal" if case.causal else "none"
    passes = "bwd" if isinstance(case.spec, BwdSpec) else "fwd"
    return float(
        AttentionProblem(
            **asdict(case.shape), dtype=case.dtype, mask=mask, passes=passes
        ).matmul_flops()
    )
