"""Bodies of `flash` (arXiv 2307.08691, Algorithms 1 and 2), split-KV with its combine, and the backward's launches."""

from __future__ import annotations

import numpy as np

from iosim.readers.execute.bodies.common import (
    OnlineSoftmax,
    convert_mask,
    divided,
    exp_less,
    fill_bias,
    head_gradient,
    log_sum_exp,
    masked_scores,
    save_random_state,
    sum_bias,
    sum_groups,
)
from iosim.readers.execute.place import Place
from iosim.readers.execute.registry import Body, body
from iosim.readers.execute.rounding import Array


def _statistics(at: Place) -> int:
    return int(at.kernel.option("statistics_per_row", 1))


def _wants_lse(at: Place) -> bool:
    return at.kernel.writes_lse or at.problem.backward


@body("flash", "main")
class Forward(Body):
    """Online softmax over the visited keys; O and LSE, or a split's share of them, at the end."""

    def launch(self, at: Place) -> None:
        save_random_state(at)

    def begin(self, at: Place) -> None:
        self.softmax = OnlineSoftmax(at.q.size, at.problem.d_v)

    def pair(self, at: Place) -> None:
        self.softmax.add(masked_scores(at), at["V"], at.dropout_factor)

    def end(self, at: Place) -> None:
        result = self.softmax
        if at.launch.domain.splits == 1:
            at.put("O", result.output)
            if _wants_lse(at):
                at.put("LSE", result.lse)
        elif _statistics(at) == 1:
            at.put("O_partial", result.output)
            at.put("LSE_partial", result.lse)
        else:
            at.put("O_partial", result.sums)
            at.put("max_partial", result.maximum)
            at.put("sum_partial", result.total)


@body("flash", "combine")
class Combine(Body):
    """O = sum of exp(LSE_s - LSE) O_s; with a max and a sum a split, their rescaled sums."""

    def begin(self, at: Place) -> None:
        self.outputs: list[Array] = []
        self.maxima: list[Array] = []
        self.totals: list[Array] = []

    def split(self, at: Place) -> None:
        self.outputs.append(at["O_partial"])
        if _statistics(at) == 1:
            self.maxima.append(at["LSE_partial"])
            self.totals.append(np.where(np.isneginf(at["LSE_partial"]), 0.0, 1.0))
        else:
            self.maxima.append(at["max_partial"])
            self.totals.append(at["sum_partial"])

    def end(self, at: Place) -> None:
        maxima = np.stack(self.maxima)
        top = maxima.max(axis=0)
        weights = exp_less(maxima, top)
        total = (weights * np.stack(self.totals)).sum(axis=0)
        at.put("O", divided((weights * np.stack(self.outputs)).sum(axis=0), total))
        if _wants_lse(at):
            at.put("LSE", log_sum_exp(top, total))


@body("flash", "bwd.copy")
def copy(at: Place) -> None:
    """dO or O into another layout; its values stay."""
    source, target = (a.tensor for a in at.launch.accesses)
    at.put(target, at[source])


def _read(at: Place, name: str) -> Array:
    """A tensor, or the copy that the launch reads in its place."""
    made = f"{name}_copy"
    return at[made if any(a.tensor == made for a in at.launch.accesses) else name]


@body("flash", "bwd.dot")
def dot(at: Place) -> None:
    """D = rowsum(dO o O), and a zeroed dQ."""
    at.put("D", (_read(at, "O") * _read(at, "dO")).sum(axis=1, keepdims=True))
    at.put("dQ_acc", np.zeros((at.q.size, at.problem.head_dim)))


@body("flash", "bwd.main")
class Backward(Body):
    """Algorithm 2: P again from LSE, dK and dV on chip, dQ added in memory."""

    def begin(self, at: Place) -> None:
        self.dk = np.zeros((at.keys.size, at.problem.head_dim))
        self.dv = np.zeros((at.keys.size, at.problem.d_v))

    def pair(self, at: Place) -> None:
        factor = at.dropout_factor_again
        weights = exp_less(masked_scores(at), at["LSE"])
        self.dv += (weights * factor).T @ _read(at, "dO")
        ds = weights * ((_read(at, "dO") @ at["V"].T) * factor - at["D"])
        if at.problem.bias_grad:
            at.put("dBias_heads" if at.writes("dBias_heads") else "dBias", ds)
        ds = ds * at.scale
        at.put("dQ_acc", ds @ at["K"])
        self.dk += ds.T @ at["Q"]

    def end(self, at: Place) -> None:
        at.put(head_gradient(at, "dK"), self.dk)
        at.put(head_gradient(at, "dV"), self.dv)


@body("flash", "bwd.convert")
def convert(at: Place) -> None:
    """dQ in the output's type."""
    at.put("dQ", at["dQ_acc"])


body("flash", "bwd.sum_groups")(sum_groups)
body("flash", "convert_mask")(convert_mask)
body("flash", "bwd.fill_bias")(fill_bias)
body("flash", "bwd.sum_bias")(sum_bias)
