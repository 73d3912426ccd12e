"""The processes of vLLM's cores and workers: forked by a server that has imported vLLM, instead of importing it again.

The import takes about a third of an engine's start. The server (``multiprocessing.forkserver``) has one thread and no
CUDA context, and starts before this process imports vLLM itself.
"""

import multiprocessing.context as processes
import os
import sys
from multiprocessing import forkserver, resource_tracker
from typing import Any

EXECUTOR = "vllm.v1.executor.multiproc_executor"
"""module that starts the workers of a core"""


class Core(processes.ForkServerProcess):
    """Has the environment of the process that starts it, which vLLM may have changed since the server started."""

    def start(self) -> None:
        self._environment = dict(os.environ)
        super().start()

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        torch, threads = sys.modules.get("torch"), self._environment.get("OMP_NUM_THREADS", "")
        if torch is not None and threads.isdigit():
            torch.set_num_threads(int(threads))  # torch reads the variable when it is imported, in the server
        executor = sys.modules.get(EXECUTOR)
        if executor is not None and use_server_of_parent():
            executor.get_mp_context = Forking  # type: ignore[attr-defined]
        super().run()


class Forking(processes.ForkServerContext):
    """For vLLM's ``get_mp_context``."""

    Process = Core


def fork_from_server() -> None:
    """Let vLLM start its cores so; they start their workers so, too."""
    from vllm.v1.engine import utils

    utils.get_mp_context = Forking


def use_server_of_parent() -> bool:
    """Let the server that has forked this process fork its children, too; False: this release of Python has another.

    Python knows the server's address here, but starts another server: it looks for one that this process has started.
    """
    server: Any = forkserver._forkserver
    names = ("_forkserver_address", "_forkserver_alive_fd", "_forkserver_pid", "ensure_running")
    if not all(hasattr(server, name) for name in names) or hasattr(server, "_forkserver_authkey"):
        return False
    if server._forkserver_pid is not None or server._forkserver_address is None:
        return False
    server.ensure_running = resource_tracker.ensure_running
    return True
