"""A small, random vision-language model, for runs and tests that need no download."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast

from corerl.files import atomic_path
from corerl_vision.tiny_families import FAMILIES, TinyFamily

CHAT = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""behind the 256 bytes; the first is the padding"""

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ 'IMAGE' }}"
    "{% elif part['type'] == 'video' %}{{ 'VIDEO' }}"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""of every family; it writes images as the family's own does"""


@dataclass(frozen=True)
class TinyVision:
    """A model to write.

    Attributes:
        words: become tokens of their own; other texts are bytes.
        patch_size: pixels of a patch's side; 2 × 2 patches are a token.
        most_pixels: larger images are made smaller by families whose images have any size.
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
    family = FAMILIES[wanted.family]
    tokenizer = _tokenizer(family, wanted.words)
    config = family.config(wanted, tokenizer)
    from transformers import AutoModelForImageTextToText

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(wanted.seed)
        auto: Any = AutoModelForImageTextToText
        model = auto.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.dim() > 1 and not parameter.any():  # Gemma 3's projection: images would not count
                torch.nn.init.normal_(parameter, std=wanted.initializer_range)
    stops = [tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>")]
    model.generation_config = GenerationConfig(eos_token_id=stops, pad_token_id=stops[1])  # type: ignore[no-untyped-call]
    with atomic_path(out, folder=True) as folder:
        tokenizer.save_pretrained(folder)
        family.image_processor(wanted).save_pretrained(folder)
        if settings := family.processor:
            (folder / "processor_config.json").write_text(json.dumps(settings))
        model.save_pretrained(folder)
    return int(model.num_parameters())


def _tokenizer(family: TinyFamily, words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Ids 0 to 255 are the bytes of a text."""
    vocabulary = {character: number for number, character in enumerate(_byte_characters())}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in (*CHAT, *family.tokens)])
    backend.add_tokens([AddedToken(word, special=False, normalized=False) for word in words])
    template = CHAT_TEMPLATE.replace("IMAGE", family.image).replace("VIDEO", family.video)
    named = {"extra_special_tokens": dict(family.named)} if family.named else {}
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, pad_token=CHAT[0], eos_token=CHAT[2], chat_template=template, **named
    )


def _byte_characters() -> list[str]:
    """The character of byte-level BPE for each byte."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(shifted)) for byte in range(256)]
