"""Sample rollouts on disk, for the reader."""

import json
from collections.abc import Sequence
from pathlib import Path

from corerl.batch.rollouts import Episode, Rollouts
from corerl.files import atomic_path
from corerl.registry.reward_managers import RewardResult


def write_rollouts(path: Path, rollouts: Rollouts, results: Sequence[RewardResult]) -> None:
    """One parquet row a response: prompt, response, score, components, error, lengths and weight version."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    episodes: Sequence[Episode | None] = rollouts.episodes or [None] * len(rollouts)
    encode = json.JSONEncoder(ensure_ascii=False, default=str).encode
    rows = [
        {
            "data_source": prompt.data_source,
            "prompt": encode(prompt.messages),
            "response": response,
            "ground_truth": encode(prompt.ground_truth),
            "score": result.score,
            "components": encode(dict(result.components)),
            "extracted": result.extracted,
            "error": result.error,
            "prompt_length": len(prompt.token_ids),
            "response_length": len(completion.token_ids),
            "finish_reason": completion.finish_reason,
            "weight_version": completion.weight_version,
            "group": group,
            "episode": None if episode is None else encode(episode.messages),
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
    with atomic_path(path) as temporary:
        pq.write_table(pa.Table.from_pylist(rows), temporary)
