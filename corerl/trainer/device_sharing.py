"""Who holds the accelerator's memory where engine and training share it: each while it works."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from corerl.trainer.engine_restarts import Engines
from corerl.trainer.workers import ModelWorker


class DeviceSharing:
    """Hands the memory over.

    Args:
        roles: the training roles.
        free_engine: the engine gives its memory back while the roles train.
        offload: the roles' weights and optimizer states are on the CPU while the engine generates.
    """

    def __init__(
        self,
        rollout: Engines,
        roles: Sequence[ModelWorker],
        *,
        free_engine: bool,
        offload: bool,
    ) -> None:
        self._rollout, self._roles = rollout, tuple(roles)
        self._free_engine, self._offload = free_engine, offload

    def to_training(self) -> None:
        """The engine sleeps, the roles come to the device."""
        if self._free_engine:
            self._rollout.sleep()
        if self._offload:
            for role in self._roles:
                role.onload()

    @contextmanager
    def to_generation(self, *, asleep: bool = True) -> Iterator[None]:
        """Within, the weights are sent; after it the engine can generate.

        Args:
            asleep: the engine sleeps, as after :meth:`to_training`; False for one that has just started.
        """
        wakes = self._free_engine and asleep
        if wakes:
            for role in self._roles:
                role.free_cache()
            self._rollout.wake(kv_cache=False)
        yield
        if self._offload:
            for role in self._roles:
                role.offload()
        if wakes:
            self._rollout.wake()

    @contextmanager
    def training_state(self) -> Iterator[None]:
        """Within, the roles' state is where :meth:`to_training` brings it, for a checkpoint; the engine stays awake."""
        if not self._offload:
            yield
            return
        for role in self._roles:
            role.onload()
        try:
            yield
        finally:
            for role in self._roles:
                role.offload()
