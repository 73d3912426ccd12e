"""Loading of a Hugging Face model in parts, by ranks that hold shares of it."""

import contextlib
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from corerl.contracts.config import ModelConfig
from corerl_torch.hollow import Take, drawn, parameters_on_meta
from corerl_torch.loading import (
    Described,
    Head,
    as_model_errors,
    cast,
    check_complete,
    check_shapes,
    check_tied,
    describe,
    fastest_device,
    own_random_state,
    without_bias,
)
from corerl_torch.model_files import Source, find_files, sources, whole


def load_hollow(model: ModelConfig, head: Head, dtype: torch.dtype) -> tuple[Any, list[nn.Parameter]]:
    """The model of :func:`load_model` with its parameters on ``meta``; buffers that no file has are real, on the CPU.

    Returns:
        The model, and its parameters in the order in which they were made.

    Raises:
        ModelError: as there.
    """
    from transformers.initialization import no_init_weights

    described = describe(model, head)
    created: list[nn.Parameter] = []
    with as_model_errors(model, meta=True), torch.device("cpu"), no_init_weights(), parameters_on_meta(created):
        loaded = described.build()
        loaded.tie_weights()
    cast(loaded, dtype)
    return without_bias(loaded, head), created


def draw(model: ModelConfig, head: Head, seed: int, take: Take, give: Callable[[int], Tensor | None]) -> Any:
    """Draw the random weights of ``load_format: dummy`` one tensor at a time, with the numbers of :func:`load_model`.

    Args:
        take: called with each parameter's number, in the order in which they were made, and its values, float32; again
            if the values change later.
        give: returns the values that were taken.

    Returns:
        The model, with buffers alone.
    """
    described, place = describe(model, head), fastest_device(model)
    created: list[nn.Parameter] = []
    random_state = own_random_state(place, seed)
    with as_model_errors(model, meta=False), random_state, torch.device(place), drawn(take, give, created, place):
        return described.build()


def draw_missing(model: Any, missing: Collection[str], seed: int) -> dict[str, Tensor]:
    """Random values of weights that the files of a hollow model lack, such as a new value head."""
    values: dict[str, Tensor] = {}
    named = dict(model.named_parameters())
    if not any(name in missing for name in named):
        return values
    names = [name for name in named if name in missing]
    for name, parameter in named.items():
        parameter._is_hf_initialized = name not in missing

    def take(number: int, value: Tensor) -> None:
        values[names[number]] = value

    with own_random_state("cpu", seed), drawn(take, lambda number: None, [named[name] for name in names], "cpu"):
        model.initialize_weights()
    return values


def read_sources(model: Any, config: ModelConfig, head: Head) -> tuple[dict[str, Source], set[str]] | None:
    """Each stored tensor of a hollow model, by name, and the names of those that its files lack.

    Returns:
        None if transformers itself has to read the files: they are no safetensors, or quantised, or the model has code
        of its own.

    Raises:
        ModelError: as from :func:`load_model`.
    """
    described = describe(config, head)
    own_code = not type(model).__module__.startswith("transformers.")
    if own_code or getattr(described.config, "quantization_config", None) is not None:
        return None
    with as_model_errors(config, meta=False):
        files = find_files(described.path, local=bool(described.options["local_files_only"]))
        if not files:
            return None
        found = sources(model, files)
        if head == "lm":
            _read_generation_config(model, described)
    state = model.state_dict()
    ties: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        ties.setdefault(id(parameter), []).append(name)
    for names in ties.values():  # files may have a tied tensor under either name
        present = [name for name in names if name in found]
        for other in present[1:]:
            if not torch.equal(*(whole(found[name], torch.float32) for name in (present[0], other))):
                check_tied(config.path, {other: present[0]})
        found |= {name: found[present[0]] for name in names if present and name not in found}
    ignored = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_missing or ()]
    missing = {name for name in state if name not in found}
    check_complete(config.path, (name for name in missing if not any(each.search(name) for each in ignored)), head)
    check_shapes(
        config.path,
        (
            (name, each.shape, state[name].shape)
            for name, each in found.items()
            if each.shape != tuple(state[name].shape)
        ),
    )
    return found, missing


def _read_generation_config(model: Any, described: Described) -> None:
    from transformers import GenerationConfig

    local = described.options["local_files_only"]
    if model.can_generate() and (not local or (Path(described.path) / "generation_config.json").is_file()):
        with contextlib.suppress(OSError):  # there is none on the hub
            model.generation_config = GenerationConfig.from_pretrained(described.path, local_files_only=local)
