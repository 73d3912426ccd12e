"""Files of a client's weights, by their address ``tinker://MODEL/KIND/NAME``.

A folder holds ``weights.safetensors`` (trained parameters by their names in the model, adapters in their own rank),
``optimizer.safetensors`` (of a state that training continues from) and ``about.json``.
"""

import json
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from corerl.files import atomic_path
from corerl_tinker.errors import UserError
from corerl_tinker.training.states import Adapter, Slot, TrainedState
from corerl_torch import ranks

SCHEME = "tinker://"
TRAINING, SAMPLER = "weights", "sampler_weights"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
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
        place = self.place(address)
        weights = {
            name: slot.cut(state.adapter, number, slot.whole(number, state.weights[number])).contiguous().cpu()
            for number, name in enumerate(slot.names)
        }
        moments = {
            f"{slot.names[number]}/{name}": slot.cut(state.adapter, number, slot.whole(number, value.detach()))
            .contiguous()
            .cpu()
            for number, values in enumerate(state.optimizer if optimizer else ())
            for name, value in values.items()
        }

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
            for number, name in enumerate(slot.names):
                whole = torch.zeros(slot.shape(number), dtype=state.weights[number].dtype)
                fill(slot.cut(state.adapter, number, whole), weights[name])
                state.weights[number].copy_(slot.share(number, whole))
            moments = rest[0] if rest else {}
            state.optimizer = [_moments(slot, state, number, moments) for number in range(len(slot.names))]
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


def _moments(slot: Slot, state: TrainedState, number: int, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The optimizer's state of a parameter, in the parameter's whole shape."""
    prefix = f"{slot.names[number]}/"
    found = {name.removeprefix(prefix): each for name, each in stored.items() if name.startswith(prefix)}
    moments = {}
    for name, each in found.items():
        if each.ndim == 0:
            moments[name] = each.to(state.weights[number].device)
            continue
        whole = torch.zeros(slot.shape(number), dtype=each.dtype)
        fill(slot.cut(state.adapter, number, whole), each)
        moments[name] = slot.share(number, whole)
    return moments
