"""A local web server that serves a single page under a secret address."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_HOST = "127.0.0.1"
_TOKEN_BYTES = 24


class _Quiet(ThreadingHTTPServer):
    """A server that ignores broken connections and does not wait for open connections at exit."""

    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Ignore an error raised by a request."""


@contextmanager
def open_server(page: bytes) -> Iterator[tuple[str, ThreadingHTTPServer]]:
    """Open a server for a page on a free port of the loopback interface.

    A request gets the page only if its path contains the secret token and its ``Host`` header is
    correct. This prevents other programs and web sites from reading the page.

    Args:
        page: HTML of the page, encoded as UTF-8.

    Yields:
        url: Address of the page.
        server: The server, which answers requests while its method ``serve_forever`` runs.
    """
    path = f"/{secrets.token_urlsafe(_TOKEN_BYTES)}/"

    class Handler(BaseHTTPRequestHandler):
        """Answers GET and HEAD requests for the page. Other paths and hosts get status 404."""

        server_version, sys_version = "bubbleviz", ""

        def do_GET(self) -> None:
            self._answer(page)

        def do_HEAD(self) -> None:
            self._answer(b"")

        def _answer(self, content: bytes) -> None:
            """Send a response with the given content.

            If the path does not contain the token or the ``Host`` header is wrong, the response has
            status 404 and no content.

            Args:
                content: The page, or b"" for a HEAD request.
            """
            host = f"{_HOST}:{port}"
            requested = self.path.partition("?")[0].encode("utf-8", "replace")
            has_token = secrets.compare_digest(requested, path.encode())
            if self.headers.get("Host") != host or not has_token:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(page)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("X-Frame-Options", "DENY")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log nothing, because the package does not print requests."""

    with _Quiet((_HOST, 0), Handler) as server:
        port = server.server_address[1]
        yield f"http://{_HOST}:{port}{path}", server
