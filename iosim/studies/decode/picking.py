"""What picking keys costs and saves in a step of decoding, beside dense attention over the same latent cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from iosim.base.records import asdict, dataclass
from iosim.base.words import DEFAULT
from iosim.catalog.algorithms.indexer import LAUNCHES
from iosim.prediction.many import Request, predict_many
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem

CONTEXTS = tuple(1 << power for power in range(12, 21))
"""Contexts at which both are predicted, by the capacity rule, to find where they take equally long."""


@dataclass(frozen=True)
class Picking:
    """Seconds and HBM bytes per step of the layers that pick keys: of the indexer's launches, of the attention over what
    they pick, and of dense attention by `dense_kernel`. `pays_from` is the context from which on the indexer saves
    more than it costs, about; None where it does at none of `CONTEXTS`."""

    dense_kernel: str
    index_s: float
    attention_s: float
    dense_s: float
    index_hbm_bytes: float | None
    pays_from: int | None

    @property
    def pays(self) -> bool:
        return self.index_s + self.attention_s < self.dense_s

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"pays": self.pays}


def picks(prediction: Prediction) -> bool:
    """True where an indexer picks the keys."""
    return prediction.problem.index_heads is not None


def picking(prediction: Prediction, layers: int, pays_from: int | None) -> Picking:
    """What picking costs and saves in so many layers, from the prediction of one layer's call."""
    dense = next(predict_many([_dense(prediction.problem, prediction)]))
    # Launches of the indexer by name; what is left of the call is the attention.
    index_s = math.fsum(
        launch.total_s for launch in prediction.time.launches if launch.name in LAUNCHES
    )
    hbm = sum(float(prediction.traffic.total("hbm", launch=name)) for name in LAUNCHES)
    index_s, attention_s, dense_s = (
        layers * seconds
        for seconds in (index_s, prediction.time.total_s - index_s, dense.time.total_s)
    )
    index_hbm = layers * hbm if prediction.hbm_known else None
    return Picking(dense.kernel.name, index_s, attention_s, dense_s, index_hbm, pays_from)


def pays_from(like: Prediction) -> int | None:
    """The context from which on picking takes less time than dense attention, in steps like `like`: the first of
    `CONTEXTS`, or where lines between them cross."""
    problems = [like.problem.with_(seq_k=context) for context in CONTEXTS]
    sparse = predict_many([_request(problem, like.kernel.name, like) for problem in problems])
    dense = predict_many([_dense(problem, like, method="capacity") for problem in problems])
    ratios = [math.log(s.time.total_s / d.time.total_s) for s, d in zip(sparse, dense, strict=True)]
    return _crossing(CONTEXTS, ratios)


def _crossing(contexts: Sequence[int], ratios: Sequence[float]) -> int | None:
    # Logarithm of the ratio below 0: picking is faster. It must be so at the longest context, and the
    # last crossing before counts.
    if ratios[-1] >= 0:
        return None
    last = max((n for n, ratio in enumerate(ratios) if ratio >= 0), default=-1)
    if last < 0:
        return contexts[0]
    # Straight lines between logarithms of the context and of the ratio.
    share = ratios[last] / (ratios[last] - ratios[last + 1])
    return round(int(contexts[last] * (contexts[last + 1] / contexts[last]) ** share), -3)


def _request(problem: AttentionProblem, kernel: str, like: Prediction, **more: Any) -> Request:
    return Request(
        problem,
        kernel,
        like.profile,
        launched=like.conditions.launched,
        **({"method": "capacity"} | more),
    )


def _dense(problem: AttentionProblem, like: Prediction, **more: Any) -> Request:
    """Attention over all keys, by the GPU's own kernel; by the same method where none is said."""
    plain = problem.with_(top_k=None, index_heads=None, cache_dtype=None)
    if problem.compress_ratio is not None:
        plain = plain.with_(compress_ratio=None, window=None, mask="causal")
    return _request(plain, DEFAULT, like, **({"method": like.method} | more))
