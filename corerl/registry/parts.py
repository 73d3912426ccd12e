"""The registered parts of a config; names and options are checked, nothing heavy is imported."""

# ruff: noqa: RUF009  _of() is a field

import dataclasses
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

from corerl import __version__
from corerl.config.nearest_keys import dotted_keys
from corerl.contracts.advantage_estimators import AdvantageEstimator
from corerl.contracts.agents import AgentFactory
from corerl.contracts.batch_filters import BatchFilter
from corerl.contracts.config import RolloutConfig, TrainConfig
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
from corerl.registry import KINDS, Registries, Registry, Selected

ENVIRONMENT = "rollout.multi_turn.environment"


def _of(key: str, registry: str) -> Any:
    """A part that a key of the config selects."""
    return dataclasses.field(metadata={"key": key, "registry": registry})


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of a training run.

    Attributes:
        kl_loss: None unless ``actor.use_kl_loss``.
        kl_penalty, kl_controller: None unless ``algorithm.use_kl_in_reward``.
        batch_filter: None unless ``algorithm.filter_groups.enable``.
        ref_strategy: None without ``ref.strategy``: the reference has ``strategy``.
        value_loss, critic_strategy: None unless the advantage estimator needs a critic.
        scorer: of rows outside ``scorers``; None: each data source has its own.
        scorers: data source, or pattern -> scorer.
        agent: None for responses of one turn.
        others: key -> part of a kind that a plugin adds.
    """

    adv_estimator: Selected[AdvantageEstimator] = _of("algorithm.adv_estimator", "advantage_estimators")
    policy_loss: Selected[PolicyLoss] = _of("actor.policy_loss", "policy_losses")
    kl_loss: Selected[KLType] | None = _of("actor.kl_loss_type", "kl_types")
    kl_penalty: Selected[KLType] | None = _of("algorithm.kl_penalty", "kl_types")
    kl_controller: Selected[KLController] | None = _of("algorithm.kl_ctrl.type", "kl_controllers")
    batch_filter: Selected[BatchFilter] | None = _of("algorithm.filter_groups.filter", "batch_filters")
    strategy: Selected[TrainingStrategyFactory] = _of("actor.strategy", "training_strategies")
    ref_strategy: Selected[TrainingStrategyFactory] | None = _of("ref.strategy", "training_strategies")
    value_loss: Selected[ValueLoss] | None = _of("critic.value_loss", "value_losses")
    critic_strategy: Selected[TrainingStrategyFactory] | None = _of("critic.strategy", "training_strategies")
    rollout_backend: Selected[RolloutBackendFactory] = _of("rollout.name", "rollout_backends")
    agent: Selected[AgentFactory] | None = _of("rollout.agent", "agents")
    reward_manager: Selected[RewardManagerFactory] = _of("reward.manager", "reward_managers")
    scorer: Selected[Scorer] | None = _of("reward.scorer", "scorers")
    scorers: Mapping[str, Selected[Scorer]] = _of("reward.scorers", "scorers")
    runtime: Selected[RuntimeFactory] = _of("runtime.name", "runtimes")
    trackers: tuple[Selected[TrackerFactory], ...] = _of("tracking.loggers", "trackers")
    others: Mapping[str, Selected[Any]] = dataclasses.field(default_factory=dict)

    @property
    def needs_ref(self) -> bool:
        """The run has a reference model."""
        return "ref" in self.policy_loss.entry.needs or self.kl_loss is not None or self.kl_penalty is not None

    @property
    def needs_ref_log_probs(self) -> bool:
        """The reference's log-probs of the sampled tokens are needed."""
        kl_types = [part for part in (self.kl_loss, self.kl_penalty) if part is not None]
        return "ref" in self.policy_loss.entry.needs or any("logits" not in part.entry.needs for part in kl_types)

    def selected(self) -> Iterator[tuple[str, Selected[Any]]]:
        """(config key, part) pairs of all selected parts."""
        for field in dataclasses.fields(self):
            key, part = field.metadata.get("key"), getattr(self, field.name)
            if key is None:
                yield from part.items()
            elif isinstance(part, Mapping):
                yield from ((f"{key}.{name}", each) for name, each in part.items())
            elif isinstance(part, tuple):
                yield from ((f"{key}[{index}]", each) for index, each in enumerate(part))
            elif part is not None:
                yield key, part

    def used(self) -> Iterator[tuple[str, Selected[Any]]]:
        """(attribute, part) of everything but the scorers of data sources; (kind, part) of ``others``."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, Selected):
                    yield field.name, part
        yield from ((part.entry.kind, part) for part in self.others.values())

    def versions(self) -> dict[str, str]:
        """Distribution -> version, of CoreRL and of the plugins whose parts change the numbers of a run."""
        owners = [part.entry.owner for name, part in self.used() if name not in ("trackers", "runtime")]
        return {"corerl": __version__} | {owner.distribution: owner.version for owner in owners}


def update_gives_old_log_probs(config: TrainConfig, parts: Parts) -> bool:
    """A step has one update of the policy, of all rows, and nothing that the config selects reads log-probs before."""
    algorithm, actor = config.algorithm, config.actor
    needed = {"log_probs", "sum_pi_squared"} & parts.adv_estimator.entry.needs
    one = actor.ppo_epochs == 1 and actor.ppo_mini_batch_size >= config.data.train_batch_size
    correction = algorithm.rollout_correction
    stale = correction.rollout_is is None and config.trainer.max_staleness > 0
    corrected = correction.bypass_mode or correction.acts or stale or algorithm.use_kl_in_reward
    whole = actor.zero_advantage == "train" and config.trainer.on_nonfinite == "stop"
    selects = parts.policy_loss.entry.facts.select_tokens is not None
    return one and whole and parts.strategy.entry.facts.outputs_of_update and not (needed or corrected or selects)


def resolve_parts(config: TrainConfig, registries: Registries) -> Parts:
    """Look up every name in ``config`` and check its options.

    Raises:
        ConfigError: an option is unknown, of a wrong type or out of range.
        UnknownNameError, NameClashError, PluginError: as for :meth:`corerl.registry.Registry.get`.
    """
    algorithm = config.algorithm
    used = {
        "kl_loss": config.actor.use_kl_loss,
        "kl_penalty": algorithm.use_kl_in_reward,
        "kl_controller": algorithm.use_kl_in_reward,
        "batch_filter": algorithm.filter_groups.enable,
    }
    chosen: dict[str, Any] = {}
    for field in dataclasses.fields(Parts):
        if not field.metadata:
            continue
        registry, key = getattr(registries, field.metadata["registry"]), field.metadata["key"]
        chosen[field.name] = _select(registry, config, key) if used.get(field.name, True) else None
        if field.name == "adv_estimator":
            used["value_loss"] = used["critic_strategy"] = "critic" in chosen["adv_estimator"].entry.needs
    if used["critic_strategy"] and chosen["critic_strategy"] is None:
        chosen["critic_strategy"] = chosen["strategy"]
    chosen["agent"] = select_agent(config, registries)
    return Parts(**chosen, others=select_others(config, registries))


def select_agent(config: TrainConfig, registries: Registries) -> Selected[AgentFactory] | None:
    """The agent of a config, which is ``environment`` if the config names an environment alone; None: single turns."""
    rollout = config.rollout
    if rollout.agent is None and rollout.multi_turn.environment is not None:
        return registries.agents.select("environment", ENVIRONMENT)
    return None if rollout.agent is None else registries.agents.select(rollout.agent)


def select_others(config: TrainConfig, registries: Registries) -> dict[str, Selected[Any]]:
    """Key -> part, of the kinds of plugins whose key is one of the schema."""
    own = {kind.registry for kind in KINDS}
    keys = [(registry.config_key, registry) for name, registry in registries if name not in own and registry.config_key]
    parts = {key: _select(registry, config, key) for key, registry in keys if key in dotted_keys(TrainConfig)}
    return {key: part for key, part in parts.items() if part is not None}


def _select(registry: Registry[Any], config: TrainConfig, key: str) -> Any:
    """The part, the tuple or the mapping of parts that a key selects, or None."""
    value = attrgetter(key)(config)
    if key.endswith(".name"):
        options_key = f"{key.rpartition('.')[0]}.options"
        return registry.select_named(value, attrgetter(options_key)(config), name_key=key, options_key=options_key)
    if isinstance(value, list):
        return tuple(registry.select(each, f"{key}[{index}]") for index, each in enumerate(value))
    if key == "reward.scorers":
        return {source: registry.select(each, f"{key}.{source}") for source, each in value.items()}
    return None if value is None else registry.select(value, key)


def select_rollout_backend(rollout: RolloutConfig, registries: Registries) -> Selected[RolloutBackendFactory]:
    """The rollout backend of a config; errors as for :func:`resolve_parts`."""
    return registries.rollout_backends.select_named(
        rollout.name, rollout.options, name_key="rollout.name", options_key="rollout.options"
    )
