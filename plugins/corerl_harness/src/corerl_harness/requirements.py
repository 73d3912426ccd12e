"""The parts of a machine that the agent needs; they are tried before anything is loaded."""

import os
import secrets
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from corerl.errors import ConfigError
from corerl.terminal import say
from corerl_harness import groups
from corerl_harness.options import CONTAINERS, HarnessOptions

TRIAL_SECONDS = 60.0
KEY = "rollout.agent"
_TRIALS = {
    "bubblewrap": ("bwrap", "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "true"),
    "docker": ("docker", "info"),
    "podman": ("podman", "info"),
    "apptainer": ("apptainer", "version"),
}
INSTALL = {"bubblewrap": "apt-get install bubblewrap, and allow user namespaces"}


def require(options: HarnessOptions) -> None:
    """Try the isolation.

    Raises:
        ConfigError: this machine cannot isolate as the options ask.
    """
    isolation = options.isolation
    if isolation in _TRIALS and (reason := _failure(_TRIALS[isolation])):
        remedy = INSTALL.get(isolation, f"install and start {isolation}")
        raise ConfigError(f"{KEY}.isolation", f"'{isolation}' does not work on this machine ({reason}): {remedy}")
    inspect = (isolation, "image", "inspect", options.image or "")
    if isolation in ("docker", "podman") and options.image and (reason := _failure(inspect)):
        raise ConfigError(
            f"{KEY}.image", f"'{options.image}' is not on this machine ({reason}): {isolation} pull {options.image}"
        )
    if options.user is not None and (closed := _closed(Path(options.folders or tempfile.gettempdir()).resolve())):
        raise ConfigError(f"{KEY}.user", f"user {options.user} cannot enter '{closed}': set folders to another folder")
    if options.cgroup is not None and not control_group(options):
        raise ConfigError(f"{KEY}.cgroup", f"no group that limits processes can be made in '{options.cgroup}'")
    if isolation not in CONTAINERS and os.geteuid() == 0 and options.user is None and not control_group(options):
        say(
            "the run is root and can make no control group: processes of the harness's command are only counted 10 "
            "times a second; set user, or cgroup (docs/harness.md)"
        )


def _closed(folder: Path) -> Path | None:
    """The first folder of a path that is closed to other users."""
    return next((each for each in (folder, *folder.parents) if each.is_dir() and not each.stat().st_mode & 1), None)


@cache
def _makes_group(parent: str) -> bool:
    if group := groups.make(parent, f"corerl-trial-{secrets.token_hex(8)}", 1):
        groups.remove(group)
    return bool(group)


def control_group(options: HarnessOptions) -> str:
    """The folder in which control groups of commands can be made; '' if there is none."""
    if options.isolation in CONTAINERS:
        return ""
    parents = groups.parents() if options.cgroup is None else [options.cgroup]
    return next(filter(_makes_group, parents), "")


def _failure(line: Sequence[str]) -> str:
    """The reason why a command fails; '' if it works."""
    try:
        ended = subprocess.run(line, capture_output=True, timeout=TRIAL_SECONDS, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        return f"there is no program '{line[0]}'"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = ended.stderr.decode(errors="replace").strip().splitlines()
    return "" if ended.returncode == 0 else (lines[-1] if lines else f"exit code {ended.returncode}")
