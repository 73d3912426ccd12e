"""The registered parts that a config selects; names and options are checked, nothing heavy is imported."""

import dataclasses
from typing import Any

from corerl.config.schema import ActorConfig, TrainConfig
from corerl.errors import ConfigError
from corerl.registry import Registries, Registry, Selected
from corerl.registry.advantage_estimators import AdvantageEstimator
from corerl.registry.kl_types import KLType
from corerl.registry.policy_losses import PolicyLoss
from corerl.registry.reward_managers import RewardManagerFactory
from corerl.registry.rollout_backends import RolloutBackendFactory
from corerl.registry.runtimes import RuntimeFactory
from corerl.registry.scorers import Scorer
from corerl.registry.trackers import TrackerFactory
from corerl.registry.training_strategies import TrainingStrategyFactory

CLIP_RATIOS = ("clip_ratio_low", "clip_ratio_high", "clip_ratio_c")


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a training run is made of.

    Attributes:
        kl_loss: None unless ``actor.use_kl_loss``.
        kl_penalty: None unless ``algorithm.use_kl_in_reward``.
        scorer: scores every row; None when each data source has its own.
    """

    adv_estimator: Selected[AdvantageEstimator]
    policy_loss: Selected[PolicyLoss]
    kl_loss: Selected[KLType] | None
    kl_penalty: Selected[KLType] | None
    strategy: Selected[TrainingStrategyFactory]
    rollout_backend: Selected[RolloutBackendFactory]
    reward_manager: Selected[RewardManagerFactory]
    scorer: Selected[Scorer] | None
    runtime: Selected[RuntimeFactory]
    trackers: tuple[Selected[TrackerFactory], ...]

    def selected(self) -> list[tuple[str, Selected[Any]]]:
        """(config key, part) pairs of everything that is selected."""
        pairs: list[tuple[str, Selected[Any] | None]] = [
            ("algorithm.adv_estimator", self.adv_estimator),
            ("actor.policy_loss", self.policy_loss),
            ("actor.kl_loss_type", self.kl_loss),
            ("algorithm.kl_penalty", self.kl_penalty),
            ("actor.strategy", self.strategy),
            ("rollout.name", self.rollout_backend),
            ("reward.manager", self.reward_manager),
            ("reward.scorer", self.scorer),
            ("runtime.name", self.runtime),
            *((f"tracking.loggers[{index}]", tracker) for index, tracker in enumerate(self.trackers)),
        ]
        return [(key, part) for key, part in pairs if part is not None]


def resolve_parts(config: TrainConfig, registries: Registries) -> Parts:
    """Look up every name in ``config`` and check its options.

    Raises:
        ConfigError: an option is unknown, of a wrong type or out of range.
        UnknownNameError, NameClashError, PluginError: as for :meth:`corerl.registry.Registry.get`.
    """
    algorithm, actor, rollout, reward, runtime = (
        config.algorithm,
        config.actor,
        config.rollout,
        config.reward,
        config.runtime,
    )
    kl_types = registries.kl_types
    return Parts(
        adv_estimator=registries.advantage_estimators.select(algorithm.adv_estimator, "algorithm.adv_estimator"),
        policy_loss=_policy_loss(actor, registries.policy_losses),
        kl_loss=kl_types.select(actor.kl_loss_type, "actor.kl_loss_type") if actor.use_kl_loss else None,
        kl_penalty=kl_types.select(algorithm.kl_penalty, "algorithm.kl_penalty")
        if algorithm.use_kl_in_reward
        else None,
        strategy=registries.training_strategies.select(actor.strategy, "actor.strategy"),
        rollout_backend=registries.rollout_backends.select_named(
            rollout.name, rollout.options, name_key="rollout.name", options_key="rollout.options"
        ),
        reward_manager=registries.reward_managers.select(reward.manager, "reward.manager"),
        scorer=None if reward.scorer is None else registries.scorers.select(reward.scorer, "reward.scorer"),
        runtime=registries.runtimes.select_named(
            runtime.name, runtime.options, name_key="runtime.name", options_key="runtime.options"
        ),
        trackers=tuple(
            registries.trackers.select(logger, f"tracking.loggers[{index}]")
            for index, logger in enumerate(config.tracking.loggers)
        ),
    )


def _policy_loss(actor: ActorConfig, registry: Registry[PolicyLoss]) -> Selected[PolicyLoss]:
    """The policy loss, with ``actor.clip_ratio_*`` among its options."""
    selected = registry.select(actor.policy_loss, "actor.policy_loss")
    shorthand = {name: getattr(actor, name) for name in CLIP_RATIOS if getattr(actor, name) is not None}
    if not shorthand:
        return selected
    loss = selected.entry
    options = {field.name for field in dataclasses.fields(loss.options)} if loss.options else set()
    given = actor.policy_loss if isinstance(actor.policy_loss, dict) else {"name": actor.policy_loss}
    for name, value in shorthand.items():
        if name not in options:
            raise ConfigError(f"actor.{name}", f"policy loss '{loss.name}' has no such option")
        if given.get(name, value) != value:
            raise ConfigError(
                f"actor.{name}", f"is {value}, but actor.policy_loss gives {given[name]}: give one of them"
            )
    return registry.select({**given, **shorthand}, "actor.policy_loss")
