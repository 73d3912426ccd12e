"""A server that means harm: each answer ends within the deadline, as an error of its sample, and leaves no thread."""

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from corerl.contracts.reward_managers import RewardRequest
from corerl_rewards.judge import JudgeRewardManager
from corerl_rewards.options import JudgeOptions, RemoteOptions
from corerl_rewards.remote import RemoteRewardManager

OK = b"HTTP/1.1 200 OK\r\n"
Send = Callable[[socket.socket], object]


@contextmanager
def served(send: Send) -> Iterator[str]:
    """The address of a server whose answer to each request is what ``send`` writes."""

    def answer(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            text = b""
            while b"\r\n\r\n" not in text:
                text += connection.recv(65536)
            head, _, body = text.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            while length and len(body) < int(length[1]):
                body += connection.recv(65536)
            send(connection)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


def forever(start: bytes, part: bytes, pause: float = 0.1) -> Send:
    def send(connection: socket.socket) -> None:
        connection.sendall(start)
        while True:
            connection.sendall(part)
            time.sleep(pause)

    return send


def whole(value: Any) -> Send:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return lambda connection: connection.sendall(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def score(url: str, timeout: float = 1.0) -> tuple[Any, float]:
    manager = RemoteRewardManager(
        {}, num_workers=1, timeout=timeout, options=RemoteOptions(url=url, backoff=0.01, retries=1)
    )
    start = time.monotonic()
    [result] = manager.score([RewardRequest("a", "b", "c", {})])
    manager.close()
    return result, time.monotonic() - start


def calls() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "corerl-call"]


@pytest.mark.parametrize(
    "send",
    [
        forever(b"", b"H"),
        forever(OK, b"X: y\r\n"),
        forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        forever(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n", 0.0),
        forever(OK + b"Content-Length: 999\r\n\r\n", b" "),
        forever(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        forever(OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\n1\r\n0\r\n", b"X: y\r\n"),
    ],
    ids=["status", "headers", "continue", "hints at full speed", "body", "chunks", "trailers"],
)
def test_what_drips_without_end_leaves_no_thread_behind(send: Send) -> None:
    before = len(calls())
    with served(send) as url:
        result, took = score(url)
        assert result.error_kind == "timeout" and took < 4
        deadline = time.monotonic() + 3
        while len(calls()) > before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(calls()) <= before


@pytest.mark.parametrize(
    "send",
    [
        forever(OK, b"X: " + b"a" * 60_000 + b"\r\n", 0.0),
        forever(OK + b"\r\n", b" " * 65536, 0.0),
        forever(OK + b"Transfer-Encoding: chunked\r\n\r\n1;", b"a" * 65536, 0.0),
        lambda connection: connection.sendall(OK + b"Refresh: 0; url=http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"),
        lambda connection: connection.sendall(OK + b"Content-Length: -5\r\n\r\n"),
        lambda connection: connection.sendall(OK + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b"),
        lambda connection: connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"),
        whole(b"[" * 200_000),
        whole(b'{"results":' * 100_000),
    ],
    ids=["headers", "body", "chunk extension", "refresh", "length", "gzip", "upgrade", "deep list", "deep object"],
)
def test_what_floods_or_is_no_answer_is_an_error_of_the_server(send: Send) -> None:
    with served(send) as url:
        result, took = score(url, 20.0)
    assert (result.score, result.error_kind) == (None, "server") and took < 15


@pytest.mark.parametrize(
    "result",
    [
        {"score": 1, **{f"part {number}": number for number in range(5000)}},
        {"score": 1, "k" * 5000: 2},
        {"score": 1, "\ud801": 2},
        {"score": 1, "part": 10**400},
    ],
    ids=["parts", "name", "surrogate", "number"],
)
def test_parts_that_no_metrics_file_can_hold_are_an_error_of_the_sample(result: dict[str, Any]) -> None:
    with served(whole({"results": [result]})) as url:
        found, _ = score(url, 20.0)
    assert (found.score, found.error_kind) == (None, "value")


@pytest.mark.parametrize("result", [{"score": 1, "extracted": "\ud800"}, {"error": "\ud800" * 9}])
def test_halves_of_characters_can_be_written_afterwards(result: dict[str, Any]) -> None:
    with served(whole({"results": [result]})) as url:
        found, _ = score(url, 20.0)
    assert f"{found.extracted}{found.error}".encode()


def test_a_judge_that_rambles_is_read_from_its_end() -> None:
    text = "Score: 3 " * 3_000_000 + "Score: 7"
    with served(whole({"choices": [{"message": {"content": text}}]})) as url:
        manager = JudgeRewardManager({}, num_workers=1, timeout=30.0, options=JudgeOptions(base_url=url, model="m"))
        start = time.process_time()
        [result] = manager.score([RewardRequest("a", "b", "c", {})])
        took = time.process_time() - start
    assert result.score == 0.7 and took < 4
