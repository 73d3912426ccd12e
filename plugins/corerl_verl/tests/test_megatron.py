"""verl's options of Megatron, and its overrides of megatron-core's transformer config."""

import pytest

from corerl_verl.layouts import layers_of
from corerl_verl.megatron import OF_CORERL
from plugins.corerl_verl.tests.conversion import convert

MEGATRON = ("--config-name=ppo_megatron_trainer", "actor_rollout_ref.rollout.name=vllm")
ACTOR = "actor_rollout_ref.actor.megatron"
OVERRIDE = f"+{ACTOR}.override_transformer_config"


@pytest.mark.parametrize(
    ("layout", "counts"),
    [
        ("Et*3|t*4|t*3L", [3, 4, 3]),
        ("E|(t|)*2,tL", [0, 1, 1, 1]),
        ("Ettt|tttL", [3, 3]),
        ([["embedding", "decoder"], ["decoder", "decoder", "loss"]], [1, 2]),
        ("Ett|ttmL", []),  # with a layer for multi-token prediction
        ([["embedding", "decoder"], ["decoder", "mtp", "loss"]], []),
        ("no layout", []),
        ("t*999999999", []),
    ],
)
def test_a_layout_is_read_as_megatron_core_does(layout: object, counts: list[int]) -> None:
    assert layers_of(layout) == counts


def test_a_layout_becomes_numbers_of_layers_of_the_first_and_the_last_stage() -> None:
    config, remarks = convert(
        *MEGATRON,
        f"{ACTOR}.pipeline_model_parallel_size=4",
        f"{OVERRIDE}.pipeline_model_parallel_layout='Et*3|t*4|t*4|t*2L'",
    )
    layers = {"num_layers_in_first_pipeline_stage": 3, "num_layers_in_last_pipeline_stage": 2}
    assert isinstance(config.actor.strategy, dict)
    assert config.actor.strategy["override_transformer_config"] == layers
    assert not [each for each in remarks if "layout" in each]


@pytest.mark.parametrize(("stages", "layout"), [(4, "Et|tt|ttt|tL"), (2, "Et|t|t|tL"), (4, "nothing")])
def test_a_layout_of_another_form_is_named(stages: int, layout: str) -> None:
    key = f"{OVERRIDE}.pipeline_model_parallel_layout='{layout}'"
    _, remarks = convert(*MEGATRON, f"{ACTOR}.pipeline_model_parallel_size={stages}", key)
    assert any("CoreRL's stages have equal numbers of layers but" in each for each in remarks)


def test_uneven_first_and_last_stages_are_kept() -> None:
    names = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
    config, _ = convert(
        *MEGATRON, f"{ACTOR}.pipeline_model_parallel_size=2", *(f"{OVERRIDE}.{name}=11" for name in names)
    )
    assert isinstance(config.actor.strategy, dict)
    assert config.actor.strategy["override_transformer_config"] == dict.fromkeys(names, 11)


def test_every_key_that_corerls_megatron_sets_itself_has_a_reason() -> None:
    keys = pytest.importorskip("corerl_megatron.transformer_keys", reason="corerl-megatron is not installed")
    assert keys.OWN.keys() - OF_CORERL.keys() == {"pipeline_model_parallel_layout"}  # a rule of its own


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("attention_backend", "flash", "a matter of speed"),
        ("position_embedding_type", "rope", "a matter of speed"),
        ("normalization", "RMSNorm", "config.json determines it"),
        ("tensor_model_parallel_size", "2", "actor.megatron.tensor_model_parallel_size sets it"),
        ("hidden_dropout", "0.0", "without dropout"),
    ],
)
def test_a_key_that_corerl_sets_is_not_written(name: str, value: str, reason: str) -> None:
    config, remarks = convert(*MEGATRON, f"{OVERRIDE}.{name}={value}")
    assert config.actor.strategy == "megatron"
    assert any(f"override_transformer_config.{name}=" in each and reason in each for each in remarks)


def test_options_of_the_reduction_of_gradients() -> None:
    key = f"+{ACTOR}.override_ddp_config"
    _, remarks = convert(*MEGATRON, f"{key}.grad_reduce_in_fp32=True", f"{key}.overlap_grad_reduce=True")
    name = "actor.megatron.override_ddp_config"
    assert f"{name}.grad_reduce_in_fp32=True: CoreRL sums gradients in float32" in remarks
    assert f"{name}.overlap_grad_reduce=True: a matter of memory and speed" in remarks
