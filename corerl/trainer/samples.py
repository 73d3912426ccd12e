"""Sample rollouts on disk, for the reader and for ``corerl score`` and ``corerl eval``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corerl.batch.rollouts import Episode, Rollouts
from corerl.evaluation.files import result_columns, write_rows
from corerl.registry.reward_managers import RewardResult


def write_rollouts(path: Path, rollouts: Rollouts, results: Sequence[RewardResult]) -> None:
    """One parquet row a response: prompt, response, score, components, error, lengths and weight version."""
    episodes: Sequence[Episode | None] = rollouts.episodes or [None] * len(rollouts)
    rows = [
        {
            "data_source": prompt.data_source,
            "prompt": prompt.messages,
            "response": response,
            "ground_truth": prompt.ground_truth,
            "extra_info": dict(prompt.extra_info),
            **result_columns(result),
            "prompt_length": len(prompt.token_ids),
            "response_length": len(completion.token_ids),
            "finish_reason": completion.finish_reason,
            "weight_version": completion.weight_version,
            "group": group,
            **({} if episode is None else episode_columns(episode)),
        }
        for prompt, completion, response, group, result, episode in zip(
            rollouts.prompts,
            rollouts.completions,
            rollouts.responses,
            rollouts.group_ids,
            results,
            episodes,
            strict=True,
        )
    ]
    write_rows(path, rows)


def episode_columns(episode: Episode) -> dict[str, Any]:
    """What the environment had to do with a response."""
    return {
        "episode": episode.messages,
        "environment_reward": episode.reward,
        "environment_error": episode.error,
    }
