"""Engines that end are started again, with the policy's present weights, and their requests are sent again.

So are rollout workers that are lost while others are left; where that is not possible the run goes on without them.
"""

import threading
from collections.abc import Sequence

from corerl.contracts.rollout_backends import Completion, GenerationRequest, OnFinished
from corerl.contracts.runtimes import Runtime
from corerl.contracts.workers import WeightSource
from corerl.errors import EngineDeadError
from corerl.rollout.worker import RolloutWorker
from corerl.terminal.notices import say
from corerl.threads import in_thread


class Engines:
    """The rollout workers, as the trainer uses them.

    Args:
        max_restarts: in this process; the next death is raised, unless other rollout workers are left.

    Attributes:
        restarts: so far.
        lost: rollout workers whose processes have ended so far, started again or not.
        actor_in_use: held by whoever uses the policy's workers; generation ahead of training waits for it to restart.
    """

    def __init__(self, runtime: Runtime, actor: WeightSource, rollout: RolloutWorker, max_restarts: int) -> None:
        self._runtime, self._actor, self._rollout, self._max_restarts = runtime, actor, rollout, max_restarts
        self._version = 0
        self._closed = False
        self.restarts = 0
        self.lost: set[tuple[str, int]] = set()
        self.actor_in_use = threading.RLock()

    def close(self) -> None:
        """Start none again: the run ends, and with it requests that are under way."""
        self._closed = True

    async def generate(self, requests: Sequence[GenerationRequest], on_finished: OnFinished) -> None:
        """As the rollout workers do; what had not finished is sent again, with the seeds that are in the requests.

        Raises:
            EngineDeadError: an engine ended once more than ``max_restarts`` allows.
        """
        left = dict(enumerate(requests))
        while left:
            before, positions = self.restarts, list(left)

            def finished(place: int, completions: list[Completion], positions: list[int] = positions) -> None:
                del left[positions[place]]
                on_finished(positions[place], completions)

            try:
                await self._rollout.generate(list(left.values()), finished)
                return
            except EngineDeadError as error:
                await in_thread(self._recover, error, before)

    def _recover(self, error: EngineDeadError, before: int) -> None:
        """Start engines again, unless another call has done it since ``before`` restarts."""
        with self.actor_in_use:
            if self.restarts == before:
                self._restart(error)
                self._send(self._version, verify=True)

    def send_weights(self, version: int, *, verify: bool = False) -> None:
        """Give the engines the policy's weights."""
        self._version = version
        self._send(version, verify=verify)

    def sleep(self) -> None:
        try:
            self._rollout.sleep()
        except EngineDeadError as error:
            self._restart(error)
            self._rollout.sleep()

    def wake(self, *, kv_cache: bool = True) -> None:
        try:
            self._rollout.wake(kv_cache=kv_cache)
        except EngineDeadError as error:
            self._restart(error)
            self._rollout.sleep()
            self._rollout.wake(kv_cache=kv_cache)
            if kv_cache:  # the weights were sent to the one that ended
                self._send(self._version, verify=True)

    def _send(self, version: int, *, verify: bool) -> None:
        """The first update of an engine that was started again is always verified."""
        while True:
            try:
                self._runtime.send_weights(self._actor, self._rollout, version=version, verify=verify)
                return
            except EngineDeadError as error:
                self._restart(error)
                verify = True

    def _restart(self, error: EngineDeadError) -> None:
        if self._closed:
            raise error
        self.lost.update(error.workers)
        if self.restarts == self._max_restarts:
            if error.workers:
                say(f"{error}\nrollout.max_restarts = {self._max_restarts} is reached: the run continues without it")
                return
            raise EngineDeadError(
                f"rollout.max_restarts = {self._max_restarts} allows no further start: {error}"
            ) from error
        self.restarts += 1
        between = "\n" if "\n" in str(error) else "; "  # an error may quote lines of a log
        say(f"{error}{between}it is started again ({self.restarts} of rollout.max_restarts = {self._max_restarts})")
        self._rollout.restart()
