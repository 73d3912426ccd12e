"""Options of the agent ``harness``."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from corerl import option
from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError
from corerl_harness.process import Limits

Isolation = Literal["none", "bubblewrap", "docker", "podman", "apptainer"]
CONTAINERS = ("docker", "podman", "apptainer")
GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10


def is_command(value: Any) -> bool:
    """Whether a value is a line for a shell or a list of words."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(word, str) for word in value) and bool(value[0])
    return isinstance(value, str) and bool(value.strip())


def words(command: Any) -> list[str]:
    """A command as its words."""
    return list(command) if isinstance(command, list) else ["/bin/sh", "-c", command]


def escapes(path: str) -> bool:
    """Whether a path leads out of its folder, or names the folder itself.

    >>> escapes("src/a.py"), escapes("../a.py"), escapes("/etc/passwd"), escapes("a/../b"), escapes(".")
    (False, True, True, True, True)
    """
    parts = PurePosixPath(path).parts
    return not parts or path.startswith("/") or ".." in parts or "\0" in path


@dataclass(frozen=True)
class HarnessOptions:
    """Options of the agent ``harness``."""

    command: Any = option(help="the agent: a line for /bin/sh, or a list of words")
    isolation: Isolation = option("none", "surroundings of the command")
    image: str | None = option(None, "image of a container; a task's own image precedes it")
    timeout: float = option(600.0, "seconds for the command; rollout.agent_timeout bounds the whole episode", gt=0)
    memory_gb: float = option(4.0, "GiB of memory of all processes together", gt=0)
    max_processes: int = option(512, "processes and threads", ge=1)
    file_size_gb: float = option(1.0, "GiB of one file", gt=0)
    disk_gb: float = option(2.0, "GiB of the folder", gt=0)
    output_limit_mb: float = option(64.0, "MiB that the command may print", gt=0)
    kept_output_kb: int = option(32, "KiB of its output that are kept: the beginning and the end", ge=1)
    files: dict[str, str] = option(
        help="path in the folder -> file or folder of this machine, copied there; those of a task replace them",
        factory=dict,
    )
    prompt_file: str = option("PROMPT.md", "file of the folder with the prompt; empty: none")
    environment: dict[str, str] = option(
        help="further variables of the command, after all others; a value may be ${env:NAME}", factory=dict
    )
    check_command: Any = option(None, "command that looks at the folder afterwards; exit code 0 is a reward of 1.0")
    check_timeout: float = option(120.0, "seconds for the check", gt=0)
    check_prints_reward: bool = option(False, "the last line that the check prints is the reward")
    keep_folders: bool = option(False, "keep the folder of each episode, to look at it")
    folders: str | None = option(None, "folder for those of episodes; null: the system's temporary folder")
    max_commands: int = option(64, "commands at once; further episodes wait", ge=1)
    readable: list[str] = option(help="further files and folders that bubblewrap shows, read-only", factory=list)
    container_arguments: list[str] = option(help="further arguments of the container's start", factory=list)
    user: int | None = option(None, "number of a user without rights that runs the command; the run is root", ge=1)
    cgroup: str | None = option(None, "folder of a control group for those of commands; null: the run's own")

    def check(self, key: str, config: TrainConfig) -> None:
        """
        Raises:
            ConfigError: a rule between the options is broken.
        """
        if sys.platform != "linux":
            raise ConfigError(key, f"'harness' ends processes on Linux only, and this is {sys.platform}")
        for name in ("command", "check_command"):
            value = getattr(self, name)
            if value is not None and not is_command(value):
                raise ConfigError(f"{key}.{name}", f"should be a line for /bin/sh or a list of words, found {value!r}")
        if self.check_prints_reward and self.check_command is None:
            raise ConfigError(f"{key}.check_prints_reward", "needs check_command")
        if self.user is not None and (os.geteuid() != 0 or self.isolation in CONTAINERS):
            raise ConfigError(f"{key}.user", "needs a run of root, and no container")
        if self.prompt_file and escapes(self.prompt_file):
            raise ConfigError(f"{key}.prompt_file", f"should be a path within the folder, found {self.prompt_file!r}")
        for path, source in self.files.items():
            if escapes(path):
                raise ConfigError(f"{key}.files", f"should name paths within the folder, found {path!r}")
            if not Path(source).exists():
                raise ConfigError(f"{key}.files", f"'{source}' does not exist")
        if self.timeout > config.rollout.agent_timeout:
            raise ConfigError(
                f"{key}.timeout",
                f"is {self.timeout:g} s, more than rollout.agent_timeout = {config.rollout.agent_timeout:g}",
            )

    def command_limits(self) -> Limits:
        """Of the command."""
        return Limits(
            seconds=self.timeout,
            memory=int(self.memory_gb * GIB),
            tasks=self.max_processes,
            disk=int(self.disk_gb * GIB),
            file=int(self.file_size_gb * GIB),
            output=int(self.output_limit_mb * MIB),
            kept_output=self.kept_output_kb * KIB,
        )
