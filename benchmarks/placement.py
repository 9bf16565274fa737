"""HBM reads by where tensors lie, beside what is predicted: `python benchmarks/placement.py [--gpu h100]`.

experiments/placement.py ran library kernels with their tensors at other places in memory. A prediction knows no place:
it is the mean over several. `apart` is how far two launches at the very same place lie apart; `recorded` are the rows
of kernels/measurements/h200_library_kernels.csv for the same call, on the H200. Prints a Markdown table.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from recorders import asked_gpu, measurements

from iosim import AttentionProblem
from iosim.prediction.predictor import predict

SAME = ("base 0 MiB", "base 0 MiB again")
PROBLEM = ["implementation", "batch", "heads", "seq", "head_dim", "causal"]


@dataclass(frozen=True)
class Row:
    """A problem with its HBM reads in bytes: least, median and largest over places, how far two launches at one place
    lie apart, recorded without regard to places, predicted."""

    implementation: str
    problem: AttentionProblem
    least: float
    median: float
    largest: float
    apart: float
    recorded: tuple[int, ...]
    predicted: float

    @property
    def name(self) -> str:
        p = self.problem
        return f"{self.implementation} {p.batch} x {p.heads} x {p.seq_q:,}, {p.head_dim}, {p.mask}"


def measured(gpu: str = "h200") -> pd.DataFrame:
    return pd.read_csv(measurements(f"{gpu}_placement.csv"))


def recorded(implementation: str, p: AttentionProblem) -> tuple[int, ...]:
    """HBM reads of the recorded launches of a call."""
    t = pd.read_csv(measurements("h200_library_kernels.csv"))
    t = t[(t.implementation == implementation) & (t.batch == p.batch) & (t.heads == p.heads)]
    t = t[
        (t.kv_heads == p.heads)
        & (t.seq_q == p.seq_q)
        & (t.seq_k == p.seq_k)
        & (t.head_dim == p.head_dim)
    ]
    t = t[(t.causal == (p.mask == "causal")) & (t.dtype == "bfloat16")]
    return tuple(int(n) for n in t.hbm_read)


def rows(gpu: str = "h200") -> list[Row]:
    """A row a problem, in the order of the table."""
    rows_placed = []
    for key, table in measured(gpu).groupby(PROBLEM, sort=False):
        implementation, batch, heads, seq, head_dim, causal = key
        mask = "causal" if causal else "none"
        p = AttentionProblem(
            batch=batch,
            heads=heads,
            seq_q=seq,
            seq_k=seq,
            head_dim=head_dim,
            dtype="bf16",
            mask=mask,
        )
        read = table.hbm_read
        first, other = (float(table[table.place == place].hbm_read.iloc[0]) for place in SAME)
        predicted = float(predict(p, implementation, gpu).total("hbm", "read"))
        known = recorded(implementation, p) if gpu == "h200" else ()
        rows_placed.append(
            Row(
                implementation,
                p,
                float(read.min()),
                float(read.median()),
                float(read.max()),
                abs(first / other - 1),
                known,
                predicted,
            )
        )
    return rows_placed


def table(rows_placed: list[Row]) -> str:
    """Markdown, MB."""
    lines = [
        "| HBM reads, MB | least | median | largest | apart | recorded | predicted | of the median |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows_placed:
        mb = [
            f"{n / 1e6:,.0f}"
            for n in (row.least, row.median, row.largest, row.predicted, *row.recorded)
        ]
        lines.append(
            f"| {row.name} | {mb[0]} | {mb[1]} | {mb[2]} | {row.apart:.1%} | {', '.join(mb[4:])} | {mb[3]} | "
            f"{row.predicted / row.median:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    print(table(rows(asked_gpu(__doc__))))


if __name__ == "__main__":
    main()
