"""Attention over blocks of keys that each query picks: `nsa`."""

from __future__ import annotations

import numpy as np

from executor.bodies.softmax import OnlineSoftmax, exp_less
from executor.body import Array, Body, Place, body
from iosim.kernel.algorithms.indexer import LISTS
from iosim.kernel.algorithms.picked_blocks import NsaOptions
from iosim.kernel.algorithms.registry import options_of


def tokens(at: Place) -> Array:
    """The query token of each row of the tile."""
    return at.q // at.launch.domain.pack


@body("nsa", "pool_k", "pool_v")
def pool(at: Place) -> None:
    name = at.launch.name[-1].upper()
    at.put(f"{name}_cmp", at[name].mean(axis=0, keepdims=True))


class Loop(Body):
    """Online softmax over the keys, a block's or the blocks' means, that `seen` leaves; O and LSE end in `to`."""

    to, keys, values = "", "K", "V"

    def begin(self, at: Place) -> None:
        self.softmax = OnlineSoftmax(at.q.size, at.problem.head_dim_v)

    def seen(self, at: Place) -> Array:
        raise NotImplementedError

    def pair(self, at: Place) -> None:
        scores = np.where(self.seen(at), at["Q"] @ at[self.keys].T * at.scale, -np.inf)
        self.softmax.add(scores, at[self.values], np.ones_like(scores))

    def end(self, at: Place) -> None:
        at.put(f"O_{self.to}", self.softmax.output)
        at.put(f"LSE_{self.to}", self.softmax.lse)


@body("nsa", "compress")
class Compress(Loop):
    """Over the means of the blocks that are whole."""

    to, keys, values = "cmp", "K_cmp", "V_cmp"

    def seen(self, at: Place) -> Array:
        return (at.keys[None, :] + 1) * at.kernel.tile.block_k <= tokens(at)[:, None] + 1


@body("nsa", "top_k")
class TopK(Body):
    """The blocks of the largest shares of the softmax, summed over a group's heads, and the query's own."""

    def begin(self, at: Place) -> None:
        self.shares: list[Array] = []

    def pair(self, at: Place) -> None:
        own = tokens(at)[0] // at.kernel.tile.block_k
        share = exp_less(at["Q"] @ at["K_cmp"].T * at.scale, at["LSE_cmp"]).sum(axis=0)
        self.shares.append(np.where(at.keys == own, np.inf, np.where(at.keys < own, share, -np.inf)))

    def end(self, at: Place) -> None:
        shares, room = np.concatenate(self.shares), options_of(at.kernel, NsaOptions).blocks
        best = np.sort(np.argsort(-shares, kind="stable")[: min(room, int((shares > -np.inf).sum()))])
        at.put(LISTS, np.concatenate((best, np.full(room - best.size, -1)))[None, :].astype(np.float64))


@body("nsa", "selected")
class Selected(Loop):
    to = "slc"

    def seen(self, at: Place) -> Array:
        block = at.kernel.tile.block_k
        keys = (at[LISTS][0][:, None] * block + np.arange(block)).reshape(-1)
        return (keys[None, :] >= 0) & (keys[None, :] <= tokens(at)[:, None])


@body("nsa", "window")
class Window(Loop):
    to = "swa"

    def seen(self, at: Place) -> Array:
        back = options_of(at.kernel, NsaOptions).window
        before = at.q[:, None] - at.keys[None, :]
        return (before >= 0) & (before < back)


@body("nsa", "gate_slc", "gate_cmp", "gate_swa")
def gate(at: Place) -> None:
    term = at.launch.name.removeprefix("gate_")
    loads = [a.tensor for a in at.launch.accesses if a.tensor.startswith("O_") and not at.writes(a.tensor)]
    summed = at[f"O_{term}"] * at[f"g_{term}"]
    if term != "slc":
        summed = summed + at[next(name for name in loads if name != f"O_{term}")]
    at.put(next(a.tensor for a in at.launch.accesses if at.writes(a.tensor)), summed)
