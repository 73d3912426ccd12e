"""A proxy that takes connections and never answers, in the environment of a test."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@contextlib.contextmanager
def silent_proxy(monkeypatch: pytest.MonkeyPatch, *names: str, scheme: str = "http") -> Iterator[list[bytes]]:
    """The first bytes of each connection to the proxy that these variables name, once the block ends.

    Without names, all variables of proxies name it, and none names an exception.
    """
    for name in NAMES:
        for each in (name, name.upper()):
            monkeypatch.setenv(each, "")  # restored after the test, whatever the code under test does
            monkeypatch.delenv(each)
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        url = f"{scheme}://127.0.0.1:{proxy.getsockname()[1]}"
        for name in names or (*NAMES[:3], *map(str.upper, NAMES[:3])):
            monkeypatch.setenv(name, url)
        yield asked
        proxy.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = proxy.accept()
                with connection:
                    connection.setblocking(False)
                    asked.append(connection.recv(200))
