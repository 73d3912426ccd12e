"""Options of the rollout backend ``hf``."""

from dataclasses import dataclass

from corerl import option


@dataclass
class HfOptions:
    """How much is computed at a time."""

    max_batch_size: int = option(256, "responses decoded at a time; more raise throughput and memory", ge=1)
    max_prefill_tokens: int = option(32768, "prompt tokens computed at a time; fewer lower the peak of memory", ge=1)
