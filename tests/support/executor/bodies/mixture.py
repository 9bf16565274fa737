"""`moba`. What is gathered, and what comes of it, stands once by tokens and once by blocks: a test gives the second
view of each, which no launch makes."""

from __future__ import annotations

import numpy as np

from executor.bodies.softmax import OnlineSoftmax
from executor.body import Body, Place, body
from iosim.catalog.algorithms.mixture import MobaOptions
from iosim.catalog.algorithms.registry import options_of

COPIES = {
    "stack": {"K": "K_kv", "V": "V_kv"},
    "filter": {"K_first": "K_whole", "V_first": "V_whole"},
    "widen_K": {"K_mean": "K_mean_32"},
    "widen_Q": {"Q": "Q_32"},
    "narrow_Q": {"Q_32": "Q_again"},
    "rows": {"Q_again": "Q_rows"},
    "arrange": {"K_whole": "K_block", "V_whole": "V_block"},
    "narrow_O": {"O_32": "O"},
}


@body("moba", *COPIES)
def copy(at: Place) -> None:
    for old, new in COPIES[at.launch.name].items():
        at.put(new, at[old])


@body("moba", "mean")
def mean(at: Place) -> None:
    at.put("K_mean", at["K_whole"].mean(axis=0, keepdims=True))


@body("moba", "gate")
def gate(at: Place) -> None:
    at.put("gate", at["Q_32"] @ at["K_mean_32"].T)


@body("moba", "mask")
def mask(at: Place) -> None:
    blocks = np.arange(at["gate"].shape[1])
    own_block = at.q // options_of(at.kernel, MobaOptions).block
    at.put("gate", np.where(blocks[None, :] < own_block[:, None], at["gate"], -np.inf))


@body("moba", "top_k")
def top_k(at: Place) -> None:
    best = np.argsort(-at["gate"], axis=1, kind="stable")[
        :, : options_of(at.kernel, MobaOptions).top_k - 1
    ]
    at.put("values", np.take_along_axis(at["gate"], best, axis=1))
    at.put("indices", best.astype(np.float64))


@body("moba", "isinf", "not", "fill_taken", "scatter", "and", "count")
def bools(at: Place) -> None:
    name = at.launch.name
    if name == "isinf":
        at.put("hidden", np.isinf(at["gate"]).astype(np.float64))
    elif name == "not":
        at.put("seen", 1.0 - at["hidden"])
    elif name == "and":
        at.put("chosen", at["seen"] * at["taken"])
    elif name == "count":
        assert at["chosen"].sum() >= 0
    else:
        problem = at.problem
        block = options_of(at.kernel, MobaOptions).block
        taken = np.zeros((at.q.size, -(-problem.seq_k // block) - 1))
        if name == "scatter":
            np.put_along_axis(taken, at["indices"].astype(int), 1.0, axis=1)
        at.put("taken", taken)


class EachPick(Body):
    """A pass over the picks that are there."""

    def begin(self, at: Place) -> None:
        self.there = False

    def pair(self, at: Place) -> None:
        self.there = True

    def end(self, at: Place) -> None:
        if self.there:
            self.move(at)

    def move(self, at: Place) -> None:
        raise NotImplementedError


@body("moba", "places")
class Places(EachPick):
    def move(self, at: Place) -> None:
        at.put(
            "places", np.stack([np.full(at.q.size, at.spot.split), at.q], axis=1).astype(np.float64)
        )


@body("moba", "pick")
class Pick(EachPick):
    def move(self, at: Place) -> None:
        assert at["places"][:, 1].tolist() == at.q.tolist()
        at.put("Q_picked", at["Q_rows"])


@body("moba", "sum_picked")
class SumPicked(EachPick):
    def move(self, at: Place) -> None:
        at.put("sums", np.exp(at["LSE_picked"]))


@body("moba", "scale_picked")
class ScalePicked(EachPick):
    def move(self, at: Place) -> None:
        at.put("O_picked_32", at["O_picked"] * np.exp(at["LSE_picked"]) / at["sums"])


@body("moba", "add_picked")
class AddPicked(EachPick):
    def move(self, at: Place) -> None:
        at.put("O_32", at["O_picked_32"])


@body("moba", "sum_self", "scale_self", "fill_O", "add_self")
def merge(at: Place) -> None:
    name = at.launch.name
    if name == "sum_self":
        at.put("sums", np.exp(at["LSE_self"]))
    elif name == "scale_self":
        at.put("O_self_32", at["O_self"] * np.exp(at["LSE_self"]) / at["sums"])
    else:
        at.put(
            "O_32",
            np.zeros((at.q.size, at.problem.head_dim_v))
            if name == "fill_O"
            else at["O_32"] + at["O_self_32"],
        )


@body("moba", "main", "picked")
class Call(Body):
    """FlashAttention-2 over the keys that the launch's mask keeps; alone, where nothing is picked, on Q itself."""

    def begin(self, at: Place) -> None:
        self.softmax = OnlineSoftmax(at.q.size, at.problem.head_dim_v)
        self.loads = [
            access.tensor for access in at.launch.accesses if not at.writes(access.tensor)
        ]

    def pair(self, at: Place) -> None:
        q, k, v = (at[name] for name in self.loads)
        kept_pairs = at.grid.kept[at.q][:, at.keys]  # type: ignore[attr-defined]
        self.softmax.add(
            np.where(kept_pairs, q @ k.T * at.scale, -np.inf), v, np.ones(kept_pairs.shape)
        )

    def end(self, at: Place) -> None:
        output, lse = (access.tensor for access in at.launch.accesses if at.writes(access.tensor))
        at.put(output, self.softmax.output)
        at.put(lse, self.softmax.lse)
