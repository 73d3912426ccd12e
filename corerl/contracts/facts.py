"""Facts of the core's kinds, arguments of ``register``; their import is quicker than that of the contracts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from corerl.contracts.kinds import fact

if TYPE_CHECKING:
    from corerl.contracts.metrics import Metric
    from corerl.contracts.policy_losses import TokenSelector
    from corerl.contracts.training_strategies import CheckpointReader


@dataclass(frozen=True)
class LossFacts:
    """Facts of a policy or value loss."""

    metrics: "tuple[Metric, ...]" = fact((), "describes the metrics, under whole names, in docs/metrics.md")


@dataclass(frozen=True)
class PolicyLossFacts(LossFacts):
    """Facts of a policy loss."""

    select_tokens: "TokenSelector | str | None" = fact(
        None,
        "calls this function on each whole mini-batch; `inputs.selected`",
        contract="corerl.contracts.policy_losses:TokenSelector",
        takes_options=True,
    )
    zero_at_zero_advantage: bool = fact(
        False,
        "allows `actor.zero_advantage: skip`: in a row whose advantages are all 0, terms and gradients are 0",
    )


@dataclass(frozen=True)
class ScorerFacts:
    """Facts of a scorer."""

    data_sources: tuple[str, ...] = fact((), "selects the scorer for these values, or patterns, of `data_source`")


@dataclass(frozen=True)
class BackendFacts:
    """Facts of a rollout backend."""

    media: tuple[str, ...] = fact((), "accepts these columns of the data (`images`, `videos`); `request.media`")
    starts_beside_models: bool = fact(
        False,
        "may start while the models are built: the engine's memory does not depend on theirs, and the constructor "
        "returns before the engine can generate (`StartingBackend`)",
    )


@dataclass(frozen=True)
class StrategyFacts:
    """Facts of a training strategy."""

    distributed: bool = fact(False, "allows several workers, with `RANK` and `WORLD_SIZE` in their environment")
    read_checkpoint: "CheckpointReader | str | None" = fact(
        None,
        "no effect on the run; `corerl export` reads checkpoints with this function",
        contract="corerl.contracts.training_strategies:CheckpointReader",
    )
