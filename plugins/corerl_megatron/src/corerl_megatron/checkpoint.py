"""Checkpoints: on CUDA megatron-core's distributed ones, which need CUDA; on the CPU, and of adapters, one file.

Ranks with another layout can read both, because tensors are stored under names of the whole model.
"""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from safetensors.torch import load_file, save_file
from torch import Tensor

from corerl.errors import ModelError, SaveError
from corerl.files import read_text, reading, reading_file
from corerl_megatron import background
from corerl_megatron.adapters import Adapters
from corerl_megatron.gathering import MOMENTS
from corerl_megatron.optimizer import LibraryOptimizer
from corerl_megatron.parallel import Layout
from corerl_megatron.pickled_files import require_plain
from corerl_megatron.weights import Weights
from corerl_torch import ranks as world
from corerl_torch.contents import EXTRA, MODEL, OPTIMIZER
from corerl_torch.host_memory import HostBlock
from corerl_torch.schedules import restore_schedule

NOTE, FILE = "note.json", "state.safetensors"


class Checkpoint:
    """Saves and loads a model and its optimizer.

    Args:
        pieces: pieces of the model.
        weights: of the model, or its adapters.
        model: facts that must be equal in a checkpoint's model and in this one.
        timeout: seconds that ranks wait for each other before they write.
        with_optimizer: whether the optimizer is saved.
    """

    def __init__(
        self,
        pieces: list[Any],
        weights: Weights | Adapters,
        optimizer: Any,
        ranks: Layout,
        model: dict[str, Any],
        timeout: float,
        *,
        with_optimizer: bool = True,
    ) -> None:
        self.pieces, self.weights, self.optimizer, self.ranks, self.model = pieces, weights, optimizer, ranks, model
        self.copies = background.Copies(world.WritingGroups(timeout))
        self.saved = [MODEL, OPTIMIZER, EXTRA] if with_optimizer else [MODEL, EXTRA]

    def save(self, folder: Path) -> Callable[[], None] | None:
        """Copy the state to the host; a collective.

        Returns:
            A function that writes this rank's copy into the folder, which all ranks see, or waits until it is written;
            None: the rank writes nothing.
        """
        schedule = self.optimizer.schedule.state_dict()
        note = json.dumps({"model": self.model, "schedule": schedule, "parts": self.saved})
        world.on_first_rank(lambda: _write(folder / NOTE, note), SaveError)
        if isinstance(self.optimizer, LibraryOptimizer):
            return self.copies.save(self._gathered_state, folder)
        state = self._whole_state()
        return (lambda: save_file(state, folder / FILE)) if dist.get_rank() == 0 else None

    def load(self, folder: Path, parts: Collection[str] = (MODEL, OPTIMIZER, EXTRA)) -> None:
        """Load parts of :meth:`save`; a collective. Float32 weights of an optimizer are those of the model.

        Raises:
            ModelError: the checkpoint is of another model, or its pickles name code.
        """
        with reading_file(folder / NOTE) as file:
            note = json.loads(read_text(file))
            model, schedule = dict(note["model"]), dict(note["schedule"])
        for name, value in self.model.items():
            if (stored := model.get(name, value)) != value:
                raise ModelError(
                    f"{folder} is a checkpoint of a model with {name} {stored!r:.100}, and this one has {value!r}"
                )
        if isinstance(self.optimizer, LibraryOptimizer):
            world.on_first_rank(lambda: require_plain(folder), ModelError)
            loaded: Any = dist_checkpointing.load(self._state(parts, loading=True), str(folder))
            if MODEL in parts:
                for number, piece in enumerate(self.pieces):
                    piece.load_state_dict(loaded[f"model{number}"])
            if OPTIMIZER in parts:
                self.optimizer.load(loaded["optimizer"])
            if not {MODEL, OPTIMIZER} <= {*parts}:
                self.optimizer.optimizer.reload_model_params()
        else:
            self._load_file(folder, parts)
        if EXTRA in parts:
            with reading(folder / NOTE):
                restore_schedule(self.optimizer.schedule, schedule)
        self.optimizer.take_rate()

    def _gathered_state(self, memory: HostBlock) -> dict[str, Any]:
        """The tree to save, with the optimizer's state in ``memory``."""
        with self.optimizer.gathered_on_device(memory):
            return self._state(self.saved, loading=False)

    def _state(self, parts: Collection[str], *, loading: bool) -> dict[str, Any]:
        """The tree that megatron-core saves, or fills during loading; the optimizer's part is named by the model's."""
        metadata: dict[str, Any] = {
            "dp_cp_group": self.ranks.gradients.group,
            "distrib_optim_sharding_type": "fully_reshardable",
            "chained_optim_avoid_prefix": True,
        }
        state: dict[str, Any] = {
            f"model{number}": piece.sharded_state_dict(metadata=metadata) for number, piece in enumerate(self.pieces)
        }
        if OPTIMIZER in parts:
            self.optimizer.begin()
            optimizer = self.optimizer.optimizer
            state["optimizer"] = optimizer.sharded_state_dict(dict(state), is_loading=loading, metadata=metadata)
        return state

    def _whole_state(self) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {}
        for key, of in self._parts(self.saved):
            for name, whole in self.weights.stream(of):
                state[f"{key}.{name}"] = _copied(whole)
        for name, whole in self.weights.stream_buffers():
            state[f"model.{name}"] = _copied(whole)
        steps = {float(values["step"]) for values in self.optimizer.optimizer.state.values()}
        state["step"] = torch.tensor(max(steps, default=0.0))
        return state

    def _load_file(self, folder: Path, parts: Collection[str]) -> None:
        with reading_file(folder / FILE) as file:
            state = load_file(file)
            if state["step"].ndim:
                raise ValueError(f"step has shape {list(state['step'].shape)}")
        own = {name.removeprefix("model."): each for name, each in state.items() if name.startswith("model.")}
        if MODEL in parts:
            self.weights.fill_buffers(own, "cpu")
        for key, of in self._parts(parts):
            source = {name.removeprefix(f"{key}."): each for name, each in state.items() if name.startswith(f"{key}.")}
            self.weights.fill(source, "cpu", torch.float32, of)
        for values in self.optimizer.optimizer.state.values() if OPTIMIZER in parts else ():
            values["step"].copy_(state["step"])

    def _parts(self, parts: Collection[str]) -> list[tuple[str, Callable[[Tensor], Tensor]]]:
        """The tensors of a parameter: the parameter and the optimizer's moments."""
        named: list[tuple[str, Callable[[Tensor], Tensor]]] = [(MODEL, torch.Tensor.detach)] if MODEL in parts else []
        if OPTIMIZER not in parts:
            return named
        states = self.optimizer.optimizer.state
        for parameter in self.weights.parameters.values():
            values = states[parameter]
            if not values:
                values["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                values.update((name, torch.zeros_like(parameter)) for name in MOMENTS)
        moments = [(name, lambda parameter, name=name: states[parameter][name]) for name in MOMENTS]
        return [*named, *moments]


def _copied(tensor: Tensor) -> Tensor:
    """A copy in host memory that no other code changes."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
