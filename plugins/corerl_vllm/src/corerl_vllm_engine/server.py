"""The engine behind a socket: each message is an operation, each answer carries its number."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from vllm import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from corerl_vllm_engine import frames
from corerl_vllm_engine.generation import Sample, finish, has_begun, sampling_params

Answer = tuple[dict[str, Any], bytes]


async def serve(connection: socket.socket, settings: dict[str, Any]) -> None:
    """Start the engine and serve until the other side is gone or the engine is dead."""
    arguments = settings["engine_args"]
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
    await engine.collective_rpc("corerl_prepare")
    connection.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=connection)
    writer.write(frames.pack({"event": "ready", "vocabulary": engine.model_config.get_vocab_size()}))
    await Server(engine, writer, loaded=arguments["load_format"] != "dummy").run(reader)


class Server:
    """Runs operations as they come; they overlap."""

    def __init__(self, engine: Any, writer: asyncio.StreamWriter, *, loaded: bool) -> None:
        self._engine = engine
        self._writer = writer
        self._version = 0
        self._not_ready = "" if loaded else "no weights were sent to it yet"
        self._updating = False
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._samples: dict[str, Sample] = {}
        self._dead = asyncio.Event()
        self._aborts: set[asyncio.Task[None]] = set()
        self._operations: dict[str, Callable[[dict[str, Any], int], Awaitable[Answer]]] = {
            "generate": self._generate,
            "abort": self._abort,
            "cancel": self._cancel,
            "begin_update": self._begin_update,
            "load": self._load,
            "end_update": self._end_update,
            "sleep": self._sleep,
            "wake": self._wake,
            "health": self._health,
        }

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Until the engine is dead; when the other side is gone the whole process ends (see ``__main__``)."""
        reading = asyncio.create_task(self._read(reader))
        dead = asyncio.create_task(self._dead.wait())
        await asyncio.wait([reading, dead], return_when=asyncio.FIRST_COMPLETED)
        await self._writer.drain()
        raise RuntimeError("the engine's core is dead")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while True:
            message, _ = await frames.read(reader)
            number = message["number"]
            task = asyncio.create_task(self._answer(number, message))
            self._calls[number] = task
            task.add_done_callback(lambda _, number=number: self._calls.pop(number, None))  # type: ignore[misc]

    async def _answer(self, number: int, message: dict[str, Any]) -> None:
        header: dict[str, Any]
        try:
            header, payload = await self._operations[message["operation"]](message, number)
        except asyncio.CancelledError:
            header, payload = {"error": self._not_ready or "the call was cancelled"}, b""
        except EngineDeadError:
            self._dead.set()
            return
        except Exception as error:
            header, payload = {"error": f"{type(error).__name__}: {error}"}, b""
        self._writer.write(frames.pack({"number": number, **header}, payload))
        await self._writer.drain()

    async def _generate(self, message: dict[str, Any], number: int) -> Answer:
        if self._not_ready and not self._updating:
            return {"not_ready": self._not_ready}, b""
        samples: list[Sample] = []
        tasks: list[asyncio.Task[None]] = []
        for position, request in enumerate(message["requests"]):
            for index in range(request["n"]):
                name = f"{number}-{position}-{index}"
                sample = Sample(self._engine, request["request_id"], name, self._version)
                samples.append(sample)
                tasks.append(asyncio.create_task(sample.run(request["prompt_ids"], sampling_params(request, index))))
        self._samples.update({sample.engine_id: sample for sample in samples})
        try:
            await finish(tasks)
        finally:
            for sample in samples:
                del self._samples[sample.engine_id]
        token_ids = [token for sample in samples for token in sample.token_ids]
        log_probs = [log_prob for sample in samples for log_prob in sample.log_probs]
        facts = [[len(sample.token_ids), sample.finish_reason, sample.weight_version] for sample in samples]
        return {"samples": facts}, frames.pack_numbers(token_ids, log_probs)

    async def _abort(self, message: dict[str, Any], number: int) -> Answer:
        ids = set(message["request_ids"])
        for sample in list(self._samples.values()):
            if sample.request_id in ids and not sample.aborted:
                sample.aborted = True
                task = asyncio.create_task(sample.abort())
                self._aborts.add(task)
                task.add_done_callback(self._aborts.discard)
        return {}, b""

    async def _cancel(self, message: dict[str, Any], number: int) -> Answer:
        if (task := self._calls.get(message["call"])) is not None:
            task.cancel()
        return {}, b""

    async def _begin_update(self, message: dict[str, Any], number: int) -> Answer:
        self._updating, self._not_ready = True, "the last weight update was not complete"
        await self._engine.pause_generation(mode="keep", clear_cache=False)
        await self._engine.collective_rpc("corerl_begin_update")
        return {}, b""

    async def _load(self, message: dict[str, Any], number: int) -> Answer:
        answers = await self._engine.collective_rpc("corerl_load", args=(message["path"], message["tensors"]))
        for tensor in message["tensors"]:
            sums = {answer[tensor["name"]] for answer in answers} if tensor["verify"] else {tensor["checksum"]}
            if sums != {tensor["checksum"]}:
                return {"error": f"weight '{tensor['name']}' arrived changed at the engine: its checksum differs"}, b""
        return {}, b""

    async def _end_update(self, message: dict[str, Any], number: int) -> Answer:
        """``version`` is null for an update that is given up: nothing is generated before the next complete one."""
        version = message["version"]
        lacking = await self._engine.collective_rpc("corerl_end_update", args=(version is not None,))
        missing = sorted({name for names in lacking for name in names})
        self._updating = False
        if version is None or missing:
            for call in [call for call, task in self._calls.items() if call != number]:
                self._calls[call].cancel()
            return {"missing": missing}, b""
        begun = has_begun(self._engine)
        for sample in self._samples.values():
            if sample.engine_id not in begun:
                sample.weight_version = version
        await self._engine.reset_prefix_cache()
        self._version, self._not_ready = version, ""
        await self._engine.resume_generation()
        return {"missing": []}, b""

    async def _sleep(self, message: dict[str, Any], number: int) -> Answer:
        self._not_ready = "it was put to sleep, and its weights were not sent again"
        if message["level"]:
            await self._engine.sleep(level=message["level"])
        return {}, b""

    async def _wake(self, message: dict[str, Any], number: int) -> Answer:
        if message["level"]:
            await self._engine.wake_up()
        return {}, b""

    async def _health(self, message: dict[str, Any], number: int) -> Answer:
        await self._engine.check_health()
        return {}, b""
