"""Several engines on the same devices, used like one.

vLLM's scheduler needs about 20 µs for every token of every request, one request after the other. For hundreds of
requests to a small model, this limits the speed, not the GPU; of several engines each does its share, in its own
process.
"""

import asyncio
from dataclasses import dataclass
from typing import Any


@dataclass
class _Place:
    engine: Any
    samples: int = 0


class Replicas:
    """See ``corerl_engine.server.Engine``. All samples of a request use one engine, which computes the prompt once."""

    def __init__(self, engines: list[Any]) -> None:
        self._engines = self.parts = engines
        self.dead: type[BaseException] = engines[0].dead
        self.vocabulary: int = engines[0].vocabulary
        self.devices = sorted(set[str].intersection(*(set(engine.devices) for engine in engines)))
        self._places: dict[str, _Place] = {}
        self._loads = dict.fromkeys(engines, 0)

    def progress(self) -> list[object]:
        return [engine.progress() for engine in self._engines]

    async def generate(self, sample: Any) -> None:
        request = _request(sample.engine_id)
        if request not in self._places:
            self._places[request] = _Place(min(self._engines, key=self._loads.__getitem__))
        place = self._places[request]
        place.samples += 1
        self._loads[place.engine] += 1
        try:
            await place.engine.generate(sample)
        finally:
            place.samples -= 1
            self._loads[place.engine] -= 1
            if not place.samples:
                del self._places[request]

    async def abort(self, engine_id: str) -> None:
        if (place := self._places.get(_request(engine_id))) is not None:
            await place.engine.abort(engine_id)

    async def begin_update(self) -> None:
        await self._all("begin_update")

    async def load(self, bucket: dict[str, Any], verify: bool) -> list[list[int]]:
        return [digests for each in await self._all("load", bucket, verify) for digests in each]

    async def end_update(self, complete: bool) -> tuple[list[str], set[str]]:
        missing, begun = zip(*await self._all("end_update", complete), strict=True)
        return sorted(set[str]().union(*missing)), set[str]().union(*begun)

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
