"""AdamW with the moments, and the step, of a part of the weights on the CPU.

The device steps its own part while the CPU steps the other: gradient and weight of a tensor are copied into pinned
memory during the CPU's step of the tensor before, and the new weight is copied back. Moments are never copied.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.adamw import adamw as adamw_step

from corerl_torch.optimizers.shares import local


def on_cpu(parameters: Iterable[Tensor], fraction: float) -> list[Tensor]:
    """The parameters, in order, that fit into a fraction of the bytes of all; on each rank the same ones."""
    every = list(parameters)
    room = fraction * sum(map(_bytes, every))
    found, taken = [], 0
    for parameter in every:
        if taken + _bytes(parameter) <= room:
            found.append(parameter)
            taken += _bytes(parameter)
    return found


class _Staged(NamedTuple):
    """Copies of a weight and its gradient in host memory; ``arrived`` after them on the device's stream."""

    weight: Tensor
    gradient: Tensor
    arrived: Any


class PartlyOnCpu(torch.optim.AdamW):
    """See the module; groups, and names and shapes of the state, are those of torch's class.

    Args:
        groups: of :class:`corerl_torch.optimizers.contract.OptimizerFactory`.
        fraction: of the bytes of the weights, those with moments on the CPU; more than 0, at most 1.
        stages: copy weights of the CPU too, for tests.
        values: of torch's class.
    """

    def __init__(self, groups: list[dict[str, Any]], fraction: float, *, stages: bool = False, **values: Any) -> None:
        super().__init__(groups, **values)
        self.apart = {id(each) for each in on_cpu(self._parameters(), fraction)}
        self._stages, self._slots = stages, list[Tensor]()

    def initial_state(self, parameter: Tensor) -> dict[str, Tensor]:
        """For :class:`corerl_torch.optimizers.contract.StartsState`."""
        device = torch.device("cpu") if id(parameter) in self.apart else parameter.device
        step, zeros = torch.zeros((), dtype=torch.float32, device=device), torch.zeros_like(parameter.detach())
        return {"step": step, "exp_avg": zeros.to(device), "exp_avg_sq": zeros.to(device, copy=True)}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update of every weight with a gradient."""
        apart = [
            (parameter, parameter.grad, group)
            for group in self.param_groups
            for parameter in group["params"]
            if id(parameter) in self.apart and parameter.grad is not None
        ]
        for parameter, _, _ in apart:
            parameter.grad = None  # torch's step skips the weight
        super().step()
        slots, ahead = itertools.cycle((0, 1)), None
        for each in [*apart, None]:
            following = None if each is None else self._down(*each[:2], next(slots))
            if ahead is not None:
                self._up(*ahead)
            ahead = None if each is None or following is None else (*each, following)
        for parameter, gradient, _ in apart:
            parameter.grad = gradient

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """torch's own method moves moments to the device of the weights."""
        super().load_state_dict({**state_dict, "state": {}})
        parameters = self._parameters()
        for number, stored in state_dict["state"].items():
            start = self.initial_state(parameters[number])
            for name, value in start.items():
                value.copy_(stored[name])
            self.state[parameters[number]] = start

    def _down(self, parameter: Tensor, gradient: Tensor, slot: int) -> _Staged:
        weight, gradient = local(parameter), local(gradient)
        if not (weight.is_cuda or self._stages):
            return _Staged(weight, gradient, None)
        held, of_gradient = self._like(weight, 2 * slot), self._like(weight, 2 * slot + 1)
        held.copy_(weight, non_blocking=True)
        of_gradient.copy_(gradient, non_blocking=True)
        arrived = torch.cuda.Event() if weight.is_cuda else None  # type: ignore[no-untyped-call]
        if arrived is not None:
            arrived.record()
        return _Staged(held, of_gradient, arrived)

    def _up(self, parameter: Tensor, _: Tensor, group: dict[str, Any], staged: _Staged) -> None:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state.update(self.initial_state(parameter))
        if staged.arrived is not None:
            staged.arrived.synchronize()
        adamw_step(
            [staged.weight],
            [staged.gradient],
            [local(state["exp_avg"])],
            [local(state["exp_avg_sq"])],
            [],
            [state["step"]],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        weight = local(parameter)
        if weight is not staged.weight:
            weight.copy_(staged.weight, non_blocking=True)  # before later copies into its slot, on the same stream

    def _like(self, weight: Tensor, number: int) -> Tensor:
        """Pinned memory of a slot, laid out as the weight."""
        if not self._slots:
            size = max(local(each).nbytes for each in self._parameters() if id(each) in self.apart)
            self._slots = [torch.empty(size, dtype=torch.uint8, pin_memory=weight.is_cuda) for _ in range(4)]
        flat = self._slots[number][: weight.nbytes].view(weight.dtype)
        return flat.as_strided(weight.shape, weight.stride())

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]


def _bytes(parameter: Tensor) -> int:
    return parameter.numel() * parameter.element_size()  # of all ranks, if they divide it
