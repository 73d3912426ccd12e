"""Samplers: the order of the prompts of an epoch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from corerl.data.prompts import Prompt


class PromptOrder(Protocol):
    """A pure function, so a resumed run goes on with two integers: epoch and place. Options are keyword arguments.

    Without a sampler, an epoch has every prompt once, shuffled if ``data.shuffle``.
    """

    def __call__(self, prompts: "Sequence[Prompt]", epoch: int, seed: int) -> Sequence[int]:
        """Indices of one epoch, as many as there are prompts; an index may come several times, or never.

        Args:
            prompts: of the training data, after the filters.
            epoch: from 0.
            seed: ``data.seed``; all randomness depends on it and on ``epoch`` alone.

        Raises:
            ConfigError: an option does not fit the prompts.
        """
        ...
