"""Engines that hang, and engines that only take their time: a made-up one with a core in a process of its own."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.errors import ConfigError, RunError
from corerl.rollout.engines import Engines
from corerl.rollout.worker import RolloutWorker
from corerl_engines.backend import EngineBackend
from corerl_engines.liveness import Patience, Silence
from corerl_engines.options import EngineOptions
from corerl_engines.process import EngineKind, EngineProcess
from corerl_engines.remote.ending import members
from corerl_testing.tiny_model import tiny_model

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

    async def end_update(self, complete):
        return [], set()

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


@pytest.fixture
def acme(tmp_path):
    return Acme(tmp_path)


def request(prompt, max_tokens=1):
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "stop_token_ids": [], "ignore_eos": False, "seed": 0}
    return {"request_id": "r", "prompt_ids": [prompt], "n": 1, "max_tokens": max_tokens, **sampling}


def gone(group):
    end = time.monotonic() + SECONDS
    while members(group) and time.monotonic() < end:
        time.sleep(0.02)
    return not members(group)


def error_of(process, future):
    with pytest.raises(RunError) as raised:
        process.checked(future.result(SECONDS)[0])
    assert gone(process.pid)
    process.close()
    return str(raised.value)


@pytest.mark.parametrize("who", ["core", "leader"])
def test_an_engine_that_is_stopped_while_it_generates_is_ended(acme, who):
    process = acme.start()
    future = process.submit("generate", requests=[request(1, 10_000)])[1]
    os.kill(acme.core if who == "core" else process.pid, signal.SIGSTOP)
    message = error_of(process, future)
    what = rf"the Acme engine \(process {process.pid}\) hangs: it did not answer a probe, which asks for one token,"
    how_long = r"for \S+ s, in which its processes did nothing \(rollout\.options\.probe_timeout\)"
    assert re.fullmatch(rf"{what} {how_long}; its log: {acme.logs}/acme-\S+\.log", message)


def test_an_engine_that_waits_for_ever_is_ended(acme):
    process = acme.start()
    assert "hangs: it did not answer a probe" in error_of(process, process.submit("generate", requests=[request(3)])[1])


def test_an_operation_that_an_engine_does_nothing_about_ends_it(acme):
    process = acme.start()
    assert "hangs: it did not answer sleep for" in error_of(process, process.submit("sleep")[1])


def test_an_operation_past_its_own_deadline_ends_the_engine(acme):
    process = acme.start(Patience())
    with pytest.raises(
        RunError, match=r"^sleep in the Acme engine \(rollout\.options\.timeout\) took longer than 0\.3"
    ):
        process.ask("sleep", 0.3)
    with pytest.raises(RunError, match="took longer than"):
        process.ask("health", SECONDS)
    assert gone(process.pid)
    process.close()


@pytest.mark.parametrize("prompt", [1, 2], ids=["tokens", "work"])
def test_an_engine_that_brings_forth_tokens_or_works_is_left_alone(acme, prompt):
    process = acme.start(Patience(0.2, 1.0, SECONDS))
    process.submit("generate", requests=[request(4)])  # goes on all the time
    tokens = {1: 25, 2: 1}[prompt]
    header, _ = process.submit("generate", requests=[request(prompt, tokens)])[1].result(SECONDS)
    assert header["samples"] == [[tokens, "length", [[0, 0]]]]
    process.close()


def test_an_engine_that_hangs_beside_others_is_noticed_while_those_send_responses(acme):
    process = acme.start(Patience(probe_interval=0.5, probe_timeout=0.5, timeout=SECONDS), parts=2)
    hanging = process.submit("generate", requests=[request(6, 10_000)])[1]

    def responses(seconds):
        number, end = 0, time.monotonic() + seconds
        while not hanging.done() and time.monotonic() < end:
            with suppress(RunError):  # once it is ended
                process.checked(process.submit("generate", requests=[request(1)])[1].result(SECONDS)[0])
                number += 1
        return number

    responses(3)
    assert not hanging.done()  # all of them are well
    os.kill(acme.core, signal.SIGSTOP)
    assert responses(30) > 2 and hanging.done()
    assert "hangs: it did not answer a probe" in error_of(process, hanging)


def test_an_engine_that_works_without_a_token_has_the_deadline_of_operations(acme):
    process = acme.start(Patience(0.1, 0.4, 1.2))
    message = error_of(process, process.submit("generate", requests=[request(5)])[1])
    assert message.partition("; its log")[0].endswith("in which its processes were at work (rollout.options.timeout)")


def test_an_update_that_takes_its_time_between_two_buckets_is_left_alone(acme):
    process = acme.start()
    future = process.submit("generate", requests=[request(4)])[1]
    process.ask("begin_update", SECONDS)
    time.sleep(1.5)  # twice as long as an engine that generates would have
    process.ask("end_update", SECONDS, version=1)
    assert not future.done()
    process.close()


def test_requests_of_an_engine_that_hangs_are_given_to_the_next_one(acme, capsys):
    def start(model, rollout, *, device):
        deadlines = {"probe_interval": 0.2, "probe_timeout": 0.4, "timeout": SECONDS, "start_timeout": SECONDS}
        options = EngineOptions(**deadlines, log_folder=str(acme.logs))
        environment, settings = acme.arguments
        return EngineBackend(acme.kind, ((1, 0), (2, 0)), model, rollout, device, options, environment, settings)

    class Runtime:
        def send_weights(self, actor, rollout, version, *, verify):
            stopped.append(version)

    stopped = []
    worker = RolloutWorker.__new__(RolloutWorker)
    model = ModelConfig(path=str(tiny_model()), dtype="fp32")
    worker.timeout = float(SECONDS)
    worker._start = lambda: start(model, RolloutConfig(), device="cpu")
    worker.backend = worker._start()
    first = worker.backend.pid
    os.kill(acme.core, signal.SIGSTOP)
    requests = [GenerationRequest(name, [0], SamplingParams(max_tokens=2)) for name in "ab"]
    finished = {}
    asyncio.run(Engines(Runtime(), None, worker, 3).generate(requests, finished.__setitem__))
    assert [list(finished[row][0].token_ids) for row in range(2)] == [[7, 7]] * 2
    assert worker.backend.pid != first
    assert stopped == [0]
    line = rf"the Acme engine \(process {first}\) hangs: .*; it is started again \(1 of rollout\.max_restarts = 3\)\n"
    assert re.fullmatch(line, capsys.readouterr().err)
    worker.close()


TRAINER = """
    import signal, sys, time
    from pathlib import Path
    from corerl_engines.liveness import Patience, Silence
    from corerl_engines.process import EngineKind, EngineProcess
    kind = EngineKind("acme", "Acme", Path({package!r}))
    process = EngineProcess(kind, None, *{arguments!r}, Patience(), Path({logs!r}))
    process.wait_for("ready", 120, "start")
    print(process.pid, flush=True)
    time.sleep(600)
"""


def left_in(folder):
    return [path for path in folder.rglob("*") if not path.name.startswith("torchinductor")]


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """This process's folder for temporary files, and of what it starts."""
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("corerl_engines.process.LONGEST_TEMPORARY", 1000)
    return folder


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_of_an_engine_is_left_when_the_trainer_is_ended(acme, temporary, end):
    script = TRAINER.format(package=str(acme.kind.package), arguments=acme.arguments, logs=str(acme.logs))
    script = script.replace("kind =", "import corerl_engines.process as p; p.LONGEST_TEMPORARY = 1000; kind =")
    trainer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    with trainer.stdout:
        leader = int(trainer.stdout.readline())
        assert left_in(temporary)
        trainer.send_signal(end)
        trainer.wait()
    assert gone(leader)
    assert left_in(temporary) == []
    assert not acme.logs.exists()


@pytest.mark.parametrize("how", ["closed", "killed", "failed start"])
def test_nothing_of_an_engine_is_left_but_a_log_that_an_error_named(acme, temporary, how):
    if how == "failed start":
        (acme.kind.package / "adaptor.py").write_text("raise RuntimeError('no kernel fits')")
        process = EngineProcess(acme.kind, None, *acme.arguments, logs=acme.logs)
        with pytest.raises(RunError, match="no kernel fits") as error:
            process.wait_for("ready", SECONDS, "start")
    else:
        process = acme.start()
        assert os.environ["TMPDIR"] == str(temporary)
        environment = Path(f"/proc/{process.pid}/environ").read_text()
        assert f"TMPDIR={temporary}/corerl-acme-" in environment
    if how == "killed":
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(RunError, match="ended with SIGKILL") as error:
            process.ask("health", SECONDS)
    process.close()
    assert left_in(temporary) == []
    if how == "failed start":
        [log] = acme.logs.iterdir()
        assert str(log) in str(error.value)
        assert "no kernel fits" in log.read_text()


def test_nothing_is_left_of_an_interpreter_that_cannot_be_run(acme, temporary, tmp_path):
    program = tmp_path / "python"
    program.write_text("not a program")
    program.chmod(0o700)
    with pytest.raises(ConfigError, match=rf"rollout\.options\.python: {program} cannot be run \(.*Exec format error"):
        EngineProcess(acme.kind, str(program), *acme.arguments, logs=acme.logs)
    assert left_in(temporary) == []


def test_what_the_leader_answers_alone_is_no_sign_of_life_of_its_core(acme):
    process = acme.start()
    future = process.submit("generate", requests=[request(3)])[1]
    end = time.monotonic() + SECONDS
    while not future.done() and time.monotonic() < end:
        with suppress(RunError):  # once it is ended
            process.ask("health", SECONDS)
        time.sleep(0.1)
    assert "hangs: it did not answer a probe" in error_of(process, future)


def test_the_newest_logs_are_kept_for_their_owner_alone(acme, monkeypatch):
    monkeypatch.setattr("corerl_engines.log.KEPT", 2)
    for _ in range(3):
        process = EngineProcess(acme.kind, None, *acme.arguments, logs=acme.logs)
        assert process.last_lines()
        process.close()
    assert len(list(acme.logs.iterdir())) == 2
    assert {path.stat().st_mode & 0o777 for path in acme.logs.iterdir()} == {0o600}
    assert acme.logs.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("state", "used", "idle"),
    [("S", 0.1, 4.0), ("S", 0.3, 0.0), ("SR", 0.0, 0.0), ("D", 0.0, 0.0), ("ST", 0.3, 4.0), ("Rt", 0.3, 4.0)],
)
def test_idle_is_who_takes_less_than_a_twentieth_of_a_core_or_was_stopped(monkeypatch, state, used, idle):
    monkeypatch.setattr("corerl_engines.liveness._processes", lambda group: [("S", 0.0), (state, used)])
    silence = Silence(1, 3.0)
    silence.look(4.0, at_processes=True)
    assert (silence.seconds, silence.idle) == (4.0, idle)
    silence.look(100.0, at_processes=False)  # this process was stopped
    assert (silence.seconds, silence.idle) == (10.0, idle)


def test_an_engine_started_without_options_has_their_patience():
    assert EngineOptions().patience == Patience()
