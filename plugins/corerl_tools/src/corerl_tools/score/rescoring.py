"""Score stored responses in the same way as a training."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from statistics import fmean
from typing import NamedTuple

from corerl.contracts.checks import CheckedOptions
from corerl.contracts.config import RuntimeConfig, TrainConfig
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.scorers import Scorer
from corerl.data.progress import batches
from corerl.plugins import Plugins
from corerl.registry import Selected
from corerl.registry.parts import resolve_parts
from corerl.rollout.scoring import add_agent, check_results, load_reward_manager, select_scorers
from corerl_tools.evaluation.files import Response


def scorers_of(responses: Sequence[Response], config: TrainConfig, plugins: Plugins) -> Mapping[str, Selected[Scorer]]:
    """The scorer of each data source.

    Raises:
        RequestError: a data source has no scorer, or the config's ``reward`` is wrong.
    """
    sources = dict.fromkeys(response.data_source for response in responses)
    return select_scorers(sources, resolve_parts(config, plugins.registries), plugins.registries)


def rescore(
    responses: Sequence[Response], scorers: Mapping[str, Selected[Scorer]], config: TrainConfig, plugins: Plugins
) -> list[RewardResult]:
    """One result for each response, from the config's reward manager.

    Raises:
        RequestError: a scorer or the reward manager cannot be imported, or the manager needs the runtime of a training.
        RunError: the reward manager breaks its contract.
    """
    results: list[RewardResult] = []
    manager = resolve_parts(config, plugins.registries).reward_manager
    if isinstance(manager.options, CheckedOptions):
        manager.options.check("reward.manager", _without_training(config))
    with closing(load_reward_manager(scorers, config.reward, manager)) as reward:
        for batch in batches(responses, "responses"):
            scored = reward.score([response.reward_request(config.data.max_response_length) for response in batch])
            check_results(scored, len(batch))
            results += map(_of_episode, batch, scored)
    return results


def _without_training(config: TrainConfig) -> TrainConfig:
    """The config of this process alone, without workers and models on its GPUs."""
    actor = dataclasses.replace(config.actor, device="cpu")
    rollout = dataclasses.replace(config.rollout, num_workers=0)
    return dataclasses.replace(config, runtime=RuntimeConfig(), actor=actor, rollout=rollout)


class _Played(NamedTuple):
    total_reward: float
    components: Mapping[str, float]
    error: str | None


def _of_episode(response: Response, result: RewardResult) -> RewardResult:
    """The result with the environment's reward or error added, if the response is an episode."""
    reward = response.row.get("environment_reward")
    if reward is None:
        return result
    played = _Played(reward, {"environment": reward}, response.row.get("environment_error"))
    return add_agent([result], [played])[0]


def score_table(
    responses: Sequence[Response], results: Sequence[RewardResult], scorers: Mapping[str, Selected[Scorer]]
) -> list[tuple[str, ...]]:
    """Rows for the terminal, headings first: one row for each data source, with the mean of each component."""
    rows: list[tuple[str, ...]] = [("data source", "scorer", "responses", "scored", "mean score", "components")]
    for source, scorer in scorers.items():
        own = [result for response, result in zip(responses, results, strict=True) if response.data_source == source]
        scores = [result.score for result in own if result.score is not None]
        names = dict.fromkeys(name for result in own for name in result.components)
        components = ", ".join(
            f"{name} {fmean(each.components[name] for each in own if name in each.components):.4f}" for name in names
        )
        mean = f"{fmean(scores):.4f}" if scores else "–"
        rows.append((source, scorer.entry.name, str(len(own)), str(len(scores)), mean, components))
    return rows


def error_lines(results: Sequence[RewardResult], most: int = 5) -> list[str]:
    """``count: reason`` of the most frequent reasons for missing scores."""
    reasons = Counter(result.error for result in results if result.error is not None)
    lines = [f"{count}: {reason}" for reason, count in reasons.most_common(most)]
    rest = reasons.total() - sum(count for _, count in reasons.most_common(most))
    return [*lines, f"{rest}: {len(reasons) - most} further reasons"] if len(reasons) > most else lines
