"""The explorer's server: the page, and answers as JSON, on this machine alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from iosim.base.errors import InputError

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
