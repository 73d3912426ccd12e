"""Starts that fail, with this interpreter (which has no vLLM) and made-up vLLMs; no engine is needed."""

import functools
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import gone_within, group_members

from corerl.contracts.config import RolloutConfig
from corerl.errors import ConfigError, DeadlineError, RunError
from corerl_engines.process import EngineProcess
from corerl_vllm.backend import KIND, VllmBackend

Start = Callable[..., VllmBackend]


@pytest.fixture
def start(start: Start) -> Start:
    """Of a vLLM that is made up, which is up or gone within seconds."""
    return functools.partial(start, start_timeout=60.0)


@pytest.fixture
def made_up(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """The environment variables with which ``import vllm`` runs these lines."""

    def make(lines: str) -> dict[str, str]:
        (tmp_path / "vllm").mkdir()
        (tmp_path / "vllm" / "__init__.py").write_text(lines)
        return {"PYTHONPATH": str(tmp_path)}

    return make


def test_an_interpreter_that_is_not_there_is_a_wrong_request(start: Start):
    with pytest.raises(ConfigError, match=r"rollout\.options\.python: /nowhere/python is no program"):
        start(python="/nowhere/python")


def test_a_model_that_cannot_be_split_is_refused_before_the_engine_starts(start: Start):
    with pytest.raises(ConfigError, match=r"tensor_model_parallel_size: the model has 2 attention heads.*: 1, 2 can"):
        start(rollout=RolloutConfig(tensor_model_parallel_size=3))


@pytest.mark.parametrize(
    ("line", "found"), [("assert False", "AssertionError"), ("raise OSError('no ' * 150)", "OSError: no no no")]
)
def test_an_error_is_found_in_the_log_whatever_its_message(
    start: Start, made_up: Callable[[str], dict[str, str]], line: str, found: str
):
    with pytest.raises(RunError, match=rf"ended with .*the last error in its log: {found}"):
        start(environment=made_up(line))


def test_what_follows_from_an_error_is_not_taken_for_it(start: Start, made_up: Callable[[str], dict[str, str]]):
    logged = "(Worker pid=9) ERROR 11-21 16:18:27 [multiproc_executor.py:1063] RuntimeError: no offset"
    follows = "RuntimeError: Worker failed with error 'no offset', please check the stack trace above"
    environment = made_up(f'print({logged!r}); print({follows!r}); raise RuntimeError("the engine\'s core is dead")')
    with pytest.raises(RunError, match=r"ended with .*error in its log: .*RuntimeError: no offset; the last lines"):
        start(environment=environment)


def test_an_environment_without_vllm_is_named_with_the_remedy(start: Start):
    with pytest.raises(RunError, match=r"cannot import vLLM \(ModuleNotFoundError.*corerl engine install vllm"):
        start()


def test_an_untested_version_is_a_warning_or_an_error(
    start: Start, made_up: Callable[[str], dict[str, str]], capsys: pytest.CaptureFixture[str]
):
    environment = made_up("__version__ = '0.25.1'")
    with pytest.raises(RunError, match=r"^vLLM 0\.25\.1 is outside of the tested range \(>=0\.26,<0\.33\): install"):
        start(environment=environment, untested_version="error")
    with pytest.raises(RunError, match=r"ended with .*the last error in its log: ImportError: cannot import name"):
        start(environment=environment)
    assert capsys.readouterr().err == "warning: vLLM 0.25.1 is outside of the tested range (>=0.26,<0.33)\n"


def test_a_start_that_fails_ends_with_the_engines_last_words(start: Start, made_up: Callable[[str], dict[str, str]]):
    environment = made_up("print('looking for kernels')\nraise RuntimeError('no kernel fits this machine')")
    with pytest.raises(RunError) as raised:
        start(environment=environment)
    last_error = "the last error in its log: RuntimeError: no kernel fits this machine; the last lines of its log ("
    assert last_error in str(raised.value)
    assert " ended with exit code 1; " in str(raised.value)


def test_a_start_that_takes_too_long_is_ended_at_its_deadline(start: Start, made_up: Callable[[str], dict[str, str]]):
    environment = made_up("import time\nprint('waiting for a port')\ntime.sleep(600)")
    began = time.monotonic()
    late = r"took longer than 6 s; the last lines of its log \(.*\):\n  waiting for a port"
    with pytest.raises(DeadlineError, match=late):
        start(environment=environment, start_timeout=6)  # on a busy machine, Python starts in 2
    assert time.monotonic() - began < 60  # of 600


def test_an_engine_that_reads_nothing_holds_up_nobody_who_asks(made_up: Callable[[str], dict[str, str]]):
    process = EngineProcess(KIND, None, made_up("import time\ntime.sleep(600)"), {})
    began = time.monotonic()
    for _ in range(100):
        process.submit("generate", requests=["x" * 100_000])  # far more than the socket between the two holds
    with pytest.raises(
        DeadlineError, match=r"health in the vLLM engine \(rollout\.options\.timeout\) took longer than"
    ):
        process.ask("health", 0.2)
    process.close()
    assert time.monotonic() - began < 60  # of 600


def test_the_engines_children_end_although_its_first_process_was_killed_before_the_trainer(
    made_up: Callable[[str], dict[str, str]],
):
    environment = made_up("import subprocess, time\nsubprocess.Popen(['sleep', '600'])\ntime.sleep(600)")
    script = f"""
        import time
        from corerl_engines.process import EngineProcess
        from corerl_vllm.backend import KIND
        print(EngineProcess(KIND, None, {environment!r}, {{}}).pid, flush=True)
        time.sleep(600)
    """
    trainer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    with trainer.stdout:
        leader = int(trainer.stdout.readline())
        end = time.monotonic() + 30
        while not any(Path(f"/proc/{pid}/comm").read_text() == "sleep\n" for pid in group_members(leader)):
            assert time.monotonic() < end
            time.sleep(0.05)
        trainer.send_signal(signal.SIGSTOP)  # so that it cannot see to it itself
        os.kill(leader, signal.SIGKILL)
        trainer.kill()
        trainer.wait()
    assert gone_within(leader, 5)


def test_shared_memory_that_an_engine_did_not_remove_is_removed(
    made_up: Callable[[str], dict[str, str]], tmp_path: Path
):
    named = tmp_path / "named"
    lines = ["import os, time", "from multiprocessing.shared_memory import SharedMemory", "from pathlib import Path"]
    lines += ["shared = SharedMemory(create=True, size=4096)", f"Path('{named}.part').write_text(shared.name)"]
    lines += [f"os.rename('{named}.part', '{named}')", "time.sleep(600)"]
    process = EngineProcess(KIND, None, made_up("\n".join(lines)), {})
    end = time.monotonic() + 30
    while not named.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    shared = Path("/dev/shm") / named.read_text()
    assert shared.exists()
    process.close()
    assert not shared.exists()
    assert gone_within(process.pid, 5)


def test_nothing_is_left_after_close(made_up: Callable[[str], dict[str, str]]):
    process = EngineProcess(KIND, None, made_up("import time\ntime.sleep(600)"), {})
    folder = process.folder
    assert folder.exists()
    process.close()
    process.close()
    assert not folder.exists()
    assert not (Path("/proc") / str(process.pid)).exists()
    with pytest.raises(RunError, match="is closed"):
        process.ask("health", 1)


def test_the_log_is_in_a_folder_of_ones_own(made_up: Callable[[str], dict[str, str]]):
    process = EngineProcess(KIND, None, made_up("import time\ntime.sleep(600)"), {})
    log = process.folder / "engine.log"
    assert stat.S_IMODE(process.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert not list(process.folder.parent.glob(f"{process.folder.name}.*"))
    process.close()
    assert not process.folder.exists()
