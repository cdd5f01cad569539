"""A mirror of public files on a real socket."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Mirror:
    """Serves the same few bytes under every path, except where `script` says otherwise.

    Attributes:
        content: the bytes.
        script: by the end of a path, a status, or "cut": half of the bytes, then the end.
        requests: methods and paths of all requests.
        headers: of all requests, likewise.
    """

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.script: dict[str, int | str] = {}
        self.requests: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = mirror.content
                mirror.requests.append((self.command, self.path))
                mirror.headers.append({key.lower(): value for key, value in self.headers.items()})
                ending = (what for end, what in mirror.script.items() if self.path.endswith(end))
                order = next(ending, 200)
                self.send_response(order if isinstance(order, int) else 200)
                self.send_header("Content-Length", str(len(mirror.content)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if order == "cut" else body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
