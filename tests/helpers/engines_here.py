"""Requests of a recorder to an engine of this process, and data URLs of pictures."""

import base64
from pathlib import Path
from typing import Any

from corerl.contracts.config import DataConfig, ModelConfig, RolloutConfig, TrainConfig
from corerl_hf.backend import HfBackend
from corerl_hf.options import HfOptions
from pictures import picture, png


class Engines:
    """In the place of a request queue."""

    def __init__(self, folder: Path) -> None:
        model, rollout = ModelConfig(path=str(folder)), RolloutConfig(name="hf")
        self.backend = HfBackend(model, rollout, device="cpu", options=HfOptions())
        self.requests: list[Any] = []

    async def complete(self, request: Any, on_sent: Any) -> Any:
        on_sent()
        self.requests.append(request)
        [completions] = await self.backend.generate([request])
        return request.with_media(completions)


def config_of(folder: Path) -> TrainConfig:
    return TrainConfig(model=ModelConfig(path=str(folder)), data=DataConfig(train_files=[], max_prompt_length=100))


def url(seed: int) -> str:
    return "data:image/png;base64," + base64.b64encode(png(picture(seed))).decode()
