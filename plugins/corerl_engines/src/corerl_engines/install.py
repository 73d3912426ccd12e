"""A Python environment for an engine, beside the trainer's: what ``corerl engine install …`` makes."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from corerl.errors import RequestError, RunError
from corerl.terminal import echo


def make_environment(folder: Path, base: str, steps: Sequence[Sequence[str]], library: str, title: str) -> None:
    """Make it, or add to one that is there, and print what to set.

    Args:
        base: the interpreter to make it from.
        steps: arguments of ``pip install``, one call after the other.
        library, title: what is imported in the end, and how it is written.

    Raises:
        RequestError: the folder is something else, or there is no such interpreter.
        RunError: pip did not succeed, or the engine cannot be imported.
    """
    folder = folder.expanduser().absolute()
    python = folder / "bin" / "python"
    if folder.exists() and not python.exists():
        raise RequestError(f"--path: {folder} is there and is no Python environment: name another folder")
    found = shutil.which(base)
    if found is None:
        raise RequestError(f"--base: {base} is no program: name a Python interpreter")
    if not python.exists():
        _run([found, "-m", "venv", str(folder)])
    for arguments in steps:
        _run([str(python), "-m", "pip", "install", "--quiet", *arguments])
    _run([str(python), "-c", f"import {library}; print('{title}', {library}.__version__)"])
    echo(f"rollout.options.python={python}")


def _run(command: list[str]) -> None:
    echo("$ " + " ".join(command), err=True)
    if (code := subprocess.run(command, check=False).returncode) != 0:
        raise RunError(f"{command[0]} ended with exit code {code}: its own words are above")
