"""Network streams with one deadline for all operations.

A timeout of httpx applies to each read: a server that sends one header byte a second, or ``100 Continue`` without end,
blocks a thread for ever. Here no read, write or connection continues past the deadline of the thread's request.
"""

import contextlib
import ssl
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpcore
import httpx

_thread = threading.local()


@contextlib.contextmanager
def until(deadline: float) -> Iterator[None]:
    """This thread's requests end at ``deadline`` (of ``time.monotonic``) with httpx.TimeoutException."""
    _thread.deadline = deadline
    try:
        yield
    finally:
        del _thread.deadline


def bound(client: httpx.Client) -> None:
    """Apply the deadline of :func:`until` to every connection of a client, including those through proxies."""
    for transport in (client._transport, *client._mounts.values()):
        if transport is not None:
            pool: Any = transport._pool  # type: ignore[attr-defined]
            pool._network_backend = _Backend(pool._network_backend)


def _left(timeout: float | None, error: type[httpcore.TimeoutException]) -> float | None:
    deadline: float | None = getattr(_thread, "deadline", None)
    if deadline is None:
        return timeout
    left = deadline - time.monotonic()
    if left <= 0:
        raise error("not done at the deadline")
    return left if timeout is None else min(left, timeout)


class _Backend(httpcore.NetworkBackend):
    def __init__(self, inner: httpcore.NetworkBackend) -> None:
        self._inner = inner

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.NetworkStream:
        left = _left(timeout, httpcore.ConnectTimeout)
        return _Stream(self._inner.connect_tcp(host, port, left, local_address, socket_options))

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Any = None
    ) -> httpcore.NetworkStream:
        left = _left(timeout, httpcore.ConnectTimeout)
        return _Stream(self._inner.connect_unix_socket(path, left, socket_options))

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _left(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, _left(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left = _left(timeout, httpcore.ConnectTimeout)
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, left))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
