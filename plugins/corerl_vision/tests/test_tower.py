"""The vision tower: trained, or frozen bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pictures import picture, tokenizer_of

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.experience import Experience, collate
from corerl.contracts.token_columns import TokenColumn
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import ConfigError, ModelError
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_torch.media_store import COLUMN
from corerl_torch.supervised import SupervisedObjective


def batch(folder: Path) -> Experience:
    """Two rows with an image, and one of text."""
    tokenizer, prompts, columns = tokenizer_of(folder), [], []
    for images in ([picture(1)], [picture(2, 40, 70)], []):
        content = "<image>red?" if images else "red?"
        messages, media = tokenizer.place_media(
            [{"role": "user", "content": content}], {COLUMN: images} if images else {}, ""
        )
        text = tokenizer.render(messages, "", add_generation_prompt=True)
        ids, media = tokenizer.encode_media(text, {COLUMN: images} if images else {}, "")
        prompts.append(ids)
        columns.append(media[COLUMN].widened(2) if media else None)
    experience = collate(prompts, [[5, 6]] * 3, [0, 1, 2])
    experience.columns[COLUMN] = TokenColumn.collate(columns, experience.lengths.tolist())
    experience.loss_weights = torch.ones(3, 2, dtype=torch.float64) / 6
    return experience


def trained(folder: Path, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The weights before and after an update."""
    limit = MicroBatching(max_tokens=1000)
    spec = StrategySpec(ModelConfig(path=str(folder)), "cpu", limit, optim=OptimConfig(lr=1e-2))
    strategy = SingleDeviceStrategy(spec, TorchOptions(use_remove_padding=True, **options))
    before = {name: each.clone() for name, each in strategy.weights()}
    strategy.update(batch(folder), SupervisedObjective())
    return before, {name: each.clone() for name, each in strategy.weights()}


@pytest.mark.parametrize("frozen", [False, True])
def test_the_tower_changes_unless_it_is_frozen(model_folder: Any, frozen: bool) -> None:
    before, after = trained(model_folder(), freeze_vision_tower=frozen)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    tower = {name for name in before if ".visual." in name}
    assert tower and changed - tower
    assert changed.isdisjoint(tower) if frozen else tower - changed <= {name for name in tower if "k_proj" in name}


def test_a_model_of_text_has_no_tower_to_freeze_and_reads_no_image(model_folder: Any) -> None:
    from corerl_testing.tiny_model import tiny_model

    spec = StrategySpec(ModelConfig(path=str(tiny_model())), "cpu", MicroBatching(max_tokens=1000))
    with pytest.raises(ConfigError, match="actor.strategy.freeze_vision_tower: Qwen2ForCausalLM has no vision tower"):
        SingleDeviceStrategy(spec, TorchOptions(freeze_vision_tower=True))
    with pytest.raises(ModelError, match="Qwen2ForCausalLM reads text alone, and a prompt has images"):
        SingleDeviceStrategy(spec).forward(batch(model_folder()), ["log_probs"])


def test_a_critic_of_a_model_that_reads_images_is_refused(model_folder: Any) -> None:
    spec = StrategySpec(ModelConfig(path=str(model_folder())), "cpu", MicroBatching(max_tokens=1000), head="value")
    with pytest.raises(ModelError, match="reads images, and transformers has no value head"):
        SingleDeviceStrategy(spec)


def test_an_exported_folder_is_a_whole_model(model_folder: Any, tmp_path: Path) -> None:
    """transformers loads it, and so does CoreRL, with the same log-probs and pixels."""
    folder = model_folder()
    spec = StrategySpec(ModelConfig(path=str(folder)), "cpu", MicroBatching(max_tokens=1000))
    strategy = SingleDeviceStrategy(spec, TorchOptions(use_remove_padding=True))
    strategy.export(tmp_path)
    again = StrategySpec(ModelConfig(path=str(tmp_path)), "cpu", MicroBatching(max_tokens=1000))
    own, exported = batch(folder), batch(tmp_path)
    assert torch.equal(own.columns[COLUMN].values, exported.columns[COLUMN].values)
    one, two = strategy.forward(own, ["log_probs"]), SingleDeviceStrategy(again).forward(exported, ["log_probs"])
    assert one.log_probs is not None and two.log_probs is not None
    assert (one.log_probs - two.log_probs).abs().max() < 1e-5
