"""Compares gradients with central differences, in which tensors with a stopped gradient keep their recorded values."""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from corerl_testing.results import CheckFailed, CheckSkipped

STEP = 1e-6
TOLERANCE = 1e-5

Value = Callable[[Tensor], Tensor]
"""a tensor -> a scalar with a graph"""

_NUMBERS = {"item": "item", "tolist": "tolist", "__float__": "float", "__bool__": "", "__int__": ""}
"""functions from a tensor to Python numbers -> their names in messages; '' for those of a branch"""

_APPLY = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]


def gradient_of_the_value(value: Value, point: Tensor, places: Tensor) -> str:
    """Compare the gradient of ``value`` at ``point`` with central differences at ``places``.

    Returns:
        '' if the gradient is that of the value. Otherwise the gradient is exact with the stopped tensors held, and the
            text names the means of stopping and the distance from the gradient of the value.

    Raises:
        CheckFailed: neither is true.
        CheckSkipped: a torch.autograd.Function declares a gradient although the value does not change, or a second call
            takes another path.
    """
    leaf = point.detach().clone().requires_grad_()
    stops = StoppedGradients()
    with stops:
        total = value(leaf)
    (gradient,) = torch.autograd.grad(total, leaf)
    plain = _differences(value, point, places)
    off = _error(gradient, plain, places)
    if off <= TOLERANCE:
        return ""
    held = _differences(partial(_holding, value, stops), point, places) if stops.means else plain
    off_held = _error(gradient, held, places)
    if off_held <= TOLERANCE:
        return f"stops gradients ({', '.join(sorted(stops.means))}), and differs from that of the value by {off:.3g}"
    differs = places & ((gradient - plain).abs() > TOLERANCE * gradient.abs().max())
    if stops.own_functions and not plain[differs].any():
        raise CheckSkipped(
            "a torch.autograd.Function declares a gradient where the value does not change: up to "
            f"{float(gradient[differs].abs().max()):.3g}"
        )
    remedy = (
        ": the backward of its torch.autograd.Function is wrong; if another gradient is meant, write it with detach()"
        if stops.own_functions
        else ""
    )
    raise CheckFailed(
        f"the gradient differs from central differences of the value by {off_held:.3g} (relative){remedy}"
    )


def _error(gradient: Tensor, numeric: Tensor, places: Tensor) -> float:
    difference = torch.where(places, gradient - numeric, 0.0)
    size = torch.maximum(numeric.abs().max(), torch.where(places, gradient, 0.0).abs().max())
    return float(difference.abs().max() / size.clamp(min=1e-3))


def _differences(value: Value, point: Tensor, places: Tensor) -> Tensor:
    numeric = torch.zeros_like(point)
    for place in map(tuple, places.nonzero().tolist()):
        sides = []
        for step in (STEP, -STEP):
            moved = point.detach().clone()
            moved[place] += step
            sides.append(float(value(moved.requires_grad_()).detach()))
        numeric[place] = (sides[0] - sides[1]) / (2 * STEP)
    return numeric


def _holding(value: Value, stops: "StoppedGradients", point: Tensor) -> Tensor:
    with StoppedGradients(stops):
        return value(point)


class StoppedGradients(TorchFunctionMode):
    """Records tensors that a call makes without gradient from tensors with one, in order; or holds a second call to
    them.

    Stopped are results of ``detach`` and ``data``, everything under ``no_grad``, and numbers read from tensors. The
    inside of a torch.autograd.Function is not recorded: its backward defines its gradient.

    Args:
        recorded: of an earlier call, whose values replace those of this call.

    Attributes:
        means: the ways in which gradients were stopped.
        own_functions: whether a torch.autograd.Function was applied.
    """

    def __init__(self, recorded: "StoppedGradients | None" = None) -> None:
        super().__init__()
        self.means: set[str] = set()
        self.own_functions = False
        self._values: list[Any] = []
        self._held: Iterator[Any] | None = None if recorded is None else iter(recorded._values)
        self._ours: dict[int, Tensor] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        moves = any(each.requires_grad or id(each) in self._ours for each in given)
        result = func(*args, **(kwargs or {}))
        if not torch.is_grad_enabled() and _inside_function():
            self.own_functions = True
            return result
        means = _means(func, result)
        if means is None:
            return result
        if means and moves:
            self.means.add(means)
        if self._held is None:
            self._values.append(tree_map(_copy, result))
            self._own(result)
            return result
        held = self._hold(result, given)
        self._own(held)
        return held

    def _own(self, result: Any) -> None:
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._ours[id(leaf)] = leaf  # kept, so that the id stays its own

    def _hold(self, result: Any, given: list[Tensor]) -> Any:
        assert self._held is not None
        recorded = next(self._held, None)
        now, then = tree_leaves(result), tree_leaves(recorded)
        if [_kind(leaf) for leaf in now] != [_kind(leaf) for leaf in then]:
            raise CheckSkipped("its path depends on the numbers, so stopped tensors cannot be held at their values")
        if not isinstance(result, Tensor) or not isinstance(recorded, Tensor):
            return tree_map(_copy, recorded)
        with torch.no_grad():
            if any(result is each for each in given):  # in place, or out=
                return result.copy_(recorded)
            if any(id(each) in self._ours and _shares(result, each) for each in given):
                return result  # a view of a held tensor
            return recorded.clone()


def _means(func: Any, result: Any) -> str | None:
    """The way in which ``func`` stops a gradient, '' for a branch; None if it stops none."""
    name = getattr(func, "__name__", "")
    if name in _NUMBERS:
        return _NUMBERS[name]
    if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
        return None
    if name in ("detach", "detach_"):
        return "detach"
    if name == "__get__" and func == torch.Tensor.data.__get__:  # type: ignore[attr-defined]
        return "data"
    return None if torch.is_grad_enabled() else "no_grad"


def _inside_function() -> bool:
    """Whether the forward of a torch.autograd.Function is running."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not _APPLY:
        frame = frame.f_back
    return frame is not None


def _copy(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def _kind(leaf: Any) -> Any:
    return tuple(leaf.shape) if isinstance(leaf, Tensor) else type(leaf)


def _shares(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
