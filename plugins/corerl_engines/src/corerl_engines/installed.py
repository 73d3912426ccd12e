"""Checks that an engine is in its environment, in a tested version, without importing it."""

import os
import re
import subprocess
from collections.abc import Iterator, Sequence

from corerl.errors import ConfigError, RunError
from corerl.terminal import say
from corerl_check import Finding, finding, from_error
from corerl_engines.launched import EngineKind, find_interpreter, for_another_interpreter
from corerl_engines.options import EngineOptions

Versions = tuple[tuple[int, ...], tuple[int, ...]]
"""the first version included, the second excluded"""

SECONDS = 30.0
"""seconds in which an interpreter, perhaps on a slow disk, must report a version"""

UNKNOWN = "of an unknown version"

ASK = f"""
import importlib.metadata, importlib.util, sys
for name in sys.argv[1:]:
    try:
        print(importlib.metadata.version(name))
        break
    except importlib.metadata.PackageNotFoundError:
        pass
else:
    if importlib.util.find_spec(sys.argv[1]):
        print("{UNKNOWN}")
"""


def outside(version: str, title: str, tested: Versions) -> str | None:
    """A sentence if a version is outside the tested range, else None."""
    found = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    if tested[0] <= found < tested[1]:
        return None
    first, last = (".".join(map(str, each)) for each in tested)
    return f"{title} {version} is outside of the tested range (>={first},<{last})"


def check_version(version: str, kind: EngineKind, tested: Versions, untested: str) -> None:
    """Compare a version with the tested range.

    Raises:
        RunError: it is outside and ``untested`` is ``error``; otherwise a warning is printed.
    """
    message = outside(version, kind.title, tested)
    if message is None:
        return
    if untested == "error":
        raise RunError(f"{message}: install another, or set rollout.options.untested_version to warn")
    say(f"warning: {message}")


def engine_version(python: str, distributions: Sequence[str], options: EngineOptions) -> str | None:
    """The version of the first installed distribution; None if there is neither a distribution nor a module."""
    inherited = os.environ if options.python is None else for_another_interpreter()
    asked = subprocess.run(
        [python, "-c", ASK, *distributions],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**inherited, **options.variables()},
        cwd="/",
    )
    return asked.stdout.strip() or None


def examine_engine(
    title: str, distributions: Sequence[str], tested: Versions, options: EngineOptions
) -> Iterator[Finding]:
    """For `corerl check`, and before a run: findings for a missing interpreter or engine, or an untested version.

    Args:
        distributions: the engine's names as a distribution, the usual one first.
    """
    name = distributions[0]
    try:
        python = find_interpreter(options.python, name)
        version = engine_version(python, distributions, options)
    except ConfigError as error:
        yield from_error(error)
        return
    except (OSError, subprocess.TimeoutExpired) as error:
        yield finding("error", "rollout.options.python", f"{options.python} does not run: {error}")
        return
    if version is None:
        sentence = f"there is no {title} in the environment of {python}"
        remedy = f"Run `corerl engine install {name}` and set rollout.options.python to the interpreter that it prints."
        yield finding("error", "rollout.options.python", sentence, remedy)
    elif version != UNKNOWN and (message := outside(version, title, tested)):
        yield finding("error" if options.untested_version == "error" else "warning", "rollout.options.python", message)
    else:
        yield Finding("note", "rollout.options.python", f"{title} {version} in the environment of {python}")
