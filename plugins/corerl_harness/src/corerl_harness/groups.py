"""A control group that holds the processes of one command (cgroups(7)), if this machine lets the run make one.

The kernel then refuses the process beyond the limit, and no new process outruns the end of the others. The keeper
imports this file alone, so it imports nothing of CoreRL.
"""
# ruff: noqa: PTH102, PTH106, PTH112, PTH118, PTH123 - a keeper imports little

import contextlib
import os
import signal
import time

END_SECONDS = 10.0


def parents() -> list[str]:
    """The folders of this process' own groups that may limit processes: of version 2, then of ``pids`` in version 1."""
    mounts = {kind: (root, place) for root, place, kind in _mounts()}
    found = []
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        kind = "2" if not controllers else "pids" if "pids" in controllers.split(",") else ""
        if kind in mounts:
            root, place = mounts[kind]
            inner = os.path.relpath(path, root)
            if not inner.startswith(".."):
                found.append((kind, os.path.normpath(os.path.join(place, inner))))
    return [folder for _, folder in sorted(found)]


def make(parent: str, name: str, tasks: int) -> str:
    """Make a group for at most ``tasks`` processes and threads; '' if ``parent`` does not allow it."""
    folder = os.path.join(parent, name)
    try:
        os.mkdir(folder)
    except OSError:
        return ""
    try:
        with open(os.path.join(folder, "pids.max"), "r+") as file:
            file.write(str(tasks))
    except OSError:
        remove(folder)
        return ""
    return folder


def join(folder: str) -> None:
    """Move the calling process into a group.

    Raises:
        OSError: the kernel refuses.
    """
    with open(os.path.join(folder, "cgroup.procs"), "w") as file:
        file.write("0")


def refused(folder: str) -> int:
    """The number of processes and threads that the kernel refused."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_read(os.path.join(folder, "pids.events")).split()[1])
    return 0


def end(folder: str) -> bool:
    """Kill all processes of a group and remove it; whether it is gone."""
    with contextlib.suppress(OSError), open(os.path.join(folder, "pids.max"), "r+") as file:
        file.write("0")  # from here on no process of the group starts another
    until = time.monotonic() + END_SECONDS
    while not remove(folder) and time.monotonic() < until:
        with contextlib.suppress(OSError):
            for pid in map(int, _read(os.path.join(folder, "cgroup.procs")).split()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    return not os.path.isdir(folder)


def remove(folder: str) -> bool:
    """Remove a group without processes; whether it is gone."""
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _mounts() -> list[tuple[str, str, str]]:
    """(root, place, ``2`` or ``pids``) of mounted hierarchies."""
    found = []
    for line in _read("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        root, place = before.split(" ")[3:5]
        kind, _, settings = after.split(" ", 2)
        if kind == "cgroup2":
            found.append((root, place, "2"))
        elif kind == "cgroup" and "pids" in settings.split(","):
            found.append((root, place, "pids"))
    return found


def _read(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""
