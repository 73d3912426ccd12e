"""The registries: one for each kind of thing that a plugin can supply.

Each kind has one page here: what goes in, what comes out, and the Protocol.
"""

# ruff: noqa: RUF009  _of() is a field

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from corerl.contracts.kinds import Kind
from corerl.contracts.losses import LossFacts
from corerl.contracts.policy_losses import PolicyLossFacts
from corerl.contracts.rollout_backends import BackendFacts
from corerl.contracts.scorers import ScorerFacts
from corerl.contracts.training_strategies import StrategyFacts
from corerl.errors import PluginError
from corerl.registry.base import Entry, Owner, Registry, Selected
from corerl.registry.coroutines import blocking
from corerl.registry.modules import load_file, load_object
from corerl.registry.scorers import load_scorer, timed

if TYPE_CHECKING:
    from corerl.contracts.advantage_estimators import AdvantageEstimator
    from corerl.contracts.batch_filters import BatchFilter
    from corerl.contracts.commands import Command
    from corerl.contracts.environments import EnvironmentFactory
    from corerl.contracts.kl_controllers import KLController
    from corerl.contracts.kl_types import KLType
    from corerl.contracts.policy_losses import PolicyLoss
    from corerl.contracts.presets import Preset
    from corerl.contracts.reward_managers import RewardManagerFactory
    from corerl.contracts.rollout_backends import RolloutBackendFactory
    from corerl.contracts.runtimes import RuntimeFactory
    from corerl.contracts.scorers import Scorer
    from corerl.contracts.trackers import TrackerFactory
    from corerl.contracts.training_strategies import TrainingStrategyFactory
    from corerl.contracts.value_losses import ValueLoss

__all__ = [
    "Entry",
    "Owner",
    "Registries",
    "Registry",
    "Selected",
    "blocking",
    "load_file",
    "load_object",
    "load_scorer",
    "timed",
]


def _of(kind: str, contract: str, config_key: str = "", needs: str = "", **more: Any) -> Any:
    """A registry of the core; its contract and its needs are imported at first use, from a page of the contracts."""
    declared = (f"corerl.contracts.{needs}",) if needs else ()
    return field(default_factory=lambda: Registry(kind, f"corerl.contracts.{contract}", config_key, *declared, **more))


@dataclass(frozen=True)
class Registries:
    """All registries; the hook of each is ``register_<name>``."""

    advantage_estimators: "Registry[AdvantageEstimator]" = _of(
        "advantage estimator",
        "advantage_estimators:AdvantageEstimator",
        "algorithm.adv_estimator",
        "advantage_estimators:NEEDS",
    )
    policy_losses: "Registry[PolicyLoss]" = _of(
        "policy loss", "policy_losses:PolicyLoss", "actor.policy_loss", "policy_losses:NEEDS", facts=PolicyLossFacts
    )
    kl_types: "Registry[KLType]" = _of("KL type", "kl_types:KLType", "actor.kl_loss_type", "kl_types:NEEDS")
    kl_controllers: "Registry[KLController]" = _of(
        "KL controller", "kl_controllers:KLController", "algorithm.kl_ctrl.type"
    )
    value_losses: "Registry[ValueLoss]" = _of(
        "value loss", "value_losses:ValueLoss", "critic.value_loss", facts=LossFacts
    )
    batch_filters: "Registry[BatchFilter]" = _of(
        "batch filter", "batch_filters:BatchFilter", "algorithm.filter_groups.filter"
    )
    presets: "Registry[Preset]" = _of("preset", "presets:Preset", "preset")
    reward_managers: "Registry[RewardManagerFactory]" = _of(
        "reward manager", "reward_managers:RewardManagerFactory", "reward.manager"
    )
    scorers: "Registry[Scorer]" = _of("scorer", "scorers:Scorer", "reward.scorer", facts=ScorerFacts)
    rollout_backends: "Registry[RolloutBackendFactory]" = _of(
        "rollout backend", "rollout_backends:RolloutBackendFactory", "rollout.name", facts=BackendFacts
    )
    environments: "Registry[EnvironmentFactory]" = _of(
        "environment", "environments:EnvironmentFactory", "rollout.multi_turn.environment"
    )
    training_strategies: "Registry[TrainingStrategyFactory]" = _of(
        "training strategy", "training_strategies:TrainingStrategyFactory", "actor.strategy", facts=StrategyFacts
    )
    runtimes: "Registry[RuntimeFactory]" = _of("runtime", "runtimes:RuntimeFactory", "runtime.name")
    trackers: "Registry[TrackerFactory]" = _of("tracker", "trackers:TrackerFactory", "tracking.loggers")
    commands: "Registry[Command]" = _of("command", "commands:Command")

    added: dict[str, Registry[Any]] = field(default_factory=dict)
    """of kinds that plugins add"""

    def __iter__(self) -> Iterator[tuple[str, Registry[Any]]]:
        """(field name, registry) pairs."""
        yield from ((each.name, getattr(self, each.name)) for each in fields(self) if each.name != "added")
        yield from self.added.items()

    def __getattr__(self, name: str) -> Registry[Any]:
        """A registry of a kind that a plugin adds."""
        try:
            added: dict[str, Registry[Any]] = self.__dict__["added"]
            return added[name]
        except KeyError:
            raise AttributeError(f"there is no registry '{name}'") from None

    def add(self, kind: Kind) -> Registry[Any]:
        """The empty registry of a kind that a plugin adds.

        Raises:
            PluginError: there is a kind of this name, or the name is no identifier.
        """
        if not kind.registry.isidentifier() or hasattr(self, kind.registry):
            raise PluginError(f"the kind '{kind.words}' needs another name of its registry than '{kind.registry}'")
        if kind.words in {registry.kind for _, registry in self}:
            raise PluginError(f"there is a kind '{kind.words}' already")
        self.added[kind.registry] = Registry(kind.words, kind.contract, kind.config_key, kind.needs, kind.facts)
        return self.added[kind.registry]
