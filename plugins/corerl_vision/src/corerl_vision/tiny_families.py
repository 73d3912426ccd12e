"""Families of the small models: tokens, configs and image processors. Each keeps what sets the family apart."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corerl_vision.tiny_model import TinyVision

SIDE = 32
"""pixels of an image's side, in families whose images have one size"""

HALF: Mapping[str, Any] = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}


@dataclass(frozen=True)
class TinyFamily:
    """
    Attributes:
        config: of a model to write and its tokenizer.
        image_processor: of a model to write, on Pillow.
        tokens: special tokens.
        image: text of an image in a chat.
        video: text of a video.
        named: attribute of the tokenizer → special token.
        processor: of ``processor_config.json``.
    """

    config: "Callable[[TinyVision, Any], Any]"
    image_processor: "Callable[[TinyVision], Any]"
    tokens: Sequence[str]
    image: str
    video: str = ""
    named: Mapping[str, str] = field(default_factory=dict)
    processor: Mapping[str, Any] = field(default_factory=dict)


def _text(wanted: "TinyVision", tokenizer: Any, **further: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": wanted.hidden_size,
        "intermediate_size": 2 * wanted.hidden_size,
        "num_hidden_layers": wanted.layers,
        "num_attention_heads": wanted.heads,
        "num_key_value_heads": wanted.heads,
        "head_dim": wanted.hidden_size // wanted.heads,
        "max_position_embeddings": 4096,
        "initializer_range": wanted.initializer_range,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": False,
        **further,
    }


def _vision(wanted: "TinyVision", **further: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "patch_size": wanted.patch_size,
        "initializer_range": wanted.initializer_range,
        **further,
    }


def _squares(wanted: "TinyVision") -> dict[str, Any]:
    """Of towers whose images have one size."""
    return _vision(wanted, image_size=SIDE, vision_use_head=False)


# Qwen2.5-VL, Qwen3-VL: images of any size, positions in three dimensions

QWEN = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")


def _qwen(wanted: "TinyVision", tokenizer: Any) -> dict[str, Any]:
    size = wanted.hidden_size // wanted.heads
    third = max(1, size // 6)
    rope = {
        "rope_type": "default",
        "rope_theta": 1000.0,
        "mrope_section": [size // 2 - 2 * third, third, third],
    }
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    return {
        **dict(zip(names, tokenizer.convert_tokens_to_ids(list(QWEN)), strict=True)),
        "text_config": _text(wanted, tokenizer, rope_parameters=rope),
        "tie_word_embeddings": False,
    }


def _qwen_vision(wanted: "TinyVision", **further: Any) -> dict[str, Any]:
    return {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "patch_size": wanted.patch_size,
        "out_hidden_size": wanted.hidden_size,
        "initializer_range": wanted.initializer_range,
        **further,
    }


def _qwen2_5_vl(wanted: "TinyVision", tokenizer: Any) -> Any:
    from transformers import Qwen2_5_VLConfig

    whole = _qwen(wanted, tokenizer)
    del whole["text_config"]["head_dim"]
    vision = _qwen_vision(wanted, window_size=4 * wanted.patch_size, fullatt_block_indexes=[1])
    return Qwen2_5_VLConfig(**whole, vision_config=vision)


def _qwen3_vl(wanted: "TinyVision", tokenizer: Any) -> Any:
    from transformers import Qwen3VLConfig

    whole = _qwen(wanted, tokenizer)
    whole["text_config"]["rope_parameters"]["mrope_interleaved"] = True
    vision = _qwen_vision(wanted, num_position_embeddings=64, deepstack_visual_indexes=[0])
    return Qwen3VLConfig(**whole, vision_config=vision)


def _qwen_images(wanted: "TinyVision") -> Any:
    from transformers import Qwen2VLImageProcessorPil

    side = 2 * wanted.patch_size
    size = {"shortest_edge": side * side, "longest_edge": wanted.most_pixels}
    return Qwen2VLImageProcessorPil(size=size, patch_size=wanted.patch_size, **HALF)


# Gemma 3: images of one size, whose tokens see each other, and layers with windows


def _gemma3(wanted: "TinyVision", tokenizer: Any) -> Any:
    from transformers import Gemma3Config

    kinds = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 12}
    scalar = {"query_pre_attn_scalar": wanted.hidden_size // wanted.heads}
    boi, eoi, image = tokenizer.convert_tokens_to_ids(["<start_of_image>", "<end_of_image>", "<image_soft_token>"])
    return Gemma3Config(
        text_config=_text(wanted, tokenizer, **kinds, **scalar),
        vision_config=_squares(wanted),
        mm_tokens_per_image=(SIDE // wanted.patch_size // 2) ** 2,
        boi_token_index=boi,
        eoi_token_index=eoi,
        image_token_index=image,
        tie_word_embeddings=False,
    )


def _gemma3_images(wanted: "TinyVision") -> Any:
    from transformers import Gemma3ImageProcessorPil

    return Gemma3ImageProcessorPil(size={"height": SIDE, "width": SIDE}, **HALF)


# Gemma 4: images of any shape and about one number of tokens


def _gemma4(wanted: "TinyVision", tokenizer: Any, **further: Any) -> Any:
    from transformers import Gemma4Config

    kinds = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 12, "global_head_dim": 16}
    kinds |= {"vocab_size_per_layer_input": len(tokenizer), **further}
    names = ("<|image|>", "<boi>", "<eoi>", "<|video|>", "<|audio|>", "<boa>", "<eoa>")
    image, boi, eoi, video, audio, boa, eoa = tokenizer.convert_tokens_to_ids(list(names))
    vision = _vision(wanted, num_key_value_heads=2, head_dim=16, pooling_kernel_size=2, position_embedding_size=64)
    return Gemma4Config(
        text_config=_text(wanted, tokenizer, **kinds),
        vision_config={**vision, "standardize": True},
        audio_config=None,
        boi_token_id=boi,
        eoi_token_id=eoi,
        image_token_id=image,
        video_token_id=video,
        audio_token_id=audio,
        boa_token_id=boa,
        eoa_token_index=eoa,
        tie_word_embeddings=False,
    )


def _gemma4_small(wanted: "TinyVision", tokenizer: Any) -> Any:
    """As E2B and E4B: embeddings of each layer, keys of earlier layers, causal image tokens."""
    kinds = ["sliding_attention", "full_attention"] * 2
    shared = {"layer_types": kinds, "num_hidden_layers": 4, "num_kv_shared_layers": 2}
    return _gemma4(wanted, tokenizer, hidden_size_per_layer_input=8, **shared)


def _gemma4_large(wanted: "TinyVision", tokenizer: Any) -> Any:
    """As 26B-A4B and 31B, without experts: tokens of an image see each other."""
    return _gemma4(wanted, tokenizer, hidden_size_per_layer_input=0, use_bidirectional_attention="vision")


def _gemma4_images(wanted: "TinyVision") -> Any:
    from transformers import Gemma4ImageProcessorPil

    return Gemma4ImageProcessorPil(patch_size=wanted.patch_size, pooling_kernel_size=2, max_soft_tokens=70)


GEMMA4 = {
    "image_token": "<|image|>",
    "boi_token": "<boi>",
    "eoi_token": "<eoi>",
    "audio_token": "<|audio|>",
    "boa_token": "<boa>",
    "eoa_token": "<eoa>",
}

# InternVL and LLaVA-OneVision: tiles of an image and the whole


def _internvl(wanted: "TinyVision", tokenizer: Any) -> Any:
    from transformers import InternVLConfig

    vision = {**_squares(wanted), "use_mean_pooling": True}
    del vision["vision_use_head"]
    return InternVLConfig(
        text_config={"model_type": "qwen2", **_qwen2(wanted, tokenizer)},
        vision_config=vision,
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=(SIDE // wanted.patch_size // 2) ** 2,
        tie_word_embeddings=False,
    )


def _internvl_images(wanted: "TinyVision") -> Any:
    from transformers import GotOcr2ImageProcessorPil

    size = {"height": SIDE, "width": SIDE}
    return GotOcr2ImageProcessorPil(size=size, crop_to_patches=True, max_patches=3, **HALF)


def _llava_onevision(wanted: "TinyVision", tokenizer: Any) -> Any:
    from transformers import LlavaOnevisionConfig

    return LlavaOnevisionConfig(
        text_config={"model_type": "qwen2", **_qwen2(wanted, tokenizer)},
        vision_config={"model_type": "siglip_vision_model", **_squares(wanted)},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=PINPOINTS,
        tie_word_embeddings=False,
    )


def _llava_onevision_images(wanted: "TinyVision") -> Any:
    from transformers import LlavaOnevisionImageProcessorPil

    return LlavaOnevisionImageProcessorPil(size={"height": SIDE, "width": SIDE}, image_grid_pinpoints=PINPOINTS, **HALF)


def _qwen2(wanted: "TinyVision", tokenizer: Any) -> dict[str, Any]:
    text = _text(wanted, tokenizer)
    del text["head_dim"]
    return text


PINPOINTS = [[SIDE, SIDE], [SIDE, 2 * SIDE], [2 * SIDE, SIDE]]
TOKENS = (SIDE // 8) ** 2
"""of an image or a tile, at patches of 8 pixels, before 2 × 2 of them are one token"""

INTERN = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}

FAMILIES: Mapping[str, TinyFamily] = {
    "qwen2_5_vl": TinyFamily(
        _qwen2_5_vl,
        _qwen_images,
        QWEN,
        "<|vision_start|><|image_pad|><|vision_end|>",
        "<|vision_start|><|video_pad|><|vision_end|>",
    ),
    "qwen3_vl": TinyFamily(
        _qwen3_vl,
        _qwen_images,
        QWEN,
        "<|vision_start|><|image_pad|><|vision_end|>",
        "<|vision_start|><|video_pad|><|vision_end|>",
    ),
    "gemma3": TinyFamily(
        _gemma3,
        _gemma3_images,
        ("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
        "<start_of_image>",
        named={
            "image_token": "<image_soft_token>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
        },
        processor={"processor_class": "Gemma3Processor", "image_seq_length": TOKENS // 4},
    ),
    "gemma4_small": TinyFamily(
        _gemma4_small,
        _gemma4_images,
        (*GEMMA4.values(), "<|video|>"),
        "<|image|>",
        named=GEMMA4,
        processor={"processor_class": "Gemma4Processor"},
    ),
    "gemma4_large": TinyFamily(
        _gemma4_large,
        _gemma4_images,
        (*GEMMA4.values(), "<|video|>"),
        "<|image|>",
        named=GEMMA4,
        processor={"processor_class": "Gemma4Processor"},
    ),
    "internvl": TinyFamily(
        _internvl,
        _internvl_images,
        tuple(INTERN.values()),
        "<IMG_CONTEXT>",
        named=INTERN,
        processor={"processor_class": "InternVLProcessor", "image_seq_length": TOKENS // 4},
    ),
    "llava_onevision": TinyFamily(
        _llava_onevision,
        _llava_onevision_images,
        ("<image>", "<video>"),
        "<image>",
        processor={
            "processor_class": "LlavaOnevisionProcessor",
            "num_image_tokens": TOKENS,
            "vision_feature_select_strategy": "full",
        },
    ),
}
"""name → the family; most names are the ``model_type``"""
