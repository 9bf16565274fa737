"""Attention over blocks of keys that each query picks: `nsa`.

A backward's `mask_columns` are the mask once more, cut by blocks: a test gives them, as no launch makes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from executor.bodies import flash
from executor.bodies.softmax import OnlineSoftmax, exp_less
from executor.body import Array, Body, Place, body
from iosim.base.records import replace
from iosim.catalog.algorithms.indexer import LISTS
from iosim.catalog.algorithms.picked_blocks import NsaOptions
from iosim.catalog.algorithms.registry import options_of


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
        own_block = tokens(at)[0] // at.kernel.tile.block_k
        share = exp_less(at["Q"] @ at["K_cmp"].T * at.scale, at["LSE_cmp"]).sum(axis=0)
        self.shares.append(
            np.where(at.keys == own_block, np.inf, np.where(at.keys < own_block, share, -np.inf))
        )

    def end(self, at: Place) -> None:
        shares = np.concatenate(self.shares)
        room = options_of(at.kernel, NsaOptions).blocks
        best = np.sort(
            np.argsort(-shares, kind="stable")[: min(room, int((shares > -np.inf).sum()))]
        )
        at.put(
            LISTS, np.concatenate((best, np.full(room - best.size, -1)))[None, :].astype(np.float64)
        )


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
    loads = [
        a.tensor
        for a in at.launch.accesses
        if a.tensor.startswith("O_") and not at.writes(a.tensor)
    ]
    summed = at[f"O_{term}"] * at[f"g_{term}"]
    if term != "slc":
        summed = summed + at[next(name for name in loads if name != f"O_{term}")]
    at.put(next(a.tensor for a in at.launch.accesses if at.writes(a.tensor)), summed)


READ = {
    "value_g": ("g_{}",),
    "value_O": ("O_{}",),
    "scale": ("dO", "g_{}_1"),
    "product": ("dO", "O_{}_1"),
    "sum": ("dO_O_{}",),
    "dot": ("O_{}", "dO_{}"),
}
"""By the elementwise launches of each term; "slc" has no `value_*`, and reads its gate and output themselves."""


@body("nsa", *(f"bwd.{name}_{term}" for name in READ for term in ("slc", "cmp", "swa")))
def ungate(at: Place) -> None:
    """What is read, multiplied; summed over columns where a row has one number."""
    name, _, term = at.launch.name.removeprefix("bwd.").rpartition("_")
    gate: Array = np.ones(1)
    for read in READ[name]:
        gate = gate * at[(read.removesuffix("_1") if term == "slc" else read).format(term)]
    (to,) = (a.tensor for a in at.launch.accesses if at.writes(a.tensor))
    at.put(to, gate.sum(axis=1, keepdims=True) if name in ("sum", "dot") else gate)


@body("nsa", "bwd.sum_dq_slc", "bwd.sum_dq_cmp", "bwd.sum_dk_slc", "bwd.sum_dk_cmp")
def sum_of_one(at: Place) -> None:
    kind, term = at.launch.name.removeprefix("bwd.sum_").split("_")
    name = f"d{kind[1].upper()}_{term}"
    at.put(name, at[f"{name}_part"])


@body(
    "nsa", *(f"bwd.add_{n}" for n in ("dQ_slc", "dK_slc", "dV_slc", "dQ_cmp", "dK_pool", "dV_pool"))
)
def add(at: Place) -> None:
    """A term's gradient, and those before it."""
    name, term = at.launch.name.removeprefix("bwd.add_").split("_")
    before = (
        "swa" if term == "slc" else "sum" if options_of(at.kernel, NsaOptions).window else "slc"
    )
    at.put(f"{name}_sum" if term == "slc" else name, at[f"{name}_{before}"] + at[f"{name}_{term}"])


@body("nsa", "bwd.pool_k", "bwd.pool_v")
def spread(at: Place) -> None:
    name, block = f"d{at.launch.name[-1].upper()}", at.kernel.tile.block_k
    at.put(f"{name}_pool", np.repeat(at[f"{name}_cmp"] / block, block, axis=0))


@body("nsa", "bwd.fill_mask", "bwd.mask")
def mask(at: Place) -> None:
    block = at.kernel.tile.block_k
    kept_blocks = np.zeros((at.q.size, at.problem.seq_k // block))
    if at.launch.name == "bwd.mask":
        picks = at[LISTS][0].astype(int)
        kept_blocks[0, picks[picks >= 0]] = 1.0
    at.put("block_mask", kept_blocks)


class Scores:
    """P and dS of rows of queries and the keys that they see."""

    def __init__(self, at: Place, term: str, keys: str, values: str, seen: Array) -> None:
        p = np.where(seen, exp_less(at["Q"] @ at[keys].T * at.scale, at[f"LSE_{term}"]), 0.0)
        self.p = p
        self.ds = p * (at[f"dO_{term}"] @ at[values].T - at[f"D_{term}"]) * at.scale


@body("nsa", "bwd.dq_slc", "bwd.dq_cmp")
class QueryGradient(Body):
    def begin(self, at: Place) -> None:
        self.dq, self.term = np.zeros((at.q.size, at.problem.head_dim)), at.launch.name[-3:]
        self.loop: Loop = Selected() if self.term == "slc" else Compress()

    def pair(self, at: Place) -> None:
        keys, values = self.loop.keys, self.loop.values
        self.dq += Scores(at, self.term, keys, values, self.loop.seen(at)).ds @ at[keys]

    def end(self, at: Place) -> None:
        at.put(f"dQ_{self.term}_part", self.dq)


@body("nsa", "bwd.dkv_slc", "bwd.dkv_cmp")
class KeyGradients(Body):
    def begin(self, at: Place) -> None:
        self.term = at.launch.name[-3:]
        self.keys, self.values = ("K", "V") if self.term == "slc" else ("K_cmp", "V_cmp")
        self.dk = np.zeros((at.keys.size, at.problem.head_dim))
        self.dv = np.zeros((at.keys.size, at.problem.head_dim_v))

    def pair(self, at: Place) -> None:
        token = tokens(at)[:, None]
        if self.term == "slc":
            assert at["mask_columns"][token[0, 0], 0] == 1.0, (
                "it visits a token that did not pick its block"
            )
            seen = at.keys[None, :] <= token
        else:
            seen = (at.keys[None, :] + 1) * at.kernel.tile.block_k <= token + 1
        scores = Scores(at, self.term, self.keys, self.values, seen)
        self.dk += scores.ds.T @ at["Q"]
        self.dv += scores.p.T @ at[f"dO_{self.term}"]

    def end(self, at: Place) -> None:
        at.put(f"dK_{self.term}_part", self.dk)
        at.put(f"dV_{self.term}", self.dv)


class Windowed:
    """A place of FlashAttention-2's backward under this term's names."""

    def __init__(self, at: Place) -> None:
        self.at = at
        self.launch = replace(
            at.launch,
            accesses=tuple(
                replace(a, tensor=a.tensor.removesuffix("_swa")) for a in at.launch.accesses
            ),
        )

    def _name(self, name: str) -> str:
        return name if name in ("Q", "K", "V") else f"{name}_swa"

    def __getitem__(self, name: str) -> Array:
        return self.at[self._name(name)]

    def put(self, name: str, value: Array) -> None:
        self.at.put(self._name(name), value)

    def writes(self, name: str) -> bool:
        return self.at.writes(self._name(name))

    @property
    def kept(self) -> Array:
        return self.at.grid.kept[self.at.q][:, self.at.keys]  # type: ignore[attr-defined, no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.at, name)


@body("nsa", "bwd.swa_dot", "bwd.swa_convert", "bwd.swa_sum_groups")
def window_rows(at: Place) -> None:
    flash.pass_rows(Windowed(at))  # type: ignore[arg-type]


@body("nsa", "bwd.swa_main")
class WindowGradients(flash.Backward):
    def begin(self, at: Place) -> None:
        super().begin(Windowed(at))  # type: ignore[arg-type]

    def pair(self, at: Place) -> None:
        super().pair(Windowed(at))  # type: ignore[arg-type]

    def end(self, at: Place) -> None:
        super().end(Windowed(at))  # type: ignore[arg-type]
