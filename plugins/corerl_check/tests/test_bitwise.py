"""``trainer.bitwise``: the options that it sets, and the combinations that it refuses."""

from pathlib import Path

import pytest

from corerl.cli.common import load_train_config
from corerl.config.typed import build
from corerl.contracts.config import TrainConfig
from corerl.plugins import load_plugins
from corerl.registry.parts import resolve_parts
from corerl_check.bitwise import violations, with_options


def errors(**sections):
    config = build(TrainConfig, with_options({"model": {"path": "x"}, "trainer": {"bitwise": True}, **sections}))
    return [str(each) for each in violations(config, resolve_parts(config, load_plugins().registries))]


def test_engine_and_strategy_get_the_option():
    values = with_options({"trainer": {"bitwise": True}, "actor": {"strategy": {"name": "fsdp", "timeout": 3.0}}})
    assert values["rollout"] == {"options": {"bitwise": True}}
    assert values["actor"] == {"strategy": {"name": "fsdp", "timeout": 3.0, "bitwise": True}}
    assert errors() == errors(actor={"strategy": "fsdp"}) == []


def test_the_option_needs_no_distribution_with_aliases(tmp_path: Path) -> None:
    """corerl-verl alone has aliases, and nothing of trainer.bitwise."""
    file = tmp_path / "config.yaml"
    file.write_text("model: {path: x}\ndata: {train_files: [t]}\ntrainer: {bitwise: true}\nrollout: {name: hf}\n")
    config = load_train_config(file, [], disable_plugin=["corerl-verl"]).config
    assert config.rollout.options == {"bitwise": True} and config.actor.strategy == {"name": "torch", "bitwise": True}


def test_nothing_is_set_without_the_key():
    assert with_options({"trainer": {"seed": 1}}) == {"trainer": {"seed": 1}}


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"rollout": {"name": "vllm", "options": {"bitwise": False}}}, "rollout.name=vllm cannot"),
        ({"rollout": {"name": "vllm", "tensor_model_parallel_size": 2}}, "tensor_model_parallel_size=2"),
        ({"rollout": {"name": "vllm", "pipeline_model_parallel_size": 2}}, "pipeline_model_parallel_size=2"),
        ({"rollout": {"name": "sglang"}}, "rollout.name=sglang cannot"),
        ({"actor": {"strategy": "megatron"}}, "actor.strategy=megatron cannot"),
        ({"rollout": {"options": {"bitwise": False}}}, "its option bitwise is off"),
        ({"model": {"path": "x", "dtype": "bf16"}}, "model.dtype=bf16"),
        ({"model": {"path": "x", "lora_rank": 2}}, "model.lora_rank"),
    ],
)
def test_combinations_without_equal_bits_are_refused_in_one_line(sections, named):
    [error] = errors(**sections)
    assert named in error and "\n" not in error and error.startswith("trainer.bitwise")
