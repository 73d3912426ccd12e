"""The two halves of an engine backend with a made-up engine, which runs in a process of its own.

The engine writes down what reaches it: a line for each request that begins, ends, is aborted or is cancelled.
"""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import EngineLoad, GenerationRequest, SamplingParams
from corerl.errors import DeadlineError, RunError
from corerl_engines.backend import EngineBackend
from corerl_engines.options import EngineOptions
from corerl_engines.process import ENDING_SECONDS, EngineKind
from corerl_engines.remote.ending import members
from corerl_engines.weights import HostBucket
from corerl_testing.tiny_model import reference, tiny_model
from corerl_torch.weights import complete

SECONDS = 60
"""deadline of everything that this machine may be too busy for"""

ADAPTOR = """
import asyncio
import os
import pathlib


async def start(settings):
    return Slow(pathlib.Path(settings["diary"]), settings["refused"])


class Slow:
    # the second sample of the prompt [0] fails; others have their tokens when they are aborted, short ones at once;
    # of a bucket it notes the file and its bytes, or refuses it; its digests are wrong

    dead, vocabulary, devices, context = ConnectionError, 300, [], 77

    def __init__(self, diary, refused):
        self.diary, self.aborted, self.parts, self.refused = diary, {}, [self], refused

    def progress(self):
        return len(self.aborted)

    async def report(self):
        begun = len(self.aborted)
        return {"room": 4, "running": min(4, begun), "waiting": max(0, begun - 4)}

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

    async def begin_update(self):
        self.note("begin_update", "")

    async def load(self, bucket, verify):
        if self.refused in [tensor["name"] for tensor in bucket["tensors"]]:
            raise ValueError("no room")
        path = bucket["source"]["path"]
        self.note(f"load {path} {os.stat(path).st_size}", "")
        return [[0] * len(bucket["tensors"])] if verify else []

    async def end_update(self, complete, adapter):
        self.note(f"end_update {complete}", "")
        return [], {}

    async def resume(self):
        self.note("resume", "")

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
def start(tmp_path, diary):
    started = []

    def start(model=None, refused=None):
        package = tmp_path / "acme_engine"
        package.mkdir()
        (package / "adaptor.py").write_text(ADAPTOR)
        library = tmp_path / "library"
        library.mkdir()
        (library / "acme.py").write_text("__version__ = '1.0'\n")
        backend = EngineBackend(
            EngineKind("acme", "Acme", package),
            ((1, 0), (2, 0)),
            ModelConfig(path=str(model or tiny_model()), dtype="fp32"),
            RolloutConfig(),
            "cpu",
            EngineOptions(start_timeout=SECONDS, timeout=SECONDS, bucket_mb=1),
            {"PYTHONPATH": str(library)},
            {"diary": str(diary.file), "refused": refused},
        )
        started.append(backend)
        backend.started()
        return backend

    yield start
    for backend in started:
        backend.close()


@pytest.fixture
def begin(tmp_path):
    """Backends whose engine's library runs these lines when it is imported; nothing waits for them."""
    begun = []

    def begin(lines, **options):
        package, library = tmp_path / "acme_engine", tmp_path / "library"
        package.mkdir()
        (package / "adaptor.py").write_text("")
        library.mkdir()
        (library / "acme.py").write_text(f"__version__ = '1.0'\n{lines}\n")
        kind, model = EngineKind("acme", "Acme", package), ModelConfig(path=str(tiny_model()), dtype="fp32")
        options = EngineOptions(**{"start_timeout": SECONDS, **options})
        environment = {"PYTHONPATH": str(library)}
        begun.append(EngineBackend(kind, ((1, 0), (2, 0)), model, RolloutConfig(), "cpu", options, environment, {}))
        return begun[-1]

    yield begin
    for backend in begun:
        backend.close()


def test_an_engine_still_starts_when_its_backend_is_constructed_and_closing_leaves_no_process(begin):
    backend = begin("import time; time.sleep(600)")
    assert backend.is_starting()
    backend.close()
    assert not backend.is_starting() and not members(backend.pid)
    with pytest.raises(RunError, match="the rollout backend acme is closed"):
        backend.started()


def test_an_engine_that_failed_no_longer_starts_and_each_wait_and_call_raises_its_error(begin):
    backend = begin("raise RuntimeError('no kernel fits')")
    end = time.monotonic() + SECONDS
    while backend.is_starting() and time.monotonic() < end:
        time.sleep(0.05)
    for call in (backend.started, backend.health, backend.sleep, lambda: in_time(backend.generate([request("r")]))):
        with pytest.raises(RunError, match="no kernel fits"):
            call()


def test_the_deadline_of_a_start_counts_from_its_beginning(begin):
    backend = begin("import time; time.sleep(600)", start_timeout=3.0)
    time.sleep(3.5)
    began = time.monotonic()
    with pytest.raises(DeadlineError, match=r"importing Acme \(rollout.options.start_timeout\) took longer than 3 s"):
        backend.started()
    assert time.monotonic() - began < 2.0 + ENDING_SECONDS
    assert not members(backend.pid)


@pytest.fixture
def backend(start):
    return start()


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


def test_the_load_is_known_from_the_start_and_follows_the_engine(backend):
    assert backend.engine_load() == EngineLoad(room=4)
    assert backend.longest_sequence() == 77

    async def work():
        call = asyncio.create_task(backend.generate([request("long", n=6)]))
        while backend.engine_load() != EngineLoad(room=4, running=4, waiting=2):
            await asyncio.sleep(0.01)
        backend.abort(["long"])
        return await call

    assert len(in_time(work())[0]) == 6


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


@pytest.fixture
def larger(tmp_path):
    """Folder of a model of some MiB, and its weights."""
    config = Qwen2Config.from_pretrained(tiny_model())
    config.intermediate_size = 2000
    config.save_pretrained(tmp_path / "larger")
    return tmp_path / "larger", list(Qwen2ForCausalLM(config).named_parameters())


def test_an_update_fills_one_bucket_while_the_engine_loads_the_other(start, diary, larger):
    folder, weights = larger
    backend = start(folder)
    for version in (1, 2):
        backend.update_weights(weights, version)
    once = ["begin_update ", "load", "load", "load", "load", "end_update True ", "resume "]
    lines = [line.split() for line in diary.lines()]
    assert [line[0] for line in lines] == 2 * [line.split()[0] for line in once]
    assert [line[1] for line in lines if line[0] == "end_update"] == ["True"] * 2
    files = [line[1] for line in lines if line[0] == "load"]
    assert files == [files[0], files[1]] * 4 and files[0] != files[1]
    assert {int(line[2]) for line in lines if line[0] == "load"} == {2**20}


def test_an_update_whose_last_bucket_is_refused_is_given_up(start, diary, larger):
    folder, weights = larger
    backend = start(folder, refused=weights[-1][0])
    with pytest.raises(RunError, match="the Acme engine refused: ValueError: no room"):
        backend.update_weights(weights, 1)
    assert diary.lines()[-1].split() == ["end_update", "False"]


def test_an_update_that_arrives_changed_is_given_up(backend, diary):
    weights = dict(reference(tiny_model()).named_parameters())
    with pytest.raises(RunError, match=f"weight '{next(iter(weights))}' arrived changed at the engine"):
        backend.update_weights(weights.items(), 1, verify=True)
    assert diary.lines()[-1].split() == ["end_update", "False"]


def test_weights_on_a_device_that_the_engine_sees_are_handed_over_there(backend, monkeypatch):
    class Bucket:
        def __init__(self, size, device):
            self.source = {"device": f"GPU-{device.index}"}

        def close(self):
            closed.append(self.source["device"])

    closed = []
    monkeypatch.setattr("corerl_engines.backend.device_uuid", lambda device: f"GPU-{device.index}")
    monkeypatch.setattr("corerl_engines.backend.DeviceBucket", Bucket)
    backend._ready["devices"] = ["GPU-1"]
    for _ in range(2):
        backend._reserve(torch.device("cuda", 1))
        assert [type(shared) for shared in backend._shared] == [Bucket] and not closed
    backend._reserve(torch.device("cuda", 0))
    assert [type(shared) for shared in backend._shared] == [HostBucket] * 2
    assert closed == ["GPU-1"]


def test_an_engine_without_needs_gets_whole_weights_and_its_model_must_be_the_trained_one(capsys):
    backend = object.__new__(EngineBackend)  # no process is started
    answers = iter([{"needs": None}, {"needs": [{"norm": [[[0, 4]]]}]}])
    vars(backend).update(
        _kind=EngineKind("acme", "Acme", None),
        _ready={"vocabulary": 1},
        _adapters=0,
        _options=EngineOptions(),
        _process=SimpleNamespace(ask=lambda *_, **__: next(answers)),
        _expected=SimpleNamespace(checked=lambda named: complete(named, {"norm": torch.empty(4)})),
    )
    assert backend.needs([("norm", (4,), "float32")]) is None
    assert "Acme does not state the parts of weights that its ranks need: whole weights" in capsys.readouterr().err
    assert backend.needs([("norm", (4,), "float32")]) == [{"norm": [((0, 4),)]}]
    with pytest.raises(RunError, match="weight 'norm' is missing"):
        backend.needs([])
    backend._adapters = 1
    assert backend.needs([]) is None
