"""Calls that are measured whole, all their launches through one L2, as data; the columns of a row. No GPU.

`naive` and `math` are PyTorch's eager chain and its math path, `flash` and `cudnn` its fused backends, `iosim_naive`
the three launches of kernels/naive.cu. In a chain a launch finds in the L2 what those before left there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import asdict, dataclass
from iosim.evidence import columns
from iosim.evidence.cuda.launch import Shape
from iosim.evidence.cuda.spec import NaiveSpec
from iosim.evidence.measure.case import DTYPE_NAMES, Case

OWN = "iosim_naive"
CHAINS = {
    "naive": "eager",
    "math": "math",
    "flash": "pytorch_flash",
    "cudnn": "cudnn",
    OWN: "naive",
}
"""Chains as their table names them, and as a table of launches does."""
PASSES = {"fwd": "", "fwd+bwd": "_fwdbwd"}
COLUMNS = (*columns.CHAIN, *columns.COUNTED, "range_seconds", "launches")
"""Columns of a table of chains. `range_seconds` counts the gaps between launches, which the host's pace decides:
validate does not compare it. `launches` is empty where they were not listed."""
Known = Mapping[str, Collection[object]]
ACCEPTED: Known = {
    "chain": CHAINS,
    "passes": PASSES,
    "dtype": DTYPE_NAMES,
    "head_dim": (64, 96, 128, 256),
}


@dataclass(frozen=True)
class ChainCase:
    chain: str
    batch: int
    heads: int
    seq: int
    head_dim: int
    dtype: str = "fp16"
    passes: str = "fwd"

    def check(self) -> None:
        for option, accepted in ACCEPTED.items():
            if (value := getattr(self, option)) not in accepted:
                known = ", ".join(map(str, accepted))
                raise InputError(f"`{option}` '{value}' is not measured here; accepted: {known}")
        if self.chain == OWN and self.passes != "fwd":
            raise InputError(f"`passes` {self.passes} is not built for {OWN}; accepted: fwd")
        if self.chain in ("flash", "cudnn") and self.dtype == "fp32":
            raise InputError(f"`dtype` fp32 is not built for {self.chain}; accepted: fp16, bf16")
        _ = self.problem

    @property
    def problem(self) -> Case:
        shape = Shape(self.batch, self.heads, self.heads, self.seq, self.seq, self.head_dim)
        return Case(NaiveSpec(self.head_dim, self.dtype), shape)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def columns(self) -> dict[str, str]:
        row = {
            **asdict(self),
            "implementation": self.chain + PASSES[self.passes],
            "dtype": DTYPE_NAMES[self.dtype],
        }
        return {name: str(row[name]) for name in columns.CHAIN}


def describe_launches(case: ChainCase) -> dict[str, str]:
    row = case.columns()
    seq = row.pop("seq")
    name = CHAINS[case.chain] + PASSES[case.passes]
    return row | {
        "implementation": name,
        "kv_heads": row["heads"],
        "seq_q": seq,
        "seq_k": seq,
        "causal": "0",
    }


def cases_of(
    chains: Sequence[str],
    seqs: Sequence[int],
    heads: Sequence[int],
    head_dims: Sequence[int],
    batch: int,
    dtype: str,
    passes: str,
) -> list[ChainCase]:
    points = product(head_dims, seqs, heads, chains)
    cases = [ChainCase(chain, batch, h, seq, d, dtype, passes) for d, seq, h, chain in points]
    for case in cases:
        case.check()
    return cases


def planned() -> Iterator[ChainCase]:
    for seq, chain in product((512, 1024, 2048, 4096), ("naive", "math", "flash", OWN)):
        yield ChainCase(chain, 1, 8, seq, 64)
    for chain in ("naive", "math", OWN, "cudnn"):
        yield ChainCase(chain, 1, 32, 4096, 128)
    for chain in ("naive", "math", "flash", "cudnn"):
        yield ChainCase(chain, 1, 32, 2048, 128, passes="fwd+bwd")


def unlisted(cases: Iterable[ChainCase], rows: Iterable[Mapping[str, str]]) -> list[ChainCase]:
    held, wanted = list(rows), {case: describe_launches(case).items() for case in cases}
    return [case for case, items in wanted.items() if not any(items <= row.items() for row in held)]
