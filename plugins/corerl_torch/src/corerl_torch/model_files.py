"""The tensors of a model's safetensors files, by the names of a transformers model, read in parts.

transformers renames and joins tensors while it loads, such as the matrices of experts, which it stacks. Here its table
of conversions gives only the plan: a :class:`Source` of each tensor copies any part of it from the files, so a rank
that holds a share of a tensor reads this share alone.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from corerl.files import read_text

Part = tuple[slice, ...]
"""first and last index + 1 of each dimension, both given"""


class Source(Protocol):
    """A tensor in files."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole tensor."""

    def copy(self, part: Part, out: Tensor) -> None:
        """Copy a part into a tensor of its shape, of any dtype and device."""


@dataclass(frozen=True)
class Stored:
    """A tensor as a file has it; ``lazy`` is safetensors' own slice."""

    lazy: Any

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.lazy.get_shape())

    def copy(self, part: Part, out: Tensor) -> None:
        if out.numel():
            out.copy_(self.lazy[part] if part else self.lazy[...])


@dataclass(frozen=True)
class Joined:
    """Tensors end to end along a dimension."""

    parts: Sequence[Source]
    dim: int

    @cached_property
    def shape(self) -> tuple[int, ...]:
        first = list(self.parts[0].shape)
        first[self.dim] = sum(each.shape[self.dim] for each in self.parts)
        return tuple(first)

    def copy(self, part: Part, out: Tensor) -> None:
        wanted, start = part[self.dim], 0
        for each in self.parts:
            stop = start + each.shape[self.dim]
            first, last = max(wanted.start, start), min(wanted.stop, stop)
            if first < last:
                own = (*part[: self.dim], slice(first - start, last - start), *part[self.dim + 1 :])
                each.copy(own, out.narrow(self.dim, first - wanted.start, last - first))
            start = stop


@dataclass(frozen=True)
class Stacked:
    """Tensors of one shape, along a new dimension."""

    parts: Sequence[Source]
    dim: int

    @cached_property
    def shape(self) -> tuple[int, ...]:
        first = self.parts[0].shape
        return (*first[: self.dim], len(self.parts), *first[self.dim :])

    def copy(self, part: Part, out: Tensor) -> None:
        wanted, rest = part[self.dim], (*part[: self.dim], *part[self.dim + 1 :])
        for number in range(wanted.start, wanted.stop):
            self.parts[number].copy(rest, out.select(self.dim, number - wanted.start))


@dataclass(frozen=True)
class Swapped:
    """A tensor with two dimensions exchanged."""

    source: Source
    dims: tuple[int, int]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._swapped(self.source.shape))

    def copy(self, part: Part, out: Tensor) -> None:
        self.source.copy(tuple(self._swapped(part)), out.transpose(*self.dims))

    def _swapped(self, values: Sequence[Any]) -> list[Any]:
        first, second = self.dims
        swapped = list(values)
        swapped[first], swapped[second] = values[second], values[first]
        return swapped


@dataclass(frozen=True)
class Computed:
    """A tensor that transformers computes from whole ones; each copy computes it again."""

    shape: tuple[int, ...]
    compute: Callable[[], Tensor]

    def copy(self, part: Part, out: Tensor) -> None:
        out.copy_(self.compute()[part])


def whole(source: Source, dtype: torch.dtype) -> Tensor:
    """All of it, on the CPU."""
    found = torch.empty(source.shape, dtype=dtype)
    source.copy(tuple(slice(0, size) for size in source.shape), found)
    return found


def find_files(path: str, *, local: bool) -> list[Path]:
    """The safetensors files of a model; none if it has other files.

    Args:
        path: a folder, or the id of a model on the hub, which is downloaded if it is not in the cache.

    Raises:
        OSError, KeyError, ValueError: the index names missing files, or is damaged.
    """
    single, index = "model.safetensors", "model.safetensors.index.json"
    if local:
        if (Path(path) / single).is_file():
            return [Path(path) / single]
        if not (Path(path) / index).is_file():
            return []
        names = sorted(set(json.loads(read_text(Path(path) / index))["weight_map"].values()))
        for name in names:
            if not (Path(path) / name).is_file():
                raise OSError(f"{index} names {name}, which is missing")
        return [Path(path) / name for name in names]
    from transformers.utils.hub import cached_file

    fetch: Any = cached_file
    quiet = {"_raise_exceptions_for_missing_entries": False}
    if (found := fetch(path, single, **quiet)) is not None:
        return [Path(found)]
    if (found := fetch(path, index, **quiet)) is None:
        return []
    return [Path(fetch(path, name)) for name in sorted(set(json.loads(read_text(Path(found)))["weight_map"].values()))]


def sources(model: Any, files: Sequence[Path]) -> dict[str, Source]:
    """Name in the model's state → its source, of every tensor that the files have and the model asks for.

    Args:
        model: a transformers model, possibly without storage, without adapters.

    Raises:
        SafetensorError: a file is damaged.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    stored: dict[str, Stored] = {}
    for path in files:
        file: Any = safe_open(path, "pt")
        stored |= {name: Stored(file.get_slice(name)) for name in file.keys()}  # noqa: SIM118
    table = get_model_conversion_mapping(model)
    renamings = [each for each in table if isinstance(each, WeightRenaming)]
    converters = [each for each in table if isinstance(each, WeightConverter)]
    by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    state, prefix = model.state_dict(), model.base_model_prefix
    found: dict[str, Source] = {}
    groups: dict[str, tuple[Any, dict[str, list[Stored]]]] = {}
    for name in sorted(stored, key=_natural):
        target, pattern = rename_source_key(name, renamings, converters, prefix, state)
        if target not in state and name in state:
            target, pattern = rename_source_key(name, [], [], prefix, state)
        if target not in state:
            continue
        if pattern is None:
            found[target] = stored[name]
        else:
            groups.setdefault(target, (by_pattern[pattern], {}))[1].setdefault(pattern, []).append(stored[name])
    for target, (converter, collected) in groups.items():
        found |= _converted(model, target, converter, collected, state)
    return found


def _converted(
    model: Any, target: str, converter: Any, collected: dict[str, list[Stored]], state: Mapping[str, Tensor]
) -> dict[str, Source]:
    """The tensors that a converter of transformers makes of those collected for ``target``, its first one."""
    if len(converter.target_patterns) == 1 and (lazy := _lazily(converter, collected)) is not None:
        return {target: lazy}

    def compute(name: str) -> Tensor:
        mapping = deepcopy(converter)
        for pattern, sources in collected.items():
            for number, source in enumerate(sources):
                mapping.add_tensor(target, f"{pattern}:{number}", pattern, whole(source, state[target].dtype))
        made = mapping.convert(target, model=model, config=model.config)[name]
        value: Tensor = made[0] if isinstance(made, list) else made
        return value

    first = converter.target_patterns[0]
    names = [target.replace(first, each) for each in converter.target_patterns] if "*" not in first else [target]
    return {name: Computed(tuple(state[name].shape), partial(compute, name)) for name in names if name in state}


def _lazily(converter: Any, collected: dict[str, list[Stored]]) -> Source | None:
    """The result of the operations stack, join and transpose; None for further ones."""
    present: dict[str, list[Source]] = {pattern: [*sources] for pattern, sources in collected.items()}
    for operation in converter.operations:
        kind = type(operation).__name__
        if kind == "MergeModulelist":
            present = {pattern: [Stacked(each, operation.dim)] for pattern, each in present.items()}
        elif kind == "Concatenate":
            ordered = [each for pattern in converter.source_patterns for each in present.get(pattern, ())]
            present = {converter.source_patterns[0]: [Joined(ordered, operation.dim)]}
        elif kind == "Transpose" and not operation.check_dims:
            dims = (operation.dim0, operation.dim1)
            present = {pattern: [Swapped(one, dims) for one in each] for pattern, each in present.items()}
        else:
            return None
    (result, *others), *further = present.values()
    return None if others or further else result


def _natural(name: str) -> list[tuple[int, int | str]]:
    """Sorts numbers by value: the tenth expert comes after the second one."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"\.", name)]
