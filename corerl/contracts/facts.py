"""Facts of the core's kinds, arguments of ``register``; their import is quicker than that of the contracts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from corerl.contracts.kinds import fact

if TYPE_CHECKING:
    from corerl.contracts.metrics import Metric
    from corerl.contracts.policy_losses import TokenSelector
    from corerl.contracts.token_outputs import OfLogitsFactory
    from corerl.contracts.training_strategies import CheckpointReader


@dataclass(frozen=True)
class Claims:
    """The expected gradient of an entry; the conformance kit proves it (:mod:`corerl_testing.enumerable`).

    Attributes:
        bias: ``unbiased``: the gradient of the objective, times the factor; ``baseline-biased``: a sample is part of
            its own baseline, so the factor is not 1, or none holds; ``surrogate``: an ascent direction, or the gradient
            at the policy that sampled alone.
        of: the objective, a name of the kit or ``"module:attribute"``.
        factor: in the group's size n, such as ``"(n - 1) / n"``; "": none holds for every problem.
    """

    bias: Literal["unbiased", "baseline-biased", "surrogate"]
    of: str = "expected score"
    factor: str = "1"

    def __str__(self) -> str:
        times = {"1": "", "": ", not in proportion"}.get(self.factor, f", times {self.factor}")
        return f"{self.bias}: {self.of}{times}"


@dataclass(frozen=True)
class ClaimFacts:
    """Facts of a KL type."""

    claims: Claims | None = fact(
        None, "bias of the expected gradient, and its objective; the conformance kit proves it"
    )


@dataclass(frozen=True)
class EstimatorFacts(ClaimFacts):
    """Facts of an advantage estimator."""

    groups_alone: bool = fact(
        False,
        "sees some groups of a step in each of several processes (`rollout.num_workers`): the advantages of a group "
        "depend on its rows alone",
    )


@dataclass(frozen=True)
class LossFacts:
    """Facts of a policy or value loss."""

    metrics: "tuple[Metric, ...]" = fact((), "describes the metrics, under whole names, in docs/metrics.md")


@dataclass(frozen=True)
class PolicyLossFacts(LossFacts, ClaimFacts):
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
    of_logits: "OfLogitsFactory | str | None" = fact(
        None,
        "calls the function that this makes on the logits of each chunk of tokens; `inputs.of_logits`",
        contract="corerl.contracts.token_outputs:OfLogitsFactory",
        takes_options=True,
    )


@dataclass(frozen=True)
class RewardManagerFacts:
    """Facts of a reward manager."""

    scores_alone: bool = fact(False, "scores without scorers: a data source needs none")


@dataclass(frozen=True)
class ScorerFacts:
    """Facts of a scorer."""

    data_sources: tuple[str, ...] = fact((), "selects the scorer for these values, or patterns, of `data_source`")


@dataclass(frozen=True)
class BackendFacts:
    """Facts of a rollout backend."""

    media: tuple[str, ...] = fact((), "accepts these columns of the data (`images`, `videos`); `request.media`")
    columns: tuple[str, ...] = fact(
        (),
        "reads these columns of the prompt's tokens (`images`), by a tokenizer that processes media; `request.media`",
    )
    records: tuple[str, ...] = fact((), "records these columns of tokens (`rollout.record`); `completion.columns`")
    adapters: bool = fact(False, "takes adapters alone, beside the base that it loads once (`rollout.lora`)")
    starts_beside_models: bool = fact(
        False,
        "may start while the models are built: the engine's memory does not depend on theirs, and the constructor "
        "returns before the engine can generate (`StartingBackend`)",
    )


@dataclass(frozen=True)
class StrategyFacts:
    """Facts of a training strategy."""

    replays: tuple[str, ...] = fact((), "computes with these columns of tokens (`rollout.record`); `batch.columns`")
    adapters: bool = fact(
        False, "sends adapters alone, and is the reference without them (`corerl.contracts.adapters.AdaptingStrategy`)"
    )
    outputs_of_update: bool = fact(
        False,
        "makes old log-probs those of the update itself, if a step has one update: each rank calls the objective with "
        "all rows of its share",
    )
    distributed: bool = fact(False, "allows several workers, with `RANK` and `WORLD_SIZE` in their environment")
    read_checkpoint: "CheckpointReader | str | None" = fact(
        None,
        "no effect on the run; `corerl export` reads checkpoints with this function",
        contract="corerl.contracts.training_strategies:CheckpointReader",
    )
