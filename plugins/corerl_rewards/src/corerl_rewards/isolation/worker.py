"""A worker: it reads requests from a socket, and writes each result before it starts the next request.

A request is a length (4 bytes), a token (16) and a pickled (response, ground_truth, data_source, extra_info). A result
is a line: the token and JSON, ``[score, components, extracted, error, kind, seconds]``. JSON, because a scorer could
write into the socket, and its bytes must not run in the reading process; a token, because such bytes must not pass for
a result.
"""

import contextlib
import gc
import json
import os
import pickle
import random
import resource
import signal
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass

from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.scorers import Scorer
from corerl_rewards import isolation
from corerl_rewards.calls import failed, raised, score_one
from corerl_rewards.isolation import linux

HEAD = struct.Struct("<I16s")
"""length of the pickle, and the token"""
READY = b"ready"
LONGEST_LINE = 1 << 20
"""largest number of bytes of a result"""


@dataclass(frozen=True)
class Limits:
    """``memory``: bytes of address space beyond a worker's initial use; None: no limit."""

    memory: int | None


def run(connection: socket.socket, scorers: Mapping[str, Scorer], limits: Limits) -> None:
    """Serve until the other side closes the connection."""
    isolation.in_worker = True
    os.setpgid(0, 0)
    linux.die_with_parent()
    linux.prefer_for_oom_killer()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run handles Ctrl-C
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limits.memory is not None:
        linux.limit_memory(limits.memory)
    random.seed()
    gc.set_threshold(20_000, 20, 20)  # loaded objects are frozen, so the default collects too often
    pid = os.getpid()
    connection.sendall(READY + b"\n")
    requests = connection.makefile("rb")
    while head := requests.read(HEAD.size):
        length, token = HEAD.unpack(head)
        pickled = requests.read(length)
        start = time.perf_counter()
        line = _line(_score(pickled, scorers), start)
        if os.getpid() != pid:  # this is the copy of a scorer that forked
            return
        connection.sendall(token + line)


def _score(pickled: bytes, scorers: Mapping[str, Scorer]) -> RewardResult:
    try:
        request = pickle.loads(pickled)
    except BaseException as error:
        return raised("?", error)
    return score_one(scorers, *request)


def _line(result: RewardResult, start: float) -> bytes:
    with contextlib.suppress(MemoryError):
        values = [result.score, result.components, result.extracted, result.error, result.error_kind]
        line = json.dumps([*values, time.perf_counter() - start]).encode() + b"\n"
        if len(line) <= LONGEST_LINE:
            return line
    result = failed("value", f"the result of the scorer is longer than {LONGEST_LINE} bytes")
    return json.dumps([None, {}, None, result.error, result.error_kind, 0.0]).encode() + b"\n"
