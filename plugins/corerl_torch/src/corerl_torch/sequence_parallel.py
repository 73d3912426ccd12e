"""Ulysses: ranks that share the rows; each has a slice of the packed tokens, and in attention a slice of the heads.

Operations on single tokens (norms, projections, MLP, logits) run on a rank's own tokens. Before attention an all-to-all
exchanges tokens for heads, after it another exchanges them back (Jacobs et al. 2023, "DeepSpeed Ulysses", arXiv
2309.14509, section 3.1). All ranks of a group get all results and compute the same loss. Each rank has the gradient
through its tokens; the sum over ranks is the gradient of the loss.
"""

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from corerl.errors import ConfigError
from corerl_torch.layout import Layout

KEY = "actor.strategy.ulysses_sequence_parallel_size"


class Slice(NamedTuple):
    """A rank's share of a packed micro-batch.

    Attributes:
        layout: its tokens; ``positions`` are those of its own response tokens.
        own: indices of its own among all response tokens.
        counts: number of own response tokens, by rank.
        order: (N,) int64, index of each response token among those of all ranks, rank by rank; None: the same.
    """

    layout: Layout
    own: slice | Tensor
    counts: list[int]
    order: Tensor | None = None


@dataclass(frozen=True)
class SequenceGroup:
    """``size`` ranks; this is the ``rank``-th of them."""

    size: int
    rank: int
    group: Any

    def slice(self, layout: Layout) -> Slice:
        """This rank's tokens. If the tokens do not divide, filler tokens form an additional last row."""
        inputs = dict(layout.inputs)
        tokens = inputs["input_ids"].shape[1]
        length = -(-tokens // self.size)
        padding = length * self.size - tokens
        mine = slice(self.rank * length, (self.rank + 1) * length)
        for name in ("input_ids", "position_ids"):
            inputs[name] = torch.nn.functional.pad(inputs[name], (0, padding))[..., mine]
        if padding:
            bounds = torch.nn.functional.pad(inputs["cu_seq_lens_q"], (0, 1), value=length * self.size)
            longest = max(inputs["max_length_q"], padding)
            inputs |= {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
            inputs |= {"max_length_q": longest, "max_length_k": longest}
        counts = torch.bincount(layout.positions // length, minlength=self.size).tolist()
        start = sum(counts[: self.rank])
        own = slice(start, start + counts[self.rank])
        numbers = torch.nn.functional.pad(layout.tokens, (0, padding), value=-1)[mine]
        return Slice(Layout(inputs, layout.positions[own] - mine.start, layout.real, numbers), own, counts)

    def gather(self, values: Tensor, counts: list[int]) -> Tensor:
        """(N, ...) of all ranks' response tokens, from this rank's; a gradient returns to this rank's only."""
        return gathered(values, counts, self)

    def tokens_for_heads(self, states: Tensor) -> Tensor:
        """(1, heads, own tokens, size) → (1, own heads, tokens, size); heads are repeated if there are fewer than
        ranks.
        """
        states = states.squeeze(0)
        repeats = self.size // math.gcd(self.size, len(states))
        if repeats > 1:
            states = states.repeat_interleave(repeats, dim=0)
        parts = states.reshape(self.size, -1, *states.shape[1:])
        return self._exchange(parts).transpose(0, 1).flatten(1, 2).unsqueeze(0)

    def heads_for_tokens(self, states: Tensor) -> Tensor:
        """(1, tokens, own heads, size) → (1, own tokens, heads, size)."""
        states = states.squeeze(0)
        parts = states.reshape(self.size, -1, *states.shape[1:])
        return self._exchange(parts).transpose(0, 1).flatten(1, 2).unsqueeze(0)

    def _exchange(self, parts: Tensor) -> Tensor:
        exchanged: Tensor = _Exchange.apply(parts, self.group)  # type: ignore[no-untyped-call]
        return exchanged


def sequence_group(size: int, timeout: float, apart: int = 1) -> SequenceGroup | None:
    """This rank's group; None for size 1. A collective.

    Args:
        apart: distance of its ranks; consecutive ones in between, which divide matrices, have the same tokens.

    Raises:
        ConfigError: ``size`` does not divide the number of ranks.
    """
    rank, group = ranks_apart(size, timeout, apart, KEY)
    return SequenceGroup(size, rank, group) if size > 1 else None


def ranks_apart(size: int, timeout: float, apart: int, key: str) -> tuple[int, Any]:
    """This rank's number in its group of so many ranks with this distance, and the group; a collective.

    Raises:
        ConfigError: ``size`` does not divide the number of ranks.
    """
    ranks = dist.get_world_size() // apart
    if ranks % size:
        raise ConfigError(key, f"{size} does not divide the {ranks} ranks; {divisors(ranks, ranks)} would")
    if size > 1 and (size, apart) not in _GROUPS:
        members = torch.arange(ranks * apart).view(-1, size, apart).transpose(1, 2).reshape(-1, size)
        subgroups: Any = dist.new_subgroups_by_enumeration
        _GROUPS[size, apart] = subgroups(members.tolist(), timeout=timedelta(seconds=timeout))[0]
    return dist.get_rank() // apart % size, _GROUPS.get((size, apart))


def gathered(values: Tensor, counts: list[int], group: Any) -> Tensor:
    """The (n, ...) of all ranks, rank by rank, from this rank's; a gradient returns to this rank's only.

    Args:
        counts: n, by rank.
        group: a :class:`SequenceGroup`, or another with its attributes.
    """
    whole: Tensor = _Gather.apply(values, counts, group)  # type: ignore[no-untyped-call]
    return whole


def check_heads(size: int, heads: int, apart: int = 1) -> None:
    """Raise ConfigError if the ranks cannot share the attention heads, of which ``apart`` ranks have equal parts."""
    if heads // apart % size:
        of_a_rank = f" of a rank ({heads} in all)" if apart > 1 else ""
        raise ConfigError(
            KEY,
            f"{size} does not divide the model's {heads // apart} attention heads{of_a_rank}; "
            f"{divisors(heads // apart)} would; context_parallel_size needs no heads",
        )


_GROUPS: dict[tuple[int, int], Any] = {}


def divisors(number: int, most: int = 64) -> str:
    *rest, last = [str(each) for each in range(1, min(number, most) + 1) if number % each == 0]
    return f"{', '.join(rest)} or {last}" if rest else last


class _Exchange(torch.autograd.Function):
    """Send part j of (ranks, ...) to rank j, and replace it by the part received from rank j."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: Any) -> Tensor:
        ctx.group = group
        parts = parts.contiguous()
        received = torch.empty_like(parts)
        dist.all_to_all_single(received, parts, group=group)
        return received

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Exchange.forward(ctx, gradient, ctx.group), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, counts: list[int], sequence: Any) -> Tensor:
        ctx.start = sum(counts[: sequence.rank])
        ctx.count = len(values)
        padded = values.new_zeros(max(counts), *values.shape[1:])
        padded[: len(values)] = values
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded, group=sequence.group)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[ctx.start : ctx.start + ctx.count], None, None
