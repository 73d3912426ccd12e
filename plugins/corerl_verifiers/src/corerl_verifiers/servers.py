"""The library's environment with its servers, renewed after a number of episodes.

The library keeps a client for each address, and each episode has an address of its own; the clients end with their
servers.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from corerl.errors import ConfigError
from corerl_verifiers.options import TASKS, TaskOptions, require_library

KEY = "rollout.agent"

require_library(KEY, TASKS)

import verifiers.v1 as vf  # noqa: E402

START_SECONDS = 120.0


def env_config(options: TaskOptions) -> Any:
    """The library's configuration; an agent without a runtime works in subprocesses.

    Raises:
        ConfigError: the library refuses it.
    """
    try:
        data: dict[str, Any] = {**options.env, "taskset": dict(options.taskset)}
        fields = vf.env_config_type(options.taskset["id"], data.get("id") or "").model_fields
        for name, field in fields.items():
            if isinstance(field.default, vf.AgentConfig):
                data[name] = {"runtime": {"type": "subprocess"}, **data.get(name, {})}
        return vf.resolve_env_config(data)
    except Exception as error:
        raise ConfigError(KEY, f"the library verifiers refuses its options: {error}") from error


class Servers:
    """Environments in use; all calls are made in one event loop.

    Args:
        make: makes an environment.
        most: episodes of one environment.
    """

    def __init__(self, make: Callable[[], Any], most: int) -> None:
        self._make, self._most = make, most
        self._lock = asyncio.Lock()
        self._current: _Serving | None = None

    @contextlib.asynccontextmanager
    async def environment(self) -> AsyncIterator[Any]:
        """An environment whose servers run, for one episode."""
        async with self._lock:
            if self._current is None or self._current.begun >= self._most:
                await self._retire()
                self._current = await _Serving.start(self._make())
            serving = self._current
            serving.begun, serving.open = serving.begun + 1, serving.open + 1
        try:
            yield serving.environment
        finally:
            serving.open -= 1
            await serving.end_if_idle()

    async def close(self) -> None:
        """End all servers."""
        async with self._lock:
            await self._retire()

    async def _retire(self) -> None:
        if self._current is not None:
            self._current.is_old = True
            await self._current.end_if_idle()
            self._current = None


class _Serving:
    """An environment and its servers, which live in a task of their own: the library enters and leaves in one task."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self.begun = self.open = 0
        self.is_old = False
        self._ready, self._over = asyncio.Event(), asyncio.Event()
        self._task = asyncio.create_task(self._serve())

    @classmethod
    async def start(cls, environment: Any) -> "_Serving":
        serving = cls(environment)
        ready = asyncio.create_task(serving._ready.wait())
        async with asyncio.timeout(START_SECONDS):
            await asyncio.wait([ready, serving._task], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if serving._task.done():
            serving._task.result()
        return serving

    async def end_if_idle(self) -> None:
        if self.is_old and not self.open:
            self._over.set()
            await asyncio.shield(self._task)

    async def _serve(self) -> None:
        async with self.environment.serving():
            self._ready.set()
            await self._over.wait()


def environment_of(config: Any) -> Any:
    """The library's environment."""
    return vf.load_environment(config)


def client_config(base_url: str, api_key: str, model_path: str, renderer: Mapping[str, Any] | None) -> Any:
    """The library's training client for one episode's endpoint.

    Raises:
        ConfigError: the library refuses the renderer.
    """
    try:
        return vf.TrainClientConfig.model_validate(
            {
                "base_url": base_url,
                "api_key_var": "CORERL_NO_KEY",
                "headers": {"Authorization": f"Bearer {api_key}"},
                "renderer": renderer,
                "renderer_model_name": model_path,
            }
        )
    except ValueError as error:
        raise ConfigError(f"{KEY}.renderer", f"the library verifiers refuses it: {error}") from error


def model_context(name: str, client: Any) -> Any:
    """The policy, as an episode of the library takes it."""
    return vf.ModelContext(model=name, client=client)
