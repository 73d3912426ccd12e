"""Launchers (torchrun, MPI, Slurm) give a process its place among others by variables.

A runtime alone decides which processes are ranks, and sets ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR``
and ``MASTER_PORT`` for them. Variables that were set before, such as those of the pod or job around a command, would
make a rank of a process that has no others.
"""

import os
import re

_MPI = "(OMPI_COMM_WORLD|PMIX?|MV2_COMM_WORLD)"
_RANK = rf"((LOCAL|NODE|GROUP|ROLE)_)?RANK|{_MPI}_\w*RANK|MPI_LOCALRANKID|SLURM_(PROCID|LOCALID|NODEID)"
_SIZE = rf"((LOCAL|GROUP|ROLE)_)?WORLD_SIZE|{_MPI}_\w*SIZE|MPI_LOCALNRANKS"
_MEETING = r"MASTER_(ADDR|PORT)|TORCHELASTIC_\w+"


def leave_launch() -> dict[str, str]:
    """Remove these variables from the environment of this process.

    Returns:
        Those that name other processes: a rank but 0, a number but 1.
    """
    found = {name: each for name, each in os.environ.items() if re.fullmatch(f"{_RANK}|{_SIZE}|{_MEETING}", name)}
    for name in found:
        del os.environ[name]
    alone = {name: "0" if re.fullmatch(_RANK, name) else "1" for name in found if not re.fullmatch(_MEETING, name)}
    return {name: found[name] for name, value in alone.items() if found[name] != value}
