"""Modules of which every rank computes a part, on plain local tensors, and the sums and gathers between the ranks.

The pairs are those of Shoeybi et al. 2019, "Megatron-LM", arXiv 1909.08053, section 3: f is the identity, whose
gradient is summed over the ranks; g is a sum over the ranks, whose gradient is the identity. Modules with one parent
that read the same tensor share one f, so a layer takes two sums in each direction. A gather has a gradient that is the
same on all ranks, and returns each rank's own part; a slice has a gather as its gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import linear, pad


@dataclass(frozen=True)
class Ranks:
    """The ranks that divide modules with this one.

    Attributes:
        size: number of ranks.
        rank: of this one among them.
        group: their process group.
    """

    size: int
    rank: int
    group: Any

    def counts(self, number: int) -> list[int]:
        """Number of each rank's rows or columns, of so many: as ``torch.chunk`` divides them."""
        each = -(-number // self.size)
        return [max(0, min(each, number - rank * each)) for rank in range(self.size)]

    def part(self, number: int) -> slice:
        """This rank's rows or columns, of so many."""
        counts = self.counts(number)
        start = sum(counts[: self.rank])
        return slice(start, start + counts[self.rank])

    def copy(self, values: Tensor) -> Tensor:
        """f: the same values; gradients are summed."""
        return _apply(_Copy, values, self.group)

    def sum(self, values: Tensor) -> Tensor:
        """g: the sum over the ranks."""
        return _apply(_Sum, values, self.group)

    def gather(self, values: Tensor, number: int) -> Tensor:
        """(..., number) of all ranks' (..., own part)."""
        return _apply(_Gather, values, self, number)

    def slice(self, values: Tensor) -> Tensor:
        """(..., own part) of values that all ranks have."""
        return _apply(_Slice, values, self)


class SharedInput:
    """f of the tensor that modules with one parent read: computed once while the parent runs."""

    def __init__(self, parent: Any, ranks: Ranks) -> None:
        self.ranks = ranks
        self.given: Tensor | None = None
        self.taken: Tensor | None = None
        inner = parent.forward

        def forward(*given: Any, **named: Any) -> Any:
            try:
                return inner(*given, **named)
            finally:
                self.given = self.taken = None

        parent.forward = forward  # not a hook: its number, of each layer its own, has layers compiled one by one

    def __call__(self, values: Tensor) -> Tensor:
        if self.taken is None or self.given is not values:
            self.given, self.taken = values, self.ranks.copy(values)
        return self.taken


Take = Callable[[Tensor], Tensor]
"""f of a module's input"""


def by_columns(module: Any, ranks: Ranks, take: Take, *, gathers: bool = False) -> dict[str, int]:
    """A linear module with this rank's outputs; the dimension in which each parameter is divided, by name."""
    inner, number = module.forward, module.out_features

    def forward(values: Tensor) -> Tensor:
        own: Tensor = inner(take(values))
        return ranks.gather(own, number) if gathers else own

    module.forward = forward
    return dict.fromkeys(("weight",) if module.bias is None else ("weight", "bias"), 0)


def by_rows(module: Any, ranks: Ranks, take: Take, *, slices: bool = False) -> dict[str, int]:
    """A linear module with this rank's inputs, whose outputs are summed; as :func:`by_columns`."""

    def forward(values: Tensor) -> Tensor:
        total = ranks.sum(linear(ranks.slice(values) if slices else values, module.weight))
        return total if module.bias is None else total + module.bias

    module.forward = forward
    return {"weight": 1}


def of_own_heads(module: Any, ranks: Ranks, take: Take) -> dict[str, int]:
    """A norm of single heads, of which a rank has some: its weight is whole, and its gradient is summed."""
    inner, parameters = module.forward, module._parameters

    def forward(values: Tensor) -> Tensor:
        weight = parameters["weight"]
        parameters["weight"] = ranks.copy(weight)
        try:
            normed: Tensor = inner(values)
        finally:
            parameters["weight"] = weight
        return normed

    module.forward = forward
    return {}


def by_tokens(module: Any, ranks: Ranks) -> dict[str, int]:
    """An embedding with this rank's tokens of the vocabulary; as :func:`by_columns`."""
    inner, own, padding = module.forward, ranks.part(module.num_embeddings), module.padding_idx
    module.padding_idx = padding - own.start if padding is not None and own.start <= padding < own.stop else None

    def forward(tokens: Tensor) -> Tensor:
        places = tokens - own.start
        others = (places < 0) | (places >= own.stop - own.start)
        found: Tensor = inner(places.masked_fill(others, 0))
        return ranks.sum(found.masked_fill(others.unsqueeze(-1), 0.0))

    module.forward = forward
    return {"weight": 0}


def _apply(function: Any, *given: Any) -> Tensor:
    result: Tensor = function.apply(*given)
    return result


def _summed(values: Tensor, group: Any) -> Tensor:
    total = values.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def _gathered(values: Tensor, ranks: Ranks, number: int) -> Tensor:
    counts = ranks.counts(number)
    own = pad(values, (0, max(counts) - values.shape[-1])).contiguous()
    parts = [torch.empty_like(own) for _ in counts]
    dist.all_gather(parts, own, group=ranks.group)
    return torch.cat([part[..., :count] for part, count in zip(parts, counts, strict=True)], dim=-1)


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _summed(gradient, ctx.group), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Any) -> Tensor:
        return _summed(values, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, ranks: Ranks, number: int) -> Tensor:
        ctx.own = ranks.part(number)
        return _gathered(values, ranks, number)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[..., ctx.own], None, None


class _Slice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks, ctx.number = ranks, values.shape[-1]
        return values[..., ranks.part(ctx.number)].contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _gathered(gradient, ctx.ranks, ctx.number), None
