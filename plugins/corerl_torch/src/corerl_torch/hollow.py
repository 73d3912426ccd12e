"""Models whose parameters have no storage, and random weights drawn one tensor at a time.

A module's parameter moves to the device ``meta`` as soon as it is registered, and buffers keep their values. In
:func:`drawn`, each operation on such a parameter runs on a real tensor in its place, so the stream of random numbers is
that of an ordinary model.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

LOOKS = re.compile(
    "size|dim|numel|nelement|stride|is_floating_point|is_complex|element_size|__len__|is_contiguous|requires_grad_|"
    "get_device|ndimension"
)
"""methods that read no value"""

ANEW = re.compile(
    "(normal|uniform|trunc_normal|exponential|zero|zeros|ones|fill|constant|copy|kaiming_uniform|kaiming_normal|"
    "xavier_uniform|xavier_normal|orthogonal|eye|dirac)_"
)
"""operations that give a tensor all of its values"""

Take = Callable[[int, Tensor], None]
"""takes the values of the parameter with this number, in the order of registration"""


@contextmanager
def parameters_on_meta(created: list[nn.Parameter], registered: Take = lambda number, values: None) -> Iterator[None]:
    """Within, parameters of new modules are on ``meta``.

    Args:
        created: gets them, in the order of registration.
        registered: called with the values that a parameter had at its registration.
    """
    register = nn.Module.register_parameter

    def without_storage(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        with torch._C.DisableTorchFunction():
            if parameter is None or parameter.is_meta:
                return
            kind: Any = type(parameter)
            hollow = kind(torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad)
        hollow.__dict__.update(parameter.__dict__)
        module._parameters[name] = hollow
        created.append(hollow)
        registered(len(created) - 1, parameter.detach())

    nn.Module.register_parameter = without_storage  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


@contextmanager
def drawn(take: Take, give: Callable[[int], Tensor | None], created: list[nn.Parameter], place: str) -> Iterator[None]:
    """Within, parameters of ``created``, and of new modules, that are initialised have values, one at a time.

    Args:
        take: called when another parameter follows, with the values so far.
        give: the values that were taken, for an operation that changes them later; None: there are none.
        place: device of the values.
    """
    draws = _Draws(take, give, created, place)
    with parameters_on_meta(created, draws.begin), draws:
        yield
    draws.finish()


class _Draws(TorchFunctionMode):
    def __init__(
        self, take: Take, give: Callable[[int], Tensor | None], created: list[nn.Parameter], place: str
    ) -> None:
        super().__init__()
        self.take, self.give, self.created, self.place = take, give, created, place
        self.number, self.values = -1, torch.empty(0)
        self.numbers: dict[int, int] = {}

    def begin(self, number: int, values: Tensor) -> None:
        """Hold the values of another parameter."""
        self.finish()
        self.number, self.values = number, values

    def finish(self) -> None:
        """Give the held values away."""
        if self.number >= 0:
            with torch._C.DisableTorchFunction():
                self.take(self.number, self.values)
        self.number, self.values = -1, torch.empty(0)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        looks = LOOKS.fullmatch(name) or (
            name in ("__get__", "__set__") and getattr(func, "__self__", None) is not _DATA
        )
        if name == "empty":  # a further parameter: only one has values at a time
            self.finish()
        if looks:
            of = getattr(func, "__self__", None)
            hollow = (of is _META or of is _DEVICE) and self._number(args[0]) is not None
            return func(*args, **kwargs) if not hollow else torch.device(self.place) if of is _DEVICE else False
        changed: list[nn.Parameter] = []

        def real(value: Any) -> Any:
            if not (isinstance(value, nn.Parameter) and value.is_meta and self._number(value) is not None):
                return value
            changed.append(value)
            self._hold(value, anew=len(changed) == 1 and ANEW.fullmatch(name) is not None)
            return self.values

        arguments, named = tree_map(real, (args, kwargs))
        result = func(*arguments, **named)
        return changed[0] if changed and result is self.values else result

    def _number(self, parameter: nn.Parameter) -> int | None:
        for number in range(len(self.numbers), len(self.created)):
            self.numbers[id(self.created[number])] = number
        return self.numbers.get(id(parameter))

    def _hold(self, parameter: nn.Parameter, *, anew: bool) -> None:
        number = self._number(parameter)
        assert number is not None
        if number == self.number:
            return
        self.finish()
        given = None if anew else self.give(number)
        if given is None:
            given = torch.empty(parameter.shape, dtype=parameter.dtype, device=self.place)
        self.number, self.values = number, given


_DATA: Any = torch.Tensor.data
_META: Any = torch.Tensor.is_meta
_DEVICE: Any = torch.Tensor.device
