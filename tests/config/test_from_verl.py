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
from corerl.config.from_verl import DEFAULTS, from_verl
from corerl.config.load import load
from corerl.config.nearest_keys import dotted_keys
from corerl.config.schema import TrainConfig
from corerl.config.verl_keys import TABLE
from corerl.registry.modules import load_file

ROOT = Path(__file__).parents[2]
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
    return hint is Any or typing.get_origin(hint) is dict


@pytest.mark.parametrize("key", sorted({here for row in TABLE for here in row.here} | set(DEFAULTS)))
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
    assert (config.actor.clip_ratio_low, config.actor.clip_ratio_high, config.critic.path) == (0.1, 0.1, "other")
    assert (config.rollout.name, config.rollout.options) == ("sglang", {"gpu_memory_utilization": 0.4})
    assert config.ref.log_prob_max_token_len_per_gpu == 30000
    assert config.reward.scorer == "./reward.py:mine"
    assert config.tracking.loggers == ["console", "tensorboard"]
    assert (config.runtime.name, config.runtime.nnodes, config.trainer.val_before_train) == ("ray", 2, False)
    assert (config.rollout.n, config.actor.use_dynamic_bsz, config.runtime.n_gpus_per_node) == (1, False, 8)
    packed, reference, micro_batches, unknown = remarks
    assert packed.startswith("model.use_remove_padding=True: ")
    assert reference.startswith("ref.fsdp_config.param_offload=True: the reference has the strategy of the actor")
    assert micro_batches.startswith(
        "rollout.log_prob_use_dynamic_bsz=True, rollout.log_prob_max_token_len_per_gpu=9: log-probs are computed in "
    )
    assert unknown == "trainer.balance=True: there is no such key"


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
    assert values["actor"]["strategy"] == strategy


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
    assert load_file(str(file)).score("so it is 4", "4", "x", {}) == 1.0
