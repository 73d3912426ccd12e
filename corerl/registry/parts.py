"""The registered parts that a config selects; names and options are checked, nothing heavy is imported."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from corerl import __version__
from corerl.contracts.advantage_estimators import AdvantageEstimator
from corerl.contracts.batch_filters import BatchFilter
from corerl.contracts.config import RolloutConfig, TrainConfig
from corerl.contracts.environments import EnvironmentFactory
from corerl.contracts.kl_controllers import KLController
from corerl.contracts.kl_types import KLType
from corerl.contracts.policy_losses import PolicyLoss
from corerl.contracts.reward_managers import RewardManagerFactory
from corerl.contracts.rollout_backends import RolloutBackendFactory
from corerl.contracts.runtimes import RuntimeFactory
from corerl.contracts.scorers import Scorer
from corerl.contracts.trackers import TrackerFactory
from corerl.contracts.training_strategies import TrainingStrategyFactory
from corerl.contracts.value_losses import ValueLoss
from corerl.registry import Registries, Registry, Selected

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a training run is made of.

    Attributes:
        kl_loss: None unless ``actor.use_kl_loss``.
        kl_penalty, kl_controller: None unless ``algorithm.use_kl_in_reward``.
        batch_filter: None unless ``algorithm.filter_groups.enable``.
        value_loss, critic_strategy: None unless the advantage estimator needs a critic.
        scorer: scores every row that ``scorers`` does not; None when each data source has its own.
        scorers: data source, or pattern -> the scorer that the config gives it.
        environment: None when a response is one turn.
    """

    adv_estimator: Selected[AdvantageEstimator]
    policy_loss: Selected[PolicyLoss]
    kl_loss: Selected[KLType] | None
    kl_penalty: Selected[KLType] | None
    kl_controller: Selected[KLController] | None
    batch_filter: Selected[BatchFilter] | None
    strategy: Selected[TrainingStrategyFactory]
    value_loss: Selected[ValueLoss] | None
    critic_strategy: Selected[TrainingStrategyFactory] | None
    rollout_backend: Selected[RolloutBackendFactory]
    reward_manager: Selected[RewardManagerFactory]
    scorer: Selected[Scorer] | None
    scorers: Mapping[str, Selected[Scorer]]
    environment: Selected[EnvironmentFactory] | None
    runtime: Selected[RuntimeFactory]
    trackers: tuple[Selected[TrackerFactory], ...]

    @property
    def needs_ref(self) -> bool:
        """The run has a reference model."""
        return "ref" in self.policy_loss.entry.needs or self.kl_loss is not None or self.kl_penalty is not None

    @property
    def needs_ref_log_probs(self) -> bool:
        """The reference's log-probs of the sampled tokens are needed."""
        kl_types = [part for part in (self.kl_loss, self.kl_penalty) if part is not None]
        return "ref" in self.policy_loss.entry.needs or any("logits" not in part.entry.needs for part in kl_types)

    def selected(self) -> list[tuple[str, Selected[Any]]]:
        """(config key, part) pairs of everything that is selected."""
        pairs: list[tuple[str, Selected[Any] | None]] = [
            ("algorithm.adv_estimator", self.adv_estimator),
            ("actor.policy_loss", self.policy_loss),
            ("actor.kl_loss_type", self.kl_loss),
            ("algorithm.kl_penalty", self.kl_penalty),
            ("algorithm.kl_ctrl.type", self.kl_controller),
            ("algorithm.filter_groups.filter", self.batch_filter),
            ("actor.strategy", self.strategy),
            ("critic.value_loss", self.value_loss),
            ("critic.strategy", self.critic_strategy),
            ("rollout.name", self.rollout_backend),
            ("rollout.multi_turn.environment", self.environment),
            ("reward.manager", self.reward_manager),
            ("reward.scorer", self.scorer),
            *((f"reward.scorers.{source}", scorer) for source, scorer in self.scorers.items()),
            ("runtime.name", self.runtime),
            *((f"tracking.loggers[{index}]", tracker) for index, tracker in enumerate(self.trackers)),
        ]
        return [(key, part) for key, part in pairs if part is not None]

    def used(self) -> Iterator[tuple[str, Selected[Any]]]:
        """(attribute, part) of everything but the scorers of data sources."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, Selected):
                    yield field.name, part

    def versions(self) -> dict[str, str]:
        """Distribution -> version, of CoreRL and of the plugins whose parts change the numbers of a run."""
        owners = [part.entry.owner for name, part in self.used() if name not in ("trackers", "runtime")]
        return {"corerl": __version__} | {owner.distribution: owner.version for owner in owners}


def resolve_parts(config: TrainConfig, registries: Registries) -> Parts:
    """Look up every name in ``config`` and check its options.

    Raises:
        ConfigError: an option is unknown, of a wrong type or out of range.
        UnknownNameError, NameClashError, PluginError: as for :meth:`corerl.registry.Registry.get`.
    """
    algorithm, actor, critic = config.algorithm, config.actor, config.critic
    rollout, reward, runtime = config.rollout, config.reward, config.runtime
    kl_types = registries.kl_types
    penalized, filtered = algorithm.use_kl_in_reward, algorithm.filter_groups.enable

    def select(registry: Registry[T], value: Any, key: str) -> Selected[T]:
        return registry.select(value, key)

    adv_estimator = select(registries.advantage_estimators, algorithm.adv_estimator, "algorithm.adv_estimator")
    strategy = select(registries.training_strategies, actor.strategy, "actor.strategy")
    critic_strategy = None
    if "critic" in adv_estimator.entry.needs:
        critic_strategy = (
            select(registries.training_strategies, critic.strategy, "critic.strategy") if critic.strategy else strategy
        )
    return Parts(
        adv_estimator=adv_estimator,
        policy_loss=select(registries.policy_losses, actor.policy_loss, "actor.policy_loss"),
        kl_loss=select(kl_types, actor.kl_loss_type, "actor.kl_loss_type") if actor.use_kl_loss else None,
        kl_penalty=select(kl_types, algorithm.kl_penalty, "algorithm.kl_penalty") if penalized else None,
        kl_controller=select(registries.kl_controllers, algorithm.kl_ctrl.type, "algorithm.kl_ctrl.type")
        if penalized
        else None,
        batch_filter=select(registries.batch_filters, algorithm.filter_groups.filter, "algorithm.filter_groups.filter")
        if filtered
        else None,
        strategy=strategy,
        value_loss=select(registries.value_losses, critic.value_loss, "critic.value_loss") if critic_strategy else None,
        critic_strategy=critic_strategy,
        rollout_backend=select_rollout_backend(rollout, registries),
        reward_manager=select(registries.reward_managers, reward.manager, "reward.manager"),
        scorer=None if reward.scorer is None else select(registries.scorers, reward.scorer, "reward.scorer"),
        scorers={
            source: select(registries.scorers, value, f"reward.scorers.{source}")
            for source, value in reward.scorers.items()
        },
        environment=None
        if rollout.multi_turn.environment is None
        else select(registries.environments, rollout.multi_turn.environment, "rollout.multi_turn.environment"),
        runtime=registries.runtimes.select_named(
            runtime.name, runtime.options, name_key="runtime.name", options_key="runtime.options"
        ),
        trackers=tuple(
            select(registries.trackers, logger, f"tracking.loggers[{index}]")
            for index, logger in enumerate(config.tracking.loggers)
        ),
    )


def select_rollout_backend(rollout: RolloutConfig, registries: Registries) -> Selected[RolloutBackendFactory]:
    """The rollout backend of a config, for what needs no other part; errors as for :func:`resolve_parts`."""
    return registries.rollout_backends.select_named(
        rollout.name, rollout.options, name_key="rollout.name", options_key="rollout.options"
    )
