"""Shared by the checks of tensor functions: seeded examples, comparisons, counts of operations."""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from corerl.contracts.advantage_estimators import Turns
from corerl_testing.results import CheckFailed, CheckSkipped
from corerl_testing.state import explained

T = TypeVar("T")
DTYPES = (torch.float32, torch.float64)
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-9}


def generator(seed: int) -> torch.Generator:
    """A new, seeded source of random numbers."""
    return torch.Generator().manual_seed(seed)


def expect(holds: object, message: str) -> None:
    """Raise CheckFailed with ``message`` unless ``holds``."""
    if not holds:
        raise CheckFailed(message)


def in_both_dtypes(
    check: Callable[[T], None], make: Callable[[torch.dtype], T], dtypes: tuple[torch.dtype, ...] = DTYPES
) -> None:
    """Check the values of ``make`` for float32 and float64; the message of a failure names the dtype."""
    for dtype in dtypes:
        try:
            explained(lambda dtype=dtype: check(make(dtype)))  # type: ignore[misc]
        except CheckFailed as failure:
            raise CheckFailed(f"{failure} ({str(dtype).removeprefix('torch.')})") from None


def expect_shape(what: str, tensor: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise CheckFailed unless ``tensor`` is a tensor of this shape and dtype."""
    expect(isinstance(tensor, Tensor), f"{what} must be a tensor, not {type(tensor).__name__}")
    expect(tuple(tensor.shape) == shape, f"{what} have the shape {tuple(tensor.shape)} where {shape} is right")
    expect(tensor.dtype == dtype, f"{what} are {tensor.dtype} where the inputs are {dtype}")


def expect_finite(what: str, tensor: Tensor) -> None:
    """Raise CheckFailed if an element is NaN or infinite."""
    bad = tensor[~torch.isfinite(tensor)]
    expect(not len(bad), f"{what} hold {float(bad[0]) if len(bad) else ''}")


def expect_equal(what: str, got: Tensor, want: Tensor, when: str) -> None:
    """Raise CheckFailed if two tensors differ by more than rounding."""
    size = max(1.0, float(want.detach().abs().max())) if want.numel() else 1.0
    difference = float((got - want).detach().abs().max()) if want.numel() else 0.0
    expect(difference <= TOLERANCE[want.dtype] * size, f"{what} change by {difference:.3g} {when}")


def response_mask(rows: int, width: int, random: torch.Generator) -> Tensor:
    """(rows, width) bool with lengths from 1 to ``width``, holes, and one fully masked row (index 2)."""
    lengths = torch.randint(1, width + 1, (rows, 1), generator=random)
    lengths[0], lengths[1] = width, 1
    mask = torch.arange(width) < lengths
    holes = torch.rand(rows, width, generator=random) < 0.2
    holes[:, 0] = False
    mask = mask & ~holes
    if rows > 2:
        mask[2] = False
    return mask


def spread_out(mask: Tensor) -> dict[str, Tensor]:
    """Insertions of masked tokens between the columns of (B, T) tensors: a phrase -> the (B, T) int64 new columns."""
    rows, width = mask.shape
    random = generator(15)
    columns = torch.arange(width) + 2 * (torch.arange(width) >= width // 2)
    by_row = torch.stack([torch.randperm(width + 4, generator=random)[:width].sort().values for _ in range(rows)])
    return {"in two columns": columns.expand(rows, width), "at places of each row's own": by_row}


def scattered(tensor: Tensor, places: Tensor) -> Tensor:
    """``tensor``, (B, T), at the columns ``places``, (B, T) rising in each row; 0 or false at other columns."""
    return tensor.new_zeros(len(tensor), int(places.max()) + 1).scatter(1, places, tensor)


def tensors_of(inputs: Any) -> dict[str, Tensor]:
    """The tensor attributes of an inputs dataclass; those in mappings as ``attribute.key``."""
    found: dict[str, Tensor] = {}
    for name, value in vars(inputs).items():
        if isinstance(value, Tensor):
            found[name] = value
        elif isinstance(value, Mapping):
            found.update({f"{name}.{key}": item for key, item in value.items()})
    return found


def expect_untouched(inputs: Any, call: Callable[[], object]) -> None:
    """Raise CheckFailed if ``call`` changes a tensor of ``inputs``."""
    before = {name: tensor.detach().clone() for name, tensor in tensors_of(inputs).items()}
    call()
    for name, tensor in tensors_of(inputs).items():
        expect(torch.equal(tensor.detach(), before[name]), f"it modifies its input {name}")


def on_cuda(inputs: T) -> T:
    """An inputs dataclass with all of its tensors on a CUDA device.

    Raises:
        CheckSkipped: there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise CheckSkipped("there is no CUDA device")
    moved: dict[str, Any] = {}
    for name, value in vars(inputs).items():
        if isinstance(value, Tensor):
            moved[name] = value.cuda()
        elif isinstance(value, Mapping):
            moved[name] = {key: item.cuda() for key, item in value.items()}
        elif isinstance(value, Turns):
            moved[name] = Turns(value.ids.cuda(), value.rewards.cuda())
    return dataclasses.replace(inputs, **moved)  # type: ignore[type-var]


def expect_on_cuda(what: str, got: Tensor, want: Tensor) -> None:
    """Raise CheckFailed unless ``got`` is on a CUDA device and equals ``want``, which is on the CPU."""
    expect(got.is_cuda, f"{what} are on {got.device} where the inputs are on a CUDA device")
    expect_equal(what, got.cpu(), want, "on a CUDA device")


def expect_vectorised(
    call_at: Callable[[int], Callable[[], object]], what: str, small: int = 8, large: int = 64
) -> None:
    """Raise CheckFailed if the number of operations grows with a size, as in a Python loop.

    Args:
        call_at: returns the call for a size.
        what: the counted things ("responses").
    """
    for count, of in ((_operations, "torch operations"), (_calls, "Python calls")):
        few, many = count(call_at(small)), count(call_at(large))
        expect(
            many - few < large - small,
            f"it loops in Python: {few} {of} with {small} {what}, {many} with {large}",
        )


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    count: int = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper would import the whole compiler

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def _operations(call: Callable[[], object]) -> int:
    counter = _Counter()  # type: ignore[no-untyped-call]
    with counter:
        call()
    return counter.count


def _calls(call: Callable[[], object]) -> int:
    count = 0

    def see(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    present = sys.getprofile()
    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(present)
    return count
