"""Run a command under a keeper (:mod:`corerl_harness.keeper`), and end all that it started."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from corerl_harness import families, groups

HERE = Path(__file__).parent
KEEPER = (sys.executable, "-I", "-S", str(HERE / "keeper.py"), str(HERE))
LATE_SECONDS = 90.0
"""after a deadline until a keeper without a report is killed: it ends processes and a container meanwhile"""
MOST_REPORT_BYTES = 16 << 20

How = Literal["ended", "timeout", "memory", "tasks", "disk", "output", "given up", "not started", "lost"]
"""``ended``: by itself; ``lost``: the keeper was killed"""


@dataclass(frozen=True)
class Limits:
    """Of a command with all that it starts.

    Attributes:
        seconds: by the clock.
        memory: bytes of the memory of all processes together, and of the data of each.
        tasks: processes and threads.
        disk: bytes of its folders.
        file: bytes of one file.
        output: bytes that it prints.
        kept_output: bytes of output in the report: the beginning and the end.
        rlimits: false: a container's runtime limits memory, tasks and files.
    """

    seconds: float = 600.0
    memory: int = 4 << 30
    tasks: int = 512
    disk: int = 2 << 30
    file: int = 1 << 30
    output: int = 64 << 20
    kept_output: int = 64 << 10
    rlimits: bool = True


@dataclass(frozen=True)
class Command:
    """A command, ready to start.

    Attributes:
        folder: of its start.
        disk_folder: whose contents count for ``limits.disk``.
        environment: all variables.
        mark: a text in the environment of all processes of the command; those that are left without a keeper are found
            by it.
        group: folder in which the keeper makes a control group; '' for none.
        user: number of the user that runs it; None: the run's own.
        own_users: it may run in a user namespace of its own, so that its processes are counted alone.
    """

    arguments: Sequence[str]
    folder: str
    disk_folder: str
    limits: Limits
    mark: str
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    group: str = ""
    user: int | None = None
    own_users: bool = True

    @property
    def group_name(self) -> str:
        """The name of its control group."""
        return f"corerl-{self.mark}"

    def settings(self) -> dict[str, Any]:
        """For the keeper."""
        limits = self.limits
        return {
            "command": list(self.arguments),
            "environment": dict(self.environment),
            "folder": self.folder,
            "disk_folder": self.disk_folder,
            "seconds": limits.seconds,
            "kept": limits.kept_output,
            "group": [self.group, self.group_name] if self.group else None,
            "user": self.user,
            "own_users": self.own_users,
            "limits": {
                name: getattr(limits, name) for name in ("memory", "tasks", "disk", "file", "output", "rlimits")
            },
        }


@dataclass(frozen=True)
class Ended:
    """The end of a command.

    Attributes:
        how: its reason.
        status: exit code, or minus the number of a signal; None if the keeper ended it.
        seconds: from its start.
        memory, tasks: the most that was seen.
        strays: processes that it left behind, which were killed.
        in_group: a control group held its processes.
        output: what it printed, in part.
        error: the reason, if it was not started.
    """

    how: How
    status: int | None = None
    seconds: float = 0.0
    memory: int = 0
    tasks: int = 0
    strays: int = 0
    in_group: bool = False
    output: str = ""
    output_bytes: int = 0
    error: str = ""


async def run(command: Command) -> Ended:
    """Run a command to its end; if this call is cancelled, the command's processes end first."""
    keeper = await asyncio.create_subprocess_exec(
        *KEEPER,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={},
        start_new_session=True,
        limit=MOST_REPORT_BYTES,
    )
    try:
        return await _report(keeper, command)
    finally:
        await _finish(asyncio.create_task(_end(keeper, command)))


async def _report(keeper: asyncio.subprocess.Process, command: Command) -> Ended:
    assert keeper.stdin is not None and keeper.stdout is not None
    line = b""
    with contextlib.suppress(OSError, TimeoutError, ValueError):
        keeper.stdin.write(json.dumps(command.settings()).encode() + b"\n")
        async with asyncio.timeout(command.limits.seconds + LATE_SECONDS):
            await keeper.stdin.drain()
            line = await keeper.stdout.readline()
    return Ended(**json.loads(line)) if line.endswith(b"\n") else Ended("lost")


async def _end(keeper: asyncio.subprocess.Process, command: Command) -> None:
    """End the keeper; the processes of a keeper that was killed are ended from here."""
    assert keeper.stdin is not None
    keeper.stdin.close()
    try:
        async with asyncio.timeout(LATE_SECONDS):
            status = await keeper.wait()
    except TimeoutError:
        status = -1
    if status != 0:
        await asyncio.to_thread(families.end, keeper.pid)
        with contextlib.suppress(ProcessLookupError):
            keeper.kill()
        await asyncio.to_thread(families.end_marked, command.mark)
        if command.group:
            await asyncio.to_thread(groups.end, str(Path(command.group) / command.group_name))
        await keeper.wait()


async def _finish(task: "asyncio.Task[None]") -> None:
    """Wait for a task that no cancellation interrupts; a cancellation is raised afterwards."""
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError
