"""Images in SGLang, on a CUDA device: log-probs are the trainer's, before and after updates of the tower."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl_sglang.backend import SglangBackend, engine_arguments
from corerl_sglang.options import SglangOptions
from corerl_torch import media_store
from engine_images import FAMILIES, batch_of, difference, generate, requests_of, trainer, write_model

SMALL = {"disable_cuda_graph": True, "gpu_memory_utilization": 0.1, "engine_args": {"max_total_tokens": 100_000}}


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(media_store.VARIABLE, str(tmp_path_factory.mktemp("media")))
        yield


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_of_rows_with_images_are_the_trainers(
    family: str, start: Callable[..., SglangBackend], engine_python: str, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / family, family, patch_size=14)
    backend = start({"path": str(folder)}, python=engine_python, bucket_mb=1, **SMALL)
    policy = trainer(folder, "cuda")
    requests = requests_of(folder)
    outputs = generate(backend, requests)
    batch = batch_of(requests, outputs)
    assert difference(policy, batch) < 1e-2
    assert outputs[0][0].log_probs != outputs[1][0].log_probs, "an image changes nothing"
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            parameter.mul_(1.5 if ".visual." in name else 1.0)
    backend.update_weights(policy.weights(), 1)
    outputs = generate(backend, requests)
    assert {each.weight_version for samples in outputs for each in samples} == {1}
    assert difference(policy, batch_of(requests, outputs)) < 1e-2
    backend.close()


def test_all_images_of_a_prompt_are_one_item_with_their_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's side imports no SGLang here."""
    import sys

    from corerl_engines import remote
    from corerl_engines.messages import described

    monkeypatch.setitem(sys.modules, "corerl_engine", remote)
    from corerl_sglang_engine.images import processor_output

    folder = write_model(tmp_path / "model", "qwen2_5_vl")
    request = requests_of(folder)[3]
    asked = described(request)
    placeholder = next(
        token for token in request.prompt_ids if asked["prompt_ids"][asked["images"][0]["start"]] == token
    )
    given = processor_output(asked["prompt_ids"], asked["images"], placeholder)
    assert given["format"] == "processor_output" and len(given["image_grid_thw"]) == 2
    taken = [place for start, end in given["offsets"] for place in range(start, end + 1)]
    assert taken == [place for place, token in enumerate(asked["prompt_ids"]) if token == placeholder]
    assert len(given["pixel_values"]) == int(given["image_grid_thw"].prod(-1).sum()) == 4 * len(taken)
    with pytest.raises(ValueError, match="a sampled token"):
        processor_output([*asked["prompt_ids"], placeholder], asked["images"], placeholder)


def test_the_tower_computes_in_float32_by_torchs_attention(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "qwen3_vl")
    given = engine_arguments(ModelConfig(str(folder), dtype="fp32"), RolloutConfig(), SglangOptions())
    assert given["mm_attention_backend"] == "sdpa"
