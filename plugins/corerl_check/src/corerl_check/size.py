"""The size of a model, from its config only: built on the meta device, without reading or creating weights."""

from dataclasses import dataclass
from typing import Any, Literal

from corerl.contracts.config import ModelConfig
from corerl.errors import CoreRLError, ModelError


@dataclass(frozen=True)
class ModelSize:
    """What the memory of a model depends on.

    Attributes:
        parameters: all of them, tied ones once.
        trained: those that an optimizer would change: all, or adapters and a value head with ``model.lora_rank``.
        layer, beside: parameters of one decoder layer, and of what stands beside the layers (embedding, output layer).
        intermediate: width of the MLP; of a mixture of experts, of the experts that see one token together.
        heads: of attention; 0 of a model without.
        vocabulary: 1 of a critic.
        bytes: of a number in the dtype of compute.
        stores_scores: attention keeps its matrix of scores (``eager``).
        routed_bytes: of the chosen experts of one token (column ``experts``); 0 if they cannot be recorded.
        unrouted: the reason for that; '' if they can.
        experts_of_token: experts that see one token; 0 for a model without experts.
        in_experts: parameters of routed experts, in all layers.
        output: parameters of an output layer of its own; 0 if it has the weights of the embedding.
        device: that computes, ``cpu`` or ``cuda``: a CPU has no other memory to offload to.
    """

    parameters: int
    trained: int
    layer: int
    beside: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_value_heads: int
    head_size: int
    vocabulary: int
    bytes: int
    positions: int
    stores_scores: bool = False
    routed_bytes: int = 0
    unrouted: str = ""
    experts_of_token: int = 0
    in_experts: int = 0
    output: int = 0
    device: str = "cuda"

    @property
    def cache_bytes(self) -> int:
        """Of one token's keys and values in all layers."""
        return 2 * self.layers * self.key_value_heads * self.head_size * self.bytes


def model_size(model: ModelConfig, device: str, head: Literal["lm", "value"] = "lm") -> ModelSize:
    """The size of the model ``model.path``.

    Args:
        device: ``cpu`` or ``cuda``, for the dtype ``auto``.

    Raises:
        ModelError: transformers cannot read its config, or the config lacks a number that the size needs.
        ConfigError: the model cannot have the adapters of ``model.lora_rank``.
    """
    try:
        return _size(model, device, head)
    except CoreRLError:
        raise
    except Exception as error:  # configs of families have different keys
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ModelError(f"model.path: the size of {model.path} cannot be computed: {reason}") from error


def _size(model: ModelConfig, device: str, head: Literal["lm", "value"]) -> ModelSize:
    from corerl.models import compute_dtype
    from corerl_torch import lora
    from corerl_torch.loading import load_model
    from corerl_torch.routers import Routers

    dtype = compute_dtype(model, device)
    built = load_model(model, head, device="meta", dtype=dtype)
    built.tie_weights()
    config = built.config.get_text_config()
    parameters = sum(each.numel() for each in built.parameters())
    in_layers = sum(each.numel() for name, each in built.named_parameters() if ".layers." in name)
    in_experts = sum(each.numel() for name, each in built.named_parameters() if ".experts." in name)
    ends = built.get_output_embeddings(), built.get_input_embeddings()
    has_output = head == "lm" and ends[0] is not None and ends[0].weight is not ends[1].weight
    heads = _given(config, "num_attention_heads") or 0
    experts = _given(config, "num_experts_per_tok")
    width = _given(config, "moe_intermediate_size") if experts else None
    routed_bytes, unrouted = 0, ""
    try:
        routed_bytes = Routers(built).bytes
    except ModelError as error:
        unrouted = str(error)
    trained = parameters
    if model.lora_rank:
        lora.insert(built, model, value=head == "value")
        trained = sum(each.numel() for each in built.parameters() if each.requires_grad)
        trained += built.score.weight.numel() if head == "value" else 0
    return ModelSize(
        parameters=parameters,
        trained=trained,
        layer=in_layers // config.num_hidden_layers,
        beside=parameters - in_layers,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=experts * width if experts and width else _intermediate(config),
        heads=heads,
        key_value_heads=_given(config, "num_key_value_heads") or heads,
        head_size=_given(config, "head_dim") or config.hidden_size // max(1, heads),
        vocabulary=config.vocab_size if head == "lm" else 1,
        bytes=dtype.itemsize,
        positions=getattr(config, "max_position_embeddings", 0) or 0,
        stores_scores=model.attn_implementation == "eager",
        routed_bytes=routed_bytes,
        unrouted=unrouted,
        experts_of_token=experts or 0,
        in_experts=in_experts,
        output=ends[0].weight.numel() if has_output else 0,
        device=device,
    )


def _given(config: Any, key: str) -> Any:
    """A value of the config, also of a key that some layers have otherwise; None without it."""
    return config.to_dict().get(config.attribute_map.get(key, key))


def _intermediate(config: Any) -> int:
    """The widest MLP of a layer; families name it differently, or give the width of each layer."""
    given = _given(config, "intermediate_size") or 4 * config.hidden_size
    return int(max(given) if isinstance(given, list | tuple) else given)
