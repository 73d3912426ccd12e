"""Keys of verl, and its commands as configs."""

import dataclasses
import shlex
import typing
from pathlib import Path
from typing import Any

import pytest
import yaml

from corerl.cli.main import run
from corerl.config import typed
from corerl.config.load import load
from corerl.config.nearest_keys import dotted_keys
from corerl.contracts.config import TrainConfig
from corerl.contracts.options import selects_part
from corerl.registry.modules import load_file
from corerl_verl.from_verl import from_verl
from corerl_verl.keys import TABLE
from corerl_verl.options import VerlFunctionOptions
from corerl_verl.reward_function import verl

ROOT = Path(__file__).parents[3]
KEYS = dotted_keys(TrainConfig)

COMMAND = shlex.split("""
    algorithm.adv_estimator=grpo data.train_files=train.parquet data.truncation='error' data.train_batch_size=128
    actor_rollout_ref.model.path=model actor_rollout_ref.model.use_remove_padding=True
    actor_rollout_ref.actor.fsdp_config.param_offload=True actor_rollout_ref.actor.ulysses_sequence_parallel_size=4
    actor_rollout_ref.ref.fsdp_config.param_offload=True actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=30000
    actor_rollout_ref.rollout.name=sglang actor_rollout_ref.rollout.gpu_memory_utilization=0.4
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=9
    actor_rollout_ref.actor.clip_ratio=0.1 critic.model.path=other
    custom_reward_function.path=./reward.py custom_reward_function.name=mine
    trainer.logger=["console","tensorboard"] trainer.nnodes=2 +trainer.val_before_train=False
    trainer.default_hdfs_dir=null trainer.balance=True
""")


def takes_options(key: str) -> bool:
    """Whether a key holds a selected part, or a mapping of options."""
    hint: Any = TrainConfig
    for part in key.split("."):
        hint = typing.get_type_hints(hint).get(part) if dataclasses.is_dataclass(hint) else None
    return selects_part(hint) or dict in map(typing.get_origin, (hint, *typing.get_args(hint)))


@pytest.mark.parametrize("key", sorted({here for row in TABLE for here in row.here}))
def test_what_stands_for_a_key_of_verl_is_a_key_or_an_option(key: str) -> None:
    parts = key.split(".")
    assert key in KEYS or any(takes_options(".".join(parts[:end])) for end in range(1, len(parts)))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.verl)
def test_no_key_of_the_table_is_one_of_corerls_and_each_says_something(row: Any) -> None:
    assert row.verl not in KEYS
    assert row.here or row.note


def test_a_command_becomes_a_config_with_verls_defaults_and_reasons_for_what_is_left() -> None:
    values, remarks = from_verl(COMMAND)
    config = typed.build(TrainConfig, values)
    assert (config.algorithm.adv_estimator, config.data.train_files, config.data.train_batch_size) == (
        "grpo",
        ["train.parquet"],
        128,
    )
    assert config.actor.strategy == {"name": "fsdp", "param_offload": True, "ulysses_sequence_parallel_size": 4}
    assert config.actor.policy_loss == {"name": "vanilla", "clip_ratio_low": 0.1, "clip_ratio_high": 0.1}
    assert (config.rollout.name, config.rollout.options) == ("sglang", {"gpu_memory_utilization": 0.4})
    assert config.reward.scorer == {"name": "verl", "path": "./reward.py", "function": "mine"}
    assert config.tracking.loggers == ["console", "tensorboard"]
    assert (config.runtime.name, config.runtime.nnodes, config.trainer.val_before_train) == ("ray", 2, False)
    assert config.runtime.options == {"address": "auto"}
    assert (config.rollout.n, config.actor.use_dynamic_bsz, config.runtime.n_gpus_per_node) == (1, False, 8)
    assert config.model.enable_gradient_checkpointing is True
    assert remarks == [
        "actor.clip_ratio=0.1: written as clip_ratio_low and clip_ratio_high; today's verl reads clip_ratio only if "
        "those are null, and clips at their default of 0.2",
        "trainer.nnodes=2: joins the Ray cluster of this machine: `ray start` on each first, as for verl",
        "trainer.balance=True: there is no such key",
        "critic.model.path=other: advantage estimator grpo has no critic",
        "ref.fsdp_config.param_offload=True, ref.log_prob_max_token_len_per_gpu=30000: the command has no KL penalty, "
        "so no reference",
        "rollout.log_prob_use_dynamic_bsz=True, rollout.log_prob_max_token_len_per_gpu=9: the size of micro-batches "
        "changes no result; CoreRL computes log-probs and values in those of updates",
        "model.use_remove_padding=True: rows are packed (fsdp: actor.strategy.use_remove_padding)",
    ]


def convert(*arguments: str) -> tuple[TrainConfig, list[str]]:
    values, remarks = from_verl(["actor_rollout_ref.model.path=m", *arguments])
    return typed.build(TrainConfig, values), remarks


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
    )
    assert config.model.exclude_modules == ["gate_proj"]
    yarn = {"type": "yarn", "factor": 4.0}
    assert config.model.override_config == {"max_position_embeddings": 131072, "rope_scaling": yarn, "rope_theta": 5}
    assert config.model.attn_implementation == "eager"
    assert remarks == ["model.override_config.attention_dropout=0.1: models are trained without dropout"]


def test_of_two_names_of_a_clip_width_verls_wins() -> None:
    low, high = "actor_rollout_ref.actor.clip_ratio_low=0.1", "actor_rollout_ref.actor.clip_ratio_high=0.28"
    for arguments in (
        [high, low, "actor_rollout_ref.actor.clip_ratio=0.2"],
        ["actor_rollout_ref.actor.clip_ratio=0.2", low, high],
    ):
        config, remarks = convert(*arguments)
        assert remarks == []
        assert config.actor.policy_loss == {"name": "vanilla", "clip_ratio_low": 0.1, "clip_ratio_high": 0.28}
    config, remarks = convert(f"{low[:-3]}null", f"{high[:-4]}null", "actor_rollout_ref.actor.clip_ratio=0.3")
    assert remarks == []
    assert config.actor.policy_loss == {"name": "vanilla", "clip_ratio_low": 0.3, "clip_ratio_high": 0.3}


def test_options_of_losses_that_are_not_selected_are_named_and_left_out() -> None:
    config, remarks = convert(
        "actor_rollout_ref.actor.policy_loss.loss_mode=sapo",
        "actor_rollout_ref.actor.clip_ratio_high=0.28",
        "actor_rollout_ref.actor.policy_loss.kl_cov_ratio=0.002",
        "actor_rollout_ref.actor.tau_neg=1.5",
    )
    assert config.actor.policy_loss == {"name": "sapo", "tau_neg": 1.5}
    assert remarks == [
        "actor.clip_ratio_high=0.28, actor.policy_loss.kl_cov_ratio=0.002: verl's policy loss sapo does not read it "
        "either"
    ]


def test_options_of_a_loss_reach_it() -> None:
    config, remarks = convert(
        "actor_rollout_ref.actor.policy_loss={loss_mode: kl_cov, ppo_kl_coef: 0.5}",
        "actor_rollout_ref.actor.policy_loss.kl_cov_ratio=0.002",
    )
    options = {"kl_cov_ratio": 0.002, "ppo_kl_coef": 0.5, "kl_estimator": "abs"}
    assert config.actor.policy_loss == {"name": "kl_cov", **options}
    assert remarks == [
        "actor.policy_loss=kl_cov: verl chooses tokens from each micro-batch, CoreRL from the whole mini-batch; "
        "verl's abs(d) makes the first update depend on rounding, kl_estimator=k3 does not"
    ]
    config, remarks = convert(
        "actor_rollout_ref.actor.policy_loss.loss_mode=dro", "actor_rollout_ref.actor.policy_loss.dro_beta=0.2"
    )
    assert (config.actor.policy_loss, remarks) == ({"name": "dro", "beta": 0.2}, [])
    assert any("dro_beta" in remark for remark in convert("actor_rollout_ref.actor.policy_loss.loss_mode=dro")[1])


def test_a_loss_that_verl_aggregates_its_own_way_says_what_that_changes() -> None:
    gspo = "actor_rollout_ref.actor.policy_loss.loss_mode=gspo"
    config, remarks = convert(
        gspo, "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum", "critic.loss_agg_mode=token-sum"
    )
    assert (config.actor.loss_agg_mode, config.critic.loss_agg_mode) == ("seq-mean-token-mean", "token-sum")
    assert remarks == [
        "actor.loss_agg_mode=seq-mean-token-sum: verl always aggregates the terms of gspo by seq-mean-token-mean"
    ]
    _, remarks = convert(gspo, "actor_rollout_ref.actor.use_kl_loss=True")
    assert remarks == [
        "actor.policy_loss.loss_mode=gspo: verl aggregates the KL loss and the entropy by token-mean, CoreRL all of "
        "the loss by seq-mean-token-mean"
    ]
    assert (
        convert(gspo, "actor_rollout_ref.actor.use_kl_loss=False", "actor_rollout_ref.actor.entropy_coeff=0")[1] == []
    )


def test_the_critic_has_the_aggregation_of_the_actor_as_in_verl() -> None:
    config, _ = convert("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum")
    assert config.critic.loss_agg_mode == "seq-mean-token-sum"
    config, _ = convert("actor_rollout_ref.actor.policy_loss.loss_mode=gspo")
    assert config.critic.loss_agg_mode == "token-mean"


def test_a_loss_or_estimator_that_is_not_verls_is_named() -> None:
    config, remarks = convert(
        "actor_rollout_ref.actor.policy_loss.loss_mode=up", "algorithm.adv_estimator=mine", "algorithm.gamma=0.9"
    )
    assert (config.actor.policy_loss, config.algorithm.adv_estimator) == ("up", "mine")
    assert remarks == [
        "actor.policy_loss=up: CoreRL has no policy loss of verl by this name; a file or a plugin must give it, and "
        "its options",
        "algorithm.adv_estimator=mine, algorithm.gamma=0.9: CoreRL has no advantage estimator of verl by this name; a "
        "file or a plugin must give it, and its options",
    ]


def test_math_dapo_scores_as_verls_unless_something_else_scores() -> None:
    expected = {"name": "math_dapo", "wrong_score": -1.0, "fallback_to_boxed": True}
    for arguments in ([], ["reward_model.reward_manager=dapo"], ["reward_model.enable=False"]):  # verl's own rewards
        config, _ = convert(*arguments)
        assert config.reward.scorers == dict.fromkeys(("aime*", "math", "math_dapo", "math_dapo_*"), expected)
    for argument in ("custom_reward_function.path=./f.py", "reward_model.enable=True"):
        assert convert(argument)[0].reward.scorers == {}


BUFFERS = {
    "reward_model.overlong_buffer": "reward_model.reward_manager=dapo",
    "custom_reward_function.overlong_buffer": "reward_model.reward_manager=dapo",
    "reward_model.reward_kwargs.overlong_buffer_cfg": "reward_model.reward_manager=dapo",
    "reward.reward_kwargs.overlong_buffer_cfg": "reward.reward_manager.name=dapo",
}


@pytest.mark.parametrize("section", BUFFERS)
def test_the_manager_dapo_penalises_length_only_if_verls_does(section: str) -> None:
    buffer = [f"+{section}.len=512", f"+{section}.penalty_factor=0.5", f"+{section}.log=False"]
    config, remarks = convert(BUFFERS[section], f"{section}.enable=True", *buffer)
    assert config.reward.manager == {"name": "dapo", "overlong_buffer_len": 512, "overlong_penalty_factor": 0.5}
    for arguments in ([f"{section}.enable=False", *buffer], []):
        config, more = convert(BUFFERS[section], *arguments)
        assert (config.reward.manager, remarks, more) == ("parallel", [], [])


def test_values_above_which_verl_does_the_same_are_in_corerls_range() -> None:
    cispo = "actor_rollout_ref.actor.policy_loss.loss_mode=cispo"
    config, remarks = convert(cispo, "actor_rollout_ref.actor.clip_ratio_low=10")
    assert (config.actor.policy_loss, remarks) == ({"name": "cispo", "clip_ratio_low": 1.0}, [])


def test_the_older_switch_between_tokens_and_sequences() -> None:
    switch = "actor_rollout_ref.actor.use_token_level_loss"
    assert convert(f"{switch}=False")[0].actor.loss_agg_mode == "seq-mean-token-mean"
    assert convert(f"{switch}=True")[0].actor.loss_agg_mode == "token-mean"
    assert (
        convert(f"{switch}=False", "actor_rollout_ref.actor.loss_agg_mode=token-sum")[0].actor.loss_agg_mode
        == "token-sum"
    )


def test_dynamic_sampling_has_no_limit_unless_verls_has_one() -> None:
    enabled, limit = "algorithm.filter_groups.enable=True", "algorithm.filter_groups.max_num_gen_batches"
    for arguments, expected in (
        ([], 10),
        ([enabled], 1_000_000),
        ([enabled, f"{limit}=0"], 1_000_000),
        ([enabled, f"{limit}=5"], 5),
    ):
        assert convert(*arguments)[0].algorithm.filter_groups.max_num_gen_batches == expected


def test_verls_newer_names_of_engine_and_reward() -> None:
    config, remarks = convert(
        "model_engine=megatron",
        "reward.custom_reward_function.path=./f.py",
        "reward.custom_reward_function.name=g",
        "reward.reward_manager.name=naive",
    )
    scorer = {"name": "verl", "path": "./f.py", "function": "g"}
    assert (config.actor.strategy, config.reward.scorer, config.reward.manager) == ("megatron", scorer, "parallel")
    assert (config.reward.scorers, remarks) == ({}, [])


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


def test_verls_names_of_values_become_corerls() -> None:
    values, _ = from_verl(
        [
            "actor_rollout_ref.actor.strategy=fsdp2",
            "actor_rollout_ref.rollout.dtype=bfloat16",
            "trainer.resume_mode=resume_path",
            "trainer.resume_from_path=runs/x",
            "trainer.logger=console",
        ]
    )
    assert (values["actor"]["strategy"], values["model"]["dtype"]) == ("fsdp", "bf16")
    assert (values["trainer"]["resume_mode"], values["tracking"]["loggers"]) == ("runs/x", ["console"])


def test_the_command_prints_what_load_reads(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["config", "from-verl", "--config-name=ppo_trainer", *COMMAND]) == 0
    file = tmp_path / "c.yaml"
    file.write_text(capsys.readouterr().out)
    assert yaml.safe_load(file.read_text()) == from_verl(COMMAND)[0]
    assert load(TrainConfig, file).rollout.name == "sglang"


def test_an_argument_that_is_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "from-verl", "rollout.n"]) == 2
    assert "'rollout.n' is not an override; one is written key=value" in capsys.readouterr().err


def test_the_page_has_the_present_tables() -> None:
    page = (ROOT / "docs" / "verl.md").read_text()
    assert page == load_file(str(ROOT / "scripts" / "verl_page.py")).render(page), "run scripts/verl_page.py"


def test_the_reward_function_of_the_page_scores(tmp_path: Path) -> None:
    file = tmp_path / "my_reward.py"
    file.write_text((ROOT / "docs" / "verl.md").read_text().split("```python\n")[1].split("```")[0])
    assert verl("so it is 4", "4", "x", {}, VerlFunctionOptions(str(file))) == 1.0


ON_CPU = [
    f"+actor_rollout_ref.actor.optim.override_optimizer_config.{each}"
    for each in ("optimizer_cpu_offload=True", "optimizer_offload_fraction=0.5", "foreach=True")
]


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
        (["actor_rollout_ref.actor.optim.optimizer=Muon"], {"optimizer": "muon"}, ""),
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
