"""Runs micro-batches through the pieces of a model; on CUDA with megatron-core's schedules, which need it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.token_outputs import TokenOutputs
from corerl_megatron.parallel import Group
from corerl_torch.outputs import flat


def run(
    pieces: Sequence[Any],
    batches: Sequence[Experience],
    forward: Callable[[Any, Experience], Tensor | TokenOutputs],
    finish: Callable[[Experience, TokenOutputs], tuple[Tensor | None, Any]],
    *,
    backward: bool,
    device: str,
) -> list[Any]:
    """The kept results of each micro-batch, on the last pipeline stage; [] on other stages. Gradients are summed.

    Args:
        forward: runs a piece.
        finish: from a micro-batch and its outputs, the loss (None without ``backward``) and the result to keep.
        backward: run the backward pass, and sum gradients over the ranks with other tokens.
    """
    if device == "cpu":
        return _one_by_one(pieces, batches, forward, finish, backward)

    def step(batches: Iterator[Experience], piece: Any) -> tuple[Tensor, Callable[..., Any]]:
        batch = next(batches)
        output = forward(piece, batch)
        if isinstance(output, Tensor):
            return output, _nothing

        def end(anchor: Tensor, non_loss_data: bool = False) -> Any:
            loss, kept = finish(batch, output)
            return kept if loss is None else (loss, torch.zeros((), dtype=torch.int, device=device), kept)

        return next(iter(flat(output).values())), end

    schedule: Any = get_forward_backward_func()
    kept: list[Any] = schedule(
        forward_step_func=step,
        data_iterator=[iter(batches) for _ in pieces],
        model=list(pieces),
        num_microbatches=len(batches),
        seq_length=1,  # the shapes are sent with the states
        micro_batch_size=1,
        forward_only=not backward,
        collect_non_loss_data=not backward,
    )
    return kept


def from_last_stage(columns: dict[str, Tensor], stages: Group, device: str) -> dict[str, Tensor]:
    """The last stage's columns on every stage, in host memory; a collective."""
    if stages.size == 1:
        return columns
    last = stages.global_rank(stages.size - 1)
    facts: list[Any] = [[(name, each.shape, each.dtype) for name, each in sorted(columns.items())]]
    dist.broadcast_object_list(facts, last, group=stages.group, device=torch.device(device))
    received: dict[str, Tensor] = {}
    for name, shape, dtype in facts[0]:
        whole = columns[name].to(device) if columns else torch.empty(shape, dtype=dtype, device=device)
        dist.broadcast(whole, last, group=stages.group)
        received[name] = whole.cpu()
    return received


def _nothing(*arguments: Any, **named: Any) -> Any:
    raise AssertionError("only the last pipeline stage has a loss")


def _one_by_one(
    pieces: Sequence[Any],
    batches: Sequence[Experience],
    forward: Callable[[Any, Experience], Any],
    finish: Callable[[Experience, TokenOutputs], tuple[Tensor | None, Any]],
    backward: bool,
) -> list[Any]:
    (piece,) = pieces
    kept = []
    for batch in batches:
        loss, own = finish(batch, forward(piece, batch))
        if backward:
            assert loss is not None
            loss.backward()  # type: ignore[no-untyped-call]
        kept.append(own)
    return kept
