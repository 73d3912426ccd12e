"""``corerl engine install sglang``: a Python environment that holds SGLang."""

import sys
from pathlib import Path

import click

from corerl_engines.install import make_environment

VERSION = "0.5.17"


@click.command()
@click.option("--path", type=click.Path(path_type=Path), help="Folder of the new environment.  [default: .venv-sglang]")
@click.option("--base", default=sys.executable, help="Python interpreter of the new environment.  [default: this one]")
def install(path: Path | None, base: str) -> None:
    """Make a Python environment that holds SGLang, beside this one, and print the option to set.

    SGLang pins its own torch and transformers, and needs Python 3.10 to 3.13 and CUDA. pip runs with its configuration.
    """
    make_environment(path or Path(".venv-sglang"), base, [[f"sglang=={VERSION}"]], "sglang", "SGLang")
