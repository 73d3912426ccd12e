"""The metrics of an evaluation, and the samples that trackers show."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
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


def validation_metrics(samples: Sequence[ValidationSample], n: int) -> dict[str, float]:
    """``val-core/<data source>/reward/mean@n``: the mean over prompts of the mean over their scored responses.

    ``val-aux/<data source>/<component>/mean@n`` is the same of each named part of the scores. Responses
    without a score are left out; their share is ``val-aux/error_ratio``.
    """
    values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        if sample.score is not None:
            values[f"val-core/{sample.data_source}/reward"][sample.prompt].append(sample.score)
            for name, value in sample.components.items():
                values[f"val-aux/{sample.data_source}/{name}"][sample.prompt].append(value)
    metrics = {
        f"{name}/mean@{n}": fmean(fmean(of_prompt) for of_prompt in by_prompt.values())
        for name, by_prompt in values.items()
    }
    metrics["val-aux/error_ratio"] = fmean(sample.score is None for sample in samples)
    metrics["val-aux/response_length/mean"] = fmean(sample.response_length for sample in samples)
    return metrics


def _chat(messages: Sequence[Mapping[str, Any]]) -> str:
    """A chat as plain text; a single message without its role."""
    if len(messages) == 1:
        return str(messages[0]["content"])
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages)
