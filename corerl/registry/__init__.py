"""The registries: one for each kind of thing that a plugin can supply.

Each kind has one page here: what goes in, what comes out, and the Protocol.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from corerl.registry.advantage_estimators import AdvantageEstimator
from corerl.registry.base import Entry, Owner, Registry, Selected
from corerl.registry.commands import Command
from corerl.registry.dataset_preparers import DatasetPreparer
from corerl.registry.kl_types import KLType
from corerl.registry.policy_losses import PolicyLoss
from corerl.registry.reward_managers import RewardManagerFactory
from corerl.registry.rollout_backends import RolloutBackendFactory
from corerl.registry.runtimes import RuntimeFactory
from corerl.registry.scorers import Scorer
from corerl.registry.trackers import TrackerFactory
from corerl.registry.training_strategies import TrainingStrategyFactory

__all__ = ["Entry", "Owner", "Registries", "Registry", "Selected"]


def _registry(kind: str, contract: type, config_key: str = "") -> Any:
    return dataclasses.field(default_factory=lambda: Registry(kind, contract, config_key))


@dataclasses.dataclass(frozen=True)
class Registries:
    """All registries; the field names are those of the hooks ``register_<field>``."""

    advantage_estimators: Registry[AdvantageEstimator] = _registry(
        "advantage estimator", AdvantageEstimator, "algorithm.adv_estimator"
    )
    policy_losses: Registry[PolicyLoss] = _registry("policy loss", PolicyLoss, "actor.policy_loss")
    kl_types: Registry[KLType] = _registry("KL type", KLType, "actor.kl_loss_type")
    reward_managers: Registry[RewardManagerFactory] = _registry("reward manager", RewardManagerFactory, "reward.manager")
    scorers: Registry[Scorer] = _registry("scorer", Scorer, "reward.scorer")
    rollout_backends: Registry[RolloutBackendFactory] = _registry("rollout backend", RolloutBackendFactory, "rollout.name")
    training_strategies: Registry[TrainingStrategyFactory] = _registry(
        "training strategy", TrainingStrategyFactory, "actor.strategy"
    )
    runtimes: Registry[RuntimeFactory] = _registry("runtime", RuntimeFactory, "runtime.name")
    trackers: Registry[TrackerFactory] = _registry("tracker", TrackerFactory, "tracking.loggers")
    dataset_preparers: Registry[DatasetPreparer] = _registry("dataset preparer", DatasetPreparer)
    commands: Registry[Command] = _registry("command", Command)

    def __iter__(self) -> Iterator[tuple[str, Registry[Any]]]:
        """(field name, registry) pairs."""
        return ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
