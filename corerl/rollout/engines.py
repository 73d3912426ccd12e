"""Engines that end are started again, with the policy's present weights, and their requests are sent again.

If others are left, they take over at once, and the new start is made in the background; where it is not possible the
run goes on without.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence

from corerl.contracts.rollout_backends import Completion, EngineLoad, GenerationRequest, LoadReporting, OnFinished
from corerl.contracts.runtimes import CatchingUp, Replicas, Runtime
from corerl.contracts.workers import WeightSource
from corerl.errors import CoreRLError, EngineDeadError, EngineFailsError, RunError
from corerl.rollout.worker import RolloutWorker
from corerl.terminal.notices import say
from corerl.threads import in_thread

PATIENCE = 5.0
"""seconds after which the terminal shows that an engine's start is waited for"""

IN_VAIN = 3
"""deaths of engines in generation without a response in between, after which no start would help"""


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
        self._in_vain = 0
        """times that generation has found no living engine since the last response"""
        self._closed = False
        self.restarts = 0
        self.lost: set[tuple[str, int]] = set()
        self.actor_in_use = threading.RLock()
        self._starting = threading.RLock()
        """held while engines start again"""
        self._awake = threading.Event()
        """others may have the engines' memory while it is not set"""
        self._awake.set()
        self._counting = threading.RLock()
        self._has_weights = threading.Event()
        """of the policy: those that were all started again take no requests before"""
        self._has_weights.set()
        self._is_due = self._has_thread = False
        self._replicas = rollout if isinstance(rollout, Replicas) else None
        if self._replicas is not None:
            self._replicas.on_loss(self._start_in_background)

    def close(self) -> None:
        """Start none again: the run ends, and with it requests that are under way."""
        self._closed = True
        self._awake.set()
        self._has_weights.set()

    async def generate(self, requests: Sequence[GenerationRequest], on_finished: OnFinished) -> None:
        """As the rollout workers do; what had not finished is sent again, with the seeds that are in the requests.

        Raises:
            EngineDeadError: an engine ended once more than ``max_restarts`` allows.
            EngineFailsError: engines have ended ``IN_VAIN`` times in a row without a response.
        """
        left = dict(enumerate(requests))
        while left:
            if not self._has_weights.is_set():
                await in_thread(self._has_weights.wait)  # as long as a start and a sending of weights may take
            before, positions = self.restarts, list(left)

            def finished(place: int, completions: list[Completion], positions: list[int] = positions) -> None:
                del left[positions[place]]
                self._in_vain = 0
                on_finished(positions[place], completions)

            try:
                await self._rollout.generate(list(left.values()), finished)
                return
            except EngineDeadError as error:
                if not error.is_handled:
                    await in_thread(self._recover, error, before)

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End these requests; unknown ids are ignored, and an engine that has ended has ended them."""
        with contextlib.suppress(RunError):
            await in_thread(self._rollout.abort, request_ids)

    def engine_load(self) -> EngineLoad | None:
        """The load of all engines together, as they last reported it; None: they do not."""
        return self._rollout.engine_load() if isinstance(self._rollout, LoadReporting) else None

    def _recover(self, error: EngineDeadError, before: int) -> None:
        """Start engines again, unless another call has done it since ``before`` restarts."""
        with self.actor_in_use:
            if self.restarts == before:
                self._in_vain += 1
                if self._in_vain >= IN_VAIN:  # also for other calls that the last one ended with
                    said = f"the engine has ended {IN_VAIN} times without a response in between: {error}"
                    raise EngineFailsError(said) from error
                self._restart(error)
                self._send(self._version, verify=True)

    def _start_in_background(self, error: EngineDeadError) -> None:
        """Start an engine again while others go on."""
        with self._counting:
            if self._closed or not self._may_start(error, "it is started again in the background"):
                return
            self._is_due = True
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(target=self._bring_back, name="corerl-engines", daemon=True).start()

    def _bring_back(self) -> None:
        """Until nothing is left to be started."""
        while self._takes_up():
            try:
                self._start_once_awake()
                with self.actor_in_use:
                    if not self._closed:
                        self._send_missing()
            except CoreRLError as error:
                if not self._closed:  # an error of the whole run is raised by its other threads, too
                    say(f"an engine could not be started again in the background: {error}")

    def _takes_up(self) -> bool:
        with self._counting:
            self._has_thread, self._is_due = self._is_due and not self._closed, False
            return self._has_thread

    def _start_once_awake(self) -> None:
        is_started = False
        while not (is_started or self._closed):
            self._awake.wait()  # wake and close end it
            with self._starting:
                if self._awake.is_set() and self._replicas is not None:
                    self._replicas.restart_lost()
                    is_started = True

    def _send_missing(self) -> None:
        if isinstance(self._runtime, CatchingUp):
            self._runtime.send_missing_weights(self._actor, self._rollout, self._version)
        else:
            self._send(self._version, verify=True)

    def send_weights(self, version: int, *, verify: bool = False) -> None:
        """Give the engines the policy's weights."""
        with self.actor_in_use:
            self._version = version
            self._send(version, verify=verify)

    def sleep(self) -> None:
        """Put them to sleep, unless they are, also one that is being started again: others need its memory now."""
        if not self._awake.is_set():
            return None
        self._awake.clear()
        with self._nothing_starting():
            while True:
                try:
                    return self._rollout.sleep()
                except EngineDeadError as error:
                    self._restart(error)

    @contextlib.contextmanager
    def _nothing_starting(self) -> Iterator[None]:
        """Within, no engine starts in the background; one that does is waited for, and the terminal shows it."""
        if not self._starting.acquire(timeout=PATIENCE):
            say("waiting for an engine that is being started again: training needs the memory that it takes")
            self._starting.acquire()
        try:
            yield
        finally:
            self._starting.release()

    def wake(self, *, kv_cache: bool = True) -> None:
        """Take the memory again; what ended meanwhile is started."""
        self._awake.set()
        while True:
            try:
                return self._rollout.wake(kv_cache=kv_cache)
            except EngineDeadError as error:
                if error.is_handled:
                    continue
                self._restart(error)
                self._rollout.sleep()
                self._rollout.wake(kv_cache=kv_cache)
                if kv_cache:  # the weights were sent to the one that ended
                    self._send(self._version, verify=True)
                return None

    def _send(self, version: int, *, verify: bool) -> None:
        """The first update of an engine that was started again is always verified."""
        with self._setting_at_an_error():
            while True:
                try:
                    self._runtime.send_weights(self._actor, self._rollout, version=version, verify=verify)
                    break
                except EngineDeadError as error:
                    self._restart(error)
                    verify = True
        self._has_weights.set()

    @contextlib.contextmanager
    def _setting_at_an_error(self) -> Iterator[None]:
        """Within, an error lets requests go on, which will meet it, too."""
        try:
            yield
        except BaseException:
            self._has_weights.set()
            raise

    def _restart(self, error: EngineDeadError) -> None:
        """Start engines again, and wait for them; without them the run cannot go on."""
        if error.is_handled:
            return
        if self._closed:
            raise error
        if self._may_start(error, "it is started again"):
            self._has_weights.clear()
            with self._starting, self._setting_at_an_error():
                self._rollout.restart()
        elif not error.workers:
            raise EngineDeadError(
                f"rollout.max_restarts = {self._max_restarts} allows no further start: {error}"
            ) from error

    def _may_start(self, error: EngineDeadError, what: str) -> bool:
        """Count one more start; False once there were as many as may be."""
        with self._counting:
            self.lost.update(error.workers)
            if self.restarts == self._max_restarts:
                if error.workers or error.is_handled:
                    limit = f"rollout.max_restarts = {self._max_restarts}"
                    say(f"{error}\n{limit} is reached: the run continues without it")
                return False
            self.restarts += 1
        between = "\n" if "\n" in str(error) else "; "  # an error may quote lines of a log
        say(f"{error}{between}{what} ({self.restarts} of rollout.max_restarts = {self._max_restarts})")
        return True
