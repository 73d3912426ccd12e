"""Groups of real processes connected by gloo, as a runtime starts them, for tests of strategies on ranks."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from corerl.plugins import load_plugins

Job = dict[str, Any]

_CONTEXT = multiprocessing.get_context("forkserver")

MODELS = tuple(f"transformers.models.{family}.modeling_{family}" for family in ("llama", "qwen2", "qwen3"))
"""of transformers, which imports a model's module when one is built"""


class World:
    """Ranks that wait for jobs; closing it stops them.

    Args:
        size: number of ranks.
        do: called by each rank for a job; a module's function or the method of a picklable object.
    """

    def __init__(self, size: int, do: Callable[[Job], Any]) -> None:
        _CONTEXT.set_forkserver_preload(heavy_modules())
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.ranks: list[tuple[Any, Connection]] = []
        for rank in range(size):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
            environment = {name: str(value) for name, value in place.items()}
            environment |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
            here, there = _CONTEXT.Pipe()
            process = _CONTEXT.Process(target=_serve, args=(there, environment, do), daemon=True)
            process.start()
            self.ranks.append((process, here))

    def run(self, within: float = 120, **job: Any) -> list[Any]:
        """The result of each rank's job, by rank.

        Raises:
            TimeoutError: a rank did not finish within ``within`` seconds.
        """
        for _, connection in self.ranks:
            connection.send(job)
        results = []
        for rank, (_, connection) in enumerate(self.ranks):
            if not connection.poll(within):
                raise TimeoutError(f"rank {rank} did not end within {within} s")
            results.append(connection.recv())
        return results

    def close(self) -> None:
        """Kill the ranks."""
        for process, connection in self.ranks:
            process.kill()
            process.join()
            connection.close()


def heavy_modules() -> list[str]:
    """Modules imported by the installed strategies and rollout backends: once, in a process that forks others."""
    registries = load_plugins().registries
    targets = [entry.target for entry in (*registries.training_strategies, *registries.rollout_backends)]
    return [*MODELS, *sorted({target.partition(":")[0] for target in targets if isinstance(target, str)})]


def _serve(connection: Connection, environment: dict[str, str], do: Callable[[Job], Any]) -> None:
    os.environ.update(environment)
    import torch

    torch.set_num_threads(1)
    while True:
        connection.send(do(connection.recv()))
