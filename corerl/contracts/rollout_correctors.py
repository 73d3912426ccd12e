"""Rollout correctors: from log-probs of trainer and engine to weights of tokens and the trained tokens."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.facts import Claims
from corerl.contracts.losses import Measure


class Correction(NamedTuple):
    """(B, T) each: weights of the policy loss's terms, or None; trained tokens."""

    weights: Tensor | None
    response_mask: Tensor


class RolloutCorrector(Protocol):
    """Made once a run by the hook ``make_rollout_corrector``, from ``algorithm.rollout_correction``.

    The methods here measure and change nothing.
    """

    @property
    def claims(self) -> Claims | None:
        """Bias of the gradient with an unbiased estimator, samples of another policy and this correction."""
        return None

    @property
    def acts_on_mini_batches(self) -> bool:
        """Each mini-batch is corrected just before its update."""
        return False

    @property
    def only_measures(self) -> bool:
        """The correction of a batch is always None, so :meth:`of_batch` may also be called after the update."""
        return False

    def of_batch(self, experience: Experience, staleness: int) -> tuple[Correction | None, Mapping[str, Measure]]:
        """The correction of a whole batch, or None, and measures of the mismatch.

        Args:
            staleness: largest of the batch, in versions of the weights.

        Raises:
            RunError: engine and trainer disagree.
        """
        return None, {}

    def weights(self, correction: Correction | None) -> Tensor | None:
        """(B, T) float32 factors of the loss's terms, 0 at rejected tokens; None if all are 1."""
        return None

    def apply(self, correction: Correction | None, experience: Experience) -> None:
        """Add the weights to a batch, and remove the rejected tokens from its mask."""
        return

    def of_mini_batch(self, mini_batch: Experience, present: Tensor) -> Mapping[str, Measure]:
        """Change a mini-batch if :attr:`acts_on_mini_batches`; ``present``: (b, T), log pi before the update."""
        return {}


@runtime_checkable
class PartwiseCorrector(Protocol):
    """A corrector that may see a part of a batch, of whole groups; any other sees the whole."""

    @property
    def takes_parts(self) -> bool:
        """The corrections of the parts are that of the whole."""
        ...

    def check(self, measures: Mapping[str, Measure], staleness: int) -> None:
        """Check the measures of :meth:`RolloutCorrector.of_batch`, of the whole batch; ``of_batch`` does not.

        Raises:
            RunError: engine and trainer disagree.
        """
        ...


class NoCorrector(RolloutCorrector):
    """That of a run without rollout correction."""

    @property
    def only_measures(self) -> bool:
        return True
