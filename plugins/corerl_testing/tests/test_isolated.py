"""The process in which an entry's checks run: nothing that an implementation does ends or hangs the kit."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from planted.scorers.values import contains

from corerl.registry import Owner, Registries, Selected
from corerl_testing import isolated
from corerl_testing.isolated import by_name

CHECK = "number_or_exception_for_empty_responses"


def gone(pid: int) -> bool:
    """Whether a process has ended, within 10 s."""
    ends = time.monotonic() + 10
    while time.monotonic() < ends:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_a_local_function_is_checked_in_a_fork(outcomes: Any, tmp_path: Path) -> None:
    def tells(response: str, *_: Any) -> float:
        (tmp_path / "pid").write_text(str(os.getpid()))
        return 1.0

    assert outcomes("scorers", tells, only=CHECK)[CHECK].status == "ok"
    assert int((tmp_path / "pid").read_text()) != os.getpid()
    isolated.end_running()
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_check_that_ends_the_process_does_not_spoil_the_next(outcomes: Any) -> None:
    def exits(response: str, *_: Any) -> float:
        if not response.strip():
            os._exit(3)
        return 1.0

    results = outcomes("scorers", exits)
    assert results[CHECK].reason == (
        "the scoring of the response '' with ground truth '42' ended the process (exit code 3): raise an exception "
        "instead"
    )
    assert results["number_or_exception_for_garbage_responses"].status == "ok"


@pytest.mark.parametrize("lets_go", [False, True])
def test_a_check_that_hangs_ends(outcomes: Any, monkeypatch: pytest.MonkeyPatch, lets_go: bool) -> None:
    """``pow`` of two integers holds the interpreter's lock."""

    def hangs(response: str, *_: Any) -> float:
        if lets_go:
            time.sleep(100)
        return float(len(str(9**10_000_000_000)))

    monkeypatch.setattr("corerl_testing.scorers.SECONDS", 0.5)
    monkeypatch.setattr(isolated, "GRACE", 1.0)
    reason = outcomes("scorers", hangs, only=CHECK)[CHECK].reason
    assert reason.startswith("the scoring of the response '' with ground truth '42' had not ended after 0.5 s")
    assert ("let no other thread of its process run" in reason) != lets_go


def test_what_an_implementation_starts_ends_with_its_checks(outcomes: Any, tmp_path: Path) -> None:
    """Also a process that left the group."""

    def starts(response: str, *_: Any) -> float:
        if not (tmp_path / "pid").exists():
            process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            (tmp_path / "pid").write_text(str(process.pid))
        return 1.0

    assert outcomes("scorers", starts, only=CHECK)[CHECK].status == "ok"
    isolated.end_running()
    assert gone(int((tmp_path / "pid").read_text()))


def test_what_an_implementation_prints_reads_and_leaves_is_not_seen(
    outcomes: Any, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def noisy(response: str, *_: Any) -> float:
        import tempfile

        print("a line")
        os.write(1, b"another line\n")
        (tmp_path / "folder").write_text(tempfile.mkdtemp())
        return float(len(sys.stdin.read()))

    assert outcomes("scorers", noisy, only=CHECK)[CHECK].status == "ok"
    isolated.end_running()
    assert capfd.readouterr().out == ""
    assert not Path((tmp_path / "folder").read_text()).exists()


PROGRAM = """
import sys, time
from corerl.registry import Owner, Registries
from corerl_testing.checks import checks_of, outcome

def tells(response, ground_truth, data_source, extra_info):
    import os
    print(os.getpid(), file=sys.stderr, flush=True)
    time.sleep(1000)

entry = Registries().scorers.entry("s", tells, Owner("tests"), summary="s")
for check in checks_of(Registries().scorers, entry):
    outcome(check)
"""


def test_the_process_ends_with_its_parent(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    with subprocess.Popen([sys.executable, str(file)], stderr=subprocess.PIPE, text=True) as program:
        assert program.stderr is not None
        child = int(program.stderr.readline())
        program.send_signal(signal.SIGKILL)
        assert gone(child)


ONE_CHECK = """
import os, sys
from corerl.registry import Owner, Registries
from corerl_testing.checks import checks_of, outcome

{before}
entry = Registries().scorers.entry("s", lambda *_: 1.0, Owner("tests"), summary="s")
done = outcome(next(check for check in checks_of(Registries().scorers, entry) if check.name == {check!r}))
os.write(2, f"{{done.status}} {{done.reason}}".encode())
"""


def one_check(before: str) -> str:
    """Status and reason of a check in a fork, after some code in the process that forks."""
    program = ONE_CHECK.format(before=before, check=CHECK)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120).stderr


@pytest.mark.parametrize("closed", ["0", "1", "0, 1"])
def test_standard_descriptors_may_be_closed(closed: str) -> None:
    assert one_check(f"for each in ({closed},): os.close(each)") == "ok "


def test_a_process_that_does_not_start_is_an_error_with_its_exit_code() -> None:
    reason = one_check("os.register_at_fork(after_in_child=lambda: os._exit(5))")
    assert reason.startswith("failed the process of its checks did not start (exit code 5)")


def test_what_another_process_can_import_by_name() -> None:
    def local() -> None: ...

    def entry(target: Any) -> Selected[Any]:
        return Selected(Registries().scorers.entry("s", target, Owner("tests")))

    assert by_name(entry(contains)) is not None
    assert by_name(entry(local)) is None


def test_a_plugin_file_is_loaded_in_a_new_interpreter(tmp_path: Path) -> None:
    """With torch here, a fork is not taken; the file has a scorer and options of its own."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import os\nfrom dataclasses import dataclass\nfrom corerl import hookimpl, option\n\n\n"
        "@dataclass\nclass Options:\n    weight: float = option(2.0, 'of it')\n\n\n"
        "def weighted(response, ground_truth, data_source, extra_info, *, options):\n"
        "    assert os.environ.get('FORKED') is None\n    return options.weight\n\n\n"
        "@hookimpl\ndef register_scorers(register):\n"
        "    register('weighted', weighted, options=Options, summary='s')\n"
    )
    program = (
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "from corerl.cli.main import run\n"
        "import os; os.register_at_fork(after_in_child=lambda: os.environ.update(FORKED='1'))\n"
        f"raise SystemExit(run(['plugins', 'check', 'weighted', '--plugin', {str(file)!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    lines = dict(line.split()[2:4] for line in done.stdout.splitlines())
    assert set(lines.values()) == {"ok"}, done.stdout + done.stderr
