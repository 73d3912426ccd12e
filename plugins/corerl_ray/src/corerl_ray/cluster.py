"""A Ray cluster: found or started."""

import atexit
import contextlib
import ctypes
import functools
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray._common.utils import get_default_ray_temp_dir
from ray._private import services
from ray._private import utils as _private_utils
from ray._private import worker as _private_worker

from corerl.errors import LostError, RunError, Stopped
from corerl_ray.answers import Answers, patience
from corerl_ray.host import hear_of_children
from corerl_ray.joined import join, knock, servers_of
from corerl_ray.options import RayOptions
from corerl_ray.processes import is_alive
from corerl_ray.watcher import MARK, NEEDED, Health, Watcher

SUBREAPER = "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper"
"""variable by which a cluster kills leftovers of a killed worker"""

SHUTDOWN = 30.0
"""seconds for ``ray.shutdown``"""

SHUTDOWN_OF_LOST = 3.0

watcher: Watcher | None = None
"""watches the cluster from outside of this process"""

is_held = False
"""true: this process could not leave a cluster of Ray"""

PR_SET_CHILD_SUBREAPER = 36
"""option of Linux's prctl"""


@dataclass
class Cluster:
    """The cluster of a run.

    Attributes:
        processes: of the cluster that was started here; empty for one that others run.
        health: of its processes or servers without which Ray ends this one.
        session: the folder of sockets and logs of one that was started here.
    """

    is_own: bool
    processes: tuple[int, ...] = ()
    health: Health | Answers = field(default_factory=lambda: Health({}, 0.0))
    session: Path | None = None

    def close(self, *, keep_logs: bool = False) -> None:
        """Leave the cluster; one that was started here ends, and all of its processes and files with it.

        ``ray.shutdown`` waits for the raylet, without a deadline: it has ``SHUTDOWN`` seconds. Once the raylet is
        killed, it mostly returns; if not, this process can only exit: with the code of a run that can go on, if its
        cluster was lost.

        Args:
            keep_logs: an error has named them; those of a lost cluster are kept.
        """
        if not self.is_own:
            return
        is_lost = bool(self.health.look(patiently=False))
        if isinstance(self.health, Answers):
            self.health.end()
        leaving = threading.Thread(target=ray.shutdown, daemon=True)
        leaving.start()
        leaving.join(SHUTDOWN_OF_LOST if is_lost else SHUTDOWN)
        if leaving.is_alive():
            end_processes(self.processes, patience=0.0)
            leaving.join(SHUTDOWN_OF_LOST)
        if leaving.is_alive():
            global is_held
            is_held = True
            code = LostError.exit_code if is_lost else 1
            atexit.register(_exit, code)  # runs before Ray's handler, which waits for the same
            if watcher is not None:
                watcher.send(left=True)
            return
        end_processes(self.processes)
        _end_watcher()
        if self.session is not None and not (is_lost or keep_logs):
            _remove(self.session)


def _remove(session: Path) -> None:
    """The folder, and Ray's link to it: Ray replaces no link that leads nowhere."""
    shutil.rmtree(session, ignore_errors=True)
    latest = session.with_name("session_latest")
    if not latest.exists():
        latest.unlink(missing_ok=True)


def _sessions() -> set[Path]:
    """Folders of clusters that this process has started."""
    folder: str = get_default_ray_temp_dir()  # type: ignore[no-untyped-call]
    return set(Path(folder).glob(f"session_*_{os.getpid()}"))


def connect(options: RayOptions) -> Cluster:
    """Find or start the cluster. A process that is already connected stays connected, also after the run.

    Raises:
        ConfigError: the address is no HOST:PORT.
        DeadlineError: no answer from the address in time.
        RunError: Ray cannot use the cluster, or this process could not leave an earlier cluster.
    """
    if is_held:
        raise RunError("this process could not leave its lost cluster: start the same command again")
    if options.address not in (None, "auto"):
        knock(str(options.address), options.connect_timeout)
    if ray.is_initialized():
        return Cluster(is_own=False)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    global watcher
    mark = f"{os.getpid()}-{time.time_ns()}"
    if options.address is not None:
        with _keeping_sigterm():
            join(quiet, options)
        hear_of_children()
        watcher, servers = Watcher(options.hang_timeout, mark), servers_of()
        watcher.send(servers=servers, logs=_logs())
        health = Answers(servers, patience())
        health.watch()
        return Cluster(is_own=True, health=health)
    watcher = Watcher(options.hang_timeout, mark)  # started before the cluster, which may hang during its start
    before = _sessions()
    try:
        with _keeping_sigterm(), _variable(MARK, mark):
            processes = _start(quiet)
    except BaseException as error:
        _end_watcher()
        for session in _sessions() - before if isinstance(error, Stopped) else ():
            _remove(session)  # no error names its logs
        raise
    hear_of_children()
    _adopt_no_orphans()
    node: Any = _private_worker._global_node
    named = {name: node.all_processes[name][0].process.pid for name in NEEDED}
    watcher.send(processes=named, logs=_logs())
    session = Path(node.get_session_dir_path())
    return Cluster(is_own=True, processes=processes, health=Health(named, options.hang_timeout), session=session)


def _logs() -> str:
    """The folder of Ray's logs on this machine."""
    node: Any = _private_worker._global_node
    return str(node.get_logs_dir_path())


def _end_watcher() -> None:
    global watcher
    if watcher is not None:
        watcher.end()
        watcher = None


def _exit(code: int) -> None:
    """Exit at once: a run whose process Ray does not release has failed, and has reported it."""
    sys.stdout.flush()
    sys.stderr.flush()
    _end_watcher()
    os._exit(code)


def _start(arguments: dict[str, Any]) -> tuple[int, ...]:
    """Start a cluster on this machine and return its processes; if Ray's own deadline passes, try a second time."""
    for is_last in (False, True):
        before = _children()
        try:
            with _variable(SUBREAPER, os.environ.get(SUBREAPER, "true")), _in_own_process_groups():
                ray.init(address="local", include_dashboard=False, **arguments)  # never a cluster of another user
            return tuple(_children() - before)
        except Exception as error:
            ray.shutdown()
            end_processes(tuple(_children() - before), patience=0.0)
            if watcher is not None:
                watcher.send(processes={}, logs="")
            if is_last or "timed out" not in str(error):
                raise RunError(
                    f"no Ray cluster could be started on this machine: {' '.join(str(error).split())} (Ray's logs: "
                    "/tmp/ray/session_latest/logs)"
                ) from error
    raise AssertionError


@contextlib.contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Set a variable for a cluster that is started within."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextlib.contextmanager
def _in_own_process_groups() -> Iterator[None]:
    """A cluster started within gets no signals sent to this process's group, and works until the run ends.

    ``timeout``, ``kill %1`` and terminals send signals to a group. Ray's own processes are protected only on Windows.
    """
    starting: Any = services
    ordinary = starting.ConsolePopen
    starting.ConsolePopen = functools.partial(ordinary, process_group=0)
    try:
        yield
    finally:
        starting.ConsolePopen = ordinary


@contextlib.contextmanager
def _keeping_sigterm() -> Iterator[None]:
    """Keep the handler of SIGTERM. Ray would install handlers that exit, and a handler in C that prints addresses.

    The handler in C cannot be prevented; it is there for the last moments of ``ray.init``.
    """
    before, ordinary = signal.getsignal(signal.SIGTERM), _private_utils.set_sigterm_handler
    _private_utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        _private_utils.set_sigterm_handler = ordinary
        if threading.current_thread() is threading.main_thread():  # required by signal
            signal.signal(signal.SIGTERM, before)


def _adopt_no_orphans() -> None:
    """Undo Ray's setting for this process, under which zombies of leftover subprocesses would gather here.

    Ray's workers check that their raylet exists; the raylet of another controller would count as one.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def end_processes(processes: tuple[int, ...], patience: float = 10.0) -> None:
    """Wait until these processes of this machine have ended, and kill the remaining ones."""
    deadline = time.monotonic() + patience
    while any(map(is_alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in filter(is_alive, processes):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)


def _children() -> set[int]:
    """Child processes of this process."""
    found: set[int] = set()
    for listed in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.update(map(int, listed.read_text().split()))
    return found
