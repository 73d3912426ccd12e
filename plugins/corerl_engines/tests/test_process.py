"""An engine's process, with programs in its place."""

import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from corerl.errors import ConfigError, RunError
from corerl_engines import launched as module
from corerl_engines.liveness import Patience
from corerl_engines.process import EngineKind, EngineProcess
from corerl_engines.remote import frames

SECONDS = 120

WAIT = 'cat <&"$3" > asked'
"""until the other side hangs up"""

KIND = EngineKind("made-up", "Made-up", Path(__file__).parent)

Start = Callable[..., EngineProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """An engine's process that runs lines of bash; ``$3`` is its socket."""
    started: list[EngineProcess] = []

    def start(lines: str, patience: Patience | None = None) -> EngineProcess:
        program = tmp_path / "engine"
        program.write_text(f'#!/bin/bash\ncd "{tmp_path}"\n{lines}\n')
        program.chmod(0o755)
        started.append(EngineProcess(KIND, str(program), {}, {}, patience or Patience(), tmp_path / "logs"))
        return started[-1]

    yield start
    for each in started:
        each.close()


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_an_engine_that_ends_without_an_error_is_an_error(start: Start) -> None:
    with pytest.raises(RunError, match=r"^the Made-up engine \(process \d+\) ended with exit code 0; it wrote no log$"):
        start("exit 0").wait_for("ready", SECONDS, "the start")


def test_an_environment_without_the_engine_is_named_with_the_remedy(tmp_path: Path) -> None:
    process = EngineProcess(KIND, None, {}, {}, logs=tmp_path)
    with pytest.raises(
        RunError,
        match=r"cannot import Made-up \(ModuleNotFoundError: No module named 'made-up'\): .*engine install made-up",
    ):
        process.wait_for("imported", SECONDS, "the import")
    process.close()


def test_an_engine_is_asked_for_a_sign_of_life_only_while_something_is_expected(start: Start, tmp_path: Path) -> None:
    (tmp_path / "ready").write_bytes(frames.pack({"event": "ready"}))
    process = start(f'cat ready >&"$3"; {WAIT}', Patience(0.1, SECONDS, SECONDS))
    process.wait_for("ready", SECONDS, "the start")
    asked = tmp_path / "asked"
    time.sleep(0.5)  # twenty looks
    until(asked.exists)
    assert b"probe" not in asked.read_bytes()
    process.submit("generate", requests=[])
    until(lambda: b"probe" in asked.read_bytes())


def test_its_threads_keep_no_process_alive(start: Start) -> None:
    before = set(threading.enumerate())  # those of another test may still end
    start(WAIT)
    own = [each for each in set(threading.enumerate()) - before if each.name.startswith("corerl-made-up")]
    assert len(own) == 3
    assert all(thread.daemon for thread in own)


def test_the_log_that_an_error_named_holds_all_that_was_written_before_the_end(start: Start, tmp_path: Path) -> None:
    process = start(f"echo early; touch early; until [ -e go ]; do sleep 0.01; done; echo late; touch late; {WAIT}")
    until((tmp_path / "early").exists)
    assert process.last_lines().endswith("\n  early")
    (tmp_path / "go").touch()
    until((tmp_path / "late").exists)
    process.close()
    [log] = (tmp_path / "logs").iterdir()
    assert log.read_text() == "early\nlate\n"


def test_sockets_of_an_engine_have_room_for_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as own, socket.socket(socket.AF_UNIX) as named:
        longest = f"{own}/".ljust(module.LONGEST_TEMPORARY, "t")
        monkeypatch.setattr("tempfile.tempdir", longest)
        assert module._folder_for_temporary_files() is None
        folder = Path(longest, "corerl-sglang-12345678", "tmp")
        folder.mkdir(parents=True)
        named.bind(str(folder / "6a2f41a3-c54c-fce8-32d2-0324e1c32e22"))
    monkeypatch.setattr("tempfile.tempdir", f"{longest}t")
    assert module._folder_for_temporary_files() == "/tmp"


def test_an_interpreter_that_cannot_be_run_is_named_although_the_folder_is_gone(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def popen(*_: Any, cwd: Path, **__: Any) -> NoReturn:
        shutil.rmtree(cwd)  # as whoever cleans up the folder for temporary files
        raise FileNotFoundError(cwd)

    monkeypatch.setattr("subprocess.Popen", popen)
    with pytest.raises(ConfigError, match=r"rollout\.options\.python: .*/engine cannot be run"):
        start("exit 0")
