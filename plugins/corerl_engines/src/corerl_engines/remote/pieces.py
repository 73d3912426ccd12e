"""Weights in pieces: the parts that this process's share of a model needs, found by its own loader, and their loading.

The loader of an engine is a map from parts of each weight to its parameters. It runs once with tensors that have no
memory; a read of a part is noted, and nothing is written.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from . import weights

Box = list[list[int]]
"""[first, after the last] index in every dimension"""

DIGEST = 16
"""bytes in front of every piece; the first 8 are its digest"""

FILLS = {torch.ops.aten.fill_.Scalar, torch.ops.aten.fill_.Tensor, torch.ops.aten.zero_.default}
"""operations on parameters that :class:`Reads` notes"""

Digests = Callable[[Sequence[Tensor]], Tensor]
"""(tensors,) int64, on their device"""

Load = Callable[[Iterator[tuple[str, Tensor]]], Any]
"""loads named tensors, as ``load_weights`` of an engine's model; returns the names of loaded parameters, or None"""


class Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes, within, the parts of given tensors that are read; copies of them are not made.

    Attributes:
        boxes: name -> read boxes; a superset, if a part is no box.
        copies: name -> (box, parameter's view of its shape), if all its reads are copies of boxes.
        fills: operations that fill parameters with one number, as padding.
        is_plain: nothing else changes parameters.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.boxes: dict[str, list[Box]] = {}
        self.copies: dict[str, list[tuple[Box, Tensor]]] = {}
        self.fills: list[Callable[[], Any]] = []
        self.is_plain = True
        self._given: dict[int, tuple[str, Tensor]] = {}
        self._derived: set[str] = set()

    def given(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor without memory whose reads are noted."""
        tensor = torch.empty(tuple(shape), dtype=dtype, device="meta")
        self._given[_storage(tensor)] = name, tensor
        self.boxes[name] = []
        return tensor

    def direct(self, name: str) -> list[tuple[Box, Tensor]] | None:
        """The copies that loading a weight consists of; None if it consists of more."""
        return self.copies.get(name, []) if self.is_plain and name not in self._derived else None

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is torch.ops.aten.copy_.default and args[1].is_meta:
            self._copied(args[0], args[1])
            return args[0]
        read = [each for each in _tensors((args, kwargs)) if each.is_meta and _storage(each) in self._given]
        if read and function is torch.ops.aten._to_copy.default:
            kwargs = kwargs | {"device": "meta"}
        result = function(*args, **kwargs)
        if read and not any(each.is_meta and _storage(each) in self._given for each in _tensors(result)):
            for each in read:
                self._note(each)
                self._derived.add(self._given[_storage(each)][0])
        elif not read and function._schema.is_mutable and not all(each.is_meta for each in _tensors(args[:1])):
            if function in FILLS:
                self.fills.append(functools.partial(function, *args, **kwargs))
            else:
                self.is_plain = False
        return result

    def _copied(self, to: Tensor, source: Tensor) -> None:
        known = self._given.get(_storage(source))
        if known is None:  # computed from a given one, whose part is noted
            self.is_plain = False
            return
        name, whole = known
        box, is_exact = self._note(source)
        if is_exact and source.shape == to.shape and source.stride() == whole.stride():
            self.copies.setdefault(name, []).append((box, to))
        else:
            self._derived.add(name)

    def _note(self, read: Tensor) -> tuple[Box, bool]:
        name, whole = self._given[_storage(read)]
        box = box_of(read, whole.shape)
        if box not in self.boxes[name]:
            self.boxes[name].append(box)
        return box, torch.Size(stop - start for start, stop in box) == read.shape


def box_of(view: Tensor, shape: Sequence[int]) -> Box:
    """The smallest box of a contiguous tensor of this shape that has all elements of a view; all of it if unknown."""
    if not view.numel():
        return [[0, 0] for _ in shape]
    strides = torch.empty(tuple(shape), device="meta").stride()
    rest, box = view.storage_offset(), []
    for stride in strides:
        box.append([rest // stride, rest // stride + 1])
        rest %= stride
    for size, stride in zip(view.shape, view.stride(), strict=True):
        if size == 1 or stride == 0:
            continue
        dim = next((dim for dim, own in enumerate(strides) if own <= stride and shape[dim] > 1), None)
        if dim is None or stride % strides[dim]:
            return [[0, each] for each in shape]
        box[dim][1] += (size - 1) * (stride // strides[dim])
    if any(stop > size for (_, stop), size in zip(box, shape, strict=True)):
        return [[0, each] for each in shape]
    return box


@dataclass
class Found:
    """The needs of this process, and the way to load them.

    Attributes:
        load: of the engine's model.
        reads: by the loader; ``reads.boxes`` are the needs.
        loaded: names of parameters that the loader reported.
    """

    load: Load
    reads: Reads
    loaded: set[str]


@torch.no_grad()
def find(load: Load, named: Iterable[Sequence[Any]]) -> Found:
    """Run a loader with tensors without memory.

    Args:
        named: name, shape and dtype of all weights.
    """
    reads = Reads()
    given = [(name, reads.given(name, shape, getattr(torch, dtype))) for name, shape, dtype in named]
    with reads:
        loaded = load(iter(given))
    return Found(load, reads, set(loaded or ()))


@dataclass(frozen=True)
class Slot:
    """A piece in a round's bytes: ``offset`` is that of its digest."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    box: Box
    offset: int

    def view(self, flat: Tensor) -> Tensor:
        sizes = [stop - start for start, stop in self.box]
        start = self.offset + DIGEST
        size = torch.Size(sizes).numel() * self.dtype.itemsize
        return flat[start : start + size].view(self.dtype).view(sizes)

    def digest(self, flat: Tensor) -> Tensor:
        """(1,) int64: the sender's."""
        return flat[self.offset : self.offset + 8].view(torch.int64)

    @property
    def is_whole(self) -> bool:
        return all(start == 0 and stop == size for (start, stop), size in zip(self.box, self.shape, strict=True))


@dataclass
class Receiver:
    """This process's end of planned updates.

    Attributes:
        found: its needs.
        plan: ``source``, the memory in which rounds arrive, and ``rounds``: of each, the fields of its slots.
        in_place: the parameters take values as they are, so that a copy into them is a load.
        device: of the model.
        digests: computes those of pieces.
        arrived: number of rounds of the present update.
    """

    found: Found
    plan: Mapping[str, Any]
    in_place: bool
    device: Any
    digests: Digests
    arrived: int = 0
    _differs: list[tuple[list[str], Tensor]] = field(default_factory=list)
    """of the rounds so far: the names of pieces, and whether each digest is another, on the device"""
    _copies: dict[tuple[int, int], tuple[list[Tensor], list[Tensor]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rounds = [
            [Slot(name, tuple(shape), getattr(torch, dtype), box, offset) for name, shape, dtype, box, offset in each]
            for each in self.plan["rounds"]
        ]
        self._memory = weights.memory(self.plan["source"])

    def begin(self) -> None:
        """The next round is the first of an update."""
        self.arrived = 0
        self._differs.clear()
        if self.in_place:
            for fill in self.found.reads.fills:
                fill()

    def take(self, number: int, base: int, size: int, *, verify: bool) -> tuple[list[str], set[str]]:
        """Load a round; returns the names of changed weights, and those of the loader's parameters.

        The last round returns the changed weights of all rounds, so that the host waits for digests once.

        Args:
            number: of the round, from 0.
            base, size: its place in the memory, in bytes.
        """
        if number != self.arrived:
            raise RuntimeError(f"round {number} of an update arrived as number {self.arrived}")
        self.arrived += 1
        slots = self._rounds[number]
        flat = self._memory[base : base + size]
        is_here = flat.device.type == "cpu" or flat.device.index == torch.cuda.current_device()
        if not is_here:  # an engine that can sleep keeps weights in memory that other devices cannot write
            flat = flat.to(torch.cuda.current_device())
        if verify:
            self._compare(slots, flat)
        to, source = self._direct(number, base if is_here else -1, flat)
        if to:
            torch._foreach_copy_(to, source, non_blocking=True)
        others = [slot for slot in slots if not self._is_direct(slot.name)]
        loaded = set(self.found.load(self._assembled(others, flat)) or ()) if others else set()
        if self.in_place and self.arrived == len(self._rounds):
            loaded |= self.found.loaded
        return self._changed() if self.arrived == len(self._rounds) else [], loaded

    def _compare(self, slots: Sequence[Slot], flat: Tensor) -> None:
        if slots:
            taken = self.digests([slot.view(flat) for slot in slots])
            given = torch.cat([slot.digest(flat) for slot in slots])
            self._differs.append(([slot.name for slot in slots], taken != given))

    def _changed(self) -> list[str]:
        if not self._differs:
            return []
        names = [name for of_round, _ in self._differs for name in of_round]
        differs: list[bool] = torch.cat([each for _, each in self._differs]).tolist()
        self._differs.clear()
        return sorted({name for name, is_other in zip(names, differs, strict=True) if is_other})

    def _is_direct(self, name: str) -> bool:
        return self.in_place and self.found.reads.direct(name) is not None

    def _direct(self, number: int, base: int, flat: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The parameters' views and the memory's; both stay the same from one update to the next."""
        if base >= 0 and (known := self._copies.get((number, base))) is not None:
            return known
        to: list[Tensor] = []
        source: list[Tensor] = []
        for slot in self._rounds[number]:
            if not self._is_direct(slot.name):
                continue
            values = slot.view(flat)
            for box, parameter in self.found.reads.direct(slot.name) or ():
                common = [[max(a, c), min(b, d)] for (a, b), (c, d) in zip(slot.box, box, strict=True)]
                if all(start < stop for start, stop in common):
                    to.append(_narrowed(parameter, box, common))
                    source.append(_narrowed(values, slot.box, common))
        if base >= 0:
            self._copies[number, base] = to, source
        return to, source

    def _assembled(self, slots: Sequence[Slot], flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Each weight in its whole shape, of which the loader reads what has arrived."""
        by_name: dict[str, list[Slot]] = {}
        for slot in slots:
            by_name.setdefault(slot.name, []).append(slot)
        for name, own in by_name.items():
            tensor = torch.empty(own[0].shape, dtype=own[0].dtype, device=self.device)
            for slot in own:
                _narrowed(tensor, [[0, size] for size in slot.shape], slot.box).copy_(slot.view(flat))
            yield name, tensor


def _narrowed(tensor: Tensor, own: Box, box: Box) -> Tensor:
    """The view of ``box`` in a tensor that is ``own`` of a weight."""
    for dim, ((start, stop), (origin, end)) in enumerate(zip(box, own, strict=True)):
        if (start, stop) != (origin, end):
            tensor = tensor.narrow(dim, start - origin, stop - start)
    return tensor


def _storage(tensor: Tensor) -> int:
    storage: Any = tensor.untyped_storage()
    return int(storage._cdata)


def _tensors(values: Any) -> list[Tensor]:
    found: list[Tensor] = []
    torch.utils._pytree.tree_map_only(Tensor, found.append, values)
    return found
