"""The process between a scorer and a program: it sets up the isolation, forks the program, and limits its time.

Run as a file, with this package's folder as the first argument and settings in JSON as the second. It writes lines of
JSON to the descriptor ``status``: ``{"error": …}`` if the isolation cannot be set up, ``{"begun": true}`` once the
program runs with the required isolation, and ``{"how": …, "status": …, "seconds": …}`` when the program has ended.
"""

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import time
from typing import Any

PR_SET_PDEATHSIG = 1
INSIDE = "/scratch"
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
LOOK_SECONDS = 0.025
MOST_THREADS = 128


def main() -> None:
    """Run one program."""
    sys.path.insert(0, sys.argv[1])
    for name in ("landlock", "namespaces", "privileges", "seccomp"):
        importlib.import_module(name)  # imported now, because their files are not visible later
    settings: dict[str, Any] = json.loads(sys.argv[2])
    os.set_inheritable(settings["status"], False)
    try:
        _die_with(settings["parent"])
        processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        _enter(settings)
        pid = _fork(settings)
    except BaseException as error:
        _tell(settings["status"], error=f"{type(error).__name__}: {error}"[:2000])
        os._exit(1)
    most_written = None if settings["namespaces"] else settings["disk"]
    ended = Watch(pid, processes, settings["seconds"], most_written).until_end()
    _tell(settings["status"], **ended)
    os._exit(0)


def _die_with(parent: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _tell(descriptor: int, **what: Any) -> None:
    os.write(descriptor, json.dumps(what).encode() + b"\n")


def _enter(settings: dict[str, Any]) -> None:
    """Enter namespaces, if requested; otherwise make the scratch folder the working directory.

    Raises:
        OSError: the machine does not allow them.
    """
    if settings["namespaces"]:
        import namespaces  # type: ignore[import-not-found]

        namespaces.enter(settings["readable"], DEVICES, settings["scratch"], INSIDE, settings["disk"])
        settings["environment"].update(HOME=INSIDE, TMPDIR=INSIDE)
        settings["scratch"] = INSIDE
    os.chdir(settings["scratch"])


def _fork(settings: dict[str, Any]) -> int:
    """Start the program; a pipe that closes on execution shows that it has started.

    Raises:
        OSError: the program could not be started with the requested isolation.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    complaint, theirs = os.pipe()
    life, ours = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(ours)
        _become(settings, life, theirs)
    for descriptor in (theirs, life):
        os.close(descriptor)
    for standard in (0, 1):  # for the program only
        os.dup2(os.open(os.devnull, os.O_RDWR), standard)
    error = os.read(complaint, 2000)
    os.close(complaint)
    if error:
        raise OSError(error.decode(errors="replace"))
    _tell(settings["status"], begun=True)
    return pid


def _become(settings: dict[str, Any], life: int, complaint: int) -> None:
    try:
        import privileges  # type: ignore[import-not-found]

        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and an execution would inherit that
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        _limit(settings)
        privileges.drop()
        privileges.die_with(life)
        _filter(settings)
        os.execve(settings["command"][0], settings["command"], settings["environment"])
    except BaseException as error:
        os.write(complaint, f"{type(error).__name__}: {error}".encode(errors="replace")[:2000])
        os._exit(1)


def _limit(settings: dict[str, Any]) -> None:
    cpu_seconds = int(settings["seconds"]) + 2
    limits = (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, settings["file_size"]),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_AS, settings["memory"]),
        (resource.RLIMIT_MEMLOCK, 0),
    )
    for what, most in limits:
        _, hard = resource.getrlimit(what)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.setrlimit(what, (most, most))


def _filter(settings: dict[str, Any]) -> None:
    """Restrict files and system calls.

    Raises:
        OSError: Landlock or the filter is requested and missing.
    """
    import landlock  # type: ignore[import-not-found]
    import seccomp  # type: ignore[import-not-found]

    try:
        landlock.restrict([*settings["readable"], *DEVICES], [settings["scratch"], "/dev/null"])
    except OSError as error:
        if settings["landlock"]:
            raise OSError(f"no Landlock ({error})") from error
    try:
        seccomp.install(os.getpid())
    except OSError:
        if settings["strict"]:
            raise


class Watch:
    """Kills a program that has used up its time, has too many threads or has written too much.

    Args:
        processes: descriptor of /proc; without it, waiting for a processor counts as used time.
        seconds: of processor time; wall-clock time counts too, except waiting for a processor.
        most_written: bytes; None: no limit, because the folder has one.
    """

    def __init__(self, pid: int, processes: int, seconds: float, most_written: int | None) -> None:
        self._pid, self._processes, self._most, self._most_written = pid, processes, seconds, most_written
        self._start = time.monotonic()
        self._clock = (~pid << 3) | 2  # of all threads of a process: clock_getcpuclockid(3)

    def until_end(self) -> dict[str, Any]:
        """Wait for the end: ``how`` the program ended, its wait ``status`` and its used ``seconds``."""
        how, used = "ended", 0.0
        while True:
            left = max(0.0, min(LOOK_SECONDS, self._most - used))
            signal.sigtimedwait([signal.SIGCHLD], left or LOOK_SECONDS)
            used = max(used, self._used())
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                return {"how": how, "status": os.waitstatus_to_exitcode(status), "seconds": used}
            if how == "ended":
                how = "timeout" if used >= self._most else self._excess()
            if how != "ended":
                os.kill(self._pid, signal.SIGKILL)

    def _used(self) -> float:
        elapsed = time.monotonic() - self._start
        with contextlib.suppress(OSError):
            return max(elapsed - self._waited(), time.clock_gettime(self._clock))
        return elapsed

    def _waited(self) -> float:
        """Longest time, in seconds, that one thread waited for a processor."""
        waits = [self._read(f"task/{thread}/schedstat").split() for thread in self._names("task")]
        return max((int(each[1]) / 1e9 for each in waits if len(each) == 3), default=0.0)

    def _excess(self) -> str:
        if len(self._names("task")) > MOST_THREADS:
            return "threads"
        if self._most_written is not None and self._written() > self._most_written:
            return "disk"
        return "ended"

    def _written(self) -> int:
        """Bytes written by calls, or changed in memory-mapped files."""
        counts = [line.split(":") for line in self._read("io").splitlines()]
        return max((int(count) for name, count in counts if name in ("wchar", "write_bytes")), default=0)

    def _names(self, folder: str) -> list[str]:
        with contextlib.suppress(OSError):
            descriptor = os.open(f"{self._pid}/{folder}", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._processes)
            try:
                return os.listdir(descriptor)  # noqa: PTH208 - a descriptor
            finally:
                os.close(descriptor)
        return []

    def _read(self, file: str) -> str:
        with contextlib.suppress(OSError):
            descriptor = os.open(f"{self._pid}/{file}", os.O_RDONLY, dir_fd=self._processes)
            try:
                return os.read(descriptor, 4096).decode()
            finally:
                os.close(descriptor)
        return ""


if __name__ == "__main__":
    main()
