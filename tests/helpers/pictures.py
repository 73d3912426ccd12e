"""Pictures, and the tokenizer of a tiny model."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from corerl.contracts.config import ModelConfig
from corerl_vision.tokenizer import VisionTokenizer, load_vision_tokenizer


def tokenizer_of(folder: Path) -> VisionTokenizer:
    tokenizer = load_vision_tokenizer(ModelConfig(path=str(folder)))
    assert tokenizer is not None
    return tokenizer


def picture(seed: int, width: int = 32, height: int = 32) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
