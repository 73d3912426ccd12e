"""An engine behind a socket: each message is an operation, each answer carries its number."""

import asyncio
import gc
import importlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from . import frames
from .sample import Sample, finish
from .stops import StopTexts

Answer = tuple[dict[str, Any], bytes]

PROBE = {
    "session": "",
    "adapter": 0,
    "prompt_ids": [0],
    "max_tokens": 1,
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "stop_token_ids": [],
    "stop": [],
    "ignore_eos": True,
    "seed": 0,
}
"""requests one token"""

PROBE_SECONDS = 0.2
"""seconds between checks whether a probe is still needed"""

REPORT_SECONDS = 0.25
"""seconds between two reports of the load"""

ASLEEP = ("weights", "kv_cache")
"""the memories that an engine frees, in the order of their allocation"""


class Engine(Protocol):
    """The interface of an engine's adaptor. A plugin's module has ``async start(settings) -> Engine``.

    For an engine over several nodes, whose settings have ``nodes`` (``count``, ``rank`` of this one, ``address`` and
    ``port`` at which they meet), it also has ``follow(settings)``, which does the share of another node than the first,
    and returns or raises when that has ended.
    """

    dead: type[BaseException]
    """exception raised after the engine's own processes have ended"""

    vocabulary: int

    context: int
    """largest number of tokens of a prompt and its response together; an adaptor may lack it"""

    devices: list[str]
    """UUIDs of the CUDA devices that all its workers on this node see"""

    keeps_layouts: bool
    """``tensors`` of a bucket may be None, if they are those of the adapter's last bucket; an adaptor may lack it"""

    parts: "Sequence[Engine]"
    """engines side by side among which this one divides samples; the engine itself if there are none"""

    def progress(self) -> object:
        """A value that changes with each token from the engine's own processes."""
        ...

    async def report(self) -> "dict[str, float]":
        """The load: ``room``, ``running``, ``waiting``, ``preempted``, ``cache_usage`` of CoreRL's ``EngineLoad``.

        It is empty if the engine does not know it.
        """
        ...

    async def generate(self, sample: Sample) -> None:
        """Fill a sample; the engine's request ends when this is cancelled."""
        ...

    async def abort(self, engine_id: str) -> None:
        """End a request, which keeps its tokens."""
        ...

    async def begin_update(self) -> None:
        """Pause running requests, and discard an incomplete update."""
        ...

    async def load(self, bucket: dict[str, Any], verify: bool) -> list[list[int]]:
        """Load a bucket's tensors, those of the bucket's ``adapter`` if updates are adapters; returns each worker's
        digests if requested.
        """
        ...

    async def needs(self, weights: list[list[Any]]) -> "list[dict[str, Any]] | None":
        """Of each worker, the boxes of each weight (name, shape, dtype) that it loads; None: only whole weights.

        An adaptor may lack it, ``expect`` and ``take``.
        """
        ...

    async def expect(self, plans: list[dict[str, Any]]) -> None:
        """Each worker's ``plan`` of :class:`corerl_engines.remote.pieces.Receiver`."""
        ...

    async def take(self, number: int, places: list[list[int]], verify: bool) -> list[str]:
        """Load a round from each worker's memory; returns the names of weights whose digests differ."""
        ...

    async def end_update(self, complete: bool, adapter: int) -> tuple[list[str], dict[str, int | None]]:
        """Drop what was cached of old weights.

        Args:
            adapter: number of the adapter that was sent; 0 for all weights.

        Returns:
            The names of weights that were not loaded, and by id of a request its tokens so far, None if the request
            has ended, and its answer is under way; a request without a token may be missing.
        """
        ...

    async def resume(self) -> None:
        """Continue generating."""
        ...

    async def sleep(self) -> None:
        """Free the memory of the weights and the KV cache."""
        ...

    async def wake(self, what: list[str]) -> None:
        """Allocate the memory of ``weights``, ``kv_cache``, or both."""
        ...

    async def health(self) -> None: ...

    async def start_profile(self, asked: dict[str, Any], name: str) -> None:
        """Begin profiles of the engine's own processes (``corerl_engine.recorder``), in files named ``name…``.

        An adaptor may lack this and ``stop_profile``.
        """
        ...

    async def stop_profile(self, rank: int) -> None:
        """End the profiles, and write them."""
        ...


async def serve(connection: socket.socket, settings: dict[str, Any]) -> None:
    """Start the engine and serve until the other side has closed the connection or the engine is dead."""
    engine: Engine = await importlib.import_module(settings["adaptor"]).start(settings)
    gc.collect()
    gc.freeze()  # modules live as long as the engine; walking through them would halt responses for 0.5 s now and then
    connection.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=connection)
    facts = {"vocabulary": engine.vocabulary, "devices": engine.devices, "parts": len(engine.parts)}
    facts["context"] = getattr(engine, "context", None)
    facts["keeps_layouts"] = getattr(engine, "keeps_layouts", False)
    writer.write(frames.pack({"event": "load", "load": await engine.report()}))
    writer.write(frames.pack({"event": "ready", **facts}))
    stops = StopTexts(settings.get("tokenizer", ""), trust_remote_code=settings.get("trust_remote_code", False))
    await Server(engine, writer, loaded=settings["loaded"], stops=stops).run(reader)


class Server:
    """Runs operations on arrival; operations overlap."""

    def __init__(self, engine: Engine, writer: asyncio.StreamWriter, *, loaded: bool, stops: StopTexts) -> None:
        self._engine, self._stops = engine, stops
        self._writer = writer
        self._versions = {0: 0}
        """the version of each adapter that has values; all weights are number 0"""
        self._no_weights = "" if loaded else "no weights were sent to it yet"
        self._updating: int | None = None
        """number of the adapter whose update is under way"""
        self._asleep: list[str] = []
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._samples: dict[str, Sample] = {}
        self._dead = asyncio.Event()
        self._aborts: set[asyncio.Task[None]] = set()
        self._probes: set[asyncio.Task[None]] = set()
        self._progress: dict[int, object] = {}
        """index of a part -> its progress at the last probe"""
        self._operations: dict[str, Callable[[dict[str, Any], int], Awaitable[Answer]]] = {
            "generate": self._generate,
            "abort": self._abort,
            "cancel": self._cancel,
            "begin_update": self._begin_update,
            "load": self._load,
            "needs": self._needs,
            "expect": self._expect,
            "take": self._take,
            "end_update": self._end_update,
            "sleep": self._sleep,
            "wake": self._wake,
            "health": self._health,
            "start_profile": self._start_profile,
            "stop_profile": self._stop_profile,
            "probe": self._probe,
        }

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Run until the engine is dead; if the other side closes, the whole process ends (see ``__main__``)."""
        reading = asyncio.create_task(self._read(reader))
        reporting = asyncio.create_task(self._report())
        dead = asyncio.create_task(self._dead.wait())
        await asyncio.wait([reading, dead], return_when=asyncio.FIRST_COMPLETED)
        reporting.cancel()
        await self._writer.drain()
        raise RuntimeError("the engine's core is dead")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while True:
            message, _ = await frames.read(reader)
            number = message["number"]
            task = asyncio.create_task(self._answer(number, message))
            self._calls[number] = task
            task.add_done_callback(lambda _, number=number: self._calls.pop(number, None))  # type: ignore[misc]

    async def _report(self) -> None:
        """Send the load as long as samples are under way."""
        before: dict[str, float] = {}
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            if not self._samples or self._updating is not None:
                continue
            try:
                load = await self._engine.report()
            except self._engine.dead:
                self._dead.set()
                return
            if load != before:
                self._writer.write(frames.pack({"event": "load", "load": load}))
                before = load

    async def _answer(self, number: int, message: dict[str, Any]) -> None:
        header: dict[str, Any]
        try:
            header, payload = await self._operations[message["operation"]](message, number)
        except asyncio.CancelledError:
            header, payload = {"error": self._not_ready or "the call was cancelled"}, b""
        except self._engine.dead:
            self._dead.set()
            return
        except Exception as error:
            header, payload = {"error": f"{type(error).__name__}: {error}"}, b""
        self._writer.write(frames.pack({"number": number, **header}, payload))
        await self._writer.drain()

    @property
    def _not_ready(self) -> str:
        """The reason why generation is impossible; empty if it is possible."""
        if self._no_weights:
            return self._no_weights
        return "it was put to sleep, and its KV cache was not woken" if self._asleep else ""

    async def _generate(self, message: dict[str, Any], number: int) -> Answer:
        if self._asleep or (self._no_weights and self._updating is None):
            return {"not_ready": self._not_ready}, b""
        for request in message["requests"]:
            if request["adapter"] not in self._versions and request["adapter"] != self._updating:
                return {"not_ready": f"no update has sent adapter {request['adapter']}"}, b""
        samples = [
            Sample(request, index, f"{number}-{position}-{index}.", self._versions.get(request["adapter"], 0))
            for position, request in enumerate(message["requests"])
            for index in range(request["n"])
        ]
        for sample in samples:
            if sample.asked.get("stop") and await self._stops.ready():
                sample.stops = self._stops
        self._samples.update({sample.engine_id: sample for sample in samples})
        try:
            await finish([asyncio.create_task(sample.run(self._engine.generate)) for sample in samples])
        finally:
            for sample in samples:
                del self._samples[sample.engine_id]
        token_ids = [token for sample in samples for token in sample.token_ids]
        log_probs = [log_prob for sample in samples for log_prob in sample.log_probs]
        columns = [frames.pack_columns(sample.columns) for sample in samples]
        facts = [
            [len(sample.token_ids), sample.finish_reason, sample.versions, own]
            for sample, (own, _) in zip(samples, columns, strict=True)
        ]
        recorded = b"".join(payload for _, payload in columns)
        return {"samples": facts}, frames.pack_numbers(token_ids, log_probs) + recorded

    async def _abort(self, message: dict[str, Any], number: int) -> Answer:
        ids = set(message["request_ids"])
        for sample in list(self._samples.values()):
            if sample.asked["request_id"] in ids and not sample.aborted:
                task = asyncio.create_task(sample.abort(self._engine.abort))
                self._aborts.add(task)
                task.add_done_callback(self._aborts.discard)
        return {}, b""

    async def _cancel(self, message: dict[str, Any], number: int) -> Answer:
        if (task := self._calls.get(message["call"])) is not None:
            task.cancel()
        return {}, b""

    async def _begin_update(self, message: dict[str, Any], number: int) -> Answer:
        self._updating, self._no_weights = message.get("adapter", 0), "the last weight update was not complete"
        await self._engine.begin_update()
        return {}, b""

    async def _load(self, message: dict[str, Any], number: int) -> Answer:
        return {"digests": await self._engine.load(message["bucket"], message["verify"])}, b""

    async def _needs(self, message: dict[str, Any], number: int) -> Answer:
        needs = getattr(self._engine, "needs", None)
        return {"needs": None if needs is None else await needs(message["weights"])}, b""

    async def _expect(self, message: dict[str, Any], number: int) -> Answer:
        await self._engine.expect(message["plans"])
        return {}, b""

    async def _take(self, message: dict[str, Any], number: int) -> Answer:
        return {"changed": await self._engine.take(message["round"], message["places"], message["verify"])}, b""

    async def _end_update(self, message: dict[str, Any], number: int) -> Answer:
        """``version`` is null for an abandoned update: generation then fails until a complete one."""
        version, adapter = message["version"], self._updating or 0
        missing, tokens = await self._engine.end_update(version is not None, adapter)
        self._updating = None
        if version is None or missing:
            self._versions.pop(adapter, None)
            for call in [call for call, task in self._calls.items() if call != number]:
                self._calls[call].cancel()
            return {"missing": missing}, b""
        for sample in self._samples.values():
            count = tokens.get(sample.engine_id, 0)
            if count is not None and sample.asked["adapter"] == adapter:
                sample.updated(version, count)
        self._versions[adapter], self._no_weights = version, ""
        if not self._asleep:
            await self._engine.resume()
        return {"missing": []}, b""

    async def _sleep(self, message: dict[str, Any], number: int) -> Answer:
        self._no_weights = "it was put to sleep, and its weights were not sent again"
        self._versions.clear()
        if self._probes:  # an engine sleeps without requests
            await asyncio.wait(self._probes)
        if not self._asleep:
            await self._engine.sleep()
            self._asleep = list(ASLEEP)
        return {}, b""

    async def _wake(self, message: dict[str, Any], number: int) -> Answer:
        what = [each for each in self._asleep if message["kv_cache"] or each != "kv_cache"]
        if what:
            await self._engine.wake(what)
            self._asleep = [each for each in self._asleep if each not in what]
        if not self._not_ready:
            await self._engine.resume()
        return {}, b""

    async def _health(self, message: dict[str, Any], number: int) -> Answer:
        await self._engine.health()
        return {}, b""

    async def _start_profile(self, message: dict[str, Any], number: int) -> Answer:
        if not hasattr(self._engine.parts[0], "start_profile"):
            return {"error": "it has no profiles: name other roles in trainer.profile.roles"}, b""
        self._profiled_rank: int = message["asked"]["rank"]
        for place, part in enumerate(self._engine.parts):
            await part.start_profile(message["asked"], f"rollout-engine{place}")
        return {}, b""

    async def _stop_profile(self, message: dict[str, Any], number: int) -> Answer:
        for part in self._engine.parts:
            await part.stop_profile(self._profiled_rank)
        return {}, b""

    async def _probe(self, message: dict[str, Any], number: int) -> Answer:
        """Answer when each part has produced a token since its last probe, or when none is to be expected."""
        probes = [
            asyncio.create_task(self._token(place, part, f"probe-{number}-{place}."))
            for place, part in enumerate(self._engine.parts)
        ]
        self._probes.update(probes)
        try:
            await finish(probes)
        finally:
            self._probes.difference_update(probes)
        return {}, b""

    async def _token(self, place: int, engine: Engine, engine_id: str) -> None:
        """Request a token if none was produced since the last probe; a token of any other request also counts."""
        before, self._progress[place] = self._progress.get(place), engine.progress()
        if self._progress[place] != before:
            return
        token = asyncio.create_task(engine.generate(Sample(PROBE, 0, engine_id, 0)))
        try:
            while not (token.done() or self._not_ready or engine.progress() != before):
                await asyncio.wait([token], timeout=PROBE_SECONDS)
        finally:
            token.cancel()
        await asyncio.wait([token])
        self._progress[place] = engine.progress()  # this token must not answer the next probe
        if not token.cancelled():
            token.result()
