"""Findings about the processes with the rows of a step: whether parts of the run leave one of them work."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from corerl.contracts.config import TrainConfig
from corerl.errors import RequestError
from corerl.plugins import Plugins
from corerl.registry.parts import Parts
from corerl_check import Finding, ModelSize, from_error

KEY = "rollout.num_workers"


def look(config: TrainConfig, parts: Parts, plugins: Plugins, size: ModelSize) -> Iterator[Finding]:
    """The line that the run would print; annotators of mini-batches are known to the run alone.

    Args:
        size: of the policy.
    """
    from corerl.contracts.rollout_correctors import NoCorrector
    from corerl.contracts.throughput import ModelShape
    from corerl_torch.shards import readers

    if config.runtime.name != "ray" or not config.rollout.num_workers:
        return
    on_any = dataclasses.replace(config, actor=dataclasses.replace(config.actor, device="cpu"))  # not of this machine
    shape = ModelShape(size.parameters, size.layers, size.hidden)
    try:
        corrector = plugins.hook.make_rollout_corrector(config=on_any, shape=shape) or NoCorrector()
    except RequestError as error:
        yield from_error(error, "algorithm.rollout_correction")
        return
    shards, line = readers.shards_of(config, parts, corrector, [])
    if line:
        yield Finding("note", KEY, line)
    elif shards > 1:
        yield from _floats(config, parts, plugins)


def _floats(config: TrainConfig, parts: Parts, plugins: Plugins) -> Iterator[Finding]:
    """By a call of the plugins' ``step_metrics`` with made rows."""
    import torch

    from corerl.contracts.experience import collate
    from corerl.contracts.losses import measures_of
    from corerl.contracts.reward_managers import RewardResult
    from corerl_torch.shards import readers

    rows = collate([[1, 2]] * 4, [[3, 4], [5]] * 2, [0, 0, 1, 1])
    zeros = torch.zeros(rows.response_mask.shape)
    rows.rollout_log_probs = rows.old_log_probs = zeros - 1
    rows.ref_log_probs = zeros - 1 if parts.needs_ref else None
    rows.values = zeros if parts.value_loss is not None else None
    rows.weight_versions = zeros.long()
    rows.rewards = zeros + torch.tensor([[1.0], [0.0], [1.0], [0.5]])
    rows.advantages = rows.returns = rows.rewards
    given: dict[str, Any] = {
        "experience": rows,
        "results": [RewardResult(score) for score in (1.0, 0.0, 1.0, 0.5)],
        "truncated": [False] * 4,
        "max_prompt_length": config.data.max_prompt_length,
        "responses": 4,
    }
    names: list[str] = []
    for each in plugins.hook.step_metrics.get_hookimpls():
        try:
            found: Any = each.function(*(given[name] for name in each.argnames))
            metrics = measures_of(found or {})
        except Exception as error:  # of a plugin, which may need what only a run has
            sentence = (
                f"step_metrics of {each.plugin_name} failed with four made rows ({type(error).__name__}: {error})"
            )
            yield Finding("note", KEY, f"{sentence}: whether its metrics are measures is not known")
        else:
            names += [name for name, value in metrics.items() if isinstance(value, float)]
    if names:
        yield Finding("note", KEY, readers.in_one_process([readers.reader_by_floats(names)]))
