"""`flash`, and what appends to the cache."""

from __future__ import annotations

import numpy as np

from executor.bodies.softmax import OnlineSoftmax, divided, exp_less, log_sum_exp
from executor.bodies.terms import (
    KeyGradients,
    PairGradients,
    add_bias_gradients,
    make_mask_additive,
    masked_scores,
    save_random_state,
    zero_bias_gradient,
)
from executor.body import Array, Body, ExecutionError, Place, body
from iosim.catalog.algorithms.flash import LISTS, RUNNING
from iosim.catalog.algorithms.flash_backward import dq_sums
from iosim.catalog.algorithms.flash_options import SplitOptions
from iosim.catalog.algorithms.registry import options_of
from iosim.kernel.launch import Mode, Per
from iosim.kernel.tensor_kinds import KEY_SUMS


def append(at: Place) -> None:
    """The rows of the new tokens; with pages, after their slots have been read (they follow each other here)."""
    p = at.problem
    if p.page_size is not None:
        wanted = [p.seq_k - p.seq_q + int(i) for i in at.q]
        if list(at["slot_mapping"][:, 0]) != wanted:
            raise ExecutionError("launch append reads the slots of other tokens")
    for name in ("K",) if p.latent_kv else ("K", "V"):
        at.put(f"{name}_cache", at[f"{name}_new"])


def _statistics(at: Place) -> int:
    return options_of(at.kernel, SplitOptions).statistics_per_row


def _wants_lse(at: Place) -> bool:
    return at.kernel.writes_lse or at.problem.backward


@body("flash", "fill")
def fill_lists(at: Place) -> None:
    """A list of one block, and its length."""
    for name, value in zip(LISTS, (1.0, 0.0), strict=True):
        if at.writes(name):
            at.put(name, np.full((1, 1), value))


@body("flash", "main")
class Forward(Body):
    """Online softmax over the visited keys; O and LSE, or a split's share of them, at the end."""

    def launch(self, at: Place) -> None:
        save_random_state(at)

    def begin(self, at: Place) -> None:
        self.softmax = OnlineSoftmax(at.q.size, at.problem.head_dim_v)

    def pair(self, at: Place) -> None:
        running = next(
            (a.tensor for a in at.launch.accesses if a.tensor in RUNNING and a.per is Per.PAIR),
            None,
        )
        if running:
            self.softmax.sums = at.resume(running, 0.0, at.problem.head_dim_v)
        self.softmax.add(masked_scores(at), at["V"], at.dropout_factor)
        if running:
            at.put(running, self.softmax.sums)

    def end(self, at: Place) -> None:
        result = self.softmax
        if at.problem.sinks and at.spot.split == 0:
            result.join(at["sinks"][at.q % at.launch.domain.pack])
        if not at.writes("O_partial"):
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


@body("flash", "statistics", "weights", "sums", "combine")
class Combine(Body):
    """O = sum of exp(LSE_s - LSE) O_s; with a max and a sum a split, their rescaled sums, or what is left of them to do
    after other launches."""

    def begin(self, at: Place) -> None:
        self.outputs: list[Array] = []
        self.maxima: list[Array] = []
        self.totals: list[Array] = []

    def split(self, at: Place) -> None:
        loaded = {a.tensor for a in at.launch.accesses if a.mode is Mode.LOAD}
        if "O_partial" in loaded:
            self.outputs.append(at["O_partial"])
        if "max_partial" in loaded:
            self.maxima.append(at["max_partial"])
        if "sum_partial" in loaded:
            self.totals.append(at["sum_partial"])
        if _statistics(at) == 1:
            self.maxima.append(at["LSE_partial"])
            self.totals.append(np.where(np.isneginf(at["LSE_partial"]), 0.0, 1.0))

    def end(self, at: Place) -> None:
        loaded = {a.tensor for a in at.launch.accesses if a.mode is Mode.LOAD}
        top = (
            at["row_max"]
            if "row_max" in loaded
            else np.max(self.maxima, axis=0)
            if self.maxima
            else None
        )
        weights = (
            at["weights"].T[:, :, None]
            if "weights" in loaded
            else exp_less(np.stack(self.maxima), top)
        )
        if at.writes("weights"):
            at.put("weights", weights[:, :, 0].T)
            return
        total = (
            at["row_sum"] if "row_sum" in loaded else (weights * np.stack(self.totals)).sum(axis=0)
        )
        if self.outputs:
            at.put("O", divided((weights * np.stack(self.outputs)).sum(axis=0), total))
        for name, value in (("row_max", top), ("row_sum", total)):
            if at.writes(name):
                at.put(name, value)
        if at.writes("LSE"):
            at.put("LSE", log_sum_exp(top, total))


def _read(at: Place, name: str) -> Array:
    """A tensor, or the copy that the launch reads in its place."""
    copy_name = f"{name}_copy"
    copied = any(a.tensor == copy_name and a.mode is Mode.LOAD for a in at.launch.accesses)
    return at[copy_name if copied else name]


@body(
    "flash",
    "bwd.fill",
    "bwd.copy",
    "bwd.dot",
    "bwd.convert",
    "bwd.sum_groups",
    "bwd.sum_dK",
    "bwd.sum_dV",
)
def pass_rows(at: Place) -> None:
    """What `RowPass` says of the tensors that the launch writes."""
    for name in (a.tensor for a in at.launch.accesses if a.mode is Mode.STORE):
        at.put(name, _row_values(at, name))


def _row_values(at: Place, name: str) -> Array:
    if name == "D":
        return np.asarray((_read(at, "O") * _read(at, "dO")).sum(axis=1, keepdims=True))
    if name == "dQ_acc":
        return np.zeros((at.q.size, dq_sums(at.problem, at.kernel).cols))
    if name in KEY_SUMS:
        return np.zeros(
            (at.q.size, at.problem.head_dim if name == "dK_acc" else at.problem.head_dim_v)
        )
    if name == "dQ":
        return np.asarray(at["dQ_acc"][:, : at.problem.head_dim])
    if name in ("dK", "dV"):
        summed = any(a.tensor in KEY_SUMS for a in at.launch.accesses)
        return np.asarray(at[f"{name}_acc"] if summed else at[f"{name}_heads"].sum(axis=0))
    return at[name.removesuffix("_copy")]


@body("flash", "bwd.main")
class Backward(KeyGradients):
    """Algorithm 2: P again from LSE, dK and dV on chip, dQ added in memory."""

    def pair(self, at: Place) -> None:
        weights = exp_less(masked_scores(at), _read(at, "LSE"))
        more = PairGradients(at, weights, at["D"], _read(at, "dO"))
        if at.writes("dQ_acc"):
            beyond = dq_sums(at.problem, at.kernel).cols - at.problem.head_dim
            at.put("dQ_acc", np.pad(more.dq, ((0, 0), (0, beyond))))
        self.add(more)


@body("flash", "bwd.dq")
class QueryGradient(Body):
    """dQ of a query block: the sum over its keys of dS K."""

    def begin(self, at: Place) -> None:
        self.dq = np.zeros((at.q.size, at.problem.head_dim))

    def pair(self, at: Place) -> None:
        weights = exp_less(masked_scores(at), _read(at, "LSE"))
        self.dq += weights * (_read(at, "dO") @ at["V"].T - at["D"]) @ at["K"] * at.scale

    def end(self, at: Place) -> None:
        at.put("dQ", self.dq)


body("flash", "convert_mask")(make_mask_additive)
body("flash", "bwd.fill_bias")(zero_bias_gradient)
body("flash", "bwd.sum_bias")(add_bias_gradients)
body("flash", "append")(append)
