"""Bytes of the contents of memory: of an update, of generation, by formulas."""

from collections.abc import Mapping
from dataclasses import dataclass

from corerl.contracts.config import TrainConfig
from corerl.contracts.training_strategies import TOKENS
from corerl_check import GenerationShare, ModelSize, TrainingShare, longest

UPDATE = "update of the {}"
"""name of a phase"""


@dataclass(frozen=True)
class Phase:
    """The contents of memory at the peak of a phase: bytes by name."""

    name: str
    parts: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True)
class Tokens:
    """Tokens of a micro-batch on one rank: all, those with logits, and those of the longest row."""

    all: int
    responses: int
    row: int


def activations(size: ModelSize, tokens: Tokens, share: TrainingShare) -> float:
    """Bytes of activations that are kept for the backward pass of a micro-batch.

    Counted as in Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large Transformer Models", arXiv
    2205.05198, section 4.1): s b h (34 + 5 a s / h) bytes for a layer in 16 bits. Changed for today's models: no
    dropout; RMSNorm keeps its input and its normalised input in float32; a gated MLP keeps four tensors of its width;
    key and value heads have their own number. Fused attention keeps no scores, so the term 5 a s / h is added for
    ``eager`` only. Context parallelism gathers the keys and values of its ranks, and sums their gradients in float32.
    Tensor parallelism divides the tensors of attention and MLP, sequence parallelism all others
    (equations 2 and 4). A recomputed layer keeps its input, and one at a time keeps all tensors (section 5).
    """
    tokens_here = tokens.all / share.context
    width = (size.heads + 2 * size.key_value_heads) * size.head_size
    inside = size.bytes * (width + size.heads * size.head_size + 4 * size.intermediate) / share.tensor
    around = (4 * size.bytes + 2 * 8) * size.hidden / share.sequence
    layer, summed = tokens_here * (inside + around), 0.0
    if share.whole_keys > 1:
        keys = tokens_here * share.whole_keys * 2 * size.key_value_heads * size.head_size / share.tensor
        layer += size.bytes * keys
        summed = 8 * keys
    if size.stores_scores:
        layer += tokens_here * tokens.row * size.heads * (size.bytes + 4) / share.tensor
    if share.offloads:
        return 2 * layer + summed
    if not share.recomputed:
        return size.layers * layer + summed
    inputs = share.recomputed * size.layers * tokens_here * size.bytes * size.hidden / share.sequence
    return inputs + (1 - share.recomputed) * size.layers * layer + layer + summed


def logits(size: ModelSize, tokens: Tokens, share: TrainingShare) -> float:
    """Bytes of the logits that exist at a time; without a fused loss, 12 bytes for each logit.

    2 in bf16, 4 in float32, 4 of the softmax, 2 of the gradient.
    """
    positions = tokens.responses / share.context
    if share.logit_positions is not None:
        positions = min(positions, share.logit_positions)
    return positions * size.vocabulary * share.bytes_per_logit / share.tensor


def generation_parts(engine: GenerationShare) -> dict[str, float]:
    """What an engine holds while it generates."""
    return {
        "engine's weights": engine.weights,
        "KV cache": engine.kv_cache or 0.0,
        "engine's other": engine.other,
    }


def update_parts(size: ModelSize, tokens: Tokens, share: TrainingShare) -> dict[str, float]:
    """What an update holds at its peak: at the end of a forward pass, or in the optimizer's step."""
    left = activations(size, tokens, share), logits(size, tokens, share)
    optimizer = share.optimizer
    if share.optimizer_apart:  # one or the other
        optimizer = max(0.0, optimizer - sum(left))
    return {
        "weights": share.weights,
        "gradients": share.gradients,
        "optimizer": optimizer,
        "activations": left[0],
        "logits": left[1],
    }


def tokens_of(config: TrainConfig, role: str, share: TrainingShare, device: str) -> Tokens:
    """Tokens of the largest micro-batch with short prompts; a row longer than the limit is a micro-batch of its own."""
    actor, critic, row = config.actor, config.critic, longest(config)
    if actor.use_dynamic_bsz:
        given = (critic.ppo_max_token_len_per_gpu if role == "critic" else None) or actor.ppo_max_token_len_per_gpu
        tokens = max((given or TOKENS[device]) * share.context, row)
    else:
        own = critic.ppo_micro_batch_size_per_gpu if role == "critic" else None
        tokens = (own or actor.ppo_micro_batch_size_per_gpu) * row
    mini = (critic.ppo_mini_batch_size if role == "critic" else None) or actor.ppo_mini_batch_size
    tokens = min(tokens, mini * config.rollout.n * row)
    return Tokens(tokens, tokens, row)
