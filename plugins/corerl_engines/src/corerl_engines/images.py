"""Images of requests: an engine in another process gets the names of their files."""

from collections.abc import Mapping
from typing import Any

from corerl.contracts.config import ModelConfig
from corerl.contracts.rollout_backends import GenerationRequest
from corerl.contracts.token_columns import TokenValues
from corerl.errors import RequestError
from corerl_engines.process import EngineKind
from corerl_torch import media_store
from corerl_torch.loading import image_text_config
from corerl_torch.media import images_of

FAMILIES = ("qwen2_5_vl", "qwen3_vl")
"""values of ``model_type`` whose images the engines read; their own code of a family needs other inputs than
transformers', so that each one is to be proven"""


def reads_images(model: ModelConfig) -> bool:
    """Whether the engine loads a model that reads images."""
    return image_text_config(model) is not None


def check_images(model_type: str, kind: EngineKind) -> None:
    """
    Raises:
        RequestError: the engine does not read images of this family.
    """
    if model_type not in FAMILIES:
        raise RequestError(
            f"rollout.name: {kind.title} reads images of {', '.join(FAMILIES)}, and the model is {model_type}: use hf"
        )


def described_images(request: GenerationRequest) -> list[Mapping[str, Any]]:
    """Of each image the file of its pixels, and the place of its first token."""
    column = request.media.get(media_store.COLUMN)
    found = images_of(column) if isinstance(column, TokenValues) else ()
    return [{"path": str(media_store.path_of(image.digest).absolute()), "start": image.start} for image in found]
