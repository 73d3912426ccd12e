"""Limits that a process gives itself before it becomes the command (setrlimit(2), user_namespaces(7)).

The keeper imports this file alone, so it imports nothing of CoreRL.
"""
# ruff: noqa: PTH123, PTH208 - a keeper imports little

import contextlib
import ctypes
import os
import resource
from typing import Any

import groups  # type: ignore[import-not-found]

PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 4, 38
CLONE_NEWUSER = 0x10000000


def confine(settings: dict[str, Any], group: str) -> None:
    """Limit this process and all that it starts.

    Args:
        settings: of :meth:`corerl_harness.process.Command.settings`.
        group: control group; '' for none.

    Raises:
        OSError: a limit cannot be set.
    """
    limits = settings["limits"]
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    os.nice(5)  # the run and the keeper come first
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not limits["rlimits"]:
        return
    if group:
        groups.join(group)
    _lower(resource.RLIMIT_DATA, limits["memory"])
    _lower(resource.RLIMIT_FSIZE, limits["file"])
    if settings["user"] is not None:
        _become(settings["user"])
    if not group and os.geteuid() != 0:
        _limit_tasks(limits["tasks"], settings["own_users"])
    ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _lower(what: int, most: int) -> None:
    _, hard = resource.getrlimit(what)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))


def _become(user: int) -> None:
    """Give up root for another user; its group has the same number."""
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # or /proc/self belongs to root


def _limit_tasks(most: int, own_users: bool) -> None:
    """Limit processes and threads: of this command alone in a user namespace of its own, else beside the user's."""
    others = 0
    if not own_users or not _own_users():
        others = _tasks_of(os.getuid())
    _lower(resource.RLIMIT_NPROC, others + most)


def _own_users() -> bool:
    """Enter a user namespace, in which the kernel counts anew (since Linux 5.14); whether it is allowed."""
    user, group = os.getuid(), os.getgid()
    release = tuple(int("0" + "".join(filter(str.isdigit, part))) for part in os.uname().release.split(".")[:2])
    if release < (5, 14) or ctypes.CDLL(None).unshare(CLONE_NEWUSER):
        return False
    for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{file}", "w") as map_file:
            map_file.write(text)
    return True


def _tasks_of(user: int) -> int:
    total = 0
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == user:  # noqa: PTH116
                total += len(os.listdir(f"/proc/{pid}/task"))
    return total
