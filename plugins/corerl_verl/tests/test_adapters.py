"""Adapters of verl: their options, those of Megatron, and merged weights."""

import pytest

from plugins.corerl_verl.tests.conversion import convert

MODEL = "actor_rollout_ref.model"
MEGATRON = ("--config-name=ppo_megatron_trainer", "actor_rollout_ref.rollout.name=vllm")


def test_options_of_adapters_that_no_model_has_are_left_out() -> None:
    config, remarks = convert(f"{MODEL}.lora_rank=0", f"{MODEL}.lora_alpha=0", f"{MODEL}.target_modules=all-linear")
    assert (config.model.lora_rank, config.model.lora_alpha) == (0, 16)
    assert remarks == [
        "model.lora_alpha=0, model.target_modules=all-linear: model.lora_rank is 0: there are no adapters"
    ]


def test_adapters_of_megatron_have_the_names_of_the_hugging_face_layers() -> None:
    lora = f"{MODEL}.lora"
    config, remarks = convert(
        *MEGATRON, f"{lora}.rank=8", f"{lora}.alpha=24", f"{lora}.target_modules=[linear_proj,linear_fc2]"
    )
    assert (config.model.lora_rank, config.model.lora_alpha) == (8, 24)
    assert config.model.target_modules == ["o_proj", "down_proj"]
    assert not [each for each in remarks if "lora" in each]
    config, remarks = convert(*MEGATRON, f"{lora}.rank=8")
    assert (config.model.lora_alpha, config.model.target_modules) == (32, "all-linear")  # 32 is verl's default
    assert any("one A for its parts" in each for each in remarks)
    _, remarks = convert(*MEGATRON, f"{lora}.rank=8", f"{lora}.target_modules={{a: 1}}")
    assert any("written as all-linear" in each for each in remarks)
    config, _ = convert(*MEGATRON, f"{lora}.rank=8", f"{lora}.type=dora")
    assert config.model.lora_dora is True


def test_the_reference_of_adapters_of_megatron_is_the_policy_without_them() -> None:
    config, remarks = convert(
        *MEGATRON,
        f"{MODEL}.lora.rank=8",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4",
        "actor_rollout_ref.ref.megatron.tensor_model_parallel_size=2",
    )
    assert config.ref.strategy is None
    assert any("the reference is the policy without them" in each for each in remarks)


@pytest.mark.parametrize(("rank", "way"), [(8, "merged"), (0, None)])
def test_merged_adapters_reach_the_engine_as_whole_weights(rank: int, way: str | None) -> None:
    config, _ = convert("actor_rollout_ref.rollout.name=vllm", f"{MODEL}.lora_rank={rank}", f"{MODEL}.lora.merge=True")
    default = type(config.rollout)().lora
    assert config.rollout.lora == (way or default)
