"""The explorer's page, one HTML file with its style, scripts, the engine and, where no server answers it, the grid; and
the server, which answers it as JSON, on this machine alone."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

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


def engine() -> bytes:
    """The engine for browsers. Raises InputError: it is missing, or of other sources than the installed one."""
    if not build.is_current(build.WASM):
        try:
            build.compile_wasm()
        except build.BuildError as error:
            raise InputError(
                f"{build.WASM.name} is of another version, and was not compiled: {error}"
            ) from None
    return build.WASM.read_bytes()


def page(request: ExploreRequest, progress: Progress | None = silent) -> str:
    # Served: the page asks for each call. As a file: it carries the records of all calls it offers.
    grid, data = (None, b"") if progress is None else packed_grid(request, progress)
    setup: dict[str, Any] = {
        "served": progress is None,
        "lists": lists(request),
        "layouts": layouts(),
        "grid": grid,
        "version": __version__,
    }
    parts = {name: (STATIC / file).read_text(encoding="utf-8") for name, file in PARTS.items()}
    parts |= {
        "css": "".join(
            (STATIC / file).read_text(encoding="utf-8") for file in ("page.css", "explore/page.css")
        ),
        # "</script>" inside a text would end the script.
        "setup": json.dumps(setup, separators=(",", ":")).replace("<", "\\u003c"),
        "wasm": b64encode(engine()).decode(),
        "grid": b64encode(data).decode(),
    }
    text = (STATIC / "explore" / "page.html").read_text(encoding="utf-8")
    for name, part in parts.items():
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
    text = page(request, progress)
    try:
        place.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(
            f"`path` '{request.out}' cannot be made: {error.strerror}; accepted: a folder"
        ) from None
    write_whole(place, text)
    return place


HERE = "127.0.0.1"
Answer = Callable[[str], Mapping[str, Any]]
"""What a command line of `iosim predict`, without these words, comes to."""


def server(port: int, page: str, answer: Answer) -> ThreadingHTTPServer:
    """A server that is not running yet. Raises InputError: the port is taken, or not this user's to have."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            # Other sites must not read answers through the user's browser: neither by another name for this
            # address (DNS rebinding) nor by a request from another page.
            host = (self.headers["Host"] or "").rpartition(":")[0]
            if host not in (HERE, "localhost") or self.headers.get("Sec-Fetch-Site") in (
                "cross-site",
                "same-site",
            ):
                self._send(403, "text/plain", "this page answers itself alone\n")
            elif address.path in ("/", "/index.html"):
                self._send(200, "text/html", page)
            elif address.path == "/answer":
                lines = parse_qs(address.query).get("line", [""])
                self._send(200, "application/json", json.dumps(answer(lines[0]), allow_nan=False))
            else:
                self._send(404, "text/plain", "there are / and /answer?line=OPTIONS\n")

        def _send(self, status: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing: the page says what went wrong."""

    try:
        http_server = ThreadingHTTPServer((HERE, port), Handler)
    except OSError as error:
        raise InputError(
            f"`port` {port} cannot be had: {error.strerror}; accepted: a free one"
        ) from None
    http_server.daemon_threads = True
    return http_server


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
