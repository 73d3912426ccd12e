"""The environment variables that a worker gets from the controller."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from corerl.secrets import is_secret
from corerl_check.carried import is_carried


def carried(names: Sequence[str] = (), environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of :mod:`corerl_check.carried`, and those listed in ``names``, except secrets."""
    return {name: value for name, value in _meant(names, environment) if not is_secret(name, value)}


def at_start(names: Sequence[str], environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Options of an actor whose process begins with the variables listed in ``names``, such as ``LD_PRELOAD``.

    Without any, the actor gets a process that Ray has started already, and is there two seconds earlier. Ray writes the
    variables to its logs: secrets are left out.
    """
    given = {name: environment[name] for name in names if name in environment}
    named = {name: value for name, value in given.items() if not is_secret(name, value)}
    return {"runtime_env": {"env_vars": named}} if named else {}


def secrets(names: Sequence[str] = (), environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The secrets among the variables of :func:`carried`. They are sent in a call, which Ray does not log."""
    return {name: value for name, value in _meant(names, environment) if is_secret(name, value)}


def _meant(names: Sequence[str], environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return ((name, value) for name, value in environment.items() if is_carried(name) or name in names)


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
