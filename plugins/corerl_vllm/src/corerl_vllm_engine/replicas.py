"""Several engines on the same devices, used like one.

vLLM's scheduler needs about 20 µs for every token of every request, one request after the other. For hundreds of
requests to a small model, this limits the speed, not the GPU; of several engines each does its share, in its own
process.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

SESSIONS = 65_536
"""the latest, whose engines are known"""


@dataclass
class _Load:
    """Samples under way, and the most tokens that they may have."""

    samples: int = 0
    tokens: int = 0

    def add(self, tokens: int, sign: int = 1) -> None:
        self.samples += sign
        self.tokens += sign * tokens


@dataclass
class _Place:
    engine: Any
    samples: int = 0


class Replicas:
    """See ``corerl_engine.server.Engine``. All samples of a request are one engine's: it computes the prompt once.

    A request of a known session goes to the engine that has its prefix, if that one has room (``engine.room`` samples);
    any other to the engine with the fewest tokens under way.
    """

    keeps_layouts = True

    def __init__(self, engines: list[Any]) -> None:
        self._engines = self.parts = engines
        self.dead: type[BaseException] = engines[0].dead
        self.vocabulary: int = engines[0].vocabulary
        self.context: int = min(engine.context for engine in engines)
        self.devices = sorted(set[str].intersection(*(set(engine.devices) for engine in engines)))
        self._places: dict[str, _Place] = {}
        self._loads = {engine: _Load() for engine in engines}
        self._sessions: OrderedDict[str, Any] = OrderedDict()

    def progress(self) -> list[object]:
        return [engine.progress() for engine in self._engines]

    async def report(self) -> dict[str, float]:
        loads = await self._all("report")
        counts = ("room", "running", "waiting", "preempted")
        usage = max(load.get("cache_usage", 0) for load in loads)
        return {name: sum(load.get(name, 0) for load in loads) for name in counts} | {"cache_usage": usage}

    async def generate(self, sample: Any) -> None:
        request, tokens = _request(sample.engine_id), sample.asked["max_tokens"]
        if request not in self._places:
            self._places[request] = _Place(self._choose(sample.asked["session"]))
        place = self._places[request]
        place.samples += 1
        self._loads[place.engine].add(tokens)
        try:
            await place.engine.generate(sample)
        finally:
            place.samples -= 1
            self._loads[place.engine].add(tokens, -1)
            if not place.samples:
                del self._places[request]

    def _choose(self, session: str) -> Any:
        engine = self._sessions.pop(session, None)
        if engine is None or self._loads[engine].samples >= engine.room:
            engine = min(self._engines, key=lambda each: self._loads[each].tokens)
        if session:
            self._sessions[session] = engine
        if len(self._sessions) > SESSIONS:
            self._sessions.popitem(last=False)
        return engine

    async def abort(self, engine_id: str) -> None:
        if (place := self._places.get(_request(engine_id))) is not None:
            await place.engine.abort(engine_id)

    async def begin_update(self) -> None:
        await self._all("begin_update")

    async def load(self, bucket: dict[str, Any], verify: bool) -> list[list[int]]:
        return [digests for each in await self._all("load", bucket, verify) for digests in each]

    async def needs(self, weights: list[list[Any]]) -> list[dict[str, Any]] | None:
        needs: list[dict[str, Any]] | None = (await self._all("needs", weights))[0]
        return needs

    async def expect(self, plans: list[dict[str, Any]]) -> None:
        await self._all("expect", plans)

    async def take(self, number: int, places: list[list[int]], verify: bool) -> list[str]:
        return [name for each in await self._all("take", number, places, verify) for name in each]

    async def end_update(self, complete: bool, adapter: int) -> tuple[list[str], dict[str, int | None]]:
        missing, tokens = zip(*await self._all("end_update", complete, adapter), strict=True)
        return sorted(set[str]().union(*missing)), {name: count for each in tokens for name, count in each.items()}

    async def resume(self) -> None:
        await self._all("resume")

    async def sleep(self) -> None:
        await self._all("sleep")

    async def wake(self, what: list[str]) -> None:
        await self._all("wake", what)

    async def health(self) -> None:
        await self._all("health")

    async def _all(self, operation: str, *arguments: Any) -> list[Any]:
        return await asyncio.gather(*(getattr(engine, operation)(*arguments) for engine in self._engines))


def _request(engine_id: str) -> str:
    """The common prefix of the ids of all samples of a request."""
    return engine_id.rpartition("-")[0]
