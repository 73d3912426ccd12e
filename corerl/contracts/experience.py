"""Experience: the tensors of a batch, one row a response, and one for each further branch of an episode."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from corerl.contracts.token_columns import TokenColumn, moved


@dataclasses.dataclass(frozen=True)
class RowNumbers:
    """Numbers of B rows, for those that do not hold their tokens.

    Attributes:
        lengths, response_lengths, group_ids, episode_ids, unit_ids: as of :class:`Experience`.
        trained: (B,) int64, trained tokens.
        has_advantage: (B,) bool: a trained token has an advantage that is not 0, or advantages are not estimated yet.
    """

    lengths: Tensor
    response_lengths: Tensor
    group_ids: Tensor
    trained: Tensor
    has_advantage: Tensor
    episode_ids: Tensor | None = None
    unit_ids: Tensor | None = None

    def select(self, rows: Tensor) -> "RowNumbers":
        """The rows with these indices, in this order."""
        return RowNumbers(**{name: each[rows] for name, each in vars(self).items() if each is not None})


@dataclasses.dataclass
class Experience:
    """B responses with their prompts, right-padded, on the CPU.

    A row of ``input_ids`` is the prompt followed by the response. Column t of a (B, T) tensor belongs to the response's
    t-th token.

    Attributes:
        input_ids: (B, S) int64.
        prompt_lengths, response_lengths: (B,) int64, tokens; their sum is a row's length, at most S.
        response_mask: (B, T) bool, true on trained tokens: those of the policy, in rows with a score.
        group_ids: (B,) int64, equal for responses to one prompt.
        episode_ids: (B,) int64, equal for rows of one episode; None: each row is an episode.
        unit_ids: (B,) int64, equal for rows that a loss compares: they stay on one rank and in one micro-batch; None:
            no row needs another.
        row_ids: (B,) int64, the numbers of the rows in a rank's share; None unless the rank asks for them.
        rollout_log_probs: (B, T) float32 of the sampled tokens, from the rollout backend.
        weight_versions: (B, T) int32, the version of the weights that sampled each token; 0 in other columns.
        old_log_probs, ref_log_probs: (B, T) float32, before the update, of the policy and the reference.
        values: (B, T) float32, the critic's predictions before the update.
        sum_pi_squared: (B, T) float32, the policy's sum of squared probabilities before the update.
        rewards, advantages, returns: (B, T) float32.
        greedy_scores: (B,) float32, score of the greedy response to the row's prompt.
        rollout_weights: (B, T) float32, factors of the policy loss's terms (rollout correction).
        selected: (B, T) bool, the choice of the policy loss's token selector.
        loss_weights: (B, T) float64; the loss is the sum of per-token terms times these.
        columns: name -> values that the engine recorded at tokens (``rollout.record``).
    """

    input_ids: Tensor
    prompt_lengths: Tensor
    response_lengths: Tensor
    response_mask: Tensor
    group_ids: Tensor
    episode_ids: Tensor | None = None
    unit_ids: Tensor | None = None
    row_ids: Tensor | None = None
    rollout_log_probs: Tensor | None = None
    weight_versions: Tensor | None = None
    old_log_probs: Tensor | None = None
    ref_log_probs: Tensor | None = None
    values: Tensor | None = None
    sum_pi_squared: Tensor | None = None
    rewards: Tensor | None = None
    greedy_scores: Tensor | None = None
    advantages: Tensor | None = None
    returns: Tensor | None = None
    rollout_weights: Tensor | None = None
    selected: Tensor | None = None
    loss_weights: Tensor | None = None
    columns: dict[str, TokenColumn] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def episodes(self) -> int:
        """How many episodes there are; the first row of each comes before all further ones."""
        return len(self) if self.episode_ids is None else int(self.episode_ids.max()) + 1

    def of_rows(self, values: Tensor) -> Tensor:
        """(B, …): of each row, its episode's value."""
        return values if self.episode_ids is None else values[self.episode_ids]

    def by_episode(self, values: Tensor) -> Tensor:
        """Sums over the rows of each episode; ``values`` is (B, …)."""
        if self.episode_ids is None:
            return values
        return values.new_zeros(self.episodes, *values.shape[1:]).index_add_(0, self.episode_ids, values)

    @property
    def lengths(self) -> Tensor:
        """(B,) tokens of prompt and response together."""
        return self.prompt_lengths + self.response_lengths

    def numbers(self) -> RowNumbers:
        """The numbers of the rows."""
        mask, advantages = self.response_mask, self.advantages
        moving = mask if advantages is None else mask & (advantages != 0)
        of_rows = self.lengths, self.response_lengths, self.group_ids
        return RowNumbers(*of_rows, mask.sum(dim=1), moving.any(dim=1), self.episode_ids, self.unit_ids)

    def select(self, rows: Tensor) -> "Experience":
        """The rows with these indices, in this order, trimmed to the longest of them."""
        width = _longest(self.lengths[rows])
        response_width = _longest(self.response_lengths[rows])

        def pick(name: str, tensor: Tensor) -> Tensor:
            if tensor.dim() == 1:
                return tensor[rows]
            return tensor[rows, : width if name == "input_ids" else response_width]

        columns = {name: column.select(rows, width) for name, column in self.columns.items()}
        return dataclasses.replace(self.map(pick), columns=columns)

    def weighed(self, factors: Tensor) -> "Experience":
        """The rows with loss weights: of a trained token the factor of its row; (B,) float64."""
        weights = self.response_mask.to(factors.dtype) * factors[:, None]
        return dataclasses.replace(self, loss_weights=weights)

    def range(self, first: int, last: int) -> "Experience":
        """The rows from ``first`` to ``last``, not trimmed: views of the tensors."""
        rows, width = torch.arange(first, last + 1), self.input_ids.shape[1]
        columns = {name: column.select(rows, width) for name, column in self.columns.items()}
        return dataclasses.replace(self.map(lambda _, tensor: tensor[first : last + 1]), columns=columns)

    def tokens(self) -> "Experience":
        """The columns that a model reads, and those that place its rows."""
        return Experience(
            self.input_ids,
            self.prompt_lengths,
            self.response_lengths,
            self.response_mask,
            self.group_ids,
            unit_ids=self.unit_ids,
            columns=self.columns,
        )

    def trained_only(self) -> "Experience":
        """A copy with 0 at tokens that are not trained, in every (B, T) column of floats."""
        return self.map(lambda _, column: self.at_trained(column) if column.is_floating_point() else column)

    def at_trained(self, column: Tensor) -> Tensor:
        """``column``, (B, T, …), with 0 at tokens that are not trained: 0 times NaN is NaN, in gradients as well."""
        if column.dim() < 2:
            return column
        mask = self.response_mask.view(*self.response_mask.shape, *[1] * (column.dim() - 2))
        return torch.where(mask, column, torch.zeros((), dtype=column.dtype, device=column.device))

    def to(self, device: str) -> "Experience":
        """A copy on ``device``; the host does not wait for it."""
        columns = {name: column.to(device) for name, column in self.columns.items()}
        return dataclasses.replace(self.map(lambda _, tensor: moved(tensor, device)), columns=columns)

    def map(self, change: Callable[[str, Tensor], Tensor]) -> "Experience":
        """A copy with ``change(name, tensor)`` for every tensor with the rows in its first dimension."""
        changed = {name: change(name, tensor) for name, tensor in self.tensors().items()}
        return Experience(**changed, columns=self.columns)

    def tensors(self) -> dict[str, Tensor]:
        """Name -> tensor, without None and ``columns``."""
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: tensor for name, tensor in given.items() if isinstance(tensor, Tensor)}

    def prediction_index(self, width: int) -> tuple[Tensor, Tensor]:
        """Positions of the logits of response tokens.

        Returns:
            (positions, real): ``real`` is (B, T) bool, true on response tokens, masked ones included. ``positions`` is
            (N,) int64: for each true element of ``real``, in row-major order, the index in ``input_ids[:, :width]``
            flattened of the position before the token.
        """
        steps = torch.arange(self.response_mask.shape[1], device=self.input_ids.device)
        real = steps < self.response_lengths[:, None]
        starts = torch.arange(len(self), device=steps.device) * width + self.prompt_lengths - 1
        return (starts[:, None] + steps)[real], real


def collate(
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    group_ids: Sequence[int],
    *,
    masks: Sequence[Sequence[bool]] | None = None,
    log_probs: Sequence[Sequence[float]] | None = None,
    width: int = 0,
) -> Experience:
    """Pad B prompts and responses (token ids) into an Experience.

    Args:
        width: least number T of response columns.
        masks: trained response tokens; None: all.
        log_probs: of the response tokens, from the rollout backend.
    """
    prompt_lengths, response_lengths = _lengths(prompts), _lengths(responses)
    mask = torch.arange(max(width, _longest(response_lengths))) < response_lengths[:, None]
    input_ids, width = _pad(prompts, int((prompt_lengths + response_lengths).max()), np.int64), mask.shape[1]
    for own, start, row in zip(input_ids.numpy(), prompt_lengths.tolist(), responses, strict=True):
        own[start : start + len(row)] = row
    return Experience(
        input_ids=input_ids,
        prompt_lengths=prompt_lengths,
        response_lengths=response_lengths,
        response_mask=_pad(masks, width, np.bool_) if masks else mask,
        group_ids=torch.tensor(group_ids),
        rollout_log_probs=None if log_probs is None else _pad(log_probs, width, np.float32),
    )


def _lengths(rows: Sequence[Sequence[int]]) -> Tensor:
    return torch.from_numpy(np.fromiter(map(len, rows), np.int64, count=len(rows)))


def _longest(lengths: Tensor) -> int:
    return int(lengths.max()) if len(lengths) else 0


def _pad(rows: Sequence[Sequence[float]], width: int, dtype: type[np.generic]) -> Tensor:
    """The values of each row, and zeros behind them; arrays of an engine are copied as bytes."""
    padded = np.zeros((len(rows), width), dtype)
    for own, row in zip(padded, rows, strict=True):
        own[: len(row)] = row
    return torch.from_numpy(padded)
