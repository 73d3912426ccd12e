"""Findings about a mixture of experts: whether training replays the engine's choice of experts."""

from collections.abc import Iterator

from corerl.contracts.config import TrainConfig
from corerl.registry.parts import Parts
from corerl_check import GIB, Finding, ModelSize, finding, longest

COLUMN = "experts"
KEY = "rollout.record"

LARGE = GIB
"""bytes of the column in one step from which a note names them"""


def look(config: TrainConfig, parts: Parts, size: ModelSize) -> Iterator[Finding]:
    """
    Args:
        size: of the policy.
    """
    if COLUMN in config.rollout.record:
        if size.unrouted:
            yield finding("error", KEY, size.unrouted.removeprefix("model.path: "), f"Remove '{COLUMN}' from it.")
            return
        rows = (config.data.gen_batch_size or config.data.train_batch_size) * config.rollout.n
        most = size.routed_bytes * rows * longest(config)
        if most >= LARGE:
            sentence = (
                f"column '{COLUMN}' takes {size.routed_bytes} bytes of each token, up to {most / GIB:.1f} GiB of main "
                f"memory for the {rows} responses of a step"
            )
            yield Finding("note", KEY, sentence)
    elif size.routed_bytes and _can(parts):
        yield Finding(
            "note",
            KEY,
            "engine and trainer choose the model's experts each for itself, and near ties fall differently, so their "
            f"log-probs differ more than a dense model's; {KEY}=[{COLUMN}] replays the engine's choice in training",
        )


def _can(parts: Parts) -> bool:
    return COLUMN in parts.rollout_backend.entry.facts.records and COLUMN in parts.strategy.entry.facts.replays
