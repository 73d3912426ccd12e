"""The rows of a step in a process of their own."""

from pathlib import Path

from corerl.contracts.config import TrainConfig
from corerl.contracts.throughput import ModelShape
from corerl.data.tokenizer import load_tokenizer
from corerl.registry.parts import resolve_parts
from corerl.trainer.batch import Batch, make_corrector, make_guard
from corerl.trainer.workers import plugins_of


class BatchWorker(Batch):
    """The batch in a process of its own, with parts of its own."""

    def __init__(self, config: TrainConfig, folder: Path, shape: ModelShape) -> None:
        plugins = plugins_of(config)
        guard = make_guard(config, folder, plugins.hook)
        super().__init__(
            config,
            plugins.hook,
            load_tokenizer(config.model, plugins),
            resolve_parts(config, plugins.registries).adv_estimator.load(),
            make_corrector(config, plugins.hook, shape),
            guard,
        )
        guard.say = self.unsaid.append
