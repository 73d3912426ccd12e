import json
import subprocess
import sys

import pytest

from corerl_check.run_status import recorded
from corerl_tools.status import read_status


def metrics(folder, steps):
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, steps + 1)))


def test_restarts_of_the_workers_are_counted_while_the_run_goes_on_and_stay(tmp_path):
    metrics(tmp_path, 3)
    with recorded(tmp_path, 3) as status:
        status.restarted()
        status.restarted()
        found = read_status(tmp_path)
        assert (found.state, found.restarts, found.ended) == ("running", 2, None)
    found = read_status(tmp_path)
    assert (found.state, found.restarts) == ("finished", 2)


def test_a_run_is_running_then_finished(tmp_path):
    metrics(tmp_path, 3)
    with recorded(tmp_path, 3):
        assert read_status(tmp_path).state == "running"
    status = read_status(tmp_path)
    assert (status.state, status.total_steps, status.error) == ("finished", 3, None)
    assert status.ended >= status.started


def test_a_run_that_returns_before_its_last_step_was_stopped(tmp_path):
    metrics(tmp_path, 2)
    with recorded(tmp_path, 3):
        pass
    assert read_status(tmp_path).state == "stopped"


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [(ValueError("no luck"), "failed", "ValueError: no luck"), (KeyboardInterrupt(), "stopped", None)],
)
def test_an_error_is_told_and_passed_on(tmp_path, error, state, reason):
    with pytest.raises(type(error)), recorded(tmp_path, 3):
        raise error
    status = read_status(tmp_path)
    assert (status.state, status.error) == (state, reason)


def test_a_process_that_is_gone_without_a_word_was_killed(tmp_path):
    code = f"""
import os, signal
from pathlib import Path
from corerl_check.run_status import recorded
with recorded(Path({str(tmp_path)!r}), 3):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "running"
    assert read_status(tmp_path).state == "killed"


def test_a_later_process_of_the_same_number_is_another_one(tmp_path):
    with recorded(tmp_path, 3):
        status = json.loads((tmp_path / "status.json").read_text())
        (tmp_path / "status.json").write_text(json.dumps(status | {"process": status["process"] + "0"}))
        assert read_status(tmp_path).state == "killed"


def test_of_a_run_on_another_machine_its_word_is_taken(tmp_path):
    with recorded(tmp_path, 3):
        status = json.loads((tmp_path / "status.json").read_text())
        (tmp_path / "status.json").write_text(json.dumps(status | {"host": "elsewhere", "pid": 2**22 + 1}))
        assert read_status(tmp_path).state == "running"


def test_a_run_of_before_has_no_status(tmp_path):
    assert read_status(tmp_path) is None


def test_a_line_that_a_kill_cut_off_is_no_step(tmp_path):
    metrics(tmp_path, 3)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "los')
    with recorded(tmp_path, 4):
        pass
    assert read_status(tmp_path).state == "stopped"


def test_a_run_without_metrics_was_stopped(tmp_path):
    with recorded(tmp_path, 3):
        pass
    assert read_status(tmp_path).state == "stopped"
