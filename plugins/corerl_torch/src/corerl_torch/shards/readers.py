"""Parts of a run that need all rows of a step in one process; the number of shards that they leave."""

from collections.abc import Iterable, Sequence

from corerl.contracts.annotators import Annotator
from corerl.contracts.config import TrainConfig
from corerl.contracts.rollout_correctors import NoCorrector, PartwiseCorrector, RolloutCorrector
from corerl.registry.parts import Parts

MOST = 16
"""shards; each costs the controller seven calls a step"""


def shards_of(
    config: TrainConfig, parts: Parts, corrector: RolloutCorrector, annotators: Sequence[Annotator]
) -> tuple[int, str]:
    """The number of shards of a step under runtime ``ray`` with ``rollout.num_workers``, 0 if the controller has the
    rows, and a sentence if parts of the run are the reason.
    """
    if readers := readers_of_tokens(parts, corrector, annotators):
        return 0, f"the controller holds the tokens of each step: {', '.join(readers)}"
    shards = min(config.rollout.num_workers, config.data.train_batch_size, MOST)
    if shards > 1 and (readers := readers_of_all_groups(parts, corrector)):
        return 1, in_one_process(readers)
    return shards, ""


def in_one_process(readers: Iterable[str], steps: str = "each step") -> str:
    """The sentence about steps with one shard."""
    return f"one process holds the tokens of {steps}: {', '.join(readers)}"


def reader_by_floats(names: Iterable[str]) -> str:
    """The hook ``step_metrics`` as a reader of all groups, by its metrics that are no measures."""
    return (
        f"a plugin's step_metrics gives {', '.join(names)} as numbers of the whole step (measures, such as "
        "corerl.contracts.losses.Mean, add up)"
    )


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
