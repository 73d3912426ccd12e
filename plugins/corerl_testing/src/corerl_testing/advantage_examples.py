"""Seeded batches for the checks of advantage estimators, and functions that change them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from corerl.contracts.advantage_estimators import AdvantageInputs, Turns
from corerl.registry import Entry
from corerl_testing.tensors import generator, response_mask, scattered

GROUPS = (0, 1, 0, 2, 1, 3, 0, 2, 1, 2, 0, 4, 4)
"""group of each row of the example; row 5 is alone in its group, and row 2 has no score"""


def example(
    entry: Entry[Any], dtype: torch.dtype, *, groups: tuple[int, ...] = GROUPS, width: int = 7
) -> AdvantageInputs:
    """Seeded inputs with all declared needs of the entry; scores in [0, 1], on the last trained token.

    Each trained token is a turn, without a reward of its own, so that what holds for tokens holds for turns.
    """
    random = generator(0)
    rows = len(groups)
    mask = response_mask(rows, width, random)
    mask[:2, 0] = True
    per_token = 0.01 * torch.rand(rows, width, generator=random, dtype=torch.float64)
    scores = torch.rand(rows, 1, generator=random, dtype=torch.float64)
    rewards = torch.where(mask, per_token + last(mask) * scores, 0.0)
    probabilities = 0.05 + 0.9 * torch.rand(rows, width, generator=random, dtype=torch.float64)
    others = torch.rand(rows, width, generator=random, dtype=torch.float64) * (1 - probabilities) ** 2
    scored = mask.any(dim=1)

    def of_rows() -> Tensor:
        return torch.where(scored, torch.rand(rows, generator=random, dtype=torch.float64), 0.0).to(dtype)

    group_ids = torch.tensor(groups)
    return AdvantageInputs(
        rewards=rewards.to(dtype),
        response_mask=mask,
        group_ids=group_ids,
        values=torch.randn(rows, width, generator=random, dtype=dtype) * mask if "critic" in entry.needs else None,
        greedy_scores=torch.rand(rows, generator=random, dtype=dtype)[group_ids]
        if "greedy_baseline" in entry.needs
        else None,
        log_probs=probabilities.log().to(dtype) if {"log_probs", "sum_pi_squared"} & entry.needs else None,
        sum_pi_squared=(probabilities**2 + others).to(dtype) if "sum_pi_squared" in entry.needs else None,
        components={"accuracy": of_rows(), "format": of_rows()},
        turns=Turns(torch.where(mask, mask.cumsum(dim=1) - 1, -1).int(), torch.zeros(rows, width, dtype=dtype)),
    )


def last(mask: Tensor) -> Tensor:
    """(B, T) bool: the last trained token of each response."""
    steps = torch.arange(mask.shape[1])
    return torch.where(mask, steps, -1).max(dim=1, keepdim=True).values == steps


def first(mask: Tensor) -> Tensor:
    """(B, T) bool: the first trained token of each response."""
    return last(mask.flip(1)).flip(1)


def compared(entry: Entry[Any], inputs: AdvantageInputs) -> list[int]:
    """The rows with a score, and, if the entry needs ``groups``, with another scored row in their group."""
    scored = inputs.response_mask.any(dim=1)
    companions = ((inputs.group_ids[:, None] == inputs.group_ids) & scored).sum(dim=1)
    return torch.nonzero(scored & ((companions > 1) | ("groups" not in entry.needs))).flatten().tolist()


def changed(inputs: AdvantageInputs, change: Callable[[Tensor], Tensor]) -> AdvantageInputs:
    """``inputs`` with every tensor of B rows changed in the same way."""
    given: dict[str, Any] = {name: change(value) for name, value in vars(inputs).items() if isinstance(value, Tensor)}
    components = {name: change(value) for name, value in inputs.components.items()}
    turns = inputs.turns and Turns(change(inputs.turns.ids), change(inputs.turns.rewards))
    return dataclasses.replace(inputs, components=components, turns=turns, **given)


def rescored(inputs: AdvantageInputs, change: Callable[[Tensor], Tensor], rows: Tensor) -> AdvantageInputs:
    """``inputs`` with the scores and components of ``rows`` (bool) changed, in rows with a score."""
    mask = inputs.response_mask
    rewards = torch.where(last(mask) & rows[:, None], change(inputs.rewards), inputs.rewards)
    rows = rows & mask.any(dim=1)
    components = {name: torch.where(rows, change(part), part) for name, part in inputs.components.items()}
    return dataclasses.replace(inputs, rewards=rewards, components=components)


def scored(inputs: AdvantageInputs, scores: Tensor, places: Tensor | None = None) -> AdvantageInputs:
    """``inputs`` with the score of each row, (B,), as its only reward and as each of its components.

    Args:
        places: (B, T) bool, the token of each row that gets the score; None: the last.
    """
    mask = inputs.response_mask
    at = last(mask) & mask if places is None else places & mask
    scores = torch.where(mask.any(dim=1), scores, 0.0).to(inputs.rewards.dtype)
    rewards = torch.where(at, scores[:, None], 0.0)
    return dataclasses.replace(inputs, rewards=rewards, components=dict.fromkeys(inputs.components, scores))


def random_scores(inputs: AdvantageInputs, seed: int) -> Tensor:
    """(B,) in [0.2, 0.8]."""
    return 0.2 + 0.6 * torch.rand(len(inputs.rewards), generator=generator(seed), dtype=torch.float64)


def emptied(inputs: AdvantageInputs, rows: Tensor) -> AdvantageInputs:
    """``inputs`` with these rows (bool) like responses whose scorer failed."""
    return dataclasses.replace(
        inputs,
        rewards=torch.where(rows[:, None], 0.0, inputs.rewards),
        values=None if inputs.values is None else torch.where(rows[:, None], 0.0, inputs.values),
        response_mask=inputs.response_mask & ~rows[:, None],
        components={name: torch.where(rows, 0.0, part) for name, part in inputs.components.items()},
    )


def with_masked_tokens(inputs: AdvantageInputs, places: Tensor) -> AdvantageInputs:
    """``inputs`` with the columns of :func:`corerl_testing.tensors.spread_out`."""
    return changed(inputs, lambda tensor: scattered(tensor, places) if tensor.dim() == 2 else tensor)
