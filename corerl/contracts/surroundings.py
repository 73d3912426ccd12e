"""Variables that other programs have set around this process, and that are not meant for it.

A launcher (torchrun, MPI, Slurm) gives a process its place among others. A runtime alone decides which processes are
ranks, and sets ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR`` and ``MASTER_PORT`` for them. Variables of the
pod or job around a command would make a rank of a process that has no others.

A proxy leads to other networks. HTTP clients reach servers on this machine, such as the endpoint of agents, without a
proxy.
"""

import ipaddress
import os
import re
import socket
from collections.abc import Mapping, MutableMapping
from urllib.parse import urlsplit

LOOPBACK = ("localhost", "127.0.0.1", "::1")

_MPI = "(OMPI_COMM_WORLD|PMIX?|MV2_COMM_WORLD)"
_SLURM = "SLURM_(PROCID|LOCALID|NODEID)"
_RANK = rf"((LOCAL|NODE|GROUP|ROLE)_)?RANK|VLLM_DP_RANK(_LOCAL)?|{_MPI}_\w*RANK|MPI_LOCALRANKID|{_SLURM}"
_SIZE = rf"((LOCAL|GROUP|ROLE)_)?WORLD_SIZE|VLLM_DP_SIZE|{_MPI}_\w*SIZE|MPI_LOCALNRANKS"
_MEETING = r"MASTER_(ADDR|PORT)|VLLM_DP_MASTER_(IP|PORT)|TORCHELASTIC_\w+"


def leave_launch() -> dict[str, str]:
    """Remove a launcher's variables from the environment of this process.

    Returns:
        Those that name other processes: a rank but 0, a number but 1.
    """
    found = {name: each for name, each in os.environ.items() if re.fullmatch(f"{_RANK}|{_SIZE}|{_MEETING}", name)}
    for name in found:
        del os.environ[name]
    alone = {name: "0" if re.fullmatch(_RANK, name) else "1" for name in found if not re.fullmatch(_MEETING, name)}
    return {name: found[name] for name, value in alone.items() if found[name] != value}


def reach_directly(*hosts: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Let HTTP clients of this process, and of those that it starts, reach the loopback and ``hosts`` without a proxy.

    Nothing changes without a variable that names a proxy. Some clients read ``NO_PROXY``, some ``no_proxy``.
    """
    if not _has_proxy(environment):
        return
    for name, other in (("no_proxy", "NO_PROXY"), ("NO_PROXY", "no_proxy")):
        given = [each.strip() for each in environment.get(name, environment.get(other, "")).split(",")]
        if "*" not in given:
            environment[name] = ",".join(dict.fromkeys(filter(None, [*given, *LOOPBACK, *hosts])))


def _has_proxy(environment: Mapping[str, str]) -> bool:
    named = (name.lower() for name, value in environment.items() if value)
    return any(name.endswith("_proxy") and name != "no_proxy" for name in named)


def is_near(url: str) -> bool:
    """Whether the host of a URL is this machine, or is in a private network, to which no proxy leads.

    >>> is_near("http://127.0.0.1:8000"), is_near("http://10.0.0.7/v1"), is_near("http://8.8.8.8/v1")
    (True, True, False)
    """
    try:
        found = socket.getaddrinfo(urlsplit(url).hostname or "", None, type=socket.SOCK_STREAM)
        return not any(ipaddress.ip_address(place[0]).is_global for *_, place in found)
    except (OSError, ValueError):  # the name is known to the proxy alone, or is no name
        return False
