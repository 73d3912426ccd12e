"""Configs of small models of the same family: two layers, few heads and experts, short windows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

VOCABULARY = 64
HIDDEN = 64
HEADS = 4
WINDOW = 4
"""tokens, so few that a row of a dozen tokens has keys outside"""

EXPERTS = 4
NUMBERS_OF_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")
CHOSEN_EXPERTS = ("num_experts_per_tok", "top_k_experts")

NUMBERS_OF_LAYERS = ("num_hidden_layers", "num_layers", "decoder_layers")
NUMBERS_OF_HEADS = ("num_attention_heads", "decoder_attention_heads")
WIDTHS = ("intermediate_size", "ffn_dim", "ffn_hidden_size")
STATE_HEADS = (
    ("mamba_n_heads", "mamba_d_head", "mamba_expand"),
    ("mamba_num_heads", "mamba_head_dim", "expand"),
    ("n_mamba_heads", "mamba_headdim", "mamba_expand"),
    ("num_heads", "head_dim", "expand"),
)
"""number and size of the heads of a state, whose product is ``expand`` times the width of the model"""

MOST: dict[str, int] = {
    "attention_chunk_size": WINDOW,
    "chunk_size": 2 * WINDOW,
    "first_k_dense_replace": 1,
    "floor_scale": WINDOW,
    "hidden_size_per_layer_input": 8,
    "index_topk": WINDOW,
    "linear_head_dim": 16,
    "linear_num_heads": HEADS,
    "mamba_chunk_size": 2 * WINDOW,
    "n_group": 2,
    "sliding_window": WINDOW,
    "vocab_size_per_layer_input": VOCABULARY,
}
"""largest values by key"""


def cuts(config: Any) -> Iterator[Callable[[], Any]]:
    """Makers of configs, the smallest first; a family may refuse some of them with any error.

    Kinds of layers, sizes of heads, rotary positions, scales and soft-caps stay; widths, numbers of heads, experts,
    words and layers do not; then only layers and words are fewer; the last config is whole. A layer of each kind stays,
    in the order of their first occurrence, and at least two.

    Args:
        config: of a transformers causal language model.
    """
    text = config.get_text_config()
    values = text.to_dict()
    for width in (HIDDEN, HEADS * (values.get("head_dim") or HIDDEN), None):
        yield partial(cut, text, width)
    yield partial(type(text).from_dict, values)


def cut(config: Any, width: int | None = HIDDEN) -> Any:
    """The config of a model with few layers and words.

    Args:
        width: of the hidden states at most; None: widths, heads and experts stay.
    """
    text = config.get_text_config()
    own = {own: key for key, own in text.attribute_map.items()}
    values = {own.get(key, key): value for key, value in text.to_dict().items()}
    layers = _layers(values)
    values = {key: _of_layers(key, value, _count(values), layers) for key, value in values.items()}
    few = values if width is None else _fewer(values, width)
    few |= {key: _known(value) for key, value in few.items() if key.endswith(("token_id", "token_ids"))}
    few |= {key: len(layers) for key in NUMBERS_OF_LAYERS if key in few} | {"vocab_size": VOCABULARY}
    few.pop("quantization_config", None)
    return type(text).from_dict({text.attribute_map.get(key, key): value for key, value in few.items()})


def _count(values: Mapping[str, Any]) -> int:
    return next((int(values[key]) for key in NUMBERS_OF_LAYERS if key in values), len(values.get("layer_types") or ()))


def _layers(values: Mapping[str, Any]) -> list[int]:
    """The numbers of the layers that stay."""
    numbers = range(_count(values))
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
        return {new: _fewer(given[old], HIDDEN) for new, old in enumerate(layers) if old in given}
    return len(layers) // 2 if key == "num_kv_shared_layers" and value else value


def _known(value: Any) -> Any:
    """A token id, or several, within the vocabulary."""
    if isinstance(value, list):
        return [_known(each) for each in value]
    return min(value, VOCABULARY - 1) if isinstance(value, int) else value


def _fewer(values: Mapping[str, Any], width: int) -> dict[str, Any]:
    """The values with smaller numbers of heads and experts, and smaller widths."""
    limits = MOST | {key: HIDDEN for key in values if any(each in key for each in WIDTHS)}
    limits |= dict.fromkeys(NUMBERS_OF_EXPERTS, EXPERTS)
    found = {
        key: min(value, limits[key]) if key in limits and isinstance(value, int) else value
        for key, value in values.items()
    }
    experts = [found[key] for key in NUMBERS_OF_EXPERTS if found.get(key)]
    if experts:  # all are chosen: rounding cannot change a choice
        found |= {key: experts[0] for key in CHOSEN_EXPERTS if (found.get(key) or 0) > 1}
        found |= {key: found["n_group"] for key in ("topk_group",) if found.get(key) and found.get("n_group")}
    for heads, key_heads in (
        *((heads, "num_key_value_heads") for heads in NUMBERS_OF_HEADS),
        ("num_attention_heads", "num_global_key_value_heads"),
        ("linear_num_value_heads", "linear_num_key_heads"),
    ):
        if values.get(heads):
            found[heads] = min(values[heads], HEADS)
            if values.get(key_heads):
                found[key_heads] = max(1, found[heads] * values[key_heads] // values[heads])
    if hidden := values.get("hidden_size"):
        given = next((values[key] for key in NUMBERS_OF_HEADS if values.get(key)), None)
        if given and "head_dim" not in values and "qk_rope_head_dim" not in values:
            width = min(given, HEADS) * (hidden // given)  # otherwise the width gives the size of a head
        found["hidden_size"] = min(hidden, width)
        for number, size, expand in STATE_HEADS:
            if values.get(number) and values.get(size) and values.get(expand):
                found[number] = values[expand] * found["hidden_size"] // values[size]
    return found
