"""The explorer's page, one HTML file with its style, scripts, the engine and, where no server answers it, the grid; and
the server, which answers it as JSON, on this machine alone."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from iosim.base.errors import InputError
from iosim.base.files import is_made_by, write_whole
from iosim.base.progress import Progress, silent
from iosim.base.version import __version__
from iosim.readers.replay import build
from iosim.readers.replay.packed import layouts
from iosim.studies.explore.grid import lists, packed_grid
from iosim.studies.requests import ExploreRequest

STATIC = Path(__file__).resolve().parents[2] / "show" / "static"
PARTS = {"engine": "explore/engine.js", "draw": "explore/draw.js", "page": "explore/page.js"}


def engine() -> bytes:
    """The engine for browsers. Raises InputError: it is missing, or of other sources than the installed one."""
    if not build.is_current(build.WASM):
        try:
            build.compile_wasm()
        except build.BuildError as error:
            raise InputError(f"{build.WASM.name} is of another version, and was not compiled: {error}") from None
    return build.WASM.read_bytes()


def page(asked: ExploreRequest, progress: Progress | None = silent) -> str:
    """The whole file; with `progress` None that of the server, which carries no grid."""
    grid, data = (None, b"") if progress is None else packed_grid(asked, progress)
    setup: dict[str, Any] = {
        "served": progress is None,
        "lists": [one.to_dict() for one in lists(asked)],
        "layouts": layouts(),
        "grid": grid,
        "version": __version__,
    }
    parts = {name: (STATIC / file).read_text(encoding="utf-8") for name, file in PARTS.items()}
    parts |= {
        "css": "".join((STATIC / file).read_text(encoding="utf-8") for file in ("page.css", "explore/page.css")),
        "setup": json.dumps(setup, separators=(",", ":")).replace("<", "\\u003c"),
        "wasm": b64encode(engine()).decode(),
        "grid": b64encode(data).decode(),
    }
    text = (STATIC / "explore" / "page.html").read_text(encoding="utf-8")
    for name, part in parts.items():
        text = text.replace(f"<!--{name}-->", part.strip())
    return text


def place_of(asked: ExploreRequest) -> Path:
    """The file that the page is written to."""
    folder = Path(asked.out)
    if not folder.parent.is_dir() or (folder.exists() and not folder.is_dir()):
        raise InputError(
            f"`path` '{asked.out}' is no folder, nor can it be one; accepted: a folder, or a new one in a "
            "folder that exists"
        )
    place = folder / "index.html"
    if not asked.force and not is_made_by(place, "iosim explore"):
        raise InputError(
            f"`path` '{asked.out}' has an index.html that is no explorer's; accepted: another folder, or `force`"
        )
    return place


def write(asked: ExploreRequest, progress: Progress = silent) -> Path:
    """Writes the page with its grid; returns its place."""
    place = place_of(asked)
    text = page(asked, progress)
    try:
        place.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"`path` '{asked.out}' cannot be made: {error.strerror}; accepted: a folder") from None
    write_whole(place, text)
    return place


HERE = "127.0.0.1"
Answer = Callable[[str], Mapping[str, Any]]
"""What a command line of `iosim predict`, without these words, comes to."""


def server(port: int, page: str, answer: Answer) -> ThreadingHTTPServer:
    """A server that is not running yet. Raises InputError: the port is taken, or not this user's to have."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            host = (self.headers["Host"] or "").rpartition(":")[0]
            if host not in (HERE, "localhost") or self.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site"):
                self._send(403, "text/plain", "this page answers itself alone\n")
            elif asked.path in ("/", "/index.html"):
                self._send(200, "text/html", page)
            elif asked.path == "/answer":
                lines = parse_qs(asked.query).get("line", [""])
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
        made = ThreadingHTTPServer((HERE, port), Handler)
    except OSError as error:
        raise InputError(f"`port` {port} cannot be had: {error.strerror}; accepted: a free one") from None
    made.daemon_threads = True
    return made
