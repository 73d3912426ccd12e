"""Gradient checkpointing: a layer keeps only its input, and the backward pass runs the layer again."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from corerl.contracts.config import ModelConfig
from corerl.errors import ModelError
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.token_model import decoder_layers
from corerl_torch.media import in_tower


def recompute_activations(model: Any, options: TorchOptions, config: ModelConfig) -> None:
    """Recompute the layers that the options name.

    ``recompute_layers`` counts the layers of the language model; a tower of images recomputes all of its layers, unless
    the number is 0.

    Raises:
        ModelError: ``recompute_layers`` is given, and transformers cannot choose among the model's layers; or the model
            has no layers that can be recomputed.
    """
    if options.recompute_layers is None:
        if config.enable_gradient_checkpointing:
            _recompute(model, lambda layer: True)
        return
    layers = [layer for name, layer in _layers(model) if not in_tower(name)]
    if not layers:
        raise ModelError(f"{type(model).__name__} has no layers for recompute_layers: leave it out")
    if options.recompute_layers:
        left_out = {id(layer) for layer in layers[options.recompute_layers :]}
        _recompute(model, lambda layer: id(layer) not in left_out)


def _layers(model: Any) -> list[tuple[str, Any]]:
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [(name, each) for name, each in model.named_modules() if isinstance(each, GradientCheckpointingLayer)]


def _recompute(model: Any, chosen: Callable[[Any], bool]) -> None:
    """By transformers, which recomputes in training mode alone and not every family, or by own calls."""
    if not (model.training and getattr(model, "supports_gradient_checkpointing", True)):
        for layer in [each for _, each in _layers(model)] or decoder_layers(model):
            if chosen(layer):
                layer.forward = _recomputed(layer.forward)
        return
    if hasattr(model, "activation_checkpointing_enable"):  # transformers 5.23
        model.activation_checkpointing_enable({"use_reentrant": False})
    else:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    for _, layer in _layers(model):
        if not chosen(layer):
            layer.gradient_checkpointing = False


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def recomputed(*arguments: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*arguments, **named)
        return checkpoint(forward, *arguments, use_reentrant=False, preserve_rng_state=False, **named)

    return recomputed
