"""Runtime ``local``: every role is one worker in this process."""

from typing import Any, TypeVar

from corerl.config.schema import RuntimeConfig

W = TypeVar("W")


class LocalRuntime:
    """The worker itself stands for its group; a call is a plain call."""

    def __init__(self, config: RuntimeConfig) -> None:
        pass

    def spawn(self, role: str, worker: type[W], *args: Any) -> W:
        return worker(*args)

    def close(self) -> None:
        pass
