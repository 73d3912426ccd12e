"""A server of an engine of rewards on GPUs of a pool of runtime ``ray``, on any machine of the cluster.

The server listens on the loopback of its machine. Requests go to its process through Ray, which posts them there.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from corerl.errors import CoreRLError, RunError
from corerl.terminal import say
from corerl_rewards.options import HttpOptions, ServerOptions
from corerl_rewards.post import LateError, Poster, ServerError
from corerl_rewards.server import EngineServer

MARGIN = 5.0
"""seconds that a call takes longer than the attempts of its post"""

_starting: "list[PlacedServer]" = []
"""servers of this process"""


def wait() -> None:
    """Wait until all servers of this process answer.

    Raises:
        RunError: one did not start.
    """
    for server in list(_starting):
        server.started()


class PlacedServer:
    """Starts as soon as the runtime offers the pool.

    Args:
        command: of the server, for a number of GPUs.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        options: ServerOptions,
        probe: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._options, self._over, self._done = options, threading.Event(), threading.Event()
        self._placed: Any = None
        self._error: CoreRLError | None = None
        _starting.append(self)
        starting = (command, probe, dict(environment or {}))
        threading.Thread(target=self._start, args=starting, name="corerl-reward-engine", daemon=True).start()

    def _start(self, command: Callable[[int], Sequence[str]], probe: str, environment: dict[str, str]) -> None:
        from corerl_ray.placed import Placed, pool

        options = self._options
        try:
            places = pool(str(options.pool), options.start_timeout, self._over)
            given = (list(command(len(places))), options, probe, environment)
            self._placed = Placed(places, options.start_timeout, _Server, *given)
        except CoreRLError as error:
            self._error = error
        except Exception as error:
            self._error = RunError(f"{type(error).__name__}: {error}")
        self._done.set()

    def started(self) -> None:
        """Wait until it answers.

        Raises:
            RunError: it did not start.
        """
        name, options = f"the reward model's {self._options.engine} in pool {self._options.pool}", self._options
        began = time.monotonic()
        while not self._done.wait(5.0):
            say(f"waiting for {name} ({time.monotonic() - began:.0f} s)")
            if time.monotonic() - began > 2 * options.start_timeout:
                break
        if self._error is not None or self._placed is None:
            raise RunError(f"{name} did not start: {self._error or 'reward.manager.start_timeout has passed'}")

    def poster(self, path: str, options: HttpOptions) -> "PlacedPoster":
        """Posts to a path of the server."""
        return PlacedPoster(self, path, options)

    def post(self, path: str, options: HttpOptions, body: Mapping[str, Any], seconds: float) -> Any:
        """See :meth:`corerl_rewards.post.Poster.post`."""
        try:
            kind, value = self._placed.call("post", path, options, dict(body), seconds, seconds=seconds + MARGIN)
        except CoreRLError as error:
            raise ServerError(f"the reward model's {self._options.engine}: {error}") from None
        if kind == "late":
            raise LateError(value)
        if kind == "error":
            raise ServerError(value)
        return value

    def close(self) -> None:
        """End the server and its processes."""
        self._over.set()
        if self in _starting:
            _starting.remove(self)
        if self._placed is None:
            return
        try:
            self._placed.call("close", seconds=60.0)
        except CoreRLError:  # the runtime has ended it
            return
        self._placed.end()


class PlacedPoster:
    """As :class:`corerl_rewards.post.Poster`, for a server in another process."""

    def __init__(self, server: PlacedServer, path: str, options: HttpOptions) -> None:
        self.url, self._server, self._options = path, server, options

    def post(self, body: Mapping[str, Any], seconds: float) -> Any:
        return self._server.post(self.url, self._options, body, seconds)

    def close(self) -> None:
        """Nothing: the connections are the server's."""


class _Server:
    """The server and its clients, in the process on its machine."""

    def __init__(
        self, command: Sequence[str], options: ServerOptions, probe: str, environment: Mapping[str, str]
    ) -> None:
        self._server = EngineServer(command, options, probe, environment)
        self._posters: dict[str, Poster] = {}
        self._lock = threading.Lock()

    def post(self, path: str, options: HttpOptions, body: Mapping[str, Any], seconds: float) -> tuple[str, Any]:
        with self._lock:
            if path not in self._posters:
                self._posters[path] = self._server.poster(path, options)
        try:
            return "answer", self._posters[path].post(body, seconds)
        except LateError as error:
            return "late", str(error)
        except ServerError as error:
            return "error", str(error)

    def close(self) -> None:
        for poster in self._posters.values():
            poster.close()
        self._server.close()
