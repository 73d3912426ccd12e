"""Calls in a process that has made none before."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from corerl.registry import Owner, Registries, Selected
from corerl_testing import CheckFailed, CheckSkipped, fresh, zygote
from corerl_testing.fresh import call_elsewhere
from corerl_testing.zygote import SEED, Job, Kind

CALLS: list[int] = []


def counted(number: int) -> int:
    print("a print is no answer")
    CALLS.append(number)
    return len(CALLS)


def raises(number: int) -> int:
    raise ValueError(f"not {number}")


def leaves(number: int) -> int:
    sys.exit(0)


def ends_the_process(number: int) -> int:
    os._exit(0)


def gives_what_cannot_be_sent(number: int) -> Any:
    return lambda: number


def hangs(number: int) -> int:
    time.sleep(1000)
    return number


def of(target: Any) -> Selected[Any]:
    return Selected(Registries().policy_losses.entry("mine", target, Owner("acme")))


def test_each_call_is_the_first_of_its_process() -> None:
    counted(0)
    assert [call_elsewhere(of(counted), 7), call_elsewhere(of(counted), 7)] == [1, 1]


def hash_of(text: str) -> tuple[int, str]:
    return hash(text), os.environ["CORERL_SEEN"]


def test_hashes_differ_there_and_the_environment_is_that_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORERL_SEEN", "now")
    there = call_elsewhere(of(hash_of), "a")
    assert there == (call_elsewhere(of(hash_of), "a")[0], "now")
    assert there[0] != hash("a")


def test_an_interpreter_that_was_killed_is_started_again() -> None:
    kind = Kind(SEED)
    with zygote.fork(kind, Job(), tell_its_parent).connection as connection:
        parent = connection.recv()
    os.kill(parent, signal.SIGKILL)
    assert call_elsewhere(of(raised_to), 3, kind=kind) == 9


def test_a_process_that_is_killed_leaves_neither_interpreter_nor_folder() -> None:
    program = "import os, signal; from corerl_testing import zygote; kind = zygote.Kind(); zygote.start(kind); "
    program += "print(zygote._addresses[kind], flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    address = Path(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip())
    ends = time.monotonic() + 60
    while address.parent.exists() and time.monotonic() < ends:
        time.sleep(0.01)
    assert address.name == "s" and not address.parent.exists()


def tell_its_parent(connection: Any) -> None:
    connection.send(os.getppid())


def raised_to(number: int) -> int:
    return number**2


def test_a_process_that_is_not_waited_for_is_ended_with_what_it_started() -> None:
    with zygote.fork(Kind(SEED), Job(), sleeps_beside_another).connection as connection:
        pids = connection.recv()
    ends = time.monotonic() + 60
    while any(map(is_running, pids)) and time.monotonic() < ends:
        time.sleep(0.01)
    assert not any(map(is_running, pids))


def sleeps_beside_another(connection: Any) -> None:
    other = subprocess.Popen(["sleep", "1000"])
    connection.send((os.getpid(), other.pid))
    time.sleep(1000)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (raises, "in a fresh process it raised ValueError: not 3"),
        (leaves, "it ended its process"),
        (ends_the_process, "it ended its process"),
        (gives_what_cannot_be_sent, "gave what no process can send"),
    ],
)
def test_a_call_without_an_answer_fails_at_once(target: Any, message: str) -> None:
    with pytest.raises(CheckFailed, match=message):
        call_elsewhere(of(target), 3)


def test_what_no_module_names_is_skipped() -> None:
    with pytest.raises(CheckSkipped, match="another process cannot import it"):
        call_elsewhere(of(lambda number: number), 3)


def test_a_call_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh, "CALL_SECONDS", 3.0)
    with pytest.raises(CheckFailed, match="gave no answer within 3 s"):
        call_elsewhere(of(hangs), 3)
    monkeypatch.undo()
    assert call_elsewhere(of(counted), 7) == 1
