"""The gradient of a mini-batch does not depend on its division, padding, packing, order or distribution.

A tiny policy runs through the core's :class:`PolicyObjective` and :func:`loss_weights`. The usual cause of a failure is
a loss that normalises over the given rows instead of leaving the aggregation to CoreRL.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from corerl.contracts.config import LossAggMode
from corerl.contracts.experience import Experience, collate
from corerl.contracts.policy_losses import PolicyLoss
from corerl.contracts.token_outputs import TokenOutputs
from corerl.contracts.training_strategies import MicroBatching
from corerl.objective import PolicyObjective, loss_weights, policy_loss_inputs
from corerl.registry import Selected
from corerl_testing.results import Run
from corerl_testing.tensors import DTYPES, expect, generator
from corerl_torch.micro_batches import micro_batches

AGGREGATIONS: tuple[str, ...] = get_args(LossAggMode)
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}
CONTEXTS, HIDDEN, VOCABULARY = 17, 5, 11

Layout = Literal["padded", "packed"]


class TinyPolicy:
    """An embedding of a hash of the tokens so far, and a linear head.

    Args:
        dtype: of the weights and the outputs.
        seed: of the weights.
    """

    def __init__(self, dtype: torch.dtype, seed: int = 0) -> None:
        random = generator(seed)
        self.embedding = torch.randn(CONTEXTS, HIDDEN, generator=random, dtype=torch.float64).to(dtype)
        self.head = torch.randn(HIDDEN, VOCABULARY, generator=random, dtype=torch.float64).to(dtype)
        self.weights = [self.embedding.requires_grad_(), self.head.requires_grad_()]

    def __call__(self, batch: Experience, layout: Layout = "padded") -> TokenOutputs:
        """Log-probs, entropy and log-probs of the vocabulary, 0 outside the responses.

        Args:
            layout: ``packed``: one flat row of the real tokens; ``padded``: the rows unchanged.
        """
        contexts = (batch.input_ids.cumsum(dim=1) * 7 + batch.prompt_lengths[:, None]) % CONTEXTS
        positions, real = batch.prediction_index(batch.input_ids.shape[1])
        if layout == "packed":
            vocabulary = self._log_probs(contexts.flatten()[positions])
        else:
            vocabulary = self._log_probs(contexts).flatten(0, 1)[positions]
        targets = batch.input_ids.flatten()[positions + 1]
        log_probs = vocabulary.gather(1, targets[:, None]).squeeze(1)
        entropy = -(vocabulary.exp() * vocabulary).sum(dim=1)
        return TokenOutputs(
            log_probs=_scatter(log_probs, real),
            entropy=_scatter(entropy, real),
            vocabulary_log_probs=_scatter(vocabulary, real),
        )

    def _log_probs(self, contexts: Tensor) -> Tensor:
        return (self.embedding[contexts].tanh() @ self.head).log_softmax(dim=-1)


def _scatter(values: Tensor, real: Tensor) -> Tensor:
    return values.new_zeros(*real.shape, *values.shape[1:]).index_put((real,), values)


@dataclass(frozen=True)
class Setting:
    """A mini-batch with its policy and its objective.

    Attributes:
        batch: the whole mini-batch, with ``loss_weights``.
    """

    policy: TinyPolicy
    objective: PolicyObjective
    batch: Experience

    def gradient(self, parts: Sequence[Tensor], layout: Layout = "padded", padding: int = 0) -> Tensor:
        """The flat gradient, summed over parts of the mini-batch, which are given by their rows."""
        total = [torch.zeros_like(weight) for weight in self.policy.weights]
        for rows in parts:
            micro = padded(self.batch.select(rows), padding)
            loss = self.objective(self.policy(micro, layout), micro).loss
            for each, gradient in zip(total, torch.autograd.grad(loss, self.policy.weights), strict=True):
                each += gradient
        return torch.cat([each.flatten() for each in total])


def setting(
    selected: Selected[PolicyLoss],
    aggregation: str = "token-mean",
    dtype: torch.dtype = torch.float64,
    *,
    full: bool = False,
    seed: int = 0,
    rows: int = 12,
) -> Setting:
    """A seeded mini-batch: masks with holes, one row without a trained token, rows on-policy and off-policy.

    Args:
        aggregation: one of ``AGGREGATIONS``.
        full: with KL loss (k3), entropy bonus and rollout correction weights.
        seed: of the policy, the tokens and the lengths.
        rows: of the mini-batch, at least 3.
    """
    random = generator(seed)
    policy = TinyPolicy(dtype, seed)
    batch = _batch(rows, random)
    batch.loss_weights = loss_weights(batch.response_mask, aggregation, 9, group_ids=batch.group_ids)
    mask = batch.response_mask
    with torch.no_grad():
        log_probs = policy(batch).log_probs
    assert log_probs is not None

    def near(scale: Tensor | float) -> Tensor:
        noise = torch.randn(mask.shape, generator=random, dtype=torch.float64)
        return torch.where(mask, log_probs + scale * noise, 0.0).to(dtype)

    batch.old_log_probs = near(torch.where(torch.arange(rows) % 2 == 0, 0.3, 1e-4)[:, None])
    batch.rollout_log_probs = near(0.01)
    batch.ref_log_probs = near(0.2) if full or "ref" in selected.entry.needs else None
    advantages = torch.randn(mask.shape, generator=random, dtype=torch.float64) * 0.1
    advantages = advantages + torch.randn(rows, 1, generator=random, dtype=torch.float64)
    batch.advantages = torch.where(mask, advantages, 0.0).to(dtype)
    if full:
        weights = 0.5 + torch.rand(mask.shape, generator=random, dtype=torch.float64)
        batch.rollout_weights = torch.where(mask, weights, 0.0).to(dtype)
    batch.selected = _selection(selected, batch, log_probs, seed)
    objective = (
        PolicyObjective(selected.load(), _k3, 0.1, entropy_coeff=0.01) if full else PolicyObjective(selected.load())
    )
    return Setting(policy, objective, batch)


def _k3(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    difference = log_probs - ref_log_probs
    return torch.exp(-difference) + difference - 1


def _batch(rows: int, random: torch.Generator) -> Experience:
    def sizes(low: int, high: int) -> list[int]:
        return torch.randint(low, high, (rows,), generator=random).tolist()

    def tokens(count: int) -> list[int]:
        return torch.randint(VOCABULARY, (count,), generator=random).tolist()

    lengths = [9, 1, *sizes(2, 10)][:rows]
    masks = [(torch.rand(length, generator=random) < 0.8).tolist() for length in lengths]
    masks[0][0] = masks[1][0] = True
    masks[2] = [False] * lengths[2]
    prompts = [tokens(size) for size in sizes(1, 5)]
    return collate(prompts, [tokens(length) for length in lengths], [row // 4 for row in range(rows)], masks=masks)


def _selection(selected: Selected[PolicyLoss], batch: Experience, log_probs: Tensor, seed: int) -> Tensor | None:
    """The tokens chosen by the entry's selector, once, over the whole mini-batch, as in the trainer."""
    select: Any = selected.load_fact("select_tokens")
    if select is None:
        return None
    uniforms = torch.rand(batch.response_mask.shape, generator=generator(seed + 1), dtype=torch.float64)
    choice: Tensor = select(policy_loss_inputs(log_probs, batch), uniforms)
    return choice


def padded(batch: Experience, columns: int) -> Experience:
    """The batch with more columns of padding behind prompts and responses."""
    if not columns:
        return batch
    return batch.map(lambda _, tensor: torch.nn.functional.pad(tensor, (0, columns)) if tensor.dim() == 2 else tensor)


def cuts(batch: Experience) -> dict[str, list[Tensor]]:
    """Divisions of a mini-batch: a phrase -> the rows of each part."""
    rows = len(batch)
    found = {"with its rows in another order": [torch.randperm(rows, generator=generator(9))]}
    for count in (2, 3, rows):
        limit = MicroBatching(max_sequences=-(-rows // count))
        found[f"cut into {count} micro-batches"] = micro_batches(batch.lengths, limit)
    found["cut by 30 tokens"] = micro_batches(batch.lengths, MicroBatching(max_tokens=30))
    for size in (2, 3):
        shares = [torch.arange(rank, rows, size) for rank in range(size)]
        limit = MicroBatching(max_sequences=2)
        found[f"split over {size} data-parallel ranks"] = [
            share[part] for share in shares for part in micro_batches(batch.lengths[share], limit)
        ]
    return found


def expect_invariant(case: Setting, where: str) -> None:
    """Raise CheckFailed if a division, padding or packing changes the gradient of the mini-batch.

    Args:
        where: end of the message, e.g. "with token-mean in float32".
    """
    whole = [torch.arange(len(case.batch))]
    reference = case.gradient(whole)
    size = float(reference.abs().max())
    expect(size > 0 and size < float("inf"), f"the gradient of a mini-batch is {size:g} {where}")
    ways: dict[str, Callable[[], Tensor]] = {
        f"when it is {cut}" if cut[0] in "cs" else cut: partial(case.gradient, parts)
        for cut, parts in cuts(case.batch).items()
    }
    ways["when it is padded by three columns"] = partial(case.gradient, whole, "padded", 3)
    ways["when it is packed into one row"] = partial(case.gradient, whole, "packed")
    for way, gradient in ways.items():
        error = float((gradient() - reference).abs().max()) / size
        expect(
            error <= TOLERANCE[reference.dtype],
            f"the gradient of the mini-batch changes by {error:.2g} (relative) {way}, {where}: terms that depend on "
            "the rows beside them, such as a loss that averages over the micro-batch, are the usual cause",
        )


def checks(selected: Selected[PolicyLoss]) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs: one for each aggregation, and one with KL loss, entropy bonus and correction weights."""
    for aggregation in AGGREGATIONS:
        yield f"gradient_invariant_{aggregation.replace('-', '_')}", partial(_invariant, selected, aggregation, False)
    yield "gradient_invariant_with_kl_entropy_and_weights", partial(_invariant, selected, "seq-mean-token-mean", True)


def _invariant(selected: Selected[PolicyLoss], aggregation: str, full: bool) -> None:
    for dtype in DTYPES:
        where = f"with {aggregation} in {str(dtype).removeprefix('torch.')}"
        expect_invariant(setting(selected, aggregation, dtype, full=full), where)
