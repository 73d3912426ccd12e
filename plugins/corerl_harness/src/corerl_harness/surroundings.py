"""The isolation of a command: the words that run it in a sandbox or a container."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from corerl_harness.folder import Folder
from corerl_harness.options import CONTAINERS, GIB, HarnessOptions

INSIDE = "/workspace"
"""the folder's name in sandboxes and containers"""
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
SETTINGS = (
    *("/etc/alternatives", "/etc/ssl", "/etc/ca-certificates", "/etc/ld.so.cache", "/etc/localtime", "/etc/hosts"),
    *("/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/passwd", "/etc/group"),
)
"""of /etc: names, certificates and libraries, without keys and passwords"""


@dataclass(frozen=True)
class Started:
    """Words for one command.

    Attributes:
        words: the whole command line, without a secret.
        environment: of the process that the run starts.
        folder: where it starts.
    """

    words: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    folder: str


class Plain:
    """No isolation: the command sees the machine as the run's user, or ``user``, does."""

    def __init__(self, options: HarnessOptions, folder: Folder) -> None:
        self._options, self._folder = options, folder

    @property
    def home(self) -> str:
        """The folder, as the command names it."""
        return str(self._folder.work)

    @property
    def temporary(self) -> str:
        """The folder for temporary files, as the command names it."""
        return str(self._folder.temporary)

    def start(self, words: Sequence[str], environment: Mapping[str, str]) -> Started:
        """A command, ready to start."""
        return Started(words, environment, str(self._folder.work))


class Bubblewrap(Plain):
    """A sandbox without other processes, with the system's programs read-only and the folder under ``/workspace``."""

    home, temporary = INSIDE, "/tmp"

    def start(self, words: Sequence[str], environment: Mapping[str, str]) -> Started:
        """See :meth:`Plain.start`."""
        return Started([*self._sandbox(), "--", *words], environment, str(self._folder.work))

    def _sandbox(self) -> Iterator[str]:
        yield from ("bwrap", "--die-with-parent", "--new-session", "--unshare-user", "--unshare-pid", "--unshare-ipc")
        yield from ("--unshare-uts", "--unshare-cgroup-try", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp")
        for path in self._readable():
            yield from ("--ro-bind-try", path, path)
        yield from ("--bind", str(self._folder.work), INSIDE, "--ro-bind", str(self._folder.tests), "/tests")
        yield from ("--bind", str(self._folder.logs), "/logs", "--chdir", INSIDE)

    def _readable(self) -> Iterator[str]:
        """System and interpreter, shallow paths first, so that a deeper mount is not hidden."""
        paths = {*SYSTEM, *SETTINGS, sys.prefix, sys.base_prefix, *self._options.readable}
        yield from sorted(paths, key=lambda path: path.count("/"))


class Apptainer(Plain):
    """A container of apptainer for each command; of its files, only the folder is kept between two commands."""

    home, temporary = INSIDE, "/tmp"

    def __init__(self, options: HarnessOptions, folder: Folder, image: str) -> None:
        super().__init__(options, folder)
        self._image = image

    def start(self, words: Sequence[str], environment: Mapping[str, str]) -> Started:
        """See :meth:`Plain.start`."""
        folder, mounts = self._folder, []
        for outer, inner, mode in (
            (folder.work, INSIDE, "rw"),
            (folder.tests, "/tests", "ro"),
            (folder.logs, "/logs", "rw"),
        ):
            mounts += ["--bind", f"{outer}:{inner}:{mode}"]
        options = ["--containall", "--cleanenv", "--pid", "--writable-tmpfs", *mounts, "--pwd", INSIDE]
        kept = {name: value for name, value in environment.items() if name not in ("HOME", "PATH")}  # the image's own
        given = {f"APPTAINERENV_{name}": value for name, value in kept.items()}
        line = ["apptainer", "exec", *options, *self._options.container_arguments, self._image, *words]
        return Started(line, client_environment() | given, str(folder.work))


@dataclass(frozen=True)
class Container:
    """A container of docker or podman that lives as long as the episode; each command is executed in it.

    Attributes:
        name: of the container.
        in_image: commands start in the image's own folder, not in ``/workspace``.
        seconds: after which it ends, whatever happens.
    """

    options: HarnessOptions
    folder: Folder
    image: str
    name: str
    seconds: float
    in_image: bool = False

    home, temporary = INSIDE, "/tmp"

    def begin(self) -> list[str]:
        """Words that start the container."""
        options, folder = self.options, self.folder
        words = [options.isolation, "run", "--detach", "--init", "--name", self.name, "--network", "host"]
        words += ["--memory", str(int(options.memory_gb * GIB)), "--pids-limit", str(options.max_processes)]
        words += ["--ulimit", f"fsize={int(options.file_size_gb * GIB)}", "--ulimit", "core=0"]
        words += ["--security-opt", "no-new-privileges", "--volume", f"{folder.work}:{INSIDE}"]
        words += ["--volume", f"{folder.tests}:/tests:ro", "--volume", f"{folder.logs}:/logs"]
        if options.isolation == "docker" and os.getuid() != 0:
            words += ["--user", f"{os.getuid()}:{os.getgid()}"]
        words += [*options.container_arguments, "--entrypoint", "sleep", self.image, str(int(self.seconds))]
        return words

    def start(self, words: Sequence[str], environment: Mapping[str, str]) -> Started:
        """A command, ready to start; its variables reach the container by name, so no key is in a command line."""
        client = client_environment()
        given = []
        for name, value in environment.items():
            if name != "PATH":  # the image has its own
                given += ["--env", f"{name}={value}" if name in client else name]
        start = [] if self.in_image else ["--workdir", INSIDE]
        line = [self.options.isolation, "exec", *start, *given, self.name, *words]
        return Started(line, {**environment, **client}, str(self.folder.root))

    def again(self) -> list[str]:
        """Words that end all processes in the container and keep its files."""
        return [self.options.isolation, "restart", "-t", "0", self.name]  # docker 28 renamed --time to --timeout

    def end(self) -> list[str]:
        """Words that remove the container."""
        return [self.options.isolation, "rm", "--force", "--volumes", self.name]


Surroundings = Plain | Container


def surroundings_of(
    options: HarnessOptions, folder: Folder, image: str, name: str, seconds: float, *, in_image: bool = False
) -> Surroundings:
    """Those of an episode.

    Args:
        image: '' without containers.
        in_image: see :class:`Container`.
    """
    if options.isolation == "apptainer":
        return Apptainer(options, folder, image)
    if options.isolation in CONTAINERS:
        return Container(options, folder, image, name, seconds, in_image)
    return Bubblewrap(options, folder) if options.isolation == "bubblewrap" else Plain(options, folder)


def client_environment() -> dict[str, str]:
    """Variables that the programs of container runtimes read."""
    names = (
        "PATH",
        "HOME",
        "XDG_RUNTIME_DIR",
        "DOCKER_HOST",
        "DOCKER_CONFIG",
        "CONTAINERS_CONF",
        "CONTAINERS_STORAGE_CONF",
        "CONTAINER_HOST",
        "DBUS_SESSION_BUS_ADDRESS",
    )
    return {name: os.environ[name] for name in names if name in os.environ}
