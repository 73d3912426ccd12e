"""The environment variables that a worker gets from the controller."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from corerl.secrets import is_secret_name

PREFIXES = (
    "CORERL_",
    "HF_",
    "TRANSFORMERS_",
    "TOKENIZERS_",
    "TORCH",
    "PYTORCH_",
    "NCCL_",
    "GLOO_",
    "TP_SOCKET_IFNAME",
    "CUBLAS_",
    "OMP_",
    "MKL_",
    "TRITON_",
    "VLLM_",
    "SGLANG_",
)


def carried(names: Sequence[str] = (), environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables with one of ``PREFIXES``, and those listed in ``names``, except secrets."""
    return {name: value for name, value in _meant(names, environment) if not is_secret_name(name)}


def at_start(names: Sequence[str], environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Options of an actor whose process begins with the variables listed in ``names``, such as ``LD_PRELOAD``.

    Without any, the actor gets a process that Ray has started already, and is there two seconds earlier. Ray writes the
    variables to its logs: secrets are left out.
    """
    named = {name: environment[name] for name in names if name in environment and not is_secret_name(name)}
    return {"runtime_env": {"env_vars": named}} if named else {}


def secrets(names: Sequence[str] = (), environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The secrets among the variables of :func:`carried`. They are sent in a call, which Ray does not log."""
    return {name: value for name, value in _meant(names, environment) if is_secret_name(name)}


def _meant(names: Sequence[str], environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return ((name, value) for name, value in environment.items() if name.startswith(PREFIXES) or name in names)


def of_rank(rank: int, local_rank: int, world_size: int, address: str, port: int) -> dict[str, str]:
    """The variables of torch.distributed.

    Args:
        local_rank: the worker's device, among the devices that it sees.
        address, port: of rank 0.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }
