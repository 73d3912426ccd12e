import json
import os
import subprocess
import sys
import time

import pytest

from corerl.cli.main import run
from corerl_check.run_status import RunStatus, write_status
from corerl_tools.runs import duration
from rights import rights_of_anybody


def make_run(folder, started, records, **status):
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("model: {path: m}\n")
    os.utime(folder / "config.yaml", (started, started))
    (folder / "plugins.json").write_text("[]")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if status:
        write_status(folder, RunStatus(total_steps=9, host="h", pid=1, process="p", started=started, **status))


def test_runs_are_listed_with_state_step_and_last_scores_the_newest_last(tmp_path, capsys):
    records = [{"step": 1, "critic/score/mean": 0.25, "val-core/x/reward/mean@1": 0.125}, {"step": 2}]
    make_run(tmp_path / "b" / "2", 2000.0, records, state="failed", ended=2100.0, error="RunError: step 2: no luck")
    make_run(tmp_path / "a" / "1", 1000.0, records, state="running")
    make_run(tmp_path / "c" / "3", 3000.0, [])
    (tmp_path / "b" / "2" / "checkpoints" / "inner").mkdir(parents=True)
    (tmp_path / "b" / "2" / "checkpoints" / "inner" / "config.yaml").write_text("a model's")
    assert run(["runs", str(tmp_path)]) == 0
    header, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert header == ["run", "state", "step", "reward", "val", "started", "for"]
    assert rows[0][:5] == ["a/1", "running", "2/9", "0.250", "0.125"] and rows[0][-3:] == ["h,", "process", "1"]
    assert rows[1][:5] == ["b/2", "failed", "2/9", "0.250", "0.125"]
    assert " ".join(rows[1][-8:]) == "min 40 s RunError: step 2: no luck"
    assert rows[2] == ["c/3", "unknown", "0"]


def test_a_run_of_a_clock_that_is_ahead_has_no_negative_time(tmp_path, capsys):
    ahead = time.time() + 86_500
    make_run(tmp_path / "a" / "1", ahead, [], state="running")
    make_run(tmp_path / "b" / "1", ahead, [], state="finished", ended=ahead - 5)
    assert run(["runs", str(tmp_path)]) == 0
    _, *rows = capsys.readouterr().out.splitlines()
    assert all("in 1 d" in row and "0 s" in row and "-" not in row.split()[2:] for row in rows)


def test_names_that_the_terminal_cannot_print_are_escaped(tmp_path):
    make_run(tmp_path / "模型" / "1", 1000.0, [])
    command = [sys.executable, "-m", "corerl", "runs", str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "latin-1"}, capture_output=True, timeout=60)
    assert done.returncode == 0 and rb"\u6a21\u578b/1" in done.stdout


def test_a_run_without_its_config_is_listed(tmp_path, capsys):
    make_run(tmp_path / "a" / "1", 1000.0, [{"step": 1}])
    (tmp_path / "a" / "1" / "config.yaml").unlink()
    assert run(["runs", str(tmp_path)]) == 0
    assert "a/1" in capsys.readouterr().out


def test_a_folder_without_runs_is_no_error(tmp_path, capsys):
    assert run(["runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"no run below {tmp_path}\n"


def test_durations_have_two_units():
    assert [duration(seconds) for seconds in (0.4, 59, 60, 3661, 90000, 86400 * 3)] == [
        "0 s",
        "59 s",
        "1 min",
        "1 h 1 min",
        "1 d 1 h",
        "3 d",
    ]


@pytest.mark.parametrize(
    ("file", "text"),
    [("status.json", "{}"), ("status.json", "[" * 9999), ("metrics.jsonl", "1\n"), ("metrics.jsonl", '{"step": []}\n')],
)
def test_a_damaged_run_is_a_line_and_its_report_an_error(tmp_path, capsys, file, text):
    run_folder = tmp_path / "runs" / "a"
    run_folder.mkdir(parents=True)
    (run_folder / "config.yaml").write_text("{}")
    (run_folder / "plugins.json").write_text("[]")
    (run_folder / "metrics.jsonl").write_text('{"step": 1}\n')
    (run_folder / file).write_text(text)
    assert run(["runs", str(tmp_path / "runs")]) == 0
    assert "unreadable" in capsys.readouterr().out
    assert run(["report", str(run_folder)]) == 2
    assert f"{file} is damaged" in capsys.readouterr().err


def test_what_may_not_be_read_is_named_and_the_rest_is_listed(tmp_path, capsys):
    make_run(tmp_path / "a" / "1", 1000.0, [])
    make_run(tmp_path / "b" / "1", 2000.0, [])
    make_run(tmp_path / "c" / "1", 3000.0, [])
    closed = (tmp_path / "a" / "1", tmp_path / "b")
    for folder in closed:
        folder.chmod(0)
    try:
        with rights_of_anybody():
            assert run(["runs", str(tmp_path)]) == 0
    finally:
        for folder in closed:
            folder.chmod(0o755)
    rows = sorted(line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:])
    assert rows == [["a/1", "unreadable"], ["b", "unreadable"], ["c/1", "unknown"]]
