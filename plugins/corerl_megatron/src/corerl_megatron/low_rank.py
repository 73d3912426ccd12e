"""Low-rank pairs beside one linear layer of megatron-core, shared by tensor-parallel ranks as the layer itself.

A layer that is divided by its outputs has every A whole and its rows of every B; one that is divided by its inputs has
its columns of A and the whole B. What ranks exchange for an adapter has ``rank`` numbers for each token.
"""

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from torch import Size, Tensor, nn

from corerl_megatron.conversion import Geometry
from corerl_megatron.families.family import Kind
from corerl_megatron.parallel import Group

KINDS: tuple[Kind, ...] = ("qkv", "gate_up", "columns")
"""of the weights that can have adapters"""


class LowRank(nn.Module):
    """The pairs of a layer's parts, of which some may have none; float32, and computed in the dtype of the inputs.

    Args:
        kind: division of the layer's weight.
        parts: shape (out, in) of each of its parts, all ranks together.
        adapted: whether the part has an adapter.
        rank: numbers of A's outputs.
        scale: factor of B A.
        sequence_parallel: ranks share the tokens of the layer's input, or output.
    """

    def __init__(
        self,
        kind: Kind,
        parts: Sequence[Size],
        adapted: Sequence[bool],
        rank: int,
        scale: float,
        geometry: Geometry,
        tensor: Group,
        *,
        sequence_parallel: bool,
        device: str,
    ) -> None:
        super().__init__()
        self.kind, self.scale, self.geometry, self.tensor = kind, scale, geometry, tensor
        self.sequence_parallel, self.off = sequence_parallel, False
        own_in, own_out = (tensor.size, 1) if kind == "columns" else (1, tensor.size)
        self.widths = [shape[0] // own_out for shape in parts]
        self.A, self.B = nn.ParameterDict(), nn.ParameterDict()
        for number, (shape, has) in enumerate(zip(parts, adapted, strict=True)):
            if has:
                self.A[str(number)] = _parameter(rank, shape[1] // own_in, device, divided=kind == "columns")
                self.B[str(number)] = _parameter(shape[0] // own_out, rank, device, divided=kind != "columns")
        if sequence_parallel:  # their gradients are those of a rank's own tokens
            for whole in (self.B if kind == "columns" else self.A).values():
                whole.sequence_parallel = True

    def forward(self, inputs: Tensor) -> Tensor:
        """(tokens, 1, own outputs) beside those of the layer, of the inputs that the layer gets."""
        rank = [len(each) for each in self.A.values()]
        low = nn.functional.linear(inputs, torch.cat([*self.A.values()]).to(inputs.dtype))
        if self.kind == "columns":
            exchange = reduce_scatter_to_sequence_parallel_region
            low = exchange(low) if self.sequence_parallel else reduce_from_tensor_model_parallel_region(low)
        else:
            gather = gather_from_sequence_parallel_region
            low = gather(low) if self.sequence_parallel else copy_to_tensor_model_parallel_region(low)
        lows = dict(zip(self.A, low.split(rank, dim=-1), strict=True))
        outputs = [
            nn.functional.linear(lows[str(number)], self.B[str(number)].to(low.dtype)) * self.scale
            if str(number) in lows
            else low.new_zeros(*low.shape[:-1], width)
            for number, width in enumerate(self.widths)
        ]
        if self.kind != "qkv":
            return torch.cat(outputs, dim=-1)
        groups = self.geometry.groups // self.tensor.size
        by_group = [each.unflatten(-1, (groups, -1)) for each in outputs]
        return torch.cat(by_group, dim=-1).flatten(-2)


def attach(layer: nn.Module, pairs: LowRank) -> None:
    """Add the pairs' outputs to those of the layer, in the dtype of the layer's."""
    layer.low_rank = pairs

    def add(layer: Any, given: tuple[Tensor, ...], result: tuple[Tensor, Any]) -> tuple[Tensor, Any] | None:
        if layer.low_rank.off:
            return None
        output, bias = result
        return (output + layer.low_rank(given[0])).to(output.dtype), bias

    layer.register_forward_hook(add)


def _parameter(rows: int, columns: int, device: str, *, divided: bool) -> nn.Parameter:
    made = nn.Parameter(torch.zeros(rows, columns, dtype=torch.float32, device=device))
    made.tensor_model_parallel = divided  # type: ignore[attr-defined]
    return made
