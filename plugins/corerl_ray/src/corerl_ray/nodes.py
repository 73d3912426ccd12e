"""The other nodes of a rollout worker whose engine covers several: an actor on each starts a follower, and receives
weights for the engine's ranks there.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from corerl.contracts.surroundings import reach_directly
from corerl.errors import EngineDeadError, RunError
from corerl_engines import nodes
from corerl_ray.ends import exit_cause
from corerl_ray.host import CONTROL, Failure, WorkerHost
from corerl_ray.signs import Asked, Signs, end, on

REPORTING = 20.0
"""seconds for a node's report on the end of its process"""
LOOK = 1.0
"""seconds between two looks for signs of life during a step"""


@dataclass
class Parts:
    """The processes of an engine on its other nodes, in the process of its worker, and their signs of life.

    Attributes:
        hang_timeout: seconds in which each must answer.
        asked: address of a node -> its id, and the process there.
    """

    hang_timeout: float
    asked: dict[str, tuple[str, Asked]] = field(default_factory=dict)

    def signs(self) -> Signs:
        """Of one step."""
        return Signs(ray.get_runtime_context().get_node_id(), self.hang_timeout)

    def check(self, signs: Signs) -> None:
        """End a process without a sign of life, also one that others wait for.

        Raises:
            EngineDeadError: there is one.
        """
        for process in signs.silent(list(self.asked.values())):
            address, node = next((address, node) for address, (node, own) in self.asked.items() if own == process)
            on(node, end).remote(process)
            state = signs.states[process]
            raise EngineDeadError(
                f"the engine has lost its part on node {address}: its process {process.pid} gives no sign of life for "
                f"{self.hang_timeout:.0f} s" + (f": {state}" if state else "")
            )


@dataclass
class OtherNode:
    """For :class:`corerl_engines.nodes.Node`. Each start has an actor of its own, which ends with the worker's process.

    Attributes:
        place: Ray's scheduling of the actor.
        options: further options of the actor.
        environment: variables of the controller.
        own: further variables: devices, secrets.
        timeout: of a start, in seconds.
        longest: of a step of a transport of weights, in seconds.
        parts: those of all nodes of the engine.
    """

    address: str
    place: PlacementGroupSchedulingStrategy
    options: Mapping[str, Any]
    environment: Mapping[str, str]
    own: Mapping[str, str]
    timeout: float
    longest: float
    parts: Parts
    _host: Any = field(default=None, init=False)

    def start(self, order: nodes.Order) -> None:
        self._host_anew()
        try:
            facts = ray.get(self._host.facts.remote(), timeout=self.timeout)
            self.parts.asked[self.address] = facts.node, facts.asked
            result = ray.get(self._host.start.remote(order, self.own), timeout=self.timeout)
        except RayError as error:
            what = str(error).strip().splitlines()[-1]
            raise RunError(f"no process could be started there within {self.timeout:g} s ({what})") from None
        if isinstance(result, Failure):
            raise result.error("its process")

    def _host_anew(self) -> None:
        self.parts.asked.pop(self.address, None)
        if self._host is not None:
            ray.kill(self._host, no_restart=True)
        actor: Any = ray.remote(PartHost)
        self._host = actor.options(
            num_cpus=0,
            scheduling_strategy=self.place,
            max_restarts=0,
            max_concurrency=CONTROL,
            enable_task_events=False,
            **self.options,
        ).remote(str(Path.cwd()), sys.path, self.longest, dict(self.environment))

    def how_ended(self) -> str:
        try:
            return str(ray.get(self._host.how_ended.remote(), timeout=REPORTING))
        except RayError:
            return "the node cannot be reached: its machine or the network failed"

    def apply(self, function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
        """Begin ``function(host, *args)`` there, a step of a transport of weights; returns the wait for its result.

        The wait raises:
            EngineDeadError: the process there has ended, or does not answer, or one on another node of the engine
                gives no sign of life.
            CoreRLError: from the step.
        """
        reference, deadline = self._host.apply.remote(function, *args), time.monotonic() + self.longest

        def wait() -> Any:
            signs = self.parts.signs()
            while not ray.wait([reference], timeout=LOOK)[0] and time.monotonic() < deadline:
                self.parts.check(signs)
            try:
                result = ray.get(reference, timeout=0)
            except RayError as error:
                why = exit_cause(str(error))
                raise EngineDeadError(f"the engine has lost its part on node {self.address}: {why}") from None
            if isinstance(result, Failure):
                raise result.error(f"the engine's part on node {self.address}")
            return result

        return wait


class PartHost(WorkerHost):
    """The actor of a follower, on its node; steps of a transport of weights run in it as in a worker's process."""

    def start(self, order: nodes.Order, own: Mapping[str, str]) -> Failure | None:
        os.environ.update(own)
        reach_directly()
        try:
            self._part = nodes.Part(order, self.address)
        except Exception as error:
            return Failure.of(error)
        return None

    def how_ended(self) -> str:
        return self._part.how_ended()
