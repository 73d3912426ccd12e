"""Generation requests for prompts."""

import dataclasses
from collections.abc import Iterable

from corerl.contracts.config import TrainConfig
from corerl.contracts.rollout_backends import RolloutBackendFactory, SamplingParams
from corerl.contracts.token_columns import TokenValues
from corerl.contracts.training_strategies import TrainingStrategyFactory
from corerl.data.prompts import Prompt
from corerl.errors import DataError
from corerl.registry import Entry


def training_sampling(config: TrainConfig, stop_token_ids: tuple[int, ...]) -> SamplingParams:
    """How ``rollout`` says that training prompts are sampled."""
    rollout = config.rollout
    return SamplingParams(
        max_tokens=config.data.max_response_length,
        n=rollout.n,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        min_p=rollout.min_p,
        stop_token_ids=stop_token_ids,
        ignore_eos=rollout.ignore_eos,
    )


def greedy_sampling(sampling: SamplingParams) -> SamplingParams:
    """The likeliest response to each prompt, once, with the same limit and stop tokens."""
    return dataclasses.replace(sampling, n=1, temperature=0.0, top_p=1.0, top_k=-1, min_p=0.0)


def check_media(
    prompts: Iterable[Prompt],
    backend: Entry[RolloutBackendFactory],
    strategy: Entry[TrainingStrategyFactory] | None = None,
) -> None:
    """Raise DataError if a prompt has media that the rollout backend, or the training strategy, does not take."""
    for prompt in prompts:
        for name, value in prompt.media.items():
            is_column = isinstance(value, TokenValues)
            taken = backend.facts.columns if is_column else backend.facts.media
            if name not in taken:
                raise DataError(
                    f"prompt {prompt.index} has '{name}', and rollout backend '{backend.name}' takes "
                    f"{', '.join(taken) or 'text alone'}: drop the column, or choose another rollout.name"
                )
            if is_column and strategy is not None and name not in strategy.facts.replays:
                raise DataError(
                    f"prompt {prompt.index} has '{name}', and strategy '{strategy.name}' trains on text alone: drop "
                    "the column, or choose another actor.strategy"
                )
