"""The environment variables that a worker gets from the controller."""

import os
from collections.abc import Iterator, Mapping, Sequence

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
    """The variables whose names begin with one of ``PREFIXES``, and those that ``names`` lists; no secrets.

    Ray writes them into its logs.
    """
    return {name: value for name, value in _meant(names, environment) if not is_secret_name(name)}


def secrets(names: Sequence[str] = (), environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The other variables of :func:`carried`, which hold secrets. They go in a call, of which Ray writes nothing."""
    return {name: value for name, value in _meant(names, environment) if is_secret_name(name)}


def _meant(names: Sequence[str], environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return ((name, value) for name, value in environment.items() if name.startswith(PREFIXES) or name in names)


def of_rank(rank: int, local_rank: int, world_size: int, address: str, port: int) -> dict[str, str]:
    """What torch.distributed looks for.

    Args:
        local_rank: the device that the worker is to use, among those that it sees.
        address, port: of rank 0.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }
