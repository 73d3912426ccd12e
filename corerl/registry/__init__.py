"""The registries, one for each kind of part; corerl.contracts has a page for each kind."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from corerl.contracts.facts import (
    BackendFacts,
    ClaimFacts,
    EstimatorFacts,
    LossFacts,
    PolicyLossFacts,
    RewardManagerFacts,
    ScorerFacts,
    StrategyFacts,
)
from corerl.contracts.kinds import Kind
from corerl.errors import PluginError
from corerl.registry.base import Entry, Owner, Registry, Selected, UntrustedSelection
from corerl.registry.coroutines import blocking
from corerl.registry.modules import load_file, load_object
from corerl.registry.scorers import load_scorer, timed

__all__ = [
    "Entry",
    "Owner",
    "Registries",
    "Registry",
    "Selected",
    "UntrustedSelection",
    "blocking",
    "load_file",
    "load_object",
    "load_scorer",
    "timed",
]


def _kind(registry: str, words: str, contract: str, config_key: str = "", *, needs: bool = False, **facts: Any) -> Kind:
    """A kind of the core, whose page of contracts is imported at first use."""
    page = f"corerl.contracts.{registry}"
    return Kind(registry, words, f"{page}:{contract}", config_key, f"{page}:NEEDS" if needs else {}, **facts)


KINDS = (
    _kind(
        "advantage_estimators",
        "advantage estimator",
        "AdvantageEstimator",
        "algorithm.adv_estimator",
        needs=True,
        facts=EstimatorFacts,
    ),
    _kind("policy_losses", "policy loss", "PolicyLoss", "actor.policy_loss", needs=True, facts=PolicyLossFacts),
    _kind("kl_types", "KL type", "KLType", "actor.kl_loss_type", needs=True, facts=ClaimFacts),
    _kind("kl_controllers", "KL controller", "KLController", "algorithm.kl_ctrl.type"),
    _kind("value_losses", "value loss", "ValueLoss", "critic.value_loss", facts=LossFacts),
    _kind("batch_filters", "batch filter", "BatchFilter", "algorithm.filter_groups.filter"),
    _kind("presets", "preset", "Preset", "preset"),
    _kind("reward_managers", "reward manager", "RewardManagerFactory", "reward.manager", facts=RewardManagerFacts),
    _kind("scorers", "scorer", "Scorer", "reward.scorer", facts=ScorerFacts),
    _kind("rollout_backends", "rollout backend", "RolloutBackendFactory", "rollout.name", facts=BackendFacts),
    _kind("agents", "agent", "AgentFactory", "rollout.agent"),
    _kind("training_strategies", "training strategy", "TrainingStrategyFactory", "actor.strategy", facts=StrategyFacts),
    _kind("runtimes", "runtime", "RuntimeFactory", "runtime.name"),
    _kind("trackers", "tracker", "TrackerFactory", "tracking.loggers"),
    _kind("commands", "command", "Command"),
)
"""kinds of the core"""


class Registries:
    """All registries; the hook of each is ``register_<name>``."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Registry[Any]:
            """A registry, of the core's kinds and of those that plugins add."""

    def __init__(self) -> None:
        for kind in KINDS:
            self.add(kind)

    def __iter__(self) -> Iterator[tuple[str, Registry[Any]]]:
        """(name, registry) pairs."""
        return iter(vars(self).items())

    def add(self, kind: Kind) -> Registry[Any]:
        """The empty registry of a new kind.

        Raises:
            PluginError: there is a kind of this name, or the name is no identifier.
        """
        if not kind.registry.isidentifier() or hasattr(self, kind.registry):
            raise PluginError(f"the kind '{kind.words}' needs another name of its registry than '{kind.registry}'")
        if kind.words in {registry.kind for _, registry in self}:
            raise PluginError(f"there is a kind '{kind.words}' already")
        registry: Registry[Any] = Registry(kind.words, kind.contract, kind.config_key, kind.needs, kind.facts)
        setattr(self, kind.registry, registry)
        return registry
