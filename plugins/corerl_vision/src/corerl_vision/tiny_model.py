"""A small, random vision-language model, for runs and tests that need no download."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast

from corerl.files import atomic_path

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
"""behind the 256 bytes; the first is the padding"""
VIDEO = "<|video_pad|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""as Qwen's models write images"""

MEAN = STD = [0.5, 0.5, 0.5]


@dataclass(frozen=True)
class TinyVision:
    """A model to write.

    Attributes:
        words: become tokens of their own; other texts are bytes.
        patch_size: pixels of a patch's side; 2 × 2 patches are a token.
        most_pixels: larger images are made smaller.
        initializer_range: deviation of random weights.
    """

    family: str = "qwen2_5_vl"
    words: Sequence[str] = ()
    hidden_size: int = 64
    layers: int = 2
    heads: int = 4
    patch_size: int = 8
    most_pixels: int = 64 * 64
    initializer_range: float = 0.05
    seed: int = 0


def write_tiny_model(out: Path, wanted: TinyVision) -> int:
    """Write a model folder; returns the number of parameters."""
    tokenizer = _tokenizer(wanted.words)
    config = FAMILIES[wanted.family](wanted, tokenizer)
    from transformers import AutoModelForImageTextToText

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(wanted.seed)
        auto: Any = AutoModelForImageTextToText
        model = auto.from_config(config, dtype=torch.float32)
    stops = [tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>")]
    model.generation_config = GenerationConfig(eos_token_id=stops, pad_token_id=stops[1])  # type: ignore[no-untyped-call]
    with atomic_path(out, folder=True) as folder:
        tokenizer.save_pretrained(folder)
        _image_processor(wanted).save_pretrained(folder)
        model.save_pretrained(folder)
    return int(model.num_parameters())


def _tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Ids 0 to 255 are the bytes of a text."""
    vocabulary = {character: number for number, character in enumerate(_byte_characters())}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in (*SPECIAL, VIDEO)])
    backend.add_tokens([AddedToken(word, special=False, normalized=False) for word in words])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, pad_token=SPECIAL[0], eos_token=SPECIAL[2], chat_template=CHAT_TEMPLATE
    )


def _byte_characters() -> list[str]:
    """The character of byte-level BPE for each byte."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(shifted)) for byte in range(256)]


def _image_processor(wanted: TinyVision) -> Any:
    from transformers import Qwen2VLImageProcessorPil

    side = 2 * wanted.patch_size
    return Qwen2VLImageProcessorPil(
        size={"shortest_edge": side * side, "longest_edge": wanted.most_pixels},
        patch_size=wanted.patch_size,
        image_mean=MEAN,
        image_std=STD,
    )


def _text(wanted: TinyVision, tokenizer: Any) -> dict[str, Any]:
    size = wanted.hidden_size // wanted.heads
    third = max(1, size // 6)
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": wanted.hidden_size,
        "intermediate_size": 2 * wanted.hidden_size,
        "num_hidden_layers": wanted.layers,
        "num_attention_heads": wanted.heads,
        "num_key_value_heads": wanted.heads,
        "head_dim": size,
        "max_position_embeddings": 4096,
        "initializer_range": wanted.initializer_range,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1000.0,
            "mrope_section": [size // 2 - 2 * third, third, third],
        },
    }


def _vision(wanted: TinyVision) -> dict[str, Any]:
    return {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "patch_size": wanted.patch_size,
        "out_hidden_size": wanted.hidden_size,
        "initializer_range": wanted.initializer_range,
    }


def _whole(wanted: TinyVision, tokenizer: Any) -> dict[str, Any]:
    ids = dict(zip((*SPECIAL, VIDEO), tokenizer.convert_tokens_to_ids([*SPECIAL, VIDEO]), strict=True))
    return {
        "text_config": _text(wanted, tokenizer),
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids[VIDEO],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "tie_word_embeddings": False,
    }


def _qwen2_5_vl(wanted: TinyVision, tokenizer: Any) -> Any:
    from transformers import Qwen2_5_VLConfig

    whole = _whole(wanted, tokenizer)
    del whole["text_config"]["head_dim"]
    vision = {**_vision(wanted), "window_size": 4 * wanted.patch_size, "fullatt_block_indexes": [1]}
    return Qwen2_5_VLConfig(**whole, vision_config=vision)


def _qwen3_vl(wanted: TinyVision, tokenizer: Any) -> Any:
    from transformers import Qwen3VLConfig

    whole = _whole(wanted, tokenizer)
    whole["text_config"]["rope_parameters"]["mrope_interleaved"] = True
    vision = {**_vision(wanted), "num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
    return Qwen3VLConfig(**whole, vision_config=vision)


FAMILIES: Mapping[str, Callable[[TinyVision, Any], Any]] = {"qwen2_5_vl": _qwen2_5_vl, "qwen3_vl": _qwen3_vl}
"""``model_type`` -> the config of a small model"""
