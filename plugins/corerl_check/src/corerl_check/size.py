"""The size of a model, from its config only: built on the meta device, without reading or creating weights."""

from dataclasses import dataclass
from typing import Literal

from corerl.contracts.config import ModelConfig


@dataclass(frozen=True)
class ModelSize:
    """What the memory of a model depends on.

    Attributes:
        parameters: all of them, tied ones once.
        trained: those that an optimizer would change: all, or adapters and a value head with ``model.lora_rank``.
        layer, beside: parameters of one decoder layer, and of what stands beside the layers (embedding, output layer).
        intermediate: width of the MLP; of a mixture of experts, of the experts that see one token together.
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
        ModelError: transformers cannot read its config.
    """
    import torch

    from corerl.errors import ModelError
    from corerl.models import compute_dtype
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
    heads = config.num_attention_heads
    experts = getattr(config, "num_experts_per_tok", None)
    width = getattr(config, "moe_intermediate_size", None) if experts else None
    routed_bytes, unrouted = 0, ""
    try:
        routed_bytes = Routers(built).bytes
    except ModelError as error:
        unrouted = str(error)
    trained = parameters
    if model.lora_rank:
        names = model.target_modules
        output = built.get_output_embeddings() if head == "lm" else built.score
        linear = [
            (name, module)
            for name, module in built.named_modules()
            if isinstance(module, torch.nn.Linear) and module is not output
        ]
        linear = [(name, each) for name, each in linear if name.rpartition(".")[2] not in model.exclude_modules]
        adapted = [each for name, each in linear if names == "all-linear" or name.rpartition(".")[2] in names]
        trained = sum(model.lora_rank * (each.in_features + each.out_features) for each in adapted)
        trained += sum(each.out_features for each in adapted) if model.lora_dora else 0
        if "experts" in names:
            stacks = [each.shape for name, each in built.named_parameters() if ".experts." in name and each.ndim == 3]
            trained += sum(model.lora_rank * shape[0] * (shape[1] + shape[2]) for shape in stacks)
        trained += built.score.weight.numel() if head == "value" else 0
    return ModelSize(
        parameters=parameters,
        trained=trained,
        layer=in_layers // config.num_hidden_layers,
        beside=parameters - in_layers,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=experts * width
        if experts and width
        else getattr(config, "intermediate_size", 4 * config.hidden_size),
        heads=heads,
        key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
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
