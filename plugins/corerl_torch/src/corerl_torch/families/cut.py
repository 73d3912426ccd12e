"""The config of a small model of the same family: two layers, few heads and experts, short windows."""

from collections.abc import Mapping, Sequence
from typing import Any

VOCABULARY = 64
HIDDEN = 64
HEADS = 4
WINDOW = 4
"""tokens, so few that a row of a dozen tokens has keys outside"""

EXPERTS = 4
NUMBERS_OF_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")
CHOSEN_EXPERTS = ("num_experts_per_tok", "top_k_experts")

MOST: dict[str, int] = {
    "attention_chunk_size": WINDOW,
    "first_k_dense_replace": 1,
    "floor_scale": WINDOW,
    "hidden_size_per_layer_input": 8,
    "n_group": 2,
    "sliding_window": WINDOW,
    "vocab_size_per_layer_input": VOCABULARY,
}
"""largest values by key"""


def cut(config: Any) -> Any:
    """The config of a model with random weights that computes within milliseconds.

    Kinds of layers, sizes of heads, rotary positions, scales and soft-caps stay; widths, numbers of heads, experts,
    words and layers do not. A layer of each kind stays, in the order of their first occurrence, and at least two.

    Args:
        config: of a transformers causal language model.

    Raises:
        ValueError, TypeError, KeyError, AttributeError, ArithmeticError: the family does not allow it.
    """
    text = config.get_text_config()
    values = text.to_dict()
    layers = _layers(values)
    values = {key: _of_layers(key, value, values["num_hidden_layers"], layers) for key, value in values.items()}
    few = _fewer(values)
    few |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    few |= {"num_hidden_layers": len(layers), "vocab_size": VOCABULARY}
    given = "head_dim" in values or "qk_rope_head_dim" in values  # otherwise the width gives the size of a head
    width = HIDDEN if given else few["num_attention_heads"] * (values["hidden_size"] // values["num_attention_heads"])
    few["hidden_size"] = min(values["hidden_size"], width)
    few.pop("quantization_config", None)
    return type(text).from_dict(few)


def _layers(values: Mapping[str, Any]) -> list[int]:
    """The numbers of the layers that stay."""
    numbers = range(values["num_hidden_layers"])
    lists = [each for each in values.values() if isinstance(each, list) and len(each) == len(numbers)]
    kinds = [tuple(each[number] for each in lists if isinstance(each[number], str)) for number in numbers]
    chosen = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
    if len(chosen) < 2:
        chosen = [*numbers[:2]]
    return chosen * 2 if values.get("num_kv_shared_layers") else chosen


def _of_layers(key: str, value: Any, count: int, layers: Sequence[int]) -> Any:
    """A value of the config with the entries of these layers."""
    if key == "moe_layers":
        return value and [number for number in value if number < len(layers)]
    if isinstance(value, list) and len(value) == count:
        return [value[number] for number in layers]
    if key == "per_layer_config" and isinstance(value, dict):
        given = {int(number): each for number, each in value.items()}
        return {new: _fewer(given[old]) for new, old in enumerate(layers) if old in given}
    return len(layers) // 2 if key == "num_kv_shared_layers" and value else value


def _fewer(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with smaller numbers of heads and experts, and smaller widths of MLPs."""
    limits = MOST | {key: HIDDEN for key in values if "intermediate_size" in key}
    limits |= dict.fromkeys(NUMBERS_OF_EXPERTS, EXPERTS)
    found = {
        key: min(value, limits[key]) if key in limits and isinstance(value, int) else value
        for key, value in values.items()
    }
    experts = [found[key] for key in NUMBERS_OF_EXPERTS if found.get(key)]
    if experts:  # all are chosen: rounding cannot change a choice
        found |= {key: experts[0] for key in CHOSEN_EXPERTS if found.get(key)}
        found |= {key: found["n_group"] for key in ("topk_group",) if found.get(key)}
    for heads, key_heads in (
        ("num_attention_heads", "num_key_value_heads"),
        ("num_attention_heads", "num_global_key_value_heads"),
        ("linear_num_value_heads", "linear_num_key_heads"),
    ):
        if values.get(heads):
            found[heads] = min(values[heads], HEADS)
            if values.get(key_heads):
                found[key_heads] = max(1, found[heads] * values[key_heads] // values[heads])
    return found
