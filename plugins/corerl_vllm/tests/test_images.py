"""Images in vLLM: log-probs are the trainer's, before and after updates of the tower; pixels come from files."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm_engine import DEVICE, TOLERANCE

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.errors import ConfigError, RequestError
from corerl_engines.images import check_images
from corerl_engines.messages import described
from corerl_torch import media_store
from corerl_vllm.backend import KIND, VllmBackend, engine_arguments
from corerl_vllm.options import VllmOptions
from engine_images import FAMILIES, batch_of, difference, generate, requests_of, trainer, write_model

pytestmark = pytest.mark.xdist_group("vllm")


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(media_store.VARIABLE, str(tmp_path_factory.mktemp("media")))
        yield


@pytest.mark.skipif("CORERL_EVERY_ENGINE" not in os.environ, reason="starts two engines: CORERL_EVERY_ENGINE=1")
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_of_rows_with_images_are_the_trainers(
    family: str, start: Callable[..., VllmBackend], engine_python: str, tmp_path: Path
) -> None:
    if subprocess.run(
        [engine_python, "-c", "import importlib.util as u; exit(not u.find_spec('torchvision'))"]
    ).returncode:
        pytest.skip("torchvision is not in the environment of vLLM: corerl engine install vllm")
    folder = write_model(tmp_path / family, family)
    backend = start({"path": str(folder)}, python=engine_python, bucket_mb=1)
    policy = trainer(folder, DEVICE)
    requests = requests_of(folder)
    outputs = generate(backend, requests)
    batch = batch_of(requests, outputs)
    assert difference(policy, batch) < TOLERANCE
    assert outputs[0][0].log_probs != outputs[1][0].log_probs, "an image changes nothing"
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            parameter.mul_(1.5 if ".visual." in name else 1.0)
    assert difference(policy, batch) > 10 * TOLERANCE, "the tower changes nothing"
    backend.update_weights(policy.weights(), 1)
    outputs = generate(backend, requests)
    assert {each.weight_version for samples in outputs for each in samples} == {1}
    assert difference(policy, batch_of(requests, outputs)) < TOLERANCE


def test_a_request_names_the_files_of_its_images(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "qwen2_5_vl")
    plain, two = (described(requests_of(folder)[number]) for number in (2, 3))
    assert plain["images"] == [] and len(json.dumps(two)) < 2000
    assert [Path(image["path"]).stat().st_size > 2000 for image in two["images"]] == [True, True]


def test_a_model_of_images_has_a_tokenizer_and_no_second_processor(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "qwen2_5_vl")
    given = engine_arguments(ModelConfig(str(folder)), RolloutConfig(), VllmOptions(), "cpu")
    assert not given["skip_tokenizer_init"] and given["mm_processor_cache_gb"] == 0


def test_images_of_an_unproven_family_are_refused() -> None:
    with pytest.raises(
        RequestError, match=r"vLLM reads images of qwen2_5_vl, qwen3_vl, and the model is gemma3: use hf"
    ):
        check_images("gemma3", KIND)


def test_a_file_that_is_not_there_and_a_video_are_named(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    from corerl_engines.remote.images import features, places

    with pytest.raises(ValueError, match=r"sees no processed image .*lost: CORERL_MEDIA"):
        places(str(tmp_path / "lost"))
    tensors = {"placeholders": torch.arange(3), "pixel_values": torch.zeros(2), "source": torch.zeros(1)}
    save_file(tensors, tmp_path / "image")
    assert places(str(tmp_path / "image")).tolist() == [0, 1, 2]
    assert list(features(str(tmp_path / "image"))) == ["pixel_values"]
    save_file({**tensors, "seconds": torch.ones(1)}, tmp_path / "video")
    with pytest.raises(ValueError, match="has a video"):
        places(str(tmp_path / "video"))


def test_equal_bits_are_for_models_of_text(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "qwen2_5_vl")
    with pytest.raises(ConfigError, match=r"rollout.options.bitwise: vllm has equal bits for models of text alone"):
        VllmBackend(ModelConfig(str(folder)), RolloutConfig(), device="cpu", options=VllmOptions(bitwise=True))
