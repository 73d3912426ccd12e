"""The two halves of an engine backend with a made-up engine, which runs in a process of its own.

The engine writes down what reaches it: a line for each request that begins, ends, is aborted or is cancelled.
"""

import asyncio
import time
from pathlib import Path

import pytest

from corerl.config.schema import ModelConfig, RolloutConfig
from corerl.engines.backend import EngineBackend
from corerl.engines.options import EngineOptions
from corerl.engines.process import EngineKind
from corerl.errors import RunError
from corerl.registry.rollout_backends import GenerationRequest, SamplingParams
from corerl.testing.tiny_model import tiny_model

SECONDS = 60
"""deadline of everything that this machine may be too busy for"""

ADAPTOR = """
import asyncio
import pathlib


async def start(settings):
    return Slow(pathlib.Path(settings["diary"]))


class Slow:
    # the second sample of the prompt [0] fails; others have their tokens when they are aborted, short ones at once

    dead, vocabulary, devices = ConnectionError, 300, []

    def __init__(self, diary):
        self.diary, self.aborted, self.parts = diary, {}, [self]

    def progress(self):
        return len(self.aborted)

    def note(self, what, sample_id):
        with self.diary.open("a") as diary:
            diary.write(f"{what} {sample_id.partition('-')[2]}\\n")

    async def generate(self, sample):
        over = self.aborted[sample.engine_id] = asyncio.Event()
        if sample.asked["prompt_ids"] == [0] and sample.index == 1:
            raise ValueError("no such prompt")
        self.note("begin", sample.engine_id)
        try:
            if sample.asked["max_tokens"] > 10:
                await over.wait()
        except asyncio.CancelledError:
            self.note("cancel", sample.engine_id)
            raise
        sample.token_ids, sample.log_probs = [7, 8], [-0.5, -0.25]
        sample.finish_reason = "abort" if over.is_set() else "length"
        self.note("end", sample.engine_id)

    async def abort(self, engine_id):
        if not self.aborted[engine_id].is_set():
            self.note("abort", engine_id)
        self.aborted[engine_id].set()

    async def health(self):
        pass
"""


class Diary:
    def __init__(self, file: Path):
        self.file = file

    def until(self, *lines: str) -> None:
        """Wait until each of the lines is there so many times, and look that nothing else is."""
        end = time.monotonic() + SECONDS
        while sorted(self.lines()) != sorted(lines):
            assert time.monotonic() < end, f"the engine wrote {self.lines()}, not {list(lines)}"
            time.sleep(0.01)

    def lines(self) -> list[str]:
        return self.file.read_text().splitlines() if self.file.exists() else []


@pytest.fixture
def diary(tmp_path):
    return Diary(tmp_path / "diary")


@pytest.fixture
def backend(tmp_path, diary):
    package = tmp_path / "acme_engine"
    package.mkdir()
    (package / "adaptor.py").write_text(ADAPTOR)
    library = tmp_path / "library"
    library.mkdir()
    (library / "acme.py").write_text("__version__ = '1.0'\n")
    backend = EngineBackend(
        EngineKind("acme", "Acme", package),
        ((1, 0), (2, 0)),
        ModelConfig(path=str(tiny_model()), dtype="fp32"),
        RolloutConfig(),
        "cpu",
        EngineOptions(start_timeout=SECONDS, timeout=SECONDS),
        {"PYTHONPATH": str(library)},
        {"diary": str(diary.file)},
    )
    yield backend
    backend.close()


def request(name, max_tokens=1000, n=1, prompt=(1, 2)):
    return GenerationRequest(name, list(prompt), SamplingParams(max_tokens=max_tokens, n=n))


def in_time(work):
    return asyncio.run(asyncio.wait_for(work, SECONDS))


def test_a_call_that_is_cancelled_ends_each_of_its_requests_in_the_engine_and_no_other(backend, diary):
    async def work():
        calls = [asyncio.create_task(backend.generate([request(name, n=2)])) for name in ("kept", "dropped")]
        while len(diary.lines()) < 4:
            await asyncio.sleep(0.01)
        calls[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[1]
        await asyncio.to_thread(diary.until, *["begin 0-0.", "begin 0-1."] * 2, "cancel 0-0.", "cancel 0-1.")
        backend.abort(["kept"])
        return await calls[0]

    [completions] = in_time(work())
    assert [completion.finish_reason for completion in completions] == ["abort", "abort"]


def test_a_sample_that_fails_ends_all_others_of_its_call_in_the_engine(backend, diary):
    async def work():
        with pytest.raises(RunError, match="the Acme engine refused: ValueError: no such prompt"):
            await backend.generate([request("a"), request("b", n=2, prompt=[0]), request("c")])

    in_time(work())
    diary.until(*["begin 0-0.", "cancel 0-0."] * 3)


def test_an_abort_reaches_the_engine_and_keeps_what_was_generated(backend, diary):
    async def work():
        call = asyncio.create_task(backend.generate([request("long", n=2), request("short", max_tokens=2)]))
        while sum(line.startswith("begin") for line in diary.lines()) < 3:
            await asyncio.sleep(0.01)
        backend.abort(["long", "unheard of"])
        return await call

    long, [short] = in_time(work())
    assert [(completion.finish_reason, list(completion.token_ids)) for completion in long] == [("abort", [7, 8])] * 2
    assert (short.finish_reason, list(short.log_probs)) == ("length", [-0.5, -0.25])
    lines = [line.split()[0] for line in diary.lines()]
    assert (lines.count("abort"), lines.count("cancel")) == (2, 0)
