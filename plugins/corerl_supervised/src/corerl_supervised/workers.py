"""The trained model and the reference, each built from the config alone, in any process."""

from dataclasses import replace
from typing import Any

from corerl.checkpoint import random_state
from corerl.contracts.training_strategies import MicroBatching, StrategySpec, TrainingStrategy
from corerl.models import overridden, resolve_device
from corerl.plugins import Plugins, load_plugins
from corerl.trainer.workers import ModelWorker, PolicyWorker
from corerl_supervised.config import SupervisedConfig
from corerl_supervised.tasks import task_of


class TrainedModel(PolicyWorker):
    """The model that is trained: a policy, or a reward model, with the objective of its task.

    Args:
        total_updates: optimizer steps in the whole run.
    """

    def __init__(self, config: SupervisedConfig, total_updates: int) -> None:
        task = task_of(config, plugins_of(config).registries)
        spec = _spec(config, config.model.path)
        trained: dict[str, Any] = {"optim": config.optim, "total_steps": total_updates, "head": task.head}
        self.strategy = _strategy(config, replace(spec, **trained))
        self.base_limit = spec.micro_batching
        self.objective = task.objective()


class ReferenceModel(ModelWorker):
    """The model at ``path``, never updated."""

    def __init__(self, config: SupervisedConfig, path: str) -> None:
        self.strategy = _strategy(config, _spec(config, path))


def plugins_of(config: SupervisedConfig) -> Plugins:
    """The plugins of this process."""
    return load_plugins(tuple(config.plugins.load), tuple(config.plugins.disable))


def _spec(config: SupervisedConfig, path: str) -> StrategySpec:
    device = resolve_device(config.trainer.device, "trainer.device")
    return StrategySpec(
        model=overridden(replace(config.model, path=path)),
        device=device,
        micro_batching=MicroBatching.by_tokens(config.trainer.max_token_len_per_gpu, device),
        grad_clip=config.trainer.grad_clip,
        seed=config.trainer.seed,
    )


def _strategy(config: SupervisedConfig, spec: StrategySpec) -> TrainingStrategy:
    random_state.seed_rank(config.trainer.seed)
    strategies = plugins_of(config).registries.training_strategies
    strategy: TrainingStrategy = strategies.select(config.trainer.strategy, "trainer.strategy").load()(spec)
    return strategy
