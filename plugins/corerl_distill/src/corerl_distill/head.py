"""The output layer of a teacher beside the policy: logits of the teacher's hidden states exist chunk by chunk."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.models import compute_dtype, resolve_device
from corerl_distill.options import TeacherOptions, path_of
from corerl_torch.loading import load_model
from corerl_torch.output_layer import logits_of


class TeacherHead:
    """The operations of a teacher after its body.

    Its weights are read from the model's files once, without the body's where the files allow.

    Raises:
        ModelError: the model cannot be loaded.
    """

    def __init__(self, teacher: TeacherOptions, config: TrainConfig) -> None:
        self._answer = _answer_type()
        model = replace(config.model, path=path_of(teacher, config), lora_rank=0)
        device = resolve_device(config.actor.device)
        dtype = compute_dtype(config.model, device)
        self._model = load_model(model, "lm", device="meta", dtype=dtype)
        self.vocabulary: int = self._model.config.get_text_config().vocab_size
        self.width: int = self._model.config.get_text_config().hidden_size
        _fill(self._model, model, dtype, device)
        self._model.eval().requires_grad_(False)

    @torch.no_grad()
    def __call__(self, hidden: Tensor) -> Tensor:
        """(n, V) logits of (n, K) hidden states."""
        return logits_of(self._model, hidden, self._answer)


def _answer_type() -> type:
    """The class of a body's result for a model's own forward, which reads further fields, such as ``image_outputs``."""
    from transformers.modeling_outputs import MoeModelOutputWithPast

    class Answer(MoeModelOutputWithPast):
        def __getattr__(self, name: str) -> None:
            if name.startswith("__"):
                raise AttributeError(name)

    return Answer


def _fill(model: Any, source: ModelConfig, dtype: torch.dtype, device: str) -> None:
    """Give storage and values to the parameters and buffers outside the body; the body stays without."""
    names = [name for name, _ in _outside(model)]
    values = _read(model, source, names) or _loaded(source, names, dtype)
    for name, tensor in values.items():
        owner, _, last = name.rpartition(".")
        module = model.get_submodule(owner)
        value = tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None)
        if last in module._parameters:
            module._parameters[last] = torch.nn.Parameter(value, requires_grad=False)
        else:
            module._buffers[last] = value


def _outside(model: Any) -> list[tuple[str, Tensor]]:
    """(name, tensor) of everything outside the body, tied tensors too."""
    body = f"{model.base_model_prefix}."
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return [(name, tensor) for name, tensor in tensors if not name.startswith(body)]


def _read(model: Any, source: ModelConfig, names: list[str]) -> dict[str, Tensor] | None:
    """The tensors from a local folder of safetensors; None if they cannot be found there by their names."""
    folder = Path(source.path).expanduser()
    files = sorted(folder.glob("*.safetensors")) if source.load_format == "auto" else []
    tied = model.config.get_text_config().tie_word_embeddings
    embedding = next((name for name, each in model.named_modules() if each is model.get_input_embeddings()), "")
    found: dict[str, Tensor] = {}
    for file in files:
        with safe_open(file, "pt") as tensors:
            present = set(tensors.keys())
            for name in names:
                is_head = model.get_submodule(name.rpartition(".")[0]) is model.get_output_embeddings()
                stored = f"{embedding}.weight" if tied and is_head and name.endswith(".weight") else name
                if stored in present:
                    found[name] = tensors.get_tensor(stored)
    return found if names and set(found) == set(names) else None


def _loaded(source: ModelConfig, names: list[str], dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors of the whole model, which is read and let go."""
    whole = load_model(source, "lm", device="cpu", dtype=dtype)
    return {name: tensor.detach().clone() for name, tensor in _outside(whole) if name in names}
