"""The processes of vLLM's cores: forked by a server that has imported vLLM meanwhile, instead of importing it again.

The import takes about a third of an engine's start. The server (``multiprocessing.forkserver``) has one thread and no
CUDA context, and starts before this process imports vLLM itself.
"""

import multiprocessing.context as processes
import os


class Core(processes.ForkServerProcess):
    """Has the environment of the process that starts it, which vLLM may have changed since the server started."""

    def start(self) -> None:
        self._environment = dict(os.environ)
        super().start()

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        super().run()


class Forking(processes.ForkServerContext):
    """For vLLM's ``get_mp_context``."""

    Process = Core


def fork_from_server() -> None:
    """Let vLLM start its cores so; a core starts processes of its own as vLLM does."""
    from vllm.v1.engine import utils

    utils.get_mp_context = Forking
