"""All weights of a model: megatron-core's names, and the parts of each weight."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Size, Tensor

from corerl.errors import ModelError
from corerl_megatron.arithmetic import ModelFacts
from corerl_megatron.conversion import Geometry
from corerl_megatron.families import FAMILIES
from corerl_megatron.families.family import EMBEDDING, NORM, OUTPUT, SCORE, Kind, Rule
from corerl_torch.weights import as_in_files, saved_buffers

LAYER = re.compile(r"(decoder\.layers\.)(\d+)(\..*)")
EXPERT = re.compile(r"(.*mlp\.experts\.local_experts\.)(\d+)(\..*)")
STACK, ONE = re.compile(r"(.*mlp\.experts)\.([a-z_]+)"), re.compile(r"(.*mlp\.experts)\.(\d+)\.([a-z_]+)")


@dataclass(frozen=True)
class Weight:
    """One weight of the whole model.

    Attributes:
        names: its possible names: with plain and with fused norms; expert and layer counted over all ranks.
        parts: Hugging Face's names.
        copy: the name of a tied copy on the last pipeline stage, which is filled too.
        buffer: it is no parameter.
    """

    names: tuple[str, ...]
    parts: tuple[str, ...]
    kind: Kind
    expert: int | None = None
    copy: str | None = None
    buffer: bool = False


def mapped(facts: ModelFacts, meta: Any, head: str) -> tuple[list[Weight], dict[str, Size], Geometry]:
    """The weights of a transformers model, their shapes in files, and the facts for conversions.

    Raises:
        ModelError: the mapping of its family does not know a weight.
    """
    geometry = Geometry(facts.key_value_heads, facts.heads // facts.key_value_heads, meta.config.vocab_size)
    named: Iterable[tuple[str, Tensor]] = chain(as_in_files(meta.config, meta.named_parameters()), saved_buffers(meta))
    if FAMILIES[facts.model_type].stacked:
        named = experts_apart(named)
    shapes = {name: tensor.shape for name, tensor in named}
    tied = bool(meta.config.tie_word_embeddings) and head == "lm"
    present = [each for each in table(facts, head=head, tied=tied) if set(each.parts) <= shapes.keys()]
    if rest := sorted(shapes.keys() - {part for each in present for part in each.parts}):
        raise ModelError(f"{facts.key}: the mapping of {facts.model_type} does not know its weight '{rest[0]}'")
    return present, shapes, geometry


def experts_apart(named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Views ``mlp.experts.N.NAME`` of each expert, for ``mlp.experts.NAME``, the tensor of all experts of a layer."""
    for name, tensor in named:
        if found := STACK.fullmatch(name):
            yield from ((f"{found[1]}.{number}.{found[2]}", own) for number, own in enumerate(tensor))
        else:
            yield name, tensor


def experts_together(named: Iterable[tuple[str, Tensor]], experts: int) -> Iterator[tuple[str, Tensor]]:
    """Inverse of :func:`experts_apart`; a layer's experts come one after the other."""
    waiting: dict[str, list[Tensor]] = {}
    for name, tensor in named:
        if not (found := ONE.fullmatch(name)):
            yield name, tensor
            continue
        stack = f"{found[1]}.{found[3]}"
        waiting.setdefault(stack, []).append(tensor)
        if len(waiting[stack]) == experts:
            yield stack, torch.stack(waiting.pop(stack))


def table(facts: ModelFacts, *, head: str, tied: bool) -> list[Weight]:
    """All weights, in the order of Hugging Face."""
    family = FAMILIES[facts.model_type]
    found = [_weight(EMBEDDING, copy="output_layer.weight" if tied or head != "lm" else None)]
    for layer in range(facts.layers):
        prefixes = (f"decoder.layers.{layer}.", f"model.layers.{layer}.")
        found += [_weight(rule, *prefixes) for rule in family.layer]
        for expert in range(facts.experts):
            names = (f"mlp.experts.local_experts.{expert}.", f"mlp.experts.{expert}.")
            ours, theirs = (prefix + name for prefix, name in zip(prefixes, names, strict=True))
            found += [_weight(rule, ours, theirs, expert) for rule in family.expert]
    found.append(_weight(NORM))
    if head != "lm":
        found += [_weight(rule) for rule in SCORE if head == "value" or "bias" not in rule.megatron]
    elif not tied:
        found.append(_weight(OUTPUT))
    return found


def _weight(rule: Rule, ours: str = "", theirs: str = "", expert: int | None = None, copy: str | None = None) -> Weight:
    names = (ours + rule.megatron,) if rule.fused is None else (ours + rule.megatron, ours + rule.fused)
    return Weight(names, tuple(theirs + part for part in rule.parts), rule.kind, expert, copy, rule.buffer)
