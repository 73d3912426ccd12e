"""A command under its keeper: limits, and the end of everything that it started.

Attacks start 40 processes at most, each of which sleeps and ends by itself.
"""

import asyncio
import dataclasses
import os
import secrets
import signal
import sys
import time
from pathlib import Path

import pytest

from corerl_harness import groups, process
from corerl_harness.process import Command, Limits

FORKS = """\
import os, sys, time
for _ in range(40):
    try:
        if not os.fork():
            time.sleep(20)
            os._exit(0)
    except OSError as error:
        print(type(error).__name__)
        sys.exit(3)
print("all")
time.sleep(20)
"""

EATER = """\
import os, time
for _ in range(3):
    if not os.fork():
        kept = b"x" * (90 << 20)
        time.sleep(10)
        os._exit(0)
time.sleep(10)
"""


def group():
    return next((parent for parent in groups.parents() if _allows(parent)), "")


def _allows(parent):
    made = groups.make(parent, f"corerl-test-{secrets.token_hex(8)}", 1)
    return bool(made) and groups.remove(made)


@pytest.fixture
def command(tmp_path):
    def made(*words, environment=None, **limits):
        settings = {"seconds": 20.0, "tasks": 64, **limits}
        here = {"PATH": os.environ["PATH"], "MARK": (mark := secrets.token_hex(16)), **(environment or {})}
        return Command(words, str(tmp_path), str(tmp_path), Limits(**settings), mark, here)

    return made


def run(command):
    return asyncio.run(process.run(command))


def python(text):
    return sys.executable, "-I", "-S", "-c", text


def living(mark):
    found = []
    for pid in filter(str.isdecimal, (path.name for path in Path("/proc").iterdir())):
        try:
            if mark.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(int(pid))
        except OSError:
            continue
    return found


def test_a_command_ends_with_its_status_and_output(command):
    ended = run(command("/bin/sh", "-c", "echo one; echo two >&2; exit 7"))
    assert (ended.how, ended.status, ended.output) == ("ended", 7, "one\ntwo\n")


def test_a_command_has_no_variable_but_its_own(command, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    ended = run(command("/usr/bin/env"))
    assert {line.partition("=")[0] for line in ended.output.splitlines()} == {"PATH", "MARK"}


def test_a_command_that_is_missing_is_named(command):
    ended = run(command("/nowhere/agent"))
    assert ended.how == "not started" and "/nowhere/agent" in ended.error


def test_a_late_command_ends_with_all_that_it_started(command):
    late = command("/bin/sh", "-c", "setsid sleep 30 & (setsid sh -c 'sleep 30; sleep 30' &) ; sleep 30", seconds=0.5)
    began = time.monotonic()
    ended = run(late)
    assert ended.how == "timeout" and time.monotonic() - began < 5
    assert living(late.mark) == []


def test_processes_that_outlive_their_command_are_ended_and_counted(command):
    daemon = command("/bin/sh", "-c", "setsid sh -c 'exec sleep 30' </dev/null >/dev/null 2>&1 & sleep 0.2; echo over")
    ended = run(daemon)
    assert (ended.how, ended.output, ended.strays) == ("ended", "over\n", 1)
    assert living(daemon.mark) == []


def test_the_output_is_kept_at_both_ends_and_limited(command):
    ended = run(command(*python("print('a' * 5000, 'b' * 5000)"), kept_output=100))
    assert ended.output.startswith("a" * 50 + "\n[") and ended.output.endswith("b" * 49 + "\n")
    assert run(command(*python("while True: print('x' * 4096)"), output=1 << 20)).how == "output"


def test_memory_of_one_process_is_limited(command):
    ended = run(command(*python("x = bytearray(400 << 20)"), memory=200 << 20))
    assert ended.how == "ended" and "MemoryError" in ended.output


def test_memory_of_all_processes_together_is_limited(command):
    assert run(command(*python(EATER), memory=200 << 20)).how == "memory"


def test_files_are_limited(command):
    big = "with open('big', 'wb') as f:\n    for _ in range(64): f.write(b'x' * (1 << 20))"
    one = run(command(*python(big), file=4 << 20))
    assert one.how == "ended" and one.status != 0
    many = "import time\nfor n in range(8):\n    open(f'f{n}', 'wb').write(b'x' * (4 << 20))\ntime.sleep(10)"
    assert run(command(*python(many), disk=16 << 20)).how == "disk"


@pytest.mark.skipif(not group(), reason="no control group can be made here")
def test_a_control_group_refuses_the_process_beyond_the_limit(command):
    held = dataclasses.replace(command(*python(FORKS), tasks=12), group=group())
    ended = run(held)
    assert (ended.how, ended.output, ended.in_group) == ("tasks", "BlockingIOError\n", True)
    assert living(held.mark) == [] and not (Path(held.group) / held.group_name).exists()


def test_without_a_group_processes_are_counted(command):
    if os.geteuid() != 0:
        pytest.skip("the kernel counts processes of users other than root")
    counted = command(*python(FORKS), tasks=12)
    ended = run(counted)
    assert ended.how == "tasks" and not ended.in_group
    assert living(counted.mark) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may change its user")
def test_another_user_has_a_limit_of_its_own(command, tmp_path):
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o711)
    shell = "id -u; cat /etc/shadow 2>&1; for n in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 5 & done; wait"
    ended = run(dataclasses.replace(command("/bin/sh", "-c", shell, tasks=8), user=54321))
    assert ended.output.startswith("54321\n") and "Permission denied" in ended.output
    assert "fork" in ended.output and ended.tasks <= 8


def test_a_cancelled_run_ends_the_command(command):
    long = command("/bin/sh", "-c", "setsid sleep 30 & sleep 30")

    async def cancel():
        task = asyncio.create_task(process.run(long))
        while not living(long.mark):
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(cancel(), 20))
    assert living(long.mark) == []


def test_the_end_of_a_killed_keeper_leaves_no_process(command):
    long = command("/bin/sh", "-c", "echo $PPID > keeper; setsid sleep 30 & sleep 30")

    async def kill():
        task = asyncio.create_task(process.run(long))
        keeper = Path(long.folder) / "keeper"
        while not keeper.exists() or not keeper.read_text():
            await asyncio.sleep(0.02)
        os.kill(int(keeper.read_text()), signal.SIGKILL)
        return await task

    assert asyncio.run(asyncio.wait_for(kill(), 20)).how == "lost"
    assert living(long.mark) == []


def test_a_run_that_is_killed_leaves_no_process(command, tmp_path):
    mark = secrets.token_hex(16)
    text = (
        "import asyncio; from corerl_harness.process import *\n"
        f"asyncio.run(run(Command(['/bin/sh', '-c', 'setsid sleep 30 & sleep 30'], {str(tmp_path)!r}, '/', "
        f"Limits(), {mark!r}, {{'PATH': '/usr/bin:/bin', 'MARK': {mark!r}}})))"
    )
    pid = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", text])
    until = time.monotonic() + 20
    while not living(mark) and time.monotonic() < until:
        time.sleep(0.02)
    assert living(mark)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while living(mark) and time.monotonic() < until:
        time.sleep(0.02)
    assert living(mark) == []
