"""A made-up engine with a core in a process of its own, which works, rests or hangs as it is asked."""

import time
from pathlib import Path

from corerl_engines.liveness import Patience
from corerl_engines.process import EngineKind, EngineProcess
from corerl_engines.remote.ending import members

SECONDS = 120
"""deadline of everything that this machine may be too busy for"""


ADAPTOR = """
import asyncio
import itertools
import pathlib
import sys

CORE = '''
import sys, time
for line in sys.stdin:
    what, seconds, number = line.split()
    end = time.monotonic() + float(seconds)
    while what == "work" and time.monotonic() < end:
        pass
    if what == "rest":
        time.sleep(float(seconds))
    print(number, flush=True)
'''

WORK = {0: ("token", 0), 1: ("rest", 0.1), 2: ("work", 2), 3: ("rest", 600), 5: ("work", 600), 6: ("rest", 0.1)}


async def start(settings):
    engines = [await start_one(settings) for _ in range(settings.get("parts", 1))]
    return Both(engines) if len(engines) > 1 else engines[0]


async def start_one(settings):
    pipe = asyncio.subprocess.PIPE
    core = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", CORE, stdin=pipe, stdout=pipe)
    pathlib.Path(settings["core"]).write_text(str(core.pid))
    return Slow(core)


class Slow:
    # tokens come from the core: of the prompt [1] each after 0.1 s, of [2] after work, of [3] after nothing for long;
    # [4] waits for a token that never comes, whatever the core does, of [5] after work for long

    dead, vocabulary, devices = ConnectionError, 300, []

    def __init__(self, core):
        self.core, self.parts, self.answers, self.waiting = core, [self], 0, {}
        self.numbers = itertools.count()
        self.reading = asyncio.create_task(self.read())

    def progress(self):
        return self.answers

    async def report(self):
        return {}

    async def read(self):
        while line := await self.core.stdout.readline():
            self.answers += 1
            self.waiting.pop(int(line)).set()

    async def token(self, what, seconds):
        number = next(self.numbers)
        answer = self.waiting[number] = asyncio.Event()
        self.core.stdin.write(f"{what} {seconds} {number}\\n".encode())
        await answer.wait()

    async def generate(self, sample):
        [kind] = sample.asked["prompt_ids"]
        if kind == 4:
            await asyncio.Event().wait()
        for _ in range(sample.asked["max_tokens"]):
            await self.token(*WORK[kind])
            sample.token_ids, sample.log_probs = [*sample.token_ids, 7], [*sample.log_probs, -0.5]
        sample.finish_reason = "length"

    async def begin_update(self):
        pass

    async def end_update(self, complete, adapter):
        return [], {}

    async def resume(self):
        pass

    async def sleep(self):
        await self.token("rest", 600)

    async def health(self):
        pass


class Both:
    # engines side by side: the prompt [6] is the last one's, all others are the first one's

    dead, vocabulary, devices = Slow.dead, Slow.vocabulary, Slow.devices

    def __init__(self, parts):
        self.parts = parts

    def progress(self):
        return [part.progress() for part in self.parts]

    async def report(self):
        return {}

    async def generate(self, sample):
        await self.parts[-1 if sample.asked["prompt_ids"] == [6] else 0].generate(sample)
"""


IMPATIENT = Patience(probe_interval=0.2, probe_timeout=0.4, timeout=SECONDS)


class Acme:
    """The made-up engine's package, its library and the process of its core."""

    def __init__(self, folder: Path):
        self.kind, self.core_file = EngineKind("acme", "Acme", folder / "acme_engine"), folder / "core"
        self.library, self.logs = folder / "library", folder / "logs"
        self.kind.package.mkdir()
        (self.kind.package / "adaptor.py").write_text(ADAPTOR)
        self.library.mkdir()
        (self.library / "acme.py").write_text("__version__ = '1.0'\n")

    @property
    def core(self) -> int:
        return int(self.core_file.read_text())

    @property
    def arguments(self):
        return {"PYTHONPATH": str(self.library)}, {"core": str(self.core_file), "loaded": True}

    def start(self, patience=IMPATIENT, parts=1):
        environment, settings = self.arguments
        process = EngineProcess(self.kind, None, environment, settings | {"parts": parts}, patience, self.logs)
        process.wait_for("ready", SECONDS, "start")
        return process


def request(prompt, max_tokens=1):
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "stop_token_ids": [], "ignore_eos": False, "seed": 0}
    return {"request_id": "r", "adapter": 0, "prompt_ids": [prompt], "n": 1, "max_tokens": max_tokens, **sampling}


def gone(group):
    end = time.monotonic() + SECONDS
    while members(group) and time.monotonic() < end:
        time.sleep(0.02)
    return not members(group)
