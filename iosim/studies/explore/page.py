"""The explorer's pages, each one HTML file with its style and scripts: the whole question of a model, and an attention
call that is replayed in the page, with the engine and, where nothing else answers it, the grid of its answers."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.base.files import is_made_by, write_whole
from iosim.base.progress import Progress, silent
from iosim.base.version import __version__
from iosim.base.workers import in_processes
from iosim.kernel.overrides import Overrides
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay import build
from iosim.readers.replay.packed import layouts, squeezed
from iosim.show.template import STATIC
from iosim.studies.explore.record import naive, record
from iosim.studies.requests import ExploreRequest

PARTS = {"engine": "explore/engine.js", "draw": "explore/draw.js", "page": "explore/page.js"}
ASKED = {"draw": "explore/draw.js", "ask": "explore/ask.js"}
"""The scripts of the page of the whole question, beside its own."""
STYLES = ("page.css", "explore/page.css")


def engine(of_python: bool = False) -> bytes:
    """The engine for browsers, or the one for a Python that runs in them. Raises InputError: it is missing, or of other
    sources than the installed one."""
    target, make = build.WASM, build.compile_wasm
    if of_python:
        target, make = build.SIDE, build.compile_side
    if not build.is_current(target):
        try:
            make(target)
        except build.BuildError as error:
            raise InputError(
                f"{target.name} is of another version, and was not compiled: {error}"
            ) from None
    return target.read_bytes()


def attention_page(request: ExploreRequest, answers: str, progress: Progress = silent) -> str:
    """The page that replays an attention call. `answers`: who works a call out: the `server`, the `python` in the page,
    or the `grid` of all calls that the page offers and carries."""
    grid, data = packed_grid(request, progress) if answers == "grid" else (None, b"")
    setup: dict[str, Any] = {
        "answers": answers,
        "lists": lists(request),
        "layouts": layouts(),
        "grid": grid,
        "version": __version__,
    }
    parts = _texts(PARTS | ASKED) | {
        "setup": _script(setup),
        "wasm": b64encode(engine()).decode(),
        "grid": b64encode(data).decode(),
    }
    return _filled("explore/page.html", parts)


def question_page(setup: Mapping[str, Any]) -> str:
    """The page of the whole question. `setup`: who answers it (`answers`, as of `attention_page`), and its lists."""
    parts = _texts(ASKED | {"page": "explore/question.js"})
    return _filled(
        "explore/question.html", parts | {"setup": _script({**setup, "version": __version__})}
    )


def _texts(files: Mapping[str, str]) -> dict[str, str]:
    return {name: (STATIC / file).read_text(encoding="utf-8") for name, file in files.items()}


def _script(data: Mapping[str, Any]) -> str:
    # "</script>" inside a text would end the script.
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _filled(template: str, parts: Mapping[str, str]) -> str:
    text = (STATIC / template).read_text(encoding="utf-8")
    style = "".join(_texts(dict(zip(STYLES, STYLES, strict=True))).values())
    for name, part in {"css": style, **parts}.items():
        # Parts are put in as plain text: they are whole files, not values of a template.
        text = text.replace(f"<!--{name}-->", part.strip())
    return text


def place_of(request: ExploreRequest) -> Path:
    """The file that the page is written to."""
    folder = Path(request.out)
    if not folder.parent.is_dir() or (folder.exists() and not folder.is_dir()):
        accepted = "a folder, or a new one in a folder that exists"
        raise InputError(
            f"`path` '{request.out}' is no folder, nor can it be one; accepted: {accepted}"
        )
    place = folder / "index.html"
    if not request.force and not is_made_by(place, "iosim explore"):
        other = "another folder, or `force`"
        raise InputError(
            f"`path` '{request.out}' has an index.html that is no explorer's; accepted: {other}"
        )
    return place


def write(request: ExploreRequest, progress: Progress = silent) -> Path:
    place = place_of(request)
    text = attention_page(request, "grid", progress)
    try:
        place.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(
            f"`path` '{request.out}' cannot be made: {error.strerror}; accepted: a folder"
        ) from None
    write_whole(place, text)
    return place


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


Choice = tuple[str, str]
"""A value of a list: how the page shows it, and the words of a command line that it stands for."""


def lists(request: ExploreRequest) -> list[dict[str, Any]]:
    """What the page offers: each list's name and title, its choices, the number of the usual one, and the kernel `only`
    for which it is there. Raises InputError: heads that are no numbers."""
    lengths = [
        (f"{n // 1024}k" if n % 1024 == 0 else str(n), f"--seq-len {n}") for n in request.lengths
    ]
    heads = [
        (str(h) if h == kv else f"{h} / {kv}", f"--heads {h} --kv-heads {kv}")
        for h, kv in request.head_counts
    ]
    tiles = [(tile, "" if tile == OWN else f"--tile {tile}") for tile in TILES]
    orders = [
        (text, " ".join(f"--{name} {value}" for name, value in of.items()))
        for text, of in ORDERS.items()
    ]
    return [
        _list("gpu", "GPU", _named("--gpu", request.gpu), _place(request.gpu, "h100", "h100-sxm")),
        _list(
            "kernel", "Kernel", _named("--kernel", request.kernel), _place(request.kernel, "fa2")
        ),
        _list("seq", "Tokens", lengths, min(3, len(lengths) - 1)),
        _list("heads", "Heads / key-value", heads),
        _list(
            "dim", "Head dimension", _named("--head-dim", request.dims), _place(request.dims, 128)
        ),
        _list("mask", "Mask", [("none", ""), ("causal", "--causal")], 1),
        _list("tile", "Tile", tiles, only=TILED),
        _list("order", "Order", orders, only=TILED),
    ]


def _list(
    name: str, title: str, choices: Sequence[Choice], default: int = 0, only: str = ""
) -> dict[str, Any]:
    return {"name": name, "title": title, "choices": choices, "usual": default, "only": only}


def _named(option: str, names: Iterable[Any]) -> list[Choice]:
    return [(str(name), f"{option} {name}") for name in names]


def _place(names: Sequence[Any], *preferred: Any) -> int:
    return next((n for n, name in enumerate(names) if name in preferred), 0)


Made = tuple[dict[str, Any] | str | None, tuple[bytes, ...]]
"""A record and its streams; in place of a record, why the call cannot run."""
Chunk = dict[str, Made]
MASKS = ("none", "causal")
NAIVE = "naive"


def chunks(request: ExploreRequest, progress: Progress = silent) -> Iterator[tuple[str, Chunk]]:
    """Records of all calls per GPU and kernel, naive among them; in processes, since Python works them out."""
    pairs = list(product(request.gpu, (*request.kernel, NAIVE)))
    work = in_processes(_chunk, ((request, *pair) for pair in pairs), -1, return_as="generator")
    yield from zip(map(" ".join, pairs), progress(work), strict=True)


def _chunk(request: ExploreRequest, gpu: str, kernel: str) -> Chunk:
    chunk: Chunk = {}
    # A key is a number per list, "0.1.0.1.2.0", in the order of the page's lists.
    counts = [len(request.lengths), len(request.head_counts), len(request.dims), len(MASKS)]
    counts += [len(TILES), len(ORDERS)] if kernel == TILED else [1, 1]
    for key in product(*map(range, counts)):
        heads, kv_heads = request.head_counts[key[1]]
        problem = AttentionProblem(
            heads=heads,
            kv_heads=kv_heads,
            seq_q=request.lengths[key[0]],
            head_dim=request.dims[key[2]],
            mask=MASKS[key[3]],
        )
        name = ".".join(map(str, key))
        chunk[name] = (
            (naive(problem, gpu), ())
            if kernel == NAIVE
            else _record(problem, kernel, gpu, key[4], key[5])
        )
    return chunk


def _record(problem: AttentionProblem, kernel: str, gpu: str, tile: int, order: int) -> Made:
    sides = None if TILES[tile] == OWN else tuple(map(int, TILES[tile].split("x")))
    settings: dict[str, Any] = {"tile": sides, **[*ORDERS.values()][order]}
    try:
        return record(
            predict(problem, kernel, gpu, method="bounds", overrides=Overrides(**settings))
        )
    except InputError as error:
        return str(error), ()


def packed_grid(
    request: ExploreRequest, progress: Progress = silent
) -> tuple[dict[str, Any], bytes]:
    """Where each call of the grid lies, and the bytes: of every GPU and kernel a chunk of records, JSON in raw deflate,
    and each stream of launches once. Raises InputError: no call of the grid can run."""
    parts: list[bytes] = []
    known: dict[bytes, int] = {}
    places: dict[str, int] = {}
    for name, chunk in chunks(request, progress):
        records: dict[str, Any] = {}
        for key, (facts, streams) in chunk.items():
            # Calls share launches (the same tile and lengths on several GPUs): each stream is stored once.
            for stream in streams:
                if stream not in known:
                    known[stream] = len(parts)
                    parts.append(stream)
            numbers = [known[stream] for stream in streams]
            records[key] = (
                facts | {"streams": numbers} if isinstance(facts, dict) and numbers else facts
            )
        places[name] = len(parts)
        parts.append(squeezed(json.dumps(records, separators=(",", ":"), allow_nan=False).encode()))
    if not known:
        why = "none runs any of these problems on these GPUs; accepted: kernels that do"
        raise InputError(f"`kernel` {', '.join(request.kernel)}: {why}")
    return {"chunks": places, "lengths": list(map(len, parts))}, b"".join(parts)
