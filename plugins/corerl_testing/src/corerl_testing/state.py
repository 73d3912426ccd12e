"""Checks that a pure function of tensors keeps no memory of earlier calls, and computes in its inputs' precision."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from corerl.contracts.losses import LossOutput
from corerl.registry import Selected
from corerl_testing.fresh import call_elsewhere
from corerl_testing.results import CheckFailed

HALVES = (torch.bfloat16, torch.float16)


def expect_the_same_elsewhere(selected: Selected[Any], earlier: tuple[Any, ...], arguments: tuple[Any, ...]) -> None:
    """Raise CheckFailed if a call after ``earlier`` differs from the same call as the first one of a process.

    Args:
        earlier: arguments of another call, of the same shapes.
        arguments: of the compared call.
    """
    target: Any = selected.load()
    target(*earlier)
    here, there = _tensors(target(*arguments)), _tensors(call_elsewhere(selected, *arguments))
    same = len(here) == len(there) and all(map(_close, here, there))
    if not same:
        raise CheckFailed(
            "in a process where it is the first call it gives something else: it remembers earlier calls (a module's "
            "variable, a cache, a running mean)"
        )


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, LossOutput):
        output = [output.terms, *([mean.total, mean.count] for _, mean in sorted(output.metrics.items()))]
    return [torch.as_tensor(leaf).detach() for leaf in tree_leaves(output)]


def _close(here: Tensor, there: Tensor) -> bool:
    return here.shape == there.shape and torch.allclose(here, there, rtol=1e-5, atol=1e-6, equal_nan=True)


class _Casts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the smaller dtypes to which floating-point tensors are converted."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: set[torch.dtype] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper would import the whole compiler

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [leaf.dtype for leaf in tree_leaves((args, kwargs)) if _is_floating(leaf)]
        for leaf in tree_leaves(result):
            if _is_floating(leaf) and any(leaf.dtype.itemsize < dtype.itemsize for dtype in given):
                self.found.add(leaf.dtype)
        return result


def _is_floating(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def smaller_dtypes(call: Callable[[], object]) -> list[str]:
    """The names of the smaller dtypes to which ``call`` converts floating-point tensors, smallest first."""
    casts = _Casts()
    with casts:
        call()
    return [_name(dtype) for dtype in sorted(casts.found, key=lambda dtype: dtype.itemsize)]


def expect_precision(call: Callable[[], object], dtype: torch.dtype) -> None:
    """Raise CheckFailed if ``call`` computes in 16 bits.

    Args:
        dtype: of the inputs.
    """
    for name in smaller_dtypes(call):
        if name in map(_name, HALVES):
            raise CheckFailed(f"it computes in {name} inside: its inputs are {_name(dtype)}, and so must the work be")


def explained(run: Callable[[], None]) -> None:
    """Run a check; if it fails and 16-bit arithmetic may be the cause, the message begins with that."""
    try:
        run()
    except CheckFailed as failure:
        halves = _halves_of(run)
        if not halves or halves in str(failure):
            raise
        raise CheckFailed(f"it computes in {halves} inside, which may be the whole cause: {failure}") from None


def _halves_of(run: Callable[[], None]) -> str:
    casts = _Casts()
    try:
        with casts:
            run()
    except CheckFailed:
        pass
    return " and ".join(sorted(_name(dtype) for dtype in casts.found if dtype in HALVES))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
