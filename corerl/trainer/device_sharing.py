"""Who holds the accelerator's memory where engine and training share it: each while it works."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from corerl.errors import RunError
from corerl.rollout.engines import Engines
from corerl.trainer.workers import ModelWorker


@dataclass(frozen=True)
class DeviceSharing:
    """Hands the memory over.

    Attributes:
        roles: the training roles.
        free_engine: the engine gives its memory back while the roles train.
        offload: the roles' weights and optimizer states are on the CPU while the engine generates.
    """

    rollout: Engines
    roles: Sequence[ModelWorker]
    free_engine: bool
    offload: bool

    def to_training(self) -> None:
        """The engine sleeps, the roles come to the device."""
        if self.free_engine:
            self.rollout.sleep()
        if self.offload:
            for role in self.roles:
                role.onload()

    def to_weights(self) -> None:
        """The engine takes its memory for weights, which can be sent then."""
        if self.free_engine:
            for role in self.roles:
                role.free_cache()
            self.rollout.wake(kv_cache=False)

    def to_generation(self, *, asleep: bool = True) -> None:
        """The roles leave the device, the engine takes the rest of its memory, and can generate.

        Args:
            asleep: the engine was, as after :meth:`to_training`; False for one that has just started.
        """
        if self.offload:
            for role in self.roles:
                role.offload()
        if self.free_engine and asleep:
            self.rollout.wake()

    def to_last_checkpoint(self) -> None:
        """As :meth:`to_training`, at the end of a run, from wherever the memory is; engines may have ended."""
        with contextlib.suppress(RunError):
            if self.free_engine:
                self.rollout.sleep()
        if self.offload:
            for role in self.roles:
                role.onload()
