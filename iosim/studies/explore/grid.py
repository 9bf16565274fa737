"""The calls that a page carries: every combination of what its lists offer, with each kind of launches packed once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from iosim.base.errors import InputError
from iosim.base.progress import Progress, silent
from iosim.base.records import dataclass
from iosim.kernel.overrides import Overrides
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay.packed import squeezed
from iosim.studies.explore.record import naive, record
from iosim.studies.requests import ExploreRequest

OWN = "own"
"""The value of a list that leaves a choice to the kernel."""
TILED = "flash"
"""The kernel that takes any tile and order."""
TILES = (OWN, "64x64", "128x64", "128x128")
ORDERS: Mapping[str, Mapping[str, str]] = {
    OWN: {},
    "heads fastest": {"order": "head"},
    "keys alternating": {"direction": "alternating"},
    "heads fastest, keys alternating": {"order": "head", "direction": "alternating"},
}


@dataclass(frozen=True)
class Choice:
    """A value of a list: how the page shows it, and the words of a command line that it stands for."""

    text: str
    words: str = ""


@dataclass(frozen=True)
class List:
    """A list of the page. `only` names the kernel for which it is there, where it is not for all."""

    name: str
    title: str
    choices: tuple[Choice, ...]
    usual: int = 0
    only: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "choices": [[choice.text, choice.words] for choice in self.choices]}


def lists(asked: ExploreRequest) -> list[List]:
    """What the page offers. Raises InputError: heads that are no numbers."""
    lengths = [Choice(f"{n // 1024}k" if n % 1024 == 0 else str(n), f"--seq-len {n}") for n in asked.lengths]
    heads = [
        Choice(str(h) if h == kv else f"{h} / {kv}", f"--heads {h} --kv-heads {kv}") for h, kv in asked.head_counts
    ]
    orders = [
        Choice(text, " ".join(f"--{name} {value}" for name, value in settings.items()))
        for text, settings in ORDERS.items()
    ]
    return [
        List("gpu", "GPU", _named("--gpu", asked.gpu), _place(asked.gpu, "h100", "h100-sxm")),
        List("kernel", "Kernel", _named("--kernel", asked.kernel), _place(asked.kernel, "fa2")),
        List("seq", "Tokens", tuple(lengths), min(3, len(lengths) - 1)),
        List("heads", "Heads / key-value", tuple(heads)),
        List("dim", "Head dimension", _named("--head-dim", asked.dims), _place(asked.dims, 128)),
        List("mask", "Mask", (Choice("none"), Choice("causal", "--causal")), 1),
        List("tile", "Tile", tuple(Choice(t, "" if t == OWN else f"--tile {t}") for t in TILES), only=TILED),
        List("order", "Order", tuple(orders), only=TILED),
    ]


def _named(option: str, names: Iterable[Any]) -> tuple[Choice, ...]:
    return tuple(Choice(str(name), f"{option} {name}") for name in names)


def _place(names: Sequence[Any], *usual: Any) -> int:
    return next((n for n, name in enumerate(names) if name in usual), 0)


Made = tuple[dict[str, Any] | str | None, tuple[bytes, ...]]
"""A record and its streams; in place of a record, why the call cannot run."""
Chunk = dict[str, Made]
MASKS = ("none", "causal")
NAIVE = "naive"


def chunks(asked: ExploreRequest, progress: Progress = silent) -> Iterator[tuple[str, Chunk]]:
    """Of each GPU and kernel, naive attention among them, the records of all calls; in processes, since a call is
    worked out in Python."""
    from joblib import Parallel, delayed

    pairs = list(product(asked.gpu, (*asked.kernel, NAIVE)))
    work = Parallel(n_jobs=-1, return_as="generator")(delayed(_chunk)(asked, *pair) for pair in pairs)
    yield from zip(map(" ".join, pairs), progress(work), strict=True)


def _chunk(asked: ExploreRequest, gpu: str, kernel: str) -> Chunk:
    made: Chunk = {}
    counts = [len(asked.lengths), len(asked.head_counts), len(asked.dims), len(MASKS)]
    counts += [len(TILES), len(ORDERS)] if kernel == TILED else [1, 1]
    for key in product(*map(range, counts)):
        heads, kv_heads = asked.head_counts[key[1]]
        problem = AttentionProblem(
            heads=heads, kv_heads=kv_heads, seq_q=asked.lengths[key[0]], head_dim=asked.dims[key[2]], mask=MASKS[key[3]]
        )
        name = ".".join(map(str, key))
        made[name] = (naive(problem, gpu), ()) if kernel == NAIVE else _record(problem, kernel, gpu, key[4], key[5])
    return made


def _record(problem: AttentionProblem, kernel: str, gpu: str, tile: int, order: int) -> Made:
    sides = None if TILES[tile] == OWN else tuple(map(int, TILES[tile].split("x")))
    settings: dict[str, Any] = {"tile": sides, **[*ORDERS.values()][order]}
    try:
        found = record(predict(problem, kernel, gpu, method="bounds", overrides=Overrides(**settings)))
    except InputError as error:
        return str(error), ()
    return found.facts, found.streams


def packed_grid(asked: ExploreRequest, progress: Progress = silent) -> tuple[dict[str, Any], bytes]:
    """Where each call of the grid lies, and the bytes: of every GPU and kernel a chunk of records, JSON in raw deflate,
    and each stream of launches once. Raises InputError: no call of the grid can run."""
    parts: list[bytes] = []
    known: dict[bytes, int] = {}
    found: dict[str, int] = {}
    for name, made in chunks(asked, progress):
        records: dict[str, Any] = {}
        for key, (facts, streams) in made.items():
            for stream in streams:
                if stream not in known:
                    known[stream] = len(parts)
                    parts.append(stream)
            numbers = [known[stream] for stream in streams]
            records[key] = facts | {"streams": numbers} if isinstance(facts, dict) and numbers else facts
        found[name] = len(parts)
        parts.append(squeezed(json.dumps(records, separators=(",", ":"), allow_nan=False).encode()))
    if not known:
        raise InputError(
            "`kernel` " + ", ".join(asked.kernel) + ": none runs any of these problems on these GPUs; "
            "accepted: kernels that do"
        )
    return {"chunks": found, "lengths": list(map(len, parts))}, b"".join(parts)
