"""Samples of running requests: their first weights, and their end."""

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

from .stops import StopTexts

ABORT_AGAIN_SECONDS = 0.05


class Sample:
    """One sample of a request. An engine fills in ``token_ids``, ``log_probs`` and ``finish_reason``, and may fill in
    ``columns``: name -> (values, counts), arrays of numpy as of CoreRL's ``TokenValues``.

    ``aborted`` counts from the first moment on, while an engine may know a request only after a while.
    ``versions`` are [first token, version of the weights] of each run of tokens. No ``engine_id`` is the beginning of
    another. With ``stops``, texts end the sample: the engine reports each token, and calls :meth:`stop`.
    """

    stops: "StopTexts | None" = None
    has_stopped = False

    def __init__(self, asked: dict[str, Any], index: int, engine_id: str, weight_version: int) -> None:
        self.asked = asked
        self.index = index
        self.engine_id = engine_id
        self.versions = [[0, weight_version]]
        self.aborted = False
        self.done = False
        self.token_ids: list[int] = []
        self.log_probs: list[float] = []
        self.finish_reason = "abort"
        self.columns: dict[str, tuple[Any, Any]] = {}

    @property
    def seed(self) -> int:
        """56 bits: each sample of a request has its own seed."""
        digest = hashlib.sha256(f"{self.asked['seed']}/{self.index}".encode()).digest()
        return int.from_bytes(digest[:7], "big")

    def updated(self, version: int, tokens: int) -> None:
        """Tokens after the first ``tokens`` ones come from weights of this version."""
        if self.versions[-1][0] == tokens:
            self.versions.pop()
        self.versions.append([tokens, version])

    async def run(self, generate: "Callable[[Sample], Awaitable[None]]") -> None:
        """Generate until the sample ends."""
        try:
            await generate(self)
        finally:
            self.done = True
            if self.has_stopped and self.finish_reason == "abort" and not self.aborted:
                self.finish_reason = "stop"

    async def stop(self, abort: Callable[[str], Awaitable[None]]) -> None:
        """End the sample if its tokens so far have a text that does so."""
        if self.stops is not None and not self.has_stopped and self.stops.are_in(self.token_ids, self.asked["stop"]):
            self.has_stopped = True
            await abort(self.engine_id)

    async def abort(self, abort: Callable[[str], Awaitable[None]]) -> None:
        """Repeat the abort until the sample has ended: an engine may ignore ids of requests that it has not accepted
        yet.
        """
        self.aborted = True
        while not self.done:
            await abort(self.engine_id)
            await asyncio.sleep(ABORT_AGAIN_SECONDS)


async def finish(tasks: "list[asyncio.Task[None]]") -> None:
    """Wait for all tasks; the first exception cancels the others."""
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(BaseException):
                await task
