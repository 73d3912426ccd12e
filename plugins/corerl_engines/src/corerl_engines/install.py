"""Makes a Python environment for an engine, beside the trainer's: ``corerl engine install …``."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from corerl.errors import RequestError, RunError
from corerl.terminal import echo


def make_environment(
    folder: Path, base: str, steps: Sequence[Sequence[str]], library: str, title: str, programs: Sequence[str] = ()
) -> None:
    """Make the environment, or extend an existing one, and print the option to set.

    Args:
        base: the Python interpreter of the new environment.
        steps: arguments of ``pip install``, one call after the other.
        library, title: the module to import at the end, and the engine's name.
        programs: run by the environment's Python before that.

    Raises:
        RequestError: the folder exists and is no environment, or there is no such interpreter.
        RunError: pip failed, or the engine cannot be imported.
    """
    folder = folder.expanduser().absolute()
    python = folder / "bin" / "python"
    if folder.exists() and not python.exists():
        raise RequestError(f"--path: {folder} exists and is no Python environment: name another folder")
    found = shutil.which(base)
    if found is None:
        raise RequestError(f"--base: {base} is no program: name a Python interpreter")
    if not python.exists():
        _run([found, "-m", "venv", str(folder)])
    for arguments in steps:
        _run([str(python), "-m", "pip", "install", "--quiet", *arguments])
    for program in programs:
        _run([str(python), "-c", program])
    _run([str(python), "-c", f"import {library}; print('{title}', {library}.__version__)"])
    echo(f"rollout.options.python={python}")


def _run(command: list[str]) -> None:
    echo("$ " + " ".join(command), err=True)
    if (code := subprocess.run(command, check=False).returncode) != 0:
        raise RunError(f"{command[0]} ended with exit code {code}: its output is above")
