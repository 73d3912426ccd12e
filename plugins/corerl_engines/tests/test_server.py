"""The engine's side of the socket, with an engine in this process that notes what is asked of it."""

import asyncio
import gc
import itertools
import socket
import sys
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl_engines import messages
from corerl_engines.remote import frames
from corerl_engines.remote.sample import Sample
from corerl_engines.remote.server import REPORT_SECONDS, Server, serve
from corerl_engines.remote.stops import StopTexts

SECONDS = 30

NOT_COMPLETE = "the last weight update was not complete"
NO_CACHE = "it was put to sleep, and its KV cache was not woken"


class Noting:
    """Ends requests of one token at once, if it is not stuck; others never end."""

    dead, vocabulary, devices = ConnectionError, 300, ()

    def __init__(self) -> None:
        self.noted: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self.missing: list[str] = []
        self.reported: dict[str, float] = {}
        self.samples: list[Sample] = []
        self.parts = [self]
        self.tokens, self.stuck = 0, False
        self.aborted: list[str] = []
        self.begun = asyncio.Event()

    def progress(self) -> int:
        return self.tokens

    async def report(self) -> dict[str, float]:
        return self.reported

    async def generate(self, sample: Sample) -> None:
        self.asked.append(sample.asked)
        self.samples.append(sample)
        self.begun.set()
        while sample.stops is not None and not self.aborted and len(sample.token_ids) < sample.asked["max_tokens"]:
            sample.token_ids.append(len(sample.token_ids))
            sample.log_probs.append(-0.5)
            await sample.stop(self.abort)
        if sample.token_ids:
            return
        if self.stuck or sample.asked["max_tokens"] > 1:
            await asyncio.Event().wait()
        self.tokens += 1
        sample.token_ids, sample.log_probs, sample.finish_reason = [7], [-0.5], "length"

    async def abort(self, engine_id: str) -> None:
        self.aborted.append(engine_id)

    async def begin_update(self) -> None:
        self.noted.append("begin_update")

    async def load(self, bucket: dict[str, Any], verify: bool) -> list[list[int]]:
        self.noted.append(f"load {bucket} {verify}")
        return [[5]]

    async def end_update(self, complete: bool, adapter: int) -> tuple[list[str], dict[str, int]]:
        self.noted.append(f"end_update {complete}")
        return self.missing, {}

    async def resume(self) -> None:
        self.noted.append("resume")

    async def sleep(self) -> None:
        self.noted.append("sleep")

    async def wake(self, what: list[str]) -> None:
        self.noted.append(f"wake {' '.join(what)}")


class Numbers:
    """Token i is its number and a space; the special token 9 has no text."""

    def decode(self, ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        return "".join(f"{each} " for each in ids if each != 9 or not skip_special_tokens)


class Client:
    """The other side."""

    def __init__(self, engine: Noting, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.engine, self.reader, self.writer = engine, reader, writer
        self.numbers = itertools.count(1)
        self.answers: dict[int, dict[str, Any]] = {}
        self.loads: list[dict[str, float]] = []

    def send(self, operation: str, **arguments: Any) -> int:
        number = next(self.numbers)
        self.writer.write(frames.pack({"operation": operation, "number": number, **arguments}))
        return number

    async def answer(self, number: int) -> dict[str, Any]:
        while number not in self.answers:
            header, _ = await frames.read(self.reader)
            if header.get("event") == "load":
                self.loads.append(header["load"])
            else:
                self.answers[header.pop("number")] = header
        return self.answers.pop(number)

    async def ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return await self.answer(self.send(operation, **arguments))

    async def generate(self) -> dict[str, Any]:
        return await self.ask("generate", requests=[described(1)])

    def noted(self) -> list[str]:
        """What the engine was asked for since the last call."""
        noted, self.engine.noted = self.engine.noted, []
        return noted


def described(max_tokens: int) -> dict[str, Any]:
    return messages.described(GenerationRequest("a", [1], SamplingParams(max_tokens=max_tokens)))


def with_server(work: Callable[[Client], Awaitable[None]]) -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=theirs)
        engine = Noting()
        stops = StopTexts("", trust_remote_code=False)
        stops._tokenizer = Numbers()
        server = Server(engine, writer, loaded=True, stops=stops)  # type: ignore[arg-type]
        serving = asyncio.create_task(server.run(reader))
        client = Client(engine, *await asyncio.open_connection(sock=ours))
        try:
            await asyncio.wait_for(work(client), SECONDS)
        finally:
            serving.cancel()
            for each in (client.writer, writer):
                each.close()

    asyncio.run(run())


def test_an_update_that_is_given_up_ends_what_runs_until_the_next_complete_one() -> None:
    async def work(client: Client) -> None:
        running = client.send("generate", requests=[described(100)])
        await client.engine.begun.wait()
        assert await client.ask("begin_update") == {}
        assert await client.ask("load", bucket={"source": 1}, verify=True) == {"digests": [[5]]}
        assert await client.ask("end_update", version=None) == {"missing": []}
        assert await client.answer(running) == {"error": NOT_COMPLETE}
        assert client.noted() == ["begin_update", "load {'source': 1} True", "end_update False"]
        assert await client.generate() == {"not_ready": NOT_COMPLETE}
        await client.ask("begin_update")
        assert await client.ask("end_update", version=3) == {"missing": []}
        assert client.noted() == ["begin_update", "end_update True", "resume"]
        assert await client.generate() == {"samples": [[1, "length", [[0, 3]], []]]}

    with_server(work)


def test_profiles_begin_and_end_in_each_part_and_an_engine_without_them_says_so() -> None:
    class Profiled:
        def __init__(self) -> None:
            self.noted: list[object] = []

        async def start_profile(self, asked: dict[str, Any], name: str) -> None:
            self.noted += [asked["folder"], name]

        async def stop_profile(self, rank: int) -> None:
            self.noted.append(rank)

    async def work(client: Client) -> None:
        asked = {"folder": "here", "rank": 3}
        without = await client.ask("start_profile", asked=asked)
        assert without == {"error": "it has no profiles: name other roles in trainer.profile.roles"}
        parts: list[Any] = [Profiled(), Profiled()]
        client.engine.parts = parts
        assert await client.ask("start_profile", asked=asked) == {} == await client.ask("stop_profile")
        assert [part.noted for part in parts] == [["here", f"rollout-engine{place}", 3] for place in range(2)]

    with_server(work)


def test_an_update_divides_the_tokens_of_what_runs() -> None:
    sample = Sample(described(100), 0, "1-0-0.", 3)
    sample.updated(4, 0)  # before the first token
    sample.updated(5, 2)
    sample.updated(6, 2)  # no token came between the two
    sample.updated(7, 9)
    assert sample.versions == [[0, 4], [2, 6], [9, 7]]


def test_an_adapter_has_its_own_version_and_no_requests_before_its_first_update() -> None:
    def of(adapter: int, max_tokens: int = 1) -> list[dict[str, Any]]:
        return [{**described(max_tokens), "adapter": adapter}]

    async def work(client: Client) -> None:
        assert await client.ask("generate", requests=of(2)) == {"not_ready": "no update has sent adapter 2"}
        running = client.send("generate", requests=of(0, 100))
        await client.engine.begun.wait()
        await client.ask("begin_update", adapter=2)
        assert await client.ask("end_update", version=8) == {"missing": []}
        assert [sample.versions for sample in client.engine.samples] == [[[0, 0]]]  # its adapter was not replaced
        for adapter, version in ((2, 8), (0, 0)):
            found = await client.ask("generate", requests=of(adapter))
            assert found == {"samples": [[1, "length", [[0, version]], []]]}
        await client.ask("begin_update", adapter=2)
        assert await client.ask("end_update", version=None) == {"missing": []}
        assert "error" in await client.answer(running)
        await client.ask("begin_update", adapter=0)
        await client.ask("end_update", version=9)
        assert await client.ask("generate", requests=of(2)) == {"not_ready": "no update has sent adapter 2"}

    with_server(work)


def test_an_update_that_lacks_a_weight_is_none() -> None:
    async def work(client: Client) -> None:
        client.engine.missing = ["w"]
        await client.ask("begin_update")
        assert await client.ask("end_update", version=1) == {"missing": ["w"]}
        assert client.noted() == ["begin_update", "end_update True"]
        assert await client.generate() == {"not_ready": NOT_COMPLETE}

    with_server(work)


def test_an_engine_that_was_put_to_sleep_goes_on_with_new_weights_and_its_cache() -> None:
    async def work(client: Client) -> None:
        assert await client.ask("wake", kv_cache=True) == {}  # it is awake
        assert client.noted() == ["resume"]
        for _ in range(2):
            await client.ask("sleep")
        assert client.noted() == ["sleep"]
        reason = "it was put to sleep, and its weights were not sent again"
        assert await client.generate() == {"not_ready": reason}
        assert await client.ask("wake", kv_cache=False) == {}
        await client.ask("begin_update")
        await client.ask("end_update", version=1)
        assert client.noted() == ["wake weights", "begin_update", "end_update True"]
        assert await client.generate() == {"not_ready": NO_CACHE}
        assert await client.ask("wake", kv_cache=True) == {}
        assert client.noted() == ["wake kv_cache", "resume"]
        assert await client.generate() == {"samples": [[1, "length", [[0, 1]], []]]}

    with_server(work)


def test_a_probe_is_a_request_like_any_other() -> None:
    async def work(client: Client) -> None:
        for _ in range(2):  # the first one sees that there is progress to tell of
            assert await client.ask("probe") == {}
        [asked] = client.engine.asked
        assert set(asked) == set(described(1)) - {"request_id", "n", "images"}

    with_server(work)


def test_a_probe_that_has_become_needless_ends() -> None:
    async def work(client: Client) -> None:
        client.engine.stuck = True
        await client.ask("probe")
        probe = client.send("probe")
        await client.engine.begun.wait()
        client.engine.tokens += 1  # of another request
        assert await client.answer(probe) == {}
        client.engine.begun.clear()
        probe = client.send("probe")
        await client.engine.begun.wait()
        await client.ask("begin_update")  # no token is to be expected
        assert await client.answer(probe) == {}

    with_server(work)


def test_the_load_is_reported_during_generation_whenever_it_is_another() -> None:
    async def work(client: Client) -> None:
        client.engine.reported = {"running": 3}
        await asyncio.sleep(3 * REPORT_SECONDS)
        await client.ask("health")
        assert client.loads == []  # nothing is under way
        generating = client.send("generate", requests=[described(2)])
        for load in ({"running": 1}, {"running": 2}):
            client.engine.reported = load
            await asyncio.sleep(3 * REPORT_SECONDS)
            await client.ask("health")
        assert client.loads == [{"running": 1}, {"running": 2}]
        client.send("cancel", call=generating)
        await client.answer(generating)

    with_server(work)


def test_modules_are_not_walked_through_while_an_engine_serves(monkeypatch):
    done: list[str] = []

    async def start(settings: dict[str, Any]) -> Noting:
        done.append("start")
        return Noting()

    async def served() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        serving = asyncio.create_task(serve(theirs, {"adaptor": "made_up_adaptor", "loaded": True}))
        with ours:
            await asyncio.wait_for(asyncio.get_running_loop().sock_recv(ours, 1), SECONDS)
            serving.cancel()
            await asyncio.wait([serving])

    monkeypatch.setitem(sys.modules, "made_up_adaptor", SimpleNamespace(start=start))
    for name in ("collect", "freeze"):
        monkeypatch.setattr(gc, name, lambda name=name: done.append(name))
    asyncio.run(served())
    assert done == ["start", "collect", "freeze"]


def test_a_text_ends_a_sample_in_the_engine():
    async def work(client: Client) -> None:
        for stop, tokens, reason in (
            (("7 8 ", "no"), 9, "stop"),
            (("8 9 ",), 10, "stop"),  # 9 is special
            (("8 10 ",), 11, "stop"),  # and may stand within a text
            (("no",), 30, "abort"),  # of this engine, at max_tokens
        ):
            client.engine.aborted.clear()
            sampling = SamplingParams(max_tokens=30, stop=stop)
            answer = await client.ask("generate", requests=[messages.described(GenerationRequest("a", [1], sampling))])
            [[length, finish_reason, *_]] = answer["samples"]
            assert (length, finish_reason) == (tokens, reason)
            assert len(client.engine.aborted) == (reason == "stop")
        assert (await client.generate())["samples"][0][:2] == [1, "length"] and client.engine.samples[-1].stops is None

    with_server(work)


def test_without_a_tokenizer_texts_end_no_sample_in_the_engine(tmp_path, capsys):
    async def ready() -> list[bool]:
        stops = StopTexts(str(tmp_path), trust_remote_code=False)
        return [await stops.ready(), await stops.ready(), await StopTexts("", trust_remote_code=False).ready()]

    assert asyncio.run(ready()) == [False, False, False]
    assert capsys.readouterr().out.count("texts end no samples here") == 1
