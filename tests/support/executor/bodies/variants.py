"""Algorithms that are others but for a launch or two: `flash_fp8`, `uniform`, kernels/*.cu, `efficient`."""

from __future__ import annotations

import numpy as np

from executor.bodies.flash import Forward
from executor.bodies.softmax import exp_less
from executor.bodies.terms import (
    KeyGradients,
    PairGradients,
    head_gradient,
    masked_scores,
)
from executor.body import Array, Place, body, share_bodies
from iosim.catalog.algorithms.efficient import workspace_tensors
from iosim.kernel.launch import Mode

share_bodies("flash_fp8", "flash")


@body("flash_fp8", "smooth_K", "quantise_Q", "quantise_K", "quantise_V", "cast_V", "transpose_V")
def copied(at: Place) -> None:
    """The operand's values: means are 0, scales 1, and that V lies transposed is not seen in rows and columns."""
    at.put(_moved(at, Mode.STORE)[0], at[_moved(at, Mode.LOAD)[0]])


@body("flash_fp8", "mean_K")
def mean(at: Place) -> None:
    at["K"]


@body("flash_fp8", "main", override=True)
class Fp8Forward(Forward):
    """`flash`'s forward on the copies."""

    def pair(self, at: Place) -> None:
        q, k, v = (
            next((name for name in _moved(at, Mode.LOAD) if name.startswith(n)), n) for n in "QKV"
        )
        self.softmax.add(
            np.where(at.kept, at[q] @ at[k].T * at.scale, -np.inf), at[v], at.dropout_factor
        )


def _moved(at: Place, mode: Mode) -> list[str]:
    return [access.tensor for access in at.launch.accesses if access.mode is mode]


share_bodies("uniform", "flash")
share_bodies("uniform_naive", "naive")


share_bodies("flash-cu", "flash")
share_bodies("naive-cu", "naive")
share_bodies("minimal-cu", "minimal")


share_bodies("efficient", "flash")


@body("efficient", "bwd.fill", override=True)
def zeroworkspace(at: Place) -> None:
    sums, *others = workspace_tensors(at.problem, at.kernel)
    at.put(sums.name, np.zeros((at.q.size, sums.cols)))
    for b in others:
        at.put(b.name, np.zeros((b.rows, b.cols)))


@body("efficient", "bwd.multiply", "bwd.sum", "bwd.transpose")
def row_sums(at: Place) -> None:
    """dO o O; its row sums; the same values in another order."""
    if at.writes("dO_O"):
        at.put("dO_O", at["O"] * at["dO"])
    elif at.launch.name == "bwd.sum":
        at.put("D_rows" if at.writes("D_rows") else "D", at["dO_O"].sum(axis=1, keepdims=True))
    else:
        at.put("D", at["D_rows"])


@body("efficient", "bwd.main", override=True)
class Backward(KeyGradients):
    """P again from the LSE; dQ added up in memory, dK and dV there or on chip."""

    def split(self, at: Place) -> None:
        at.put("D", (at["O"] * at["dO"]).sum(axis=1, keepdims=True))

    def begin(self, at: Place) -> None:
        self.dq: Array | None = None
        super().begin(at)

    def pair(self, at: Place) -> None:
        weights = exp_less(masked_scores(at), at["LSE"])
        gradients = PairGradients(at, weights, at["D"], at["dO"])
        self.dq = _added(at, "dQ_acc", gradients.dq)
        loaded = {a.tensor for a in at.launch.accesses if a.mode is Mode.LOAD}
        for name, more in (("dK", gradients.dk), ("dV", gradients.dv)):
            running = next(
                (n for n in (f"{name}_acc", head_gradient(at, name)) if n in loaded), None
            )
            self.sums[name] = (
                self.sums[name] + more if running is None else _added(at, running, more)
            )

    def finish_query(self, at: Place) -> None:
        at.put("dQ", np.zeros((at.q.size, at.problem.head_dim)) if self.dq is None else self.dq)

    def end(self, at: Place) -> None:
        self.dq = None
        super().end(at)


def _added(at: Place, tensor: str, more: Array) -> Array:
    """Running sums with what a pair adds, handed over to be stored; without the columns that fill a tile."""
    cols = next(
        (b.cols for b in workspace_tensors(at.problem, at.kernel) if b.name == tensor),
        more.shape[1],
    )
    total = at.resume(tensor, 0.0, cols) + np.pad(more, ((0, 0), (0, cols - more.shape[1])))
    at.put(tensor, total)
    return total[:, : more.shape[1]]
