"""Parts of a run that need all rows of a step in one process."""

from collections.abc import Sequence

from corerl.contracts.annotators import Annotator
from corerl.contracts.rollout_correctors import NoCorrector, PartwiseCorrector, RolloutCorrector
from corerl.registry.parts import Parts


def readers_of_tokens(parts: Parts, corrector: RolloutCorrector, annotators: Sequence[Annotator]) -> list[str]:
    """Parts that read tokens of a step in the controller, which then holds the batch."""
    readers = {
        "algorithm.use_kl_in_reward": parts.kl_penalty is not None,
        "algorithm.rollout_correction.bypass_mode": corrector.acts_on_mini_batches,
        "actor.policy_loss, which selects tokens of a mini-batch": parts.policy_loss.load_fact("select_tokens"),
        "annotators of mini-batches": annotators,
    }
    return [name for name, reads in readers.items() if reads]


def readers_of_all_groups(parts: Parts, corrector: RolloutCorrector) -> list[str]:
    """Parts that compare rows of different groups, or may do so; one process then holds the batch."""
    partwise = isinstance(corrector, NoCorrector) or (
        isinstance(corrector, PartwiseCorrector) and corrector.takes_parts
    )
    estimator = parts.adv_estimator.entry
    readers = {
        f"algorithm.adv_estimator={estimator.name}": not estimator.facts.groups_alone,
        "algorithm.rollout_correction": not partwise,
    }
    return [name for name, reads in readers.items() if reads]
