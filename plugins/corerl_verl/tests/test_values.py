"""Values of models, strategies, engines and optimizers of verl, as configs."""

import pytest

from corerl_verl import hydra
from corerl_verl.from_verl import convert as convert_parsed
from corerl_verl.from_verl import from_verl
from plugins.corerl_verl.tests.conversion import convert

ON_CPU = [
    f"+actor_rollout_ref.actor.optim.override_optimizer_config.{each}"
    for each in ("optimizer_cpu_offload=True", "optimizer_offload_fraction=0.5", "foreach=True")
]


@pytest.mark.parametrize(("size", "group"), [("4", 4), ("8", None), ("-1", None), ("null", None)])
def test_a_shard_group_of_fewer_than_all_gpus_is_kept(size: str, group: int | None) -> None:
    config, remarks = convert(
        "trainer.n_gpus_per_node=8",
        f"actor_rollout_ref.actor.fsdp_config.fsdp_size={size}",
        f"critic.model.fsdp_config.fsdp_size={size}",
        "algorithm.adv_estimator=gae",
    )
    for strategy in (config.actor.strategy, config.critic.strategy):
        assert strategy == ("fsdp" if group is None else {"name": "fsdp", "fsdp_size": group})
    assert not [each for each in remarks if "fsdp_size" in each and "missing" in each]


def test_the_reference_has_a_strategy_of_its_own_if_its_options_differ_from_the_actors() -> None:
    model, used = "actor_rollout_ref", "actor_rollout_ref.actor.use_kl_loss=True"
    offload = f"{model}.ref.fsdp_config.param_offload=True"
    config, remarks = convert(used, offload, f"{model}.actor.ulysses_sequence_parallel_size=2")
    assert config.ref.strategy == {"name": "fsdp", "param_offload": True, "ulysses_sequence_parallel_size": 2}
    assert remarks == []
    config, _ = convert(used, offload, f"{model}.actor.fsdp_config.param_offload=True")
    assert config.ref.strategy is None
    config, _ = convert(used, f"{model}.actor.fsdp_config.param_offload=True")
    assert config.ref.strategy == "fsdp"
    config, remarks = convert(used, offload, f"{model}.model.lora_rank=8")
    assert config.ref.strategy is None
    assert any("the reference is the policy without them" in each for each in remarks)
    megatron = [f"{model}.actor.strategy=megatron", f"{model}.actor.megatron.tensor_model_parallel_size=4"]
    config, _ = convert(used, *megatron)
    assert config.ref.strategy is None
    config, _ = convert(used, *megatron, f"{model}.ref.megatron.tensor_model_parallel_size=1")
    assert config.ref.strategy == {"name": "megatron", "tensor_model_parallel_size": 1}


def test_the_offload_policy_is_kept_for_actor_and_reference_and_turns_off_the_other_offloads() -> None:
    model, used = "actor_rollout_ref", "actor_rollout_ref.actor.use_kl_loss=True"
    both = [f"{model}.actor.fsdp_config.{name}=True" for name in ("offload_policy", "param_offload")]
    config, remarks = convert(used, *both)
    assert config.actor.strategy == {"name": "fsdp", "offload_policy": True}
    assert config.ref.strategy == "fsdp" and remarks == []
    config, _ = convert(used, *both, f"{model}.ref.fsdp_config.offload_policy=True")
    assert config.ref.strategy is None
    config, _ = convert(used, f"{model}.ref.fsdp_config.offload_policy=True")
    assert (config.actor.strategy, config.ref.strategy) == ("fsdp", {"name": "fsdp", "offload_policy": True})


def test_over_sampling_is_a_window_of_groups_that_each_step_ends() -> None:
    rate, batch = "actor_rollout_ref.rollout.over_sample_rate=0.1", "data.train_batch_size=64"
    config, remarks = convert(rate, batch)
    assert (config.trainer.batch_order, config.trainer.batch_window) == ("first_finished", 8)  # 64 of 72
    assert any("written as 8 groups more in each step" in each for each in remarks)
    config, remarks = convert("actor_rollout_ref.rollout.over_sample_rate=0", batch)
    assert config.trainer.batch_window is None and not [each for each in remarks if "groups more" in each]


def test_a_reward_model_behind_an_engine_keeps_its_engine_and_its_pool() -> None:
    key = "reward.reward_model"
    names = ("actor_rollout_ref.rollout.name=vllm", "trainer.n_gpus_per_node=6")  # since verl 0.6
    given = ("enable=True", "model_path=rm", "rollout.name=vllm", "rollout.tensor_model_parallel_size=2")
    pool = ("enable_resource_pool=True", "n_gpus_per_node=2", "nnodes=1", "rollout.prompt_length=1000")
    config, remarks = convert(*(f"{key}.{each}" for each in (*given, *pool)), *names)
    expected = {"path": "rm", "engine": "vllm", "pool": "reward_model", "max_length": 3048}
    assert config.reward.manager == {"name": "model", **expected, "engine_args": {"gpu_memory_utilization": 0.5}}
    assert config.runtime.options["pools"] == {"reward_model": 2} and not remarks
    _, [remark] = convert(*(f"{key}.{each}" for each in (*given, *pool, "n_gpus_per_node=4")), *names)
    assert remark.startswith("reward.reward_model.enable_resource_pool=True: verl's pool of 4 GPUs has 2 engines")


def test_engines_in_fp8_and_arguments_that_the_engine_gets_from_corerl() -> None:
    rollout = "actor_rollout_ref.rollout"
    config, remarks = convert(
        f"{rollout}.quantization=fp8",
        f"+{rollout}.engine_kwargs.vllm.mm_processor_cache_gb=0",
        f"+{rollout}.engine_kwargs.vllm.disable_mm_preprocessor_cache=True",
        "trainer.val_only=False",
    )
    assert config.rollout.options["quantization"] == "fp8" and "engine_args" not in config.rollout.options
    assert sum("harmless" in each or "itself" in each or "off, as" in each for each in remarks) == len(remarks)


def test_the_critic_has_values_of_its_own_for_its_model() -> None:
    model, critic = "actor_rollout_ref.model", "critic.model"
    config, remarks = convert(
        "algorithm.adv_estimator=gae",
        f"{model}.lora_rank=8",
        f"{model}.override_config.max_position_embeddings=9",
        f"{critic}.enable_gradient_checkpointing=False",
        f"{critic}.trust_remote_code=False",
    )
    own = {"lora_rank": 0, "override_config": {}, "enable_gradient_checkpointing": False, "trust_remote_code": False}
    assert config.critic.model == own
    assert not [each for each in remarks if "missing" in each]


def test_columns_remote_folder_contents_and_dtypes_of_sums_are_kept() -> None:
    fsdp = "actor_rollout_ref.actor.fsdp_config.mixed_precision"
    config, remarks = convert(
        "data.prompt_key=question",
        "data.image_key=images",
        "trainer.default_hdfs_dir=hdfs://cluster/runs",
        "actor_rollout_ref.actor.checkpoint.save_contents=[model,extra]",
        f"+{fsdp}={{param_dtype: bf16, reduce_dtype: bf16, buffer_dtype: fp32}}",
        "actor_rollout_ref.model.enable_activation_offload=True",
    )
    assert config.data.columns == {"prompt": "question"}
    assert config.trainer.remote_dir == "hdfs://cluster/runs"
    strategy = {"save_optimizer": False, "reduce_dtype": "bf16", "activation_offload": True}
    assert config.actor.strategy == {"name": "fsdp", **strategy}
    assert not [each for each in remarks if "missing" in each]


def test_contents_that_a_resumed_run_loads_are_kept_unless_they_are_all() -> None:
    load = "checkpoint.load_contents"
    config, remarks = convert(f"actor_rollout_ref.actor.{load}=[model,extra]", f"critic.{load}=['model']")
    assert config.actor.strategy == {"name": "fsdp", "load_contents": ["model", "extra"]}
    assert not [each for each in remarks if "contents" in each]
    config, remarks = convert(f"actor_rollout_ref.actor.{load}=['model','optimizer','extra']")
    assert config.actor.strategy == "fsdp" and not [each for each in remarks if "contents" in each]
    config, _ = convert("actor_rollout_ref.actor.checkpoint.save_contents=['model']")  # and verl loads the same
    assert config.actor.strategy == {"name": "fsdp", "save_optimizer": False, "load_contents": ["model"]}
    megatron = "--config-name=ppo_megatron_trainer"
    config, _ = convert(megatron, f"actor_rollout_ref.actor.{load}=[model]")
    assert config.actor.strategy == {"name": "megatron", "load_contents": ["model"]}
    _, remarks = convert(f"actor_rollout_ref.actor.{load}=[hf_model]")
    assert any(each.startswith(f"actor.{load}=['hf_model']: a run resumes with model") for each in remarks)


def test_values_of_config_json_are_kept_and_settings_among_them_go_to_their_keys() -> None:
    key = "+actor_rollout_ref.model.override_config"
    config, remarks = convert(
        f"{key}.max_position_embeddings=131072",
        f"{key}.rope_scaling={{type: yarn, factor: 4.0}}",
        f"{key}.attention_dropout=0.1",
        f"{key}.attn_implementation=eager",
        f"{key}.model_config.rope_theta=5",
        "actor_rollout_ref.model.exclude_modules=gate_proj",
        "actor_rollout_ref.model.lora_rank=8",
    )
    assert config.model.exclude_modules == ["gate_proj"]
    yarn = {"type": "yarn", "factor": 4.0}
    assert config.model.override_config == {"max_position_embeddings": 131072, "rope_scaling": yarn, "rope_theta": 5}
    assert config.model.attn_implementation == "eager"
    assert remarks == ["model.override_config.attention_dropout=0.1: models are trained without dropout"]


def test_the_name_of_megatrons_config_selects_it_and_its_options_follow() -> None:
    values, _ = from_verl(
        [
            "--config-path=config",
            "--config-name=ppo_megatron_trainer.yaml",
            "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2",
            "actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full",
        ]
    )
    strategy = {"name": "megatron", "tensor_model_parallel_size": 2, "recompute_granularity": "full"}
    assert values["actor"]["strategy"] == {**strategy, "sequence_parallel": True}  # verl's default


def test_a_fraction_of_megatrons_optimizer_on_the_cpu_is_all_of_it_between_steps() -> None:
    megatron = ["--config-name=ppo_megatron_trainer", "actor_rollout_ref.rollout.name=vllm"]
    values, remarks = from_verl([*megatron, *ON_CPU])
    assert values["actor"]["strategy"]["optimizer_offload"] is True and "optimizer" not in values["actor"].get(
        "optim", {}
    )
    assert any("offload_fraction=0.5: written as optimizer_offload" in each for each in remarks)
    values, remarks = from_verl([*megatron, *ON_CPU[1:]])
    assert values["actor"]["strategy"] == "megatron"


@pytest.mark.parametrize(
    ("arguments", "optim", "words"),
    [
        (["actor_rollout_ref.actor.optim.optimizer=AdamW"], {}, ""),
        (["actor_rollout_ref.actor.optim.optimizer=Muon"], {"optimizer": "muon"}, "adjust_lr_fn=match_rms_adamw"),
        (["actor_rollout_ref.actor.optim.lr_scheduler_type=polynomial"], {}, "polynomial: not converted: CoreRL has"),
        (["actor_rollout_ref.actor.optim.optimizer=AdamW8bit"], {"optimizer": "adamw_8bit"}, ""),
        (["actor_rollout_ref.actor.optim.optimizer=SGD"], {}, "written as adamw"),
        (
            [f"actor_rollout_ref.actor.optim.{each}" for each in ("lr_scheduler_type=cosine", "num_cycles=1.5")],
            {"lr_scheduler_type": {"name": "cosine", "num_cycles": 1.5}},
            "",
        ),
        (["actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1"], {"lr_warmup_steps_ratio": 0.1}, ""),
        (
            ON_CPU,
            {"optimizer": {"name": "adamw", "offload_fraction": 0.5}},
            "override_optimizer_config.foreach=True: a matter",
        ),
        (["data.train_max_samples=100"], {}, "verl draws these rows at random"),
    ],
)
def test_optimizers_schedules_and_limits_of_rows(arguments: list[str], optim: dict[str, object], words: str) -> None:
    values, remarks = from_verl(["actor_rollout_ref.rollout.name=vllm", *arguments])
    assert values.get("actor", {}).get("optim", {}) == optim
    assert not words or any(words in remark for remark in remarks)


@pytest.mark.parametrize(
    ("engine", "given", "divided", "engine_args", "says"),
    [
        ("vllm", {"pipeline_model": 2}, (2, 2, 1), {}, ""),
        ("vllm", {"expert": 2}, (2, 1, 1), {"enable_expert_parallel": True}, ""),
        ("vllm", {"data": 4, "expert": 8}, (2, 1, 4), {}, ""),
        ("vllm", {"data": 4}, (2, 1, 1), {}, "rollout.data_parallel_size=4: engines without expert parallelism divide"),
        ("sglang", {"data": 4, "expert": 8}, (2, 1, 4), {"ep_size": 8}, ""),
        ("sglang", {"data": 4, "attention": 1}, (2, 1, 4), {}, ""),
        ("hf", {"data": 4}, (2, 1, 1), {}, "rollout.data_parallel_size=4: an engine of hf has one GPU"),
    ],
)
def test_the_parallel_sizes_of_an_engine(
    engine: str, given: dict[str, int], divided: tuple[int, int, int], engine_args: dict[str, object], says: str
) -> None:
    rollout = "actor_rollout_ref.rollout"
    keys = [f"{rollout}.{name}_parallel_size={size}" for name, size in given.items() if name != "attention"]
    if "attention" in given:
        keys.append(f"+{rollout}.engine_kwargs.sglang.enable_dp_attention=True")
    config, remarks = convert(f"{rollout}.name={engine}", f"{rollout}.tensor_model_parallel_size=2", *keys)
    own = config.rollout
    sizes = own.tensor_model_parallel_size, own.pipeline_model_parallel_size, own.data_parallel_size
    assert sizes == divided and own.options.get("engine_args", {}) == engine_args
    assert [each for each in remarks if "parallel_size" in each and each.startswith(says)] if says else not remarks


def test_0_and_1_of_a_truth_value_are_false_and_true() -> None:
    config, _ = convert("actor_rollout_ref.actor.use_kl_loss=1", "actor_rollout_ref.ref.fsdp_config.param_offload=1")
    assert config.actor.use_kl_loss is True and config.ref.strategy == {"name": "fsdp", "param_offload": True}
    assert convert("actor_rollout_ref.actor.use_kl_loss=0")[0].actor.use_kl_loss is False


def test_a_section_that_is_no_mapping_and_a_choice_of_a_group_are_named() -> None:
    _, remarks = convert("actor_rollout_ref.actor.optim=null", "actor_rollout_ref.actor.fsdp_config=5")
    assert "is a section of verl and takes a mapping" in remarks[0]
    for choice in ("actor=foo", "+experiment=foo", "algorithm=grpo"):
        _, remarks = convert(choice)
        assert remarks == [f"{choice.lstrip('+')}: a group of the user's own: its values are not known here"]


@pytest.mark.parametrize("first", ["model_engine=megatron", "--config-name=ppo_megatron_trainer"])
def test_a_strategy_that_contradicts_the_commands_engine_is_named(first: str) -> None:
    config, remarks = convert(first, "actor_rollout_ref.actor.strategy=fsdp2")
    assert config.actor.strategy == "fsdp"
    assert any(each.startswith("actor.strategy=fsdp2: contradicts") for each in remarks)


def test_the_reference_has_a_shard_group_of_its_own() -> None:
    group = ["actor_rollout_ref.actor.use_kl_loss=True", "actor_rollout_ref.actor.fsdp_config.fsdp_size=2"]
    config, _ = convert(*group, "actor_rollout_ref.ref.fsdp_config.fsdp_size=8", "trainer.n_gpus_per_node=8")
    assert config.ref.strategy == "fsdp"
    config, _ = convert(*group, "actor_rollout_ref.ref.fsdp_config.fsdp_size=4", "trainer.n_gpus_per_node=8")
    assert config.ref.strategy == {"name": "fsdp", "fsdp_size": 4}
    assert convert(*group)[0].ref.strategy is None


def test_arguments_of_the_engine_itself() -> None:
    key = "+actor_rollout_ref.rollout.engine_kwargs.vllm"
    given = {"max-model-len": 4096, "quantization": "fp8", "data-parallel-size": 2, "async-scheduling": True}
    config, remarks = convert(
        "actor_rollout_ref.rollout.name=vllm", *(f"{key}.{name}={value}" for name, value in given.items())
    )
    own = {"max_model_len": 4096, "quantization": "fp8", "engine_args": {"async_scheduling": True}}
    assert config.rollout.options == own
    assert len(remarks) == 1 and "data-parallel-size=2: CoreRL sets this argument of the engine itself" in remarks[0]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_no_argument_of_an_engine_is_written_that_the_backend_refuses(engine: str) -> None:
    options = pytest.importorskip(f"corerl_{engine}.options")
    keys = [f"+actor_rollout_ref.rollout.engine_kwargs.{engine}.{name}=1" for name in options.OURS]
    config, remarks = convert(f"actor_rollout_ref.rollout.name={engine}", *keys)
    assert "engine_args" not in config.rollout.options
    assert [name for name in options.OURS if not any(f".{name}=1" in each for each in remarks)] == []


def test_the_schedule_of_verls_megatron_falls_linearly_by_default_in_verl_0_4() -> None:
    given = ["model_engine=megatron", "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.actor.optim.lr=1e-5"]
    low = "actor_rollout_ref.actor.optim.min_lr=1e-6"
    values = {version: convert_parsed(hydra.parse([*given, low]), version=version).values for version in ("0.4", "0.9")}
    assert values["0.4"]["actor"]["optim"]["lr_scheduler_type"] == "linear"
    assert values["0.4"]["actor"]["optim"]["min_lr_ratio"] == pytest.approx(0.1)
    assert values["0.9"]["actor"]["optim"] == {"lr": 1e-5}


def test_defaults_that_are_written_give_the_reference_no_strategy_of_its_own() -> None:
    model = "actor_rollout_ref"
    given = [f"{model}.actor.use_kl_loss=True", f"{model}.ref.fsdp_config.param_offload=False"]
    given += [f"{model}.ref.ulysses_sequence_parallel_size=1", f"{model}.ref.fsdp_config.reshard_after_forward=True"]
    assert convert(*given)[0].ref.strategy is None
    config, _ = convert(given[0], f"{model}.ref.fsdp_config.reshard_after_forward=False")
    assert config.ref.strategy == {"name": "fsdp", "reshard_after_forward": False}


def test_sections_of_megatrons_override_config_are_no_keys_of_the_critics_model() -> None:
    key = "critic.model.override_config"
    config, remarks = convert(
        "algorithm.adv_estimator=gae",
        f"{key}.moe_config.freeze_moe_router=True",
        f"{key}.model_config.rope_theta=5",
    )
    assert config.critic.model == {"override_config": {"rope_theta": 5}}
    assert any("moe_config={freeze_moe_router: True}: CoreRL freezes no routers" in each for each in remarks)


def test_the_reference_has_the_actors_transformer_config_and_its_own() -> None:
    key = "megatron.override_transformer_config"
    given = ["model_engine=megatron", "actor_rollout_ref.actor.use_kl_loss=True"]
    given += [f"+actor_rollout_ref.actor.{key}.moe_router_dtype=fp32"]
    assert convert(*given)[0].ref.strategy is None
    config, _ = convert(*given, "actor_rollout_ref.ref.megatron.tensor_model_parallel_size=2")
    own = {"moe_router_dtype": "fp32"}
    assert config.ref.strategy["override_transformer_config"] == own
    config, _ = convert(*given, f"+actor_rollout_ref.ref.{key}.moe_permute_fusion=True")
    both = own | {"moe_permute_fusion": True}
    assert config.ref.strategy == {"name": "megatron", "override_transformer_config": both}


def test_the_critic_has_the_actors_transformer_config_before_verl_0_6_unless_it_is_given_one() -> None:
    key = "megatron.override_transformer_config"
    given = ["model_engine=megatron", "algorithm.adv_estimator=gae"]
    given += [
        f"+actor_rollout_ref.actor.{key}.{each}" for each in ("moe_router_dtype=fp32", "recompute_granularity=full")
    ]
    config, _ = convert(*given)
    assert config.critic.strategy == config.actor.strategy
    assert convert(*given, "actor_rollout_ref.rollout.name=vllm")[0].critic.strategy == "megatron"
    config, _ = convert(*given, f"+critic.{key}.moe_router_dtype=fp64")
    assert config.critic.strategy["override_transformer_config"] == {"moe_router_dtype": "fp64"}
