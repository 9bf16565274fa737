"""The explorer's server: its pages, and answers as JSON, on this machine alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from iosim.base.errors import InputError

HERE = "127.0.0.1"
Answered = Callable[[str, str], str | None]
"""JSON for a kind of question and its line; None where there is no such kind."""


def server(port: int, pages: Mapping[str, str], answered: Answered) -> ThreadingHTTPServer:
    """A server that is not running yet, of `pages` by their path. Raises InputError: the port is taken, or not this
    user's to have."""

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
                return
            page = pages.get("/" if address.path == "/index.html" else address.path)
            if page is not None:
                self._send(200, "text/html", page)
                return
            lines = parse_qs(address.query).get("line", [""])
            json_text = answered(address.path[1:], lines[0])
            if json_text is None:
                self._send(404, "text/plain", "there are / and /answer?line=OPTIONS\n")
            else:
                self._send(200, "application/json", json_text)

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
