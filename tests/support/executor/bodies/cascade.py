"""`cascade`: two calls of `flash`, the second over keys that all sequences share, and the merge of their results."""

from __future__ import annotations

import numpy as np

from executor.bodies.softmax import OnlineSoftmax, divided, exp_less, log_sum_exp
from executor.body import Array, Body, Place, body
from iosim.catalog.algorithms.cascade import SHARED


def merged(outputs: list[Array], lses: list[Array]) -> tuple[Array, Array]:
    """(output, log-sum-exp) of the union of sets of keys, each given by its own."""
    tops = np.stack(lses)
    weights = exp_less(tops, tops.max(axis=0))
    total = weights.sum(axis=0)
    return divided((weights * np.stack(outputs)).sum(axis=0), total), log_sum_exp(
        tops.max(axis=0), total
    )


@body("cascade", "main", f"{SHARED}.main")
class Level(Body):
    """Online softmax over the keys that the launch's own mask keeps."""

    def begin(self, at: Place) -> None:
        self.to = f"_{SHARED}" if at.launch.name.startswith(SHARED) else ""
        self.softmax = OnlineSoftmax(at.q.size, at.problem.head_dim_v)

    def pair(self, at: Place) -> None:
        kept_pairs = at.grid.kept[at.q][:, at.keys]  # type: ignore[attr-defined]
        scores = np.where(kept_pairs, at[f"Q{self.to}"] @ at[f"K{self.to}"].T * at.scale, -np.inf)
        self.softmax.add(scores, at[f"V{self.to}"], np.ones_like(scores))

    def end(self, at: Place) -> None:
        part = "_partial" if at.writes(f"O_partial{self.to}") else ""
        at.put(f"O{part}{self.to}", self.softmax.output)
        if at.writes(f"LSE{part}{self.to}"):
            at.put(f"LSE{part}{self.to}", self.softmax.lse)


@body("cascade", "combine", f"{SHARED}.combine")
class Splits(Body):
    """The splits of a call."""

    def begin(self, at: Place) -> None:
        self.to = f"_{SHARED}" if at.launch.name.startswith(SHARED) else ""
        self.outputs: list[Array] = []
        self.lses: list[Array] = []

    def split(self, at: Place) -> None:
        self.outputs.append(at[f"O_partial{self.to}"])
        self.lses.append(at[f"LSE_partial{self.to}"])

    def end(self, at: Place) -> None:
        output, lse = merged(self.outputs, self.lses)
        at.put(f"O{self.to}", output)
        if at.writes(f"LSE{self.to}"):
            at.put(f"LSE{self.to}", lse)


@body("cascade", "merge")
def merge(at: Place) -> None:
    output, lse = merged([at["O"], at[f"O_{SHARED}"]], [at["LSE"], at[f"LSE_{SHARED}"]])
    at.put("O", output)
    at.put("LSE", lse)
