"""Checks that ranks can share a model as configured, before anything is built; imports no torch."""

import importlib.metadata
import importlib.util
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.errors import ConfigError
from corerl.models import overridden
from corerl_megatron.families import FAMILIES, MISSING
from corerl_megatron.families.family import Mixture
from corerl_megatron.options import MegatronOptions
from corerl_megatron.stages import is_uneven, uneven_stages
from corerl_megatron.transformer_keys import check_transformer

TESTED = ((0, 16), (0, 19))
"""the first and the last tested minor version of megatron-core"""


@dataclass(frozen=True)
class ModelFacts:
    """Facts of a model for these checks, from a Hugging Face config.

    Attributes:
        key: the config key that names the model.
        mixture: None for a dense model.
    """

    key: str
    model_type: str
    layers: int
    heads: int
    key_value_heads: int
    intermediate: int
    mixture: Mixture | None
    config: Mapping[str, Any]

    @property
    def experts(self) -> int:
        """Number of a layer; 0 for a dense model."""
        return 0 if self.mixture is None else self.mixture.number

    def has_experts(self, layer: int) -> bool:
        """Whether a decoder layer has experts, counted from 0."""
        return self.mixture is not None and layer >= self.mixture.dense

    @property
    def divided(self) -> Mapping[str, int]:
        """Size -> its value, of those that tensor-parallel ranks share."""
        sizes = {
            f"{self.heads} attention heads": self.heads,
            f"{self.key_value_heads} key and value heads": self.key_value_heads,
        }
        if self.mixture is None or self.mixture.dense:
            sizes[f"intermediate size {self.intermediate}"] = self.intermediate
        if self.mixture is not None and self.mixture.shared:
            sizes[f"intermediate size {self.mixture.shared} of shared experts"] = self.mixture.shared
        return sizes

    @classmethod
    def read(cls, key: str, config: Mapping[str, Any]) -> "ModelFacts":
        """Read the facts from a config as plain values.

        Raises:
            ConfigError: the family has no mapping, or its mapping does not fit this model.
        """
        model_type = str(config.get("model_type"))
        if model_type in MISSING:
            raise ConfigError(key, f"strategy megatron cannot run model_type '{model_type}': {MISSING[model_type]}")
        if model_type not in FAMILIES:
            known = ", ".join(sorted(FAMILIES))
            raise ConfigError(
                key, f"strategy megatron has no mapping of the weights of model_type '{model_type}'; it has {known}"
            )
        family = FAMILIES[model_type]
        for name, value in family.assumes.items():
            if (config.get(name) or None) != (value or None) and name in config:
                raise ConfigError(
                    key, f"{name} is {config[name]!r}, and the mapping of {model_type} supports only {value!r}"
                )
        if (reason := family.refusal(config)) is not None:
            raise ConfigError(key, f"strategy megatron cannot run this {model_type}: {reason}")
        heads = int(config["num_attention_heads"])
        return cls(
            key,
            model_type,
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            key_value_heads=heads if family.latent else int(config.get("num_key_value_heads") or heads),
            intermediate=int(config["intermediate_size"]),
            mixture=family.mixture(config),
            config=config,
        )


def check_config(key: str, config: TrainConfig, options: MegatronOptions) -> None:
    """Check the rules for models in local folders; other models are checked when they are built.

    Args:
        key: ``actor.strategy``, ``ref.strategy`` or ``critic.strategy``.

    Raises:
        ConfigError: the first violated rule.
    """
    check_installed(key, options)
    check_transformer(key, options)
    if config.actor.device == "cpu" or _without_gpus(config):
        check_device("cpu", options, key)
    head = "value" if key.startswith("critic") else "lm"
    path = (config.critic.path if key.startswith("critic") else None) or config.model.path
    names = {"model.path": path} | ({"ref.path": config.ref.path} if config.ref.path else {})
    if key.startswith("ref") and config.ref.path:
        del names["model.path"]
    elif config.ref.strategy is not None:
        names.pop("ref.path", None)
    check_model(config.model, key, options)
    for name, each in names.items():
        file = Path(each).expanduser() / "config.json"
        if file.is_file():
            file = Path(overridden(replace(config.model, path=each)).path) / "config.json"
            facts = ModelFacts.read(name, json.loads(file.read_text()))
            check_shared(key, facts, options)
            check_experts(key, facts)
            check_bridge(key, facts, options, head=head)
    ranks = _ranks(config)
    if ranks is not None:
        check_ranks(key, options, ranks)


def check_device(device: str, options: MegatronOptions, key: str) -> None:
    """Raise ConfigError for features that megatron-core has only on CUDA: pipelines, sequence parallel, experts."""
    if device == "cuda":
        return
    for name in ("pipeline_model_parallel_size", "expert_model_parallel_size"):
        if getattr(options, name) > 1:
            raise ConfigError(f"{key}.{name}", "megatron-core supports it only on CUDA: on the CPU it must be 1")
    if options.sequence_parallel:
        raise ConfigError(
            f"{key}.sequence_parallel", "megatron-core supports it only on CUDA: on the CPU it must be false"
        )


def check_installed(key: str, options: MegatronOptions) -> None:
    """Raise ConfigError if megatron-core is missing or untested, or a required mbridge is missing."""
    low, high = (".".join(map(str, version)) for version in TESTED)
    try:
        version = importlib.metadata.version("megatron-core")
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(
            key, f"megatron needs the package megatron-core, {low} to {high} (pip install corerl-megatron)"
        ) from None
    found = tuple(int(number) for number in re.findall(r"\d+", version)[:2])  # 0.19rc0 counts as 0.19
    if not TESTED[0] <= found <= TESTED[1]:
        raise ConfigError(key, f"megatron-core {version} is installed: the strategy was tested with {low} to {high}")
    if options.use_mbridge and importlib.util.find_spec("mbridge") is None:
        raise ConfigError(
            f"{key}.use_mbridge",
            "the package mbridge is not installed (pip install 'corerl-megatron[mbridge]'): without it set it to false",
        )


def check_model(model: ModelConfig, key: str, options: MegatronOptions) -> None:
    """Raise ConfigError for options that the strategy supports for no model."""
    if model.dtype == "fp16":
        raise ConfigError("model.dtype", "strategy megatron scales no loss, which fp16 needs: use bf16, or fsdp")
    if model.lora_rank and model.lora_dora:
        raise ConfigError("model.lora_dora", "strategy megatron has no DoRA: set it to false, or use torch or fsdp")
    if model.lora_rank and options.use_mbridge:
        raise ConfigError(f"{key}.use_mbridge", "mbridge has no names for adapters (model.lora_rank): set it to false")
    if model.attn_implementation != "sdpa":
        raise ConfigError(
            "model.attn_implementation",
            f"strategy megatron does not support {model.attn_implementation}: use sdpa",
        )


def check_shared(key: str, facts: ModelFacts, options: MegatronOptions) -> None:
    """Raise ConfigError, with the possible sizes, if a model does not divide as the options require."""

    def divides(name: str, size: int, number: int, what: str, all_of: int | None = None) -> None:
        if number % size:
            works = _words(each for each in range(1, number + 1) if (all_of or number) % each == 0)
            raise ConfigError(f"{key}.{name}", f"{size} does not divide {what} of {facts.key}; {works} would")

    tensor, pieces = options.tensor_model_parallel_size, options.virtual_pipeline_model_parallel_size or 1
    cut = facts.divided
    for what, number in cut.items():
        divides("tensor_model_parallel_size", tensor, number, f"the {what}", math.gcd(*cut.values()))
    own = facts.heads // tensor
    divides("context_parallel_size", options.context_parallel_size, own, f"a tensor-parallel rank's {own} heads")
    stages, override = options.pipeline_model_parallel_size, options.override_transformer_config
    if is_uneven(override):
        each = uneven_stages(key, facts.layers, stages, override)
    else:
        divides("pipeline_model_parallel_size", stages, facts.layers, f"the {facts.layers} layers")
        each = [facts.layers // stages]
    for own in dict.fromkeys(each):
        divides("virtual_pipeline_model_parallel_size", pieces, own, f"a pipeline rank's {own} layers")
    if pieces > 1 and stages == 1:
        raise ConfigError(f"{key}.virtual_pipeline_model_parallel_size", "needs pipeline_model_parallel_size above 1")
    if options.expert_model_parallel_size > 1 and not facts.experts:
        raise ConfigError(f"{key}.expert_model_parallel_size", f"{facts.key} has no experts: it must be 1")
    if facts.experts:
        experts = options.expert_model_parallel_size
        divides("expert_model_parallel_size", experts, facts.experts, f"the {facts.experts} experts")
        if tensor > 1 and not options.sequence_parallel:
            raise ConfigError(f"{key}.sequence_parallel", "must be true for experts beside tensor parallel")
    if options.sequence_parallel and tensor == 1:
        raise ConfigError(f"{key}.sequence_parallel", "needs tensor_model_parallel_size above 1")


def check_experts(key: str, facts: ModelFacts) -> None:
    """Raise ConfigError for experts if megatron-core's router needs Transformer Engine, which is missing."""
    version = importlib.metadata.version("megatron-core")
    if facts.experts and int(version.split(".")[1]) < 19 and importlib.util.find_spec("transformer_engine") is None:
        raise ConfigError(
            key,
            f"megatron-core {version} runs the experts of {facts.key} only with Transformer Engine; 0.19 needs none",
        )


def check_bridge(key: str, facts: ModelFacts, options: MegatronOptions, *, head: str) -> None:
    """Raise ConfigError for a model whose weights mbridge cannot convert."""
    vocabulary, tensor = int(facts.config["vocab_size"]), options.tensor_model_parallel_size
    reasons = {
        "mbridge has no names for a critic's value head": head != "lm",
        f"mbridge names the experts of {facts.key} as Transformer Engine does": bool(facts.experts),
        f"mbridge exports the vocabulary of {vocabulary} with the padding for {tensor} ranks": vocabulary % tensor,
    }
    for reason, holds in reasons.items():
        if options.use_mbridge and holds:
            raise ConfigError(f"{key}.use_mbridge", f"{reason}: set it to false, the plugin's own tables have them")


def check_ranks(key: str, options: MegatronOptions, ranks: int) -> None:
    """Raise ConfigError if the ranks are not a multiple of the ranks of one copy of the model."""
    tensor, stages = options.tensor_model_parallel_size, options.pipeline_model_parallel_size
    copy = tensor * stages * options.context_parallel_size
    if ranks % copy:
        fewer, more = copy * (ranks // copy), copy * (ranks // copy + 1)
        works = f"{fewer} would do, and so would {more}" if fewer else f"it takes {more}"
        raise ConfigError(
            key,
            f"one copy of the model takes {copy} ranks (tensor {tensor} × pipeline {stages} × context "
            f"{options.context_parallel_size}), and there are {ranks}: {works}",
        )
    experts = options.expert_model_parallel_size
    if ranks % (experts * stages):
        works = _words(each for each in range(1, ranks + 1) if ranks % (each * stages) == 0)
        raise ConfigError(
            f"{key}.expert_model_parallel_size",
            f"{experts} does not divide a stage's {ranks // stages} ranks; {works} would",
        )


def padded_vocabulary(size: int, tensor_parallel: int) -> int:
    """The vocabulary with padding rows, so that tensor-parallel ranks have equal parts."""
    return -(-size // tensor_parallel) * tensor_parallel


def _without_gpus(config: TrainConfig) -> bool:
    """Whether workers of another runtime than ``local`` get no GPU, so that device ``auto`` is the CPU."""
    runtime = config.runtime
    return config.actor.device == "auto" and runtime.name != "local" and not runtime.n_gpus_per_node


def _ranks(config: TrainConfig) -> int | None:
    """The number of ranks that the runtime will start; None if the config does not determine it."""
    runtime = config.runtime
    if runtime.name == "local":
        return 1
    if runtime.n_gpus_per_node:
        return runtime.nnodes * runtime.n_gpus_per_node
    workers: int | None = runtime.options.get("workers")
    return workers


def _words(sizes: Any) -> str:
    *rest, last = [str(size) for size in sizes if size <= 64]
    return f"{', '.join(rest)} or {last}" if rest else last
