"""Options of the rollout backend ``hf``."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from corerl import option
from corerl.contracts.config import TrainConfig
from corerl_check import GenerationShare, Machine, ModelSize, longest


@dataclass
class HfOptions:
    """Sizes of the parts that are computed at a time."""

    max_batch_size: int = option(256, "responses decoded at a time; more raise throughput and memory", ge=1)
    max_prefill_tokens: int | None = option(
        None, "prompt tokens computed at a time; null: 512 on cpu, which suits its caches, and 32768 on cuda", ge=1
    )

    quantization: Literal["none", "fp8", "int8", "int4", "int3", "int2"] = option(
        "none", "round the layers' matrices, per output channel, at each update: a sampler of low precision, to study"
    )
    bitwise: bool = option(
        False, "log-probs equal, bit for bit, to those of a strategy with the same option (set by trainer.bitwise)"
    )

    def generation(self, size: ModelSize, config: TrainConfig, machine: Machine) -> GenerationShare:
        """For `corerl check`: a copy of the model, freed by sleep, and the cache of ``max_batch_size`` full rows."""
        rows = min(self.max_batch_size, config.data.train_batch_size * config.rollout.n)
        weights, per_token = size.parameters * size.bytes, size.cache_bytes
        return GenerationShare(weights, rows * longest(config) * per_token, per_token, cache_in_calls=True)

    def leaner(self) -> Iterator[Mapping[str, Any]]:
        """For `corerl check`: see :class:`corerl_check.SavesMemory`."""
        if self.max_batch_size > 1:
            yield {"max_batch_size": self.max_batch_size // 4 or 1}
