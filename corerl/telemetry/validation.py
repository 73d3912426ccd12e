"""The samples of an evaluation, and those that trackers show."""

from collections.abc import Mapping, Sequence
from typing import Any

from corerl.batch.rollouts import Rollouts
from corerl.contracts.evaluations import ValidationSample
from corerl.contracts.reward_managers import RewardResult


def validation_samples(rollouts: Rollouts, results: Sequence[RewardResult]) -> list[ValidationSample]:
    """What the metrics need of generated and scored responses."""
    return [
        ValidationSample(
            prompt.data_source,
            prompt.index,
            result.score,
            len(completion.token_ids),
            result.components,
            result.extracted,
            prompt.messages,
            response,
            str(prompt.ground_truth),
        )
        for prompt, completion, response, result in zip(
            rollouts.prompts, rollouts.completions, rollouts.responses, results, strict=True
        )
    ]


def sample_table(samples: Sequence[ValidationSample], count: int) -> tuple[list[str], list[list[str | float | None]]]:
    """Columns and rows of ``count`` samples, evenly spaced, so that every evaluation shows the same; all of fewer."""
    count = min(count, len(samples))
    shown = [samples[number * len(samples) // count] for number in range(count)]
    return ["data_source", "prompt", "response", "ground_truth", "score"], [
        [sample.data_source, _chat(sample.messages), sample.response, sample.ground_truth, sample.score]
        for sample in shown
    ]


def _chat(messages: Sequence[Mapping[str, Any]]) -> str:
    """A chat as plain text; a single message without its role."""
    if len(messages) == 1:
        return str(messages[0]["content"])
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages)
