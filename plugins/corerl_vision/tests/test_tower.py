"""The vision tower: trained, or frozen bit for bit."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from corerl.contracts.config import ModelConfig
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import ConfigError, ModelError
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_torch.media_store import COLUMN
from vision_rows import batch, spec, updated


def trained(folder: Path, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The weights before and after an update."""
    strategy = SingleDeviceStrategy(spec(folder), TorchOptions(use_remove_padding=True, **options))
    before = {name: each.clone() for name, each in strategy.weights()}
    return before, updated(strategy, batch(folder))


@pytest.mark.parametrize("frozen", [False, True])
def test_the_tower_changes_unless_it_is_frozen(model_folder: Any, frozen: bool) -> None:
    before, after = trained(model_folder(), freeze_vision_tower=frozen)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    tower = {name for name in before if ".visual." in name}
    assert tower and changed - tower
    assert changed.isdisjoint(tower) if frozen else tower - changed <= {name for name in tower if "k_proj" in name}


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


def test_an_exported_folder_is_a_whole_model(model_folder: Any, tmp_path: Path) -> None:
    """transformers loads it, and so does CoreRL, with the same log-probs and pixels."""
    folder = model_folder()
    own = StrategySpec(ModelConfig(path=str(folder)), "cpu", MicroBatching(max_tokens=1000))
    strategy = SingleDeviceStrategy(own, TorchOptions(use_remove_padding=True))
    strategy.export(tmp_path)
    again = StrategySpec(ModelConfig(path=str(tmp_path)), "cpu", MicroBatching(max_tokens=1000))
    rows, exported = batch(folder), batch(tmp_path)
    assert torch.equal(rows.columns[COLUMN].values, exported.columns[COLUMN].values)
    one, two = strategy.forward(rows, ["log_probs"]), SingleDeviceStrategy(again).forward(exported, ["log_probs"])
    assert one.log_probs is not None and two.log_probs is not None
    assert (one.log_probs - two.log_probs).abs().max() < 1e-5


@pytest.mark.skipif(not os.environ.get("CORERL_EVERY_COMBINATION"), reason="two ranks: CORERL_EVERY_COMBINATION=1")
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
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
    true = updated(SingleDeviceStrategy(spec(folder), TorchOptions(use_remove_padding=True)), batch(folder))
    found = load_file(tmp_path / "weights.safetensors")
    assert found.keys() == true.keys()
    assert max(float((found[name] - each).abs().max()) for name, each in true.items()) < 1e-5
