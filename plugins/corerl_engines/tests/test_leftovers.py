"""Files and processes of engines that ended, were killed or did not start."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from slow_engine import SECONDS, gone

from corerl.errors import ConfigError, RunError
from corerl_engines.process import EngineProcess

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
    monkeypatch.setattr("corerl_engines.launched.LONGEST_TEMPORARY", 1000)
    return folder


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_of_an_engine_is_left_when_the_trainer_is_ended(acme, temporary, end):
    script = TRAINER.format(package=str(acme.kind.package), arguments=acme.arguments, logs=str(acme.logs))
    script = script.replace("kind =", "import corerl_engines.launched as p; p.LONGEST_TEMPORARY = 1000; kind =")
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


def test_the_newest_logs_are_kept_for_their_owner_alone(acme, monkeypatch):
    monkeypatch.setattr("corerl_engines.log.KEPT", 2)
    for _ in range(3):
        process = EngineProcess(acme.kind, None, *acme.arguments, logs=acme.logs)
        assert process.last_lines()
        process.close()
    assert len(list(acme.logs.iterdir())) == 2
    assert {path.stat().st_mode & 0o777 for path in acme.logs.iterdir()} == {0o600}
    assert acme.logs.stat().st_mode & 0o777 == 0o700
