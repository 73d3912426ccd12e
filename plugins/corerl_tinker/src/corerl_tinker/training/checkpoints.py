"""Files of a client's weights, by their address ``tinker://MODEL/KIND/NAME``.

A folder holds ``weights.safetensors`` (trained parameters by their names in the model, adapters in their own rank),
``optimizer.safetensors`` (of a state that training continues from) and ``about.json``.
"""

import json
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from corerl.files import atomic_path
from corerl_tinker.errors import UserError
from corerl_tinker.training.states import Adapter, Slot, TrainedState, cut
from corerl_torch import ranks

SCHEME = "tinker://"
MOMENTS, STEP = ("exp_avg", "exp_avg_sq"), "step"
"""AdamW's state of a parameter, as torch names it"""
TRAINING, SAMPLER = "weights", "sampler_weights"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
MOST_MODELS = 10**9
"""of a session; a larger number would have no address"""
MODEL = re.compile(r"[A-Za-z0-9-]{1,64}:train:[0-9]{1,9}")


@dataclass(frozen=True)
class About:
    """What a checkpoint says of itself.

    Attributes:
        base_model: name of the model.
        owner: of the client's key; '' on a server with one key.
        expires: seconds since 1970; None: never.
    """

    base_model: str
    owner: str
    adapter: Mapping[str, Any] | None
    created: float
    expires: float | None = None
    user_metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return self.expires is not None and time.time() > self.expires


class Checkpoints:
    """The checkpoints below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def address(self, model_id: str, kind: str, name: str) -> str:
        """The address of a checkpoint.

        Raises:
            UserError: the name cannot be one of a file.
        """
        if not NAME.fullmatch(name):
            raise UserError(
                f"a checkpoint cannot be named {name!r:.80}: use letters, digits, '-', '_' and '.', at most 128"
            )
        return f"{SCHEME}{model_id}/{kind}/{name}"

    def place(self, address: str) -> Path:
        """The folder of an address.

        Raises:
            UserError: it is no address of a checkpoint.
        """
        parts = address.removeprefix(SCHEME).split("/")
        if (
            not address.startswith(SCHEME)
            or len(parts) != 3
            or not MODEL.fullmatch(parts[0])
            or parts[1] not in (TRAINING, SAMPLER)
            or not NAME.fullmatch(parts[2])
        ):
            raise UserError(f"{address!r:.120} is no address of a checkpoint: tinker://MODEL/weights/NAME")
        return self.folder / parts[0].replace(":", "-") / parts[1] / parts[2]

    def about(self, address: str, owner: str) -> About:
        """What a checkpoint of this owner says of itself.

        Raises:
            UserError: there is none, or it has expired.
        """
        place = self.place(address)
        try:
            about = About(**json.loads((place / "about.json").read_text()))
        except FileNotFoundError:
            about = None
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"the checkpoint {address} is damaged: {type(error).__name__}") from error
        if about is None or about.owner != owner or about.is_over:
            raise UserError(f"there is no checkpoint {address}")
        return about

    def list(self, model_id: str, owner: str) -> Iterator[tuple[str, About, int]]:
        """(address, about, bytes) of a model's checkpoints."""
        if not MODEL.fullmatch(model_id):
            return
        for kind in (TRAINING, SAMPLER):
            for place in sorted((self.folder / model_id.replace(":", "-") / kind).glob("*")):
                address = f"{SCHEME}{model_id}/{kind}/{place.name}"
                try:
                    about = self.about(address, owner)
                except UserError:
                    continue
                yield address, about, sum(file.stat().st_size for file in place.glob("*"))

    def delete(self, address: str, owner: str) -> None:
        """Remove a checkpoint.

        Raises:
            UserError: there is none of this owner.
        """
        self.about(address, owner)
        shutil.rmtree(self.place(address))

    def write(
        self, address: str, about: About, slot: Slot, state: TrainedState, *, optimizer: bool, overwrite: bool = False
    ) -> None:
        """Write a state, which must not be held by the slot; a collective, and the first rank writes.

        Raises:
            UserError: the name is taken.
        """
        place, moments = self.place(address), dict[str, Tensor]()
        weights = _own(state, slot.gather(state.weights))
        for name in MOMENTS if optimizer and any(state.optimizer) else ():
            tensors = [own.get(name, nothing) for own, nothing in zip(state.optimizer, slot.zeros(), strict=True)]
            moments |= {f"{key}/{name}": each for key, each in _own(state, slot.gather(tensors)).items()}
        if moments:
            counts = [
                nothing.add_(own.get(STEP, 0)) for own, nothing in zip(state.optimizer, slot.zeros(), strict=True)
            ]
            moments |= {f"{key}/{STEP}": each.flatten()[0].clone() for key, each in slot.gather(counts)}

        def write() -> None:
            if place.exists() and not overwrite:
                raise UserError(f"there is a checkpoint {address} already: give another name, or overwrite")
            place.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(place, folder=True) as folder:
                save_file(weights, folder / "weights.safetensors")
                if optimizer:
                    save_file(moments, folder / "optimizer.safetensors")
                (folder / "about.json").write_text(json.dumps(asdict(about)))

        if dist.is_initialized():
            ranks.on_first_rank(write, UserError)
        else:
            write()

    def read(self, address: str, about: About, slot: Slot, state: TrainedState, *, optimizer: bool) -> None:
        """Fill a new state, which must not be held by the slot; all ranks see the folder.

        Raises:
            UserError: files are missing or damaged, or belong to another model.
        """
        place = self.place(address)
        names = ("weights.safetensors", *(("optimizer.safetensors",) if optimizer else ()))
        for name in names:
            if not (place / name).is_file():
                raise UserError(f"the checkpoint {address} has no {name}")
        try:
            weights, *rest = (load_file(place / name) for name in names)
            slot.scatter(_whole(slot, state, weights), state.weights)
            if rest and rest[0]:
                state.optimizer = _moments(slot, state, rest[0])
        except Exception as error:  # whatever safetensors raises of a damaged file
            raise UserError(f"the checkpoint {address} cannot be loaded: {error}") from error


def adapter_of(about: About) -> Adapter | None:
    """The adapter of a checkpoint."""
    return None if about.adapter is None else Adapter(**about.adapter)


def fill(target: Tensor, source: Tensor) -> None:
    """Copy a tensor of the same shape."""
    if target.shape != source.shape:
        raise ValueError(f"a tensor has shape {list(source.shape)}, not {list(target.shape)}")
    target.copy_(source)


def _own(state: TrainedState, named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Full tensors on the host, in the adapter's own rank."""
    return {name: cut(state.adapter, name, each.detach()).contiguous().cpu() for name, each in named}


def _whole(slot: Slot, state: TrainedState, stored: Mapping[str, Tensor], suffix: str = "") -> dict[str, Tensor]:
    """Tensors in the shapes of the parameters; moments that are not stored are those of a layer without gradients."""
    made = {}
    for name, shape in slot.weights.shapes.items():
        made[name] = torch.zeros(shape)
        if not suffix or name + suffix in stored:
            fill(cut(state.adapter, name, made[name]), stored[name + suffix])
    return made


def _moments(slot: Slot, state: TrainedState, stored: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """The optimizer's state of each of this rank's parameters."""
    found = {name: slot.zeros() for name in (*MOMENTS, STEP)}
    for name in MOMENTS:
        slot.scatter(_whole(slot, state, stored, f"/{name}"), found[name])
    nothing = torch.zeros(())
    counts = {name: stored.get(f"{name}/{STEP}", nothing).expand(shape) for name, shape in slot.weights.shapes.items()}
    slot.scatter(counts, found[STEP])
    steps = [each.flatten()[:1].sum() for each in found.pop(STEP)]
    return [dict(zip((STEP, *MOMENTS), each, strict=True)) for each in zip(steps, *found.values(), strict=True)]
