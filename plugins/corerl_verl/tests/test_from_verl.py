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
from corerl_verl import from_verl as from_verl_module
from corerl_verl import hydra
from corerl_verl.from_verl import from_verl
from corerl_verl.keys import TABLE
from corerl_verl.options import VerlFunctionOptions
from corerl_verl.reward_function import verl
from plugins.corerl_verl.tests.conversion import convert

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


def test_what_is_left_out_is_not_among_the_kept_arguments() -> None:
    arguments = hydra.parse(
        shlex.split("""
        algorithm.adv_estimator=grpo actor_rollout_ref.rollout.name=vllm actor_rollout_ref.actor.shuffle=True
        actor_rollout_ref.actor.optim.override_optimizer_config={eps:1e-6}
        algorithm.rollout_correction.bypass_mode=True algorithm.rollout_correction.rollout_is=sequence
        algorithm.rollout_correction.rollout_rs=seq_mean_k2 algorithm.rollout_correction.rollout_rs_threshold=0.1
        """)
    )
    converted = from_verl_module.convert(arguments, version="0.9")
    section = "algorithm.rollout_correction"
    assert converted.kept == ["algorithm.adv_estimator", "rollout.name", f"{section}.rollout_rs_threshold"]
    kinds = {argument.partition("=")[0]: remark.kind for remark in converted.remarks for argument in remark.arguments}
    assert kinds["actor.shuffle"] == "missing" and kinds[f"{section}.rollout_rs"] == "changed"
