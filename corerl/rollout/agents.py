"""Agents: how one is made, how it plays an episode, and the metrics of its episodes."""

import asyncio
import functools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

from corerl.batch.rollouts import Episode
from corerl.batch.times import context, totals
from corerl.contracts.agents import Agent, AgentContext, AgentFactory, AgentResult, Model, Task
from corerl.contracts.config import TrainConfig
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.errors import CoreRLError, DataError, RefusedError, RunError
from corerl.registry import Selected
from corerl.registry.coroutines import is_async
from corerl.rollout.groups import Group

FAILURES = {
    "timeout": "the episode took longer",
    "exception": "the agent raised",
    "aborted": "its generation was aborted",
    "silent": "the agent asked its model for nothing",
    "refused": "a request was refused",
}
"""cause -> the beginning of an episode's error; the agent reported any other"""


def make_agent(
    selected: Selected[AgentFactory] | None,
    others: Mapping[str, Selected[Any]],
    config: TrainConfig,
    tokenizer: ChatTokenizer,
) -> Agent | None:
    """The agent of a run, or None.

    Args:
        others: key -> part of a plugin's kind, for :attr:`AgentContext.part`.
    """
    if selected is None:
        return None
    target: Any = selected.entry.load()
    if selected.options is not None:
        target = functools.partial(target, options=selected.options)
    if is_async(target):
        return cast(Agent, SimpleNamespace(run=target))
    return cast(Agent, target(AgentContext(config, tokenizer, {key: each.load() for key, each in others.items()}.get)))


async def result_of(agent: Agent, group: Group, model: Model, timeout: float) -> AgentResult:
    """Play one episode; one that takes longer than ``timeout`` seconds is cancelled and has an error.

    Raises:
        RunError: the agent breaks its contract.
    """
    prompt = group.prompt
    row = (prompt.messages, prompt.ground_truth, prompt.data_source, prompt.extra_info)
    try:
        async with asyncio.timeout(timeout) as deadline:
            result = await agent.run(Task(*row, prompt.token_ids, group.seed, prompt.tools), model) or AgentResult()
    except DataError as error:
        raise RunError(str(error)) from error
    except RefusedError as error:
        return AgentResult(error=f"{FAILURES['refused']}: {error}")
    except CoreRLError:
        raise
    except Exception as error:
        if deadline.expired():
            return AgentResult(error=f"{FAILURES['timeout']} than rollout.agent_timeout = {timeout:g} s")
        return AgentResult(error=f"{FAILURES['exception']} {type(error).__name__}: {' '.join(str(error).split())}")
    if not isinstance(result, AgentResult):
        raise RunError(f"the agent returned {type(result).__name__}, not AgentResult (corerl.contracts.agents)")
    if not math.isfinite(result.reward):
        raise RunError(f"the agent returned the reward {result.reward}: a reward must be finite")
    return result


def agent_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Of the numbers of episodes, failed ones included: means, maxima, and ratios of sums."""
    numbers, shares = defaultdict[str, list[float]](list), defaultdict[str, list[Sequence[float]]](list)
    for episode in episodes:
        for name, value in [*_numbers(episode).items(), *episode.metrics.items()]:
            full = name if "/" in name else f"agent/{name}"
            (shares if isinstance(value, Sequence) else numbers)[full].append(value)
    metrics = {f"{name}/mean": sum(values) / len(values) for name, values in numbers.items()}
    metrics |= {f"{name}/max": float(max(values)) for name, values in numbers.items()}
    for name, values in shares.items():
        metrics[name] = sum(part for part, _ in values) / max(1, sum(whole for _, whole in values))
    return metrics


def _numbers(episode: Episode) -> dict[str, Any]:
    """Those that the stream knows of any agent's episode."""
    error, requests = episode.error, episode.requests
    cause = next((name for name, begin in FAILURES.items() if (error or "").startswith(begin)), "reported")
    numbers: dict[str, Any] = {"turns": episode.turns, "branches": len(episode.branches), "context": context(requests)}
    numbers |= {f"{kind}_seconds": seconds for kind, seconds in totals(requests, episode.seconds).items()}
    numbers["agent/failed/ratio"] = (error is not None, 1)
    return numbers | {
        f"agent/failed/{each}/ratio": (error is not None and each == cause, 1) for each in [*FAILURES, "reported"]
    }
