"""The agent ``verifiers``: an episode is one of verifiers 0.4, with its harness, its tools and its rewards.

The library's training client renders messages to tokens itself, and asks the endpoint of the episode for tokens.
"""

from typing import Any

from corerl.contracts.agents import AgentContext, AgentResult, Model, Task
from corerl.errors import DataError
from corerl.foreign import LoopThread
from corerl_verifiers.options import TaskOptions
from corerl_verifiers.servers import Servers, client_config, env_config, environment_of, model_context
from corerl_verifiers.tasks import TaskStore

MODEL = "policy"
"""the name of the policy in the library's requests"""
LIBRARY = "the library verifiers"
END_SECONDS = 60.0


class VerifiersAgent:
    """See :class:`corerl.contracts.agents.ClosingAgent`."""

    def __init__(self, context: AgentContext, *, options: TaskOptions) -> None:
        self._model_path, self._renderer = context.config.model.path, options.renderer
        config = env_config(options)
        client_config("http://localhost/v1", "", self._model_path, self._renderer)  # refuses a wrong renderer now
        self._tasks = TaskStore(environment_of(config).taskset)
        self._loop = LoopThread("corerl-verifiers")
        self._servers = Servers(lambda: environment_of(config), options.episodes_of_a_server)

    async def run(self, task: Task, model: Model) -> AgentResult:
        """Play the task of a row."""
        place, key = task.extra_info.get("task"), task.extra_info.get("task_key")
        if place is None or key is None:
            raise DataError("the row names no task (extra_info.task): prepare the data with 'corerl prepare verifiers'")
        client = client_config(model.base_url, model.api_key, self._model_path, self._renderer)
        return await self._loop.call(lambda: self._play(int(place), str(key), client), LIBRARY)

    def close(self) -> None:
        """End the library's servers."""
        self._loop.close(self._servers.close(), END_SECONDS)

    async def _play(self, place: int, key: str, client: Any) -> AgentResult:
        task = self._tasks.find(place, key)
        async with self._servers.environment() as environment:
            episode = await environment.run_episode(task, model_context(MODEL, client))
        return result_of(episode)


def result_of(episode: Any) -> AgentResult:
    """The result of one of the library's episodes: the reward of the one trace that is trained."""
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if not episode.ok:
        reason = f"{errors[-1].type}: {errors[-1].message}" if errors else "the library gives no reason"
        return AgentResult(error=f"the library's episode failed: {' '.join(reason.split())[:2000]}")
    trained = [trace for trace in episode.traces if trace.agent is None or trace.agent.trainable]
    if len(trained) != 1:
        return AgentResult(error=f"an episode trains one agent, and this one has {len(trained)} trained traces")
    [trace] = trained
    rewards = {name: float(each.value) for name, each in trace.rewards.items() if each is not None}
    metrics = {f"verifiers/{name}": float(value) for name, value in trace.metrics.items() if value is not None}
    return AgentResult(
        reward=float(trace.reward),
        components=rewards,
        metrics={**metrics, "verifiers/truncated/ratio": (float(trace.is_truncated), 1)},
    )
