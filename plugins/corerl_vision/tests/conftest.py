"""Small random models, and a store of images."""

from pathlib import Path
from typing import Any

import pytest
from transformers.utils.logging import disable_progress_bar

from corerl_torch import media_store
from corerl_vision.tiny_model import TinyVision, write_tiny_model

disable_progress_bar()


@pytest.fixture(scope="session", autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of processed images of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(media_store.VARIABLE, str(tmp_path_factory.mktemp("media")))
        yield


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """family -> model folder, written once."""
    written: dict[str, Path] = {}

    def folder(family: str = "qwen2_5_vl") -> Path:
        if family not in written:
            written[family] = tmp_path_factory.mktemp("models") / family
            wanted = TinyVision(family, words=["red", "circle"], hidden_size=48, initializer_range=0.3)
            write_tiny_model(written[family], wanted)
        return written[family]

    return folder
