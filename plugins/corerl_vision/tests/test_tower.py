"""The vision tower: trained, or frozen bit for bit."""

import asyncio
import dataclasses
import functools
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.experience import Experience, collate
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.contracts.token_columns import TokenColumn, TokenValues
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import ConfigError, ModelError
from corerl.objective import PolicyObjective
from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.options import FsdpOptions, TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_grpo.losses.vanilla import VanillaOptions, vanilla
from corerl_hf.backend import HfBackend
from corerl_hf.options import HfOptions
from corerl_testing.training_reference import copied_weights
from corerl_torch.families.vision import VISION
from corerl_torch.media import images_of_rows, in_tower
from corerl_torch.media_store import COLUMN
from corerl_torch.supervised import SupervisedObjective
from corerl_torch.weights import as_in_files
from vision_families import FEW
from vision_rows import EPS, batch, spec, updated

WITHOUT_GRADIENT = {
    "": ("k_proj.bias",),
    "llava_onevision": ("vision_tower.post_layernorm.weight", "post_layernorm.bias"),
}
"""one addend of all scores of a query changes no share of them; LLaVA-OneVision reads the tower before its last norm"""


@pytest.fixture(scope="module", params=FEW)
def folder(request: Any, model_folder: Any) -> Path:
    return model_folder(request.param)


def grpo(strategy: SingleDeviceStrategy, rows: Experience) -> None:
    """A step of GRPO."""
    rows.advantages = torch.randn(rows.response_mask.shape, generator=torch.Generator().manual_seed(0))
    rows.old_log_probs = strategy.forward(rows, {"log_probs"}).log_probs
    strategy.update(rows, PolicyObjective(functools.partial(vanilla, options=VanillaOptions())))


@pytest.mark.parametrize("frozen", [False, True])
def test_a_step_of_grpo_changes_the_tower_unless_it_is_frozen(folder: Path, frozen: bool) -> None:
    options = TorchOptions(use_remove_padding=True, freeze_vision_tower=frozen)
    strategy = SingleDeviceStrategy(spec(folder), options)
    before = {name: each.clone() for name, each in strategy.model.state_dict().items()}
    grpo(strategy, batch(folder))
    after = strategy.model.state_dict()
    same = {name for name in before if torch.equal(before[name], after[name])}
    trained = {name for name, _ in strategy.model.named_parameters() if not (frozen and in_tower(name))}
    useless = WITHOUT_GRADIENT[""] + WITHOUT_GRADIENT.get(folder.name, ())
    assert same >= before.keys() - trained
    assert {name for name in same & trained if not name.endswith(useless)} == set()


@pytest.mark.parametrize("recompute", [0, 1])
def test_recomputed_layers_are_counted_in_the_language_model(folder: Path, recompute: int) -> None:
    strategy = SingleDeviceStrategy(spec(folder), TorchOptions(recompute_layers=recompute))
    layers = {
        name: module.gradient_checkpointing
        for name, module in strategy.model.named_modules()
        if isinstance(module, GradientCheckpointingLayer)
    }
    assert any(map(in_tower, layers)) and sum(not in_tower(name) for name in layers) > 1
    assert {layers[name] for name in layers if in_tower(name)} == {bool(recompute)}
    assert [each for name, each in layers.items() if not in_tower(name)].count(True) == recompute


def test_an_update_of_weights_arrives_in_the_engine(folder: Path) -> None:
    """Bit for bit; the engine's log-probs are those of the trainer."""
    strategy = SingleDeviceStrategy(spec(folder), TorchOptions())
    engine = HfBackend(ModelConfig(path=str(folder)), RolloutConfig(name="hf"), device="cpu", options=HfOptions())
    rows = batch(folder)
    grpo(strategy, rows)
    engine.update_weights(strategy.weights(), version=1)
    stream = copied_weights(strategy)
    held = dict(as_in_files(engine._model.config, engine._model.state_dict().items()))
    assert held.keys() >= stream.keys() and all(torch.equal(held[name], each) for name, each in stream.items())
    assert_agree(engine, strategy, rows, 1e-5)


def assert_agree(engine: HfBackend, strategy: SingleDeviceStrategy, rows: Experience, tolerance: float) -> None:
    """The engine's log-probs of its own responses to the prompts are those of the trainer."""
    requests = [GenerationRequest(str(row), *prompt(rows, row)) for row in range(len(rows))]
    [*outputs] = asyncio.run(engine.generate(requests))
    samples = [request.with_media(each)[0] for request, each in zip(requests, outputs, strict=True)]
    found = collate(
        [each.prompt_ids for each in requests], [each.token_ids for each in samples], list(range(len(rows)))
    )
    columns = [each.columns.get(COLUMN) for each in samples]
    found.columns[COLUMN] = TokenColumn.collate(columns, found.lengths.tolist())
    true = strategy.forward(found, ["log_probs"]).log_probs
    assert true is not None
    for row, each in zip(true, samples, strict=True):
        assert (row[: len(each.token_ids)] - torch.tensor(each.log_probs)).abs().max() < tolerance


def prompt(rows: Experience, row: int) -> tuple[list[int], SamplingParams, dict[str, Any]]:
    length = int(rows.prompt_lengths[row])
    images = images_of_rows(rows.columns[COLUMN], len(rows))[row]
    counts = torch.zeros(length, dtype=torch.int32)
    counts[[image.start for image in images]] = 1
    digests = [torch.frombuffer(bytearray(image.digest), dtype=torch.uint8) for image in images]
    values = TokenValues(torch.stack(digests).numpy(), counts.numpy()) if images else None
    ids = rows.input_ids[row, :length].tolist()
    return ids, SamplingParams(6, seed=row, ignore_eos=True), {COLUMN: values} if values else {}


def test_adapters_merge_into_an_export(folder: Path, tmp_path: Path) -> None:
    own = spec(folder)
    own = dataclasses.replace(own, model=dataclasses.replace(own.model, lora_rank=2, target_modules="all-linear"))
    strategy, rows = SingleDeviceStrategy(own, TorchOptions(use_remove_padding=True)), batch(folder)
    before = copied_weights(strategy)
    grpo(strategy, rows)
    changed = {name for name, each in copied_weights(strategy).items() if not torch.equal(before[name], each)}
    assert any(in_tower(name) for name in changed) and any(not in_tower(name) for name in changed)
    strategy.export(tmp_path)
    engine = HfBackend(ModelConfig(path=str(tmp_path)), RolloutConfig(name="hf"), device="cpu", options=HfOptions())
    assert_agree(engine, strategy, rows, 1e-4)


def test_a_model_of_text_has_no_tower_to_freeze_and_reads_no_image(model_folder: Any) -> None:
    from corerl_testing.tiny_model import tiny_model

    own = StrategySpec(ModelConfig(path=str(tiny_model())), "cpu", MicroBatching(max_tokens=1000))
    with pytest.raises(ConfigError, match=r"actor\.strategy.freeze_vision_tower: Qwen2ForCausalLM has no vision tower"):
        SingleDeviceStrategy(own, TorchOptions(freeze_vision_tower=True))
    with pytest.raises(ModelError, match="Qwen2ForCausalLM reads text alone, and a prompt has images"):
        SingleDeviceStrategy(own).forward(batch(model_folder()), ["log_probs"])


def test_a_critic_of_a_model_that_reads_images_is_refused(model_folder: Any) -> None:
    own = StrategySpec(ModelConfig(path=str(model_folder())), "cpu", MicroBatching(max_tokens=1000), head="value")
    with pytest.raises(ModelError, match="reads images, and transformers has no value head"):
        SingleDeviceStrategy(own)


def test_an_exported_folder_is_a_whole_model(folder: Path, tmp_path: Path) -> None:
    """transformers loads it, and so does CoreRL, with the same log-probs and pixels."""
    own = StrategySpec(ModelConfig(path=str(folder)), "cpu", MicroBatching(max_tokens=1000))
    strategy = SingleDeviceStrategy(own, TorchOptions(use_remove_padding=True))
    strategy.export(tmp_path)
    again = StrategySpec(ModelConfig(path=str(tmp_path)), "cpu", MicroBatching(max_tokens=1000))
    rows, exported = batch(folder), batch(tmp_path)
    assert torch.equal(rows.columns[COLUMN].values, exported.columns[COLUMN].values)
    one, two = strategy.forward(rows, ["log_probs"]), SingleDeviceStrategy(again).forward(exported, ["log_probs"])
    assert one.log_probs is not None and two.log_probs is not None
    assert (one.log_probs - two.log_probs).abs().max() < 1e-5


def test_the_angles_of_patches_stay_in_float32_also_in_layers_that_are_computed_again(model_folder: Any) -> None:
    """FSDP casts the inputs of a layer, and not those of a layer that is computed again."""
    folder = model_folder("qwen2_5_vl")
    exact, rows = spec(folder), batch(folder)
    model = dataclasses.replace(exact.model, dtype="bf16", enable_gradient_checkpointing=True)
    strategy = FsdpStrategy(dataclasses.replace(exact, model=model), FsdpOptions())
    seen: list[torch.dtype] = []

    def note(module: Any, arguments: Any, named: Any) -> None:
        seen.extend(angles.dtype for angles in named["position_embeddings"])

    strategy.model.base_model.visual.blocks[0].register_forward_pre_hook(note, with_kwargs=True)
    rows.advantages = torch.ones(rows.response_mask.shape)
    rows.old_log_probs = rows.rollout_log_probs
    strategy.update(rows, SupervisedObjective())
    assert len(seen) > 2 and set(seen) == {torch.float32}


@pytest.mark.skipif(not os.environ.get("CORERL_EVERY_COMBINATION"), reason="two ranks: CORERL_EVERY_COMBINATION=1")
@pytest.mark.parametrize("family", VISION)
def test_ranks_with_and_without_images_make_the_update_of_one_device(
    model_folder: Any, tmp_path: Path, family: str
) -> None:
    from safetensors.torch import load_file

    folder = model_folder(family)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    helpers = Path(__file__).parents[3] / "tests" / "helpers"
    shared = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "PYTHONPATH": str(helpers),
    }
    command = [sys.executable, str(helpers / "vision_rows.py"), str(folder), str(tmp_path / "weights.safetensors")]
    ranks = [subprocess.Popen(command, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
    try:
        assert [rank.wait(timeout=240) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    true = updated(SingleDeviceStrategy(spec(folder, EPS), TorchOptions(use_remove_padding=True)), batch(folder))
    found = load_file(tmp_path / "weights.safetensors")
    assert found.keys() == true.keys()
    assert max(float((found[name] - each).abs().max()) for name, each in true.items()) < 1e-5
