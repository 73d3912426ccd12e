"""The last thing that runs before the program: this process gives up what the program must not have, and becomes it.

Run as a file, with the folder of this package as the first argument, a settings object in JSON as the second. What goes
wrong is written to the descriptor ``status``, which the execution of the program closes: silence means that the program
runs, with all that was asked for.
"""

import ctypes
import json
import os
import resource
import sys
from typing import Any

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
NOBODY = 65534


def main() -> None:
    """Become the program."""
    sys.path.insert(0, sys.argv[1])
    settings: dict[str, Any] = json.loads(sys.argv[2])
    status = settings["status"]
    os.set_inheritable(status, False)
    try:
        os.chdir(settings["scratch"])
        _limit(settings)
        _isolate(settings)
        os.execve(settings["command"][0], settings["command"], settings["environment"])
    except BaseException as error:
        os.write(status, f"{type(error).__name__}: {error}".encode(errors="replace")[:2000])
        os._exit(1)


def _limit(settings: dict[str, Any]) -> None:
    seconds, memory = settings["cpu_seconds"], settings["memory"]
    limits = (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, settings["file_size"]),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_AS, memory),
    )
    for what, most in limits:
        _, hard = resource.getrlimit(what)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.setrlimit(what, (most, most))


def _isolate(settings: dict[str, Any]) -> None:
    """Network, files, system calls; with ``strict`` false, as much of it as this machine allows.

    Raises:
        OSError: ``strict``, and system calls cannot be filtered, or neither files nor the user can be separated.
    """
    import landlock  # type: ignore[import-not-found]
    import seccomp  # type: ignore[import-not-found]

    failures = []
    for what in (_separate_user, lambda: landlock.restrict(settings["readable"], settings["writable"])):
        try:
            what()
        except OSError as error:
            failures.append(str(error))
    if len(failures) == 2 and settings["strict"]:
        raise OSError(f"this machine allows neither user namespaces nor Landlock ({'; '.join(failures)})")
    try:
        seccomp.install(os.getpid())
    except OSError:
        if settings["strict"]:
            raise


def _separate_user() -> None:
    """A user and a network of its own: the user is nobody, the network has nobody in it."""
    user, group = os.getuid(), os.getgid()
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER | CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")
    for file, text in (("setgroups", "deny"), ("uid_map", f"{NOBODY} {user} 1"), ("gid_map", f"{NOBODY} {group} 1")):
        with open(f"/proc/self/{file}", "w") as map_file:  # noqa: PTH123 - pathlib would be a third of the start
            map_file.write(text)


if __name__ == "__main__":
    main()
