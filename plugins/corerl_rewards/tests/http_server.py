"""A real HTTP server on this machine, whose answers a test chooses."""

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, Any]
"""status, and what is sent as JSON, or bytes to send as they are"""


class Server:
    """Answers each POST with ``answer(body, number of the request)``; for the length of a ``with``.

    Attributes:
        bodies, paths, headers: of the requests so far.
    """

    def __init__(self, answer: Callable[[Any, int], Reply], further: dict[str, str] | None = None) -> None:
        self.bodies: list[Any] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        lock, server = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    number = len(server.bodies)
                    server.bodies.append(body)
                    server.paths.append(self.path)
                    server.headers.append(dict(self.headers))
                    server.times.append(time.monotonic())
                status, value = answer(body, number)
                if status == 0:  # hang up
                    self.close_connection = True
                    return
                data = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                for name, text in (further or {}).items():
                    self.send_header(name, text)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> "Server":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
