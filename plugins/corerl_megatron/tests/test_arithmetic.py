"""What is said before a model is built."""

import dataclasses
import importlib.metadata
import inspect
import json
import re

import pytest
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from transformers import AutoConfig

from corerl.cli.common import load_train_config
from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import ConfigError
from corerl_megatron import model, transformer_keys
from corerl_megatron.arithmetic import ModelFacts, check_model, check_ranks, check_shared, padded_vocabulary
from corerl_megatron.model import transformer_config
from corerl_megatron.options import MegatronOptions
from corerl_megatron.stages import EMBEDDING, FIRST, LAST, LOSS, uneven_stages
from corerl_megatron.transformer_keys import check_transformer

KEY = "actor.strategy"
QWEN = {"model_type": "qwen2", "num_attention_heads": 12, "num_key_value_heads": 2, "num_hidden_layers": 28}
QWEN |= {"intermediate_size": 8960, "use_sliding_window": False, "vocab_size": 151665}
MOE = {"model_type": "qwen3_moe", "num_attention_heads": 32, "num_key_value_heads": 4, "num_hidden_layers": 48}
MOE |= {"intermediate_size": 6144, "num_experts": 128}
DEEPSEEK = {"model_type": "deepseek_v3", "num_attention_heads": 16, "num_hidden_layers": 4, "intermediate_size": 64}
DEEPSEEK |= {"n_routed_experts": 8, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2, "n_shared_experts": 3}
DEEPSEEK |= {"first_k_dense_replace": 1, "moe_intermediate_size": 11}


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (
            QWEN,
            {"tensor_model_parallel_size": 5},
            "5 does not divide the 12 attention heads of model.path; 1 or 2 would",
        ),
        (QWEN, {"tensor_model_parallel_size": 4}, "4 does not divide the 2 key and value heads of model.path; 1 or 2"),
        (
            {**QWEN, "intermediate_size": 8961},
            {"tensor_model_parallel_size": 2},
            "2 does not divide the intermediate size 8961 of model.path; 1 would",
        ),
        (
            QWEN,
            {"context_parallel_size": 5},
            "5 does not divide a tensor-parallel rank's 12 heads of model.path; 1, 2, 3,",
        ),
        (
            QWEN,
            {"pipeline_model_parallel_size": 3},
            "3 does not divide the 28 layers of model.path; 1, 2, 4, 7, 14 or 28",
        ),
        (
            QWEN,
            {"pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 2},
            "2 does not divide a pipeline rank's 7 layers of model.path; 1 or 7 would",
        ),
        (QWEN, {"virtual_pipeline_model_parallel_size": 2}, "needs pipeline_model_parallel_size above 1"),
        (
            QWEN,
            {
                "pipeline_model_parallel_size": 4,
                "override_transformer_config": {"num_layers_in_last_pipeline_stage": 6},
            },
            "num_layers_in_last_pipeline_stage: leaves 22 of 28 layers for 3 stages, which must have equal numbers",
        ),
        (
            QWEN,
            {"override_transformer_config": {"num_layers_in_first_pipeline_stage": 6}},
            "num_layers_in_first_pipeline_stage: needs actor.strategy.pipeline_model_parallel_size above 1",
        ),
        (
            QWEN,
            {
                "pipeline_model_parallel_size": 2,
                "virtual_pipeline_model_parallel_size": 2,
                "override_transformer_config": {"num_layers_in_first_pipeline_stage": 13},
            },
            "2 does not divide a pipeline rank's 13 layers of model.path",
        ),
        (QWEN, {"expert_model_parallel_size": 2}, "model.path has no experts: it must be 1"),
        (QWEN, {"sequence_parallel": True}, "needs tensor_model_parallel_size above 1"),
        (
            MOE,
            {"expert_model_parallel_size": 3},
            "3 does not divide the 128 experts of model.path; 1, 2, 4, 8, 16, 32 or",
        ),
        (MOE, {"tensor_model_parallel_size": 2}, "must be true for experts beside tensor parallel"),
    ],
)
def test_a_model_that_does_not_divide_is_one_line_with_sizes_that_would(config, options, message):
    with pytest.raises(ConfigError) as caught:
        check_shared(KEY, ModelFacts.read("model.path", config), MegatronOptions(**options))
    assert str(caught.value).startswith(f"{KEY}.") and message in str(caught.value)


@pytest.mark.parametrize(
    ("ranks", "options", "message"),
    [
        (
            6,
            {"tensor_model_parallel_size": 4},
            "takes 4 ranks (tensor 4 × pipeline 1 × context 1), and there are 6: 4 would do",
        ),
        (2, {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}, "there are 2: it takes 4"),
        (4, {"expert_model_parallel_size": 3}, "3 does not divide a stage's 4 ranks; 1, 2 or 4 would"),
    ],
)
def test_ranks_that_make_no_whole_copies_are_one_line(ranks, options, message):
    with pytest.raises(ConfigError) as caught:
        check_ranks(KEY, MegatronOptions(**options), ranks)
    assert message in str(caught.value)


def test_layouts_that_divide_pass():
    facts = ModelFacts.read("model.path", QWEN)
    options = MegatronOptions(
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=2,
        virtual_pipeline_model_parallel_size=7,
        context_parallel_size=3,
        sequence_parallel=True,
    )
    check_shared(KEY, facts, options)
    check_ranks(KEY, options, 24)


@pytest.mark.parametrize(
    ("layers", "stages", "pieces", "override", "built"),
    [
        (61, 12, None, {LAST: 6}, [5] * 11 + [6]),  # DeepSeek V3
        (94, 8, None, {FIRST: 11, LAST: 11}, [11] + [12] * 6 + [11]),  # Qwen3-235B
        (10, 2, None, {FIRST: 4, LAST: 6}, [4, 6]),
        (46, 4, None, {EMBEDDING: True, LOSS: True}, [11, 12, 12, 11]),  # GLM 4.5 Air
        (14, 4, 2, {FIRST: 2, LAST: 4}, [2, 4, 4, 4]),
    ],
)
def test_layers_of_uneven_stages_are_those_that_megatron_core_builds(
    layers, stages, pieces, override, built, model_dirs
):
    config = AutoConfig.from_pretrained(model_dirs["qwen2", True])
    config.num_hidden_layers = layers
    facts = ModelFacts.read("model.path", config.to_dict())
    options = MegatronOptions(
        pipeline_model_parallel_size=stages,
        virtual_pipeline_model_parallel_size=pieces,
        override_transformer_config=override,
    )
    check_transformer(KEY, options)
    check_shared(KEY, facts, options)
    spec = StrategySpec(ModelConfig("m", load_format="dummy"), "cuda", MicroBatching(max_sequences=1), OptimConfig())
    made = transformer_config(spec, options, facts, config)
    places = range(pieces or 1)
    found = [
        sum(get_num_layers_to_build(made, vp_stage=piece if pieces else None, pp_rank=rank) for piece in places)
        for rank in range(stages)
    ]
    assert found == built and sum(built) == layers
    counted = [int(bool(override.get(EMBEDDING))), *[0] * (stages - 2), int(bool(override.get(LOSS)))]
    assert uneven_stages(KEY, layers, stages, override) == [a + b for a, b in zip(built, counted, strict=True)]


def test_a_dtype_whose_loss_must_be_scaled_is_refused():
    options = MegatronOptions()
    check_model(ModelConfig("m", dtype="bf16"), "actor.strategy", options)
    with pytest.raises(ConfigError, match=r"^model\.dtype: strategy megatron scales no loss, which fp16 needs"):
        check_model(ModelConfig("m", dtype="fp16"), "actor.strategy", options)


def test_a_family_without_a_mapping_is_named_with_those_that_have_one():
    with pytest.raises(ConfigError, match="model_type 'mamba'; it has deepseek_v3, glm4_moe, gpt_oss, llama"):
        ModelFacts.read("model.path", {"model_type": "mamba"})


@pytest.mark.parametrize("model_type", ["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"])
def test_a_family_that_megatron_core_cannot_run_is_refused_with_the_missing_part(model_type):
    with pytest.raises(ConfigError, match=f"'{model_type}': megatron-core's gated delta net needs flash-linear-att"):
        ModelFacts.read("model.path", {"model_type": model_type})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topk_group": 4}, r"a group of experts by its 1 best ones .*, and the model by its 2 best"),
        ({"num_experts_per_tok": 1, "n_group": 1}, "num_experts_per_tok is 1"),
        ({"n_shared_experts": 0}, "n_shared_experts is 0"),
        ({"norm_topk_prob": False}, "norm_topk_prob is False, and the mapping of deepseek_v3 supports only True"),
        ({"attention_bias": True}, "attention_bias is True"),
    ],
)
def test_sigmoid_experts_that_megatron_core_routes_in_another_way_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        ModelFacts.read("model.path", {**DEEPSEEK, **changes})


def test_tensor_parallel_ranks_divide_dense_layers_and_shared_experts():
    facts, options = ModelFacts.read("model.path", DEEPSEEK), MegatronOptions(tensor_model_parallel_size=2)
    with pytest.raises(ConfigError, match="2 does not divide the intermediate size 33 of shared experts"):
        check_shared(KEY, facts, options)
    assert [facts.has_experts(layer) for layer in range(4)] == [False, True, True, True]
    dense = ModelFacts.read("model.path", {**DEEPSEEK, "first_k_dense_replace": 4})
    check_shared(KEY, dense, options)
    assert not dense.experts


def test_a_member_of_a_family_that_the_mapping_is_not_right_for_is_refused():
    with pytest.raises(ConfigError, match="attention_bias is True, and the mapping of llama supports only False"):
        ModelFacts.read("model.path", {**QWEN, "model_type": "llama", "attention_bias": True})


@pytest.mark.parametrize(("size", "ranks", "padded"), [(151936, 4, 151936), (51, 2, 52), (5, 4, 8)])
def test_a_vocabulary_is_padded_to_equal_parts(size, ranks, padded):
    assert padded_vocabulary(size, ranks) == padded


@pytest.fixture
def config_file(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    file = tmp_path / "run.yaml"
    file.write_text(f"model: {{path: {tmp_path}}}\ndata: {{train_files: [x.parquet]}}\n")
    return file


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["actor.strategy={name: megatron, tensor_model_parallel_size: 3}"], "3 does not divide the 2 key and value"),
        (["actor.strategy={name: megatron, tensor_model_parallel_size: 2}"], "takes 2 ranks"),
        (
            ["actor.strategy=megatron", "model.lora_rank=8", "model.lora_dora=true"],
            "lora_dora: strategy megatron has",
        ),
        (
            ["actor.strategy={name: megatron, use_mbridge: true, tensor_model_parallel_size: 2}"],
            "actor.strategy.use_mbridge: mbridge exports the vocabulary of 151665 with the padding for 2 ranks",
        ),
        (
            ["algorithm.adv_estimator=gae", "critic.strategy={name: megatron, use_mbridge: true}"],
            "critic.strategy.use_mbridge: mbridge has no names for a critic's value head",
        ),
    ],
)
def test_a_config_is_refused_before_anything_is_loaded(config_file, overrides, message):
    with pytest.raises(ConfigError) as caught:
        load_train_config(config_file, [*overrides, "runtime.name=local"])
    assert message in str(caught.value)


def test_a_package_that_is_not_there_is_named(config_file, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"the package mbridge is not installed \(pip install 'corerl-megatron\["):
        load_train_config(config_file, ["actor.strategy={name: megatron, use_mbridge: true}", "runtime.name=local"])


def test_a_config_that_divides_is_taken(config_file):
    load_train_config(config_file, ["actor.strategy=megatron", "runtime.name=local"])


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.15.3", "was tested with 0.16 to 0.19"),
        ("0.20rc0", "was tested with 0.16 to 0.19"),
        (None, "needs the package"),
    ],
)
def test_megatron_core_that_is_missing_or_untested_is_one_line(config_file, monkeypatch, version, said):
    def installed(name):
        if version is None:
            raise importlib.metadata.PackageNotFoundError
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed)
    with pytest.raises(ConfigError, match=said):
        load_train_config(config_file, ["actor.strategy=megatron"])


def test_what_megatron_core_refuses_is_one_line_before_a_model_is_built(model_dirs):
    named = ModelConfig(model_dirs["qwen2", True], load_format="dummy")
    spec = StrategySpec(named, "cuda", MicroBatching(max_sequences=1), OptimConfig())
    options = MegatronOptions(recompute_granularity="selective", recompute_modules=["attention"])
    config = AutoConfig.from_pretrained(named.path)
    with pytest.raises(ConfigError, match=r"^actor\.strategy: megatron-core refuses this: .*attention") as caught:
        transformer_config(spec, options, ModelFacts.read("model.path", config.to_dict()), config)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("device", ["cpu", "auto"])
@pytest.mark.parametrize(
    "option", ["pipeline_model_parallel_size: 2", "expert_model_parallel_size: 2", "sequence_parallel: true"]
)
def test_what_needs_cuda_is_refused_with_the_config(device: str, option: str) -> None:
    strategy = f"actor.strategy={{name: megatron, {option}}}"
    ranks = ["runtime.name=ray", "runtime.options.workers=2", f"actor.device={device}"]
    with pytest.raises(ConfigError, match="only on CUDA: on the CPU it must be"):
        load_train_config(None, ["model.path=m", "data.train_files=[t]", strategy, *ranks])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("moe_permute_fusoin", True, r"has no such key \(did you mean 'moe_permute_fusion'\?\)"),
        ("recompute_method", "block", r"is an option of its own: actor\.strategy\.recompute_method"),
        ("num_layers", 3, r"cannot be set: the model's config\.json determines it"),
        ("hidden_dropout", 0.1, r"cannot be set: .*gradients must not depend on micro-batches"),
        ("apply_rope_fusion", True, r"cannot be set: attention and its rotation are modules of CoreRL"),
        ("moe_permute_fusion", 1, "must be true or false, not 1"),
        ("moe_deepep_num_sms", True, "must be an integer, not True"),
    ],
)
def test_a_key_of_the_transformer_config_is_refused_with_the_config(name: str, value: object, message: str) -> None:
    options = {"name": "megatron", "override_transformer_config": {name: value}}
    with pytest.raises(ConfigError, match=rf"^actor\.strategy\.override_transformer_config\.{name}: .*{message}"):
        load_train_config(None, ["model.path=m", "data.train_files=[t]", f"actor.strategy={json.dumps(options)}"])


def test_further_keys_reach_megatron_core_and_all_that_corerl_sets_is_refused(model_dirs):
    named = ModelConfig(model_dirs["qwen2", True], load_format="dummy")
    spec = StrategySpec(named, "cpu", MicroBatching(max_sequences=1), OptimConfig())
    config = AutoConfig.from_pretrained(named.path)
    facts = ModelFacts.read("model.path", config.to_dict())
    options = MegatronOptions(override_transformer_config={"bias_dropout_fusion": True, "deterministic_mode": False})
    made = transformer_config(spec, options, facts, config)
    assert made.bias_dropout_fusion is True and made.num_layers == facts.layers
    free = {"bias_dropout_fusion", "bias_activation_fusion", "masked_softmax_fusion", "persist_layer_norm"}
    free |= {"gradient_accumulation_fusion", "moe_token_dispatcher_type", "moe_router_dtype"}  # of speed and precision
    source = inspect.getsource(model)
    named_there = set(re.findall(r'^ +"(\w+)":', source, re.MULTILINE)) & transformer_keys.fields().keys()
    own = {field.name for field in dataclasses.fields(MegatronOptions)}
    assert len(named_there) > 35 and named_there - own - transformer_keys.OWN.keys() == free
    stale = transformer_keys.OWN.keys() - transformer_keys.fields().keys()
    assert len(stale) < 5, stale  # of other versions of megatron-core
