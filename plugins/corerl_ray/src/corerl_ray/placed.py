"""Processes of other parts, such as an engine of rewards, in GPUs that the runtime reserves: ``runtime.options.pools``.

A part may be made before the runtime: it waits until the runtime of its process offers the pool.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from corerl.contracts.surroundings import leave_launch, reach_directly
from corerl.errors import DeadlineError, RunError
from corerl_ray.environment import carried, secrets
from corerl_ray.host import Failure, end_with_parent, hear_of_children
from corerl_ray.pools import FRACTION, Places

CALLS = 64
"""concurrent calls of an object"""

_offered: dict[str, Places] = {}
_names: list[str] = []
"""``runtime.options.environment``"""
_changed = threading.Condition()


def offer(pools: Mapping[str, Places], environment: Sequence[str] = ()) -> None:
    """Offer pools to parts of this process; none: withdraw them.

    Args:
        environment: names of further variables for their processes.
    """
    with _changed:
        _offered.clear()
        _offered.update(pools)
        _names[:] = environment
        _changed.notify_all()


def pool(name: str, seconds: float, is_over: threading.Event) -> Places:
    """The pool of this name, as soon as a runtime offers it.

    Raises:
        DeadlineError: none did within ``seconds``.
        RunError: ``is_over`` was set.
    """
    end = time.monotonic() + seconds
    with _changed:
        while name not in _offered:
            if is_over.is_set():
                raise RunError("the run ends")
            if time.monotonic() > end:
                raise DeadlineError(f"no runtime 'ray' has offered the pool {name} within {seconds:g} s")
            _changed.wait(0.2)
        return _offered[name]


class Placed:
    """An object in a process of its own, which sees all GPUs of a pool.

    Raises:
        CoreRLError: the object could not be made.
        DeadlineError: not within ``seconds``.
    """

    def __init__(self, places: Places, seconds: float, make: Callable[..., Any], *args: Any) -> None:
        _needs_cluster()
        own = carried(_names) | secrets(_names) | {"CUDA_VISIBLE_DEVICES": ",".join(places.devices(seconds))}
        actor: Any = ray.remote(_Host)
        self._host = actor.options(
            num_cpus=0,
            num_gpus=FRACTION,
            scheduling_strategy=places.strategy(0),
            max_restarts=0,
            max_concurrency=CALLS,
            enable_task_events=False,
        ).remote(str(Path.cwd()), sys.path, own)
        try:
            self._value(self._host.make.remote(make, args), seconds, "its start")
        except BaseException:
            self.end()
            raise

    def call(self, method: str, *args: Any, seconds: float) -> Any:
        """The result of a method of the object.

        Raises:
            CoreRLError: raised by the method.
            DeadlineError: no result within ``seconds``.
            RunError: the process has ended, or its machine is lost.
        """
        _needs_cluster()
        return self._value(self._host.call.remote(method, args), seconds, method)

    def end(self) -> None:
        """End the process, and with it those that it has started."""
        if ray.is_initialized():
            ray.kill(self._host, no_restart=True)

    def _value(self, reference: "ray.ObjectRef[Any]", seconds: float, what: str) -> Any:
        try:
            value = ray.get(reference, timeout=seconds)
        except GetTimeoutError:
            raise DeadlineError(f"{what} took longer than {seconds:g} s") from None
        except RayError as error:
            raise RunError(f"its process has ended ({str(error).strip().splitlines()[-1]})") from None
        if isinstance(value, Failure):
            raise value.error("it")
        return value


def _needs_cluster() -> None:
    """Without a cluster, a call would start one.

    Raises:
        RunError: this process has left its cluster.
    """
    if not ray.is_initialized():
        raise RunError("the runtime has ended")


class _Host:
    """The actor."""

    def __init__(self, folder: str, paths: Sequence[str], own: Mapping[str, str]) -> None:
        leave_launch()
        hear_of_children()
        end_with_parent()
        if Path(folder).is_dir():
            os.chdir(folder)
        sys.path += [path for path in paths if path not in sys.path]
        os.environ.update(own)
        reach_directly()

    def make(self, make: Callable[..., Any], args: Sequence[Any]) -> Failure | None:
        try:
            self._held = make(*args)
        except Exception as error:
            return Failure.of(error)
        return None

    def call(self, method: str, args: Sequence[Any]) -> Any:
        try:
            return getattr(self._held, method)(*args)
        except Exception as error:
            return Failure.of(error)
