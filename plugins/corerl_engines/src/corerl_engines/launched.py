"""A process of an engine: a program of its environment, in a folder of its own, connected by a socket."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import corerl_torch
from corerl.errors import ConfigError
from corerl_engines import kernels, remote
from corerl_engines.log import EngineLog, default_folder

SHARED = Path(corerl_torch.__file__).parent
"""holds the digests of weights, profiles and the invariant operations, which an engine's process reads too"""

LOG = "engine.log"
TEMPORARY = "tmp"

LONGEST_TEMPORARY = 107 - len("/corerl-sglang-12345678/tmp/") - len("6a2f41a3-c54c-fce8-32d2-0324e1c32e22")
"""longest path of a temporary folder in which the names of an engine's sockets fit"""

OF_ONE_INTERPRETER = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


@dataclass(frozen=True)
class EngineKind:
    """The facts of one engine.

    Attributes:
        name: of the rollout backend, and of the engine's Python package.
        title: the engine's name as written by its makers.
        package: folder of the plugin's package for the engine's process; its module ``adaptor`` starts the engine.
        host_variable: of the environment, the address by which the engine's other nodes reach a process; empty: the
            engine stays on one node.
    """

    name: str
    title: str
    package: Path
    host_variable: str = ""


class Launched:
    """A started process; it leads a group of its own, and ends when the socket's other side is closed.

    Attributes:
        folder: of the process and its temporary files; only this user can read it.
        log: of its output.
    """

    def __init__(
        self,
        kind: EngineKind,
        python: str | None,
        environment: Mapping[str, str],
        connection: socket.socket,
        logs: Path | None = None,
    ) -> None:
        """
        Args:
            python: interpreter; None means this one.
            environment: variables beside those of this process.
            connection: the process's end, which the caller closes here.
            logs: folder for the log, if an error names it; None: a folder of the user.

        Raises:
            ConfigError: there is no such interpreter, or it cannot be run.
        """
        self.interpreter = find_interpreter(python, kind.name)
        self.folder = Path(tempfile.mkdtemp(prefix=f"corerl-{kind.name}-", dir=_folder_for_temporary_files()))
        (self.folder / TEMPORARY).mkdir(mode=0o700)
        self._link_modules()
        (self.folder / kind.package.name).symlink_to(kind.package)
        self.log = EngineLog(self.folder / LOG, logs or default_folder(), kind.name)
        try:
            self.process = subprocess.Popen(
                [self.interpreter, "-m", "corerl_engine", str(connection.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self.log.file,
                stderr=subprocess.STDOUT,
                env=self._environment(environment, foreign=python is not None),
                cwd=self.folder,
                pass_fds=[connection.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            self.remove()
            raise ConfigError("rollout.options.python", f"{self.interpreter} cannot be run ({error})") from error

    def remove(self) -> None:
        """Complete the log, and remove the folder."""
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _link_modules(self) -> None:
        """Make the package ``corerl_engine`` of the process: ``remote``, and the shared modules."""
        package = self.folder / "corerl_engine"
        package.mkdir()
        shared = [SHARED / "weights" / "digest", SHARED / "profiling" / "recorder.py", SHARED / "invariant"]
        for module in [*Path(remote.__file__).parent.glob("*.py"), *shared]:
            (package / module.name).symlink_to(module)

    def _environment(self, own: Mapping[str, str], *, foreign: bool) -> dict[str, str]:
        temporary = {"TMPDIR": str(self.folder / TEMPORARY), **kernels.kept()}
        environment = {**(for_another_interpreter() if foreign else os.environ), **temporary, **own}
        paths = [str(self.folder), environment.get("PYTHONPATH", "")]
        return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}


def _folder_for_temporary_files() -> str | None:
    """The parent folder of an engine's folder; None: this process's temporary folder, whose path is short enough."""
    return "/tmp" if len(tempfile.gettempdir()) > LONGEST_TEMPORARY and os.access("/tmp", os.W_OK) else None


def for_another_interpreter() -> dict[str, str]:
    """This process's variables, without those that change another interpreter's imports."""
    return {name: value for name, value in os.environ.items() if name not in OF_ONE_INTERPRETER}


def find_interpreter(python: str | None, engine: str) -> str:
    """The path of an interpreter; None means this one.

    Raises:
        ConfigError: there is no such program.
    """
    if python is None:
        return sys.executable
    found = shutil.which(Path(python).expanduser())
    if found is None:
        raise ConfigError(
            "rollout.options.python",
            f"{python} is no program: name the interpreter that `corerl engine install {engine}` printed",
        )
    return str(Path(found).absolute())
