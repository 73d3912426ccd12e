"""Options of the rollout backend ``hf``."""

from dataclasses import dataclass

from corerl import option


@dataclass
class HfOptions:
    """How much is computed at a time."""

    max_batch_size: int = option(256, "responses decoded at a time; more raise throughput and memory", ge=1)
    max_prefill_tokens: int | None = option(
        None, "prompt tokens computed at a time; null: 512 on cpu, which suits its caches, and 32768 on cuda", ge=1
    )
