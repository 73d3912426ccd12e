"""verl's trainers: v1 and its modes, batches, checkpoints and values that CoreRL refuses."""

import pytest

from corerl_verl import hydra
from corerl_verl.from_verl import convert as convert_parsed
from plugins.corerl_verl.tests.conversion import convert

NAME = "actor_rollout_ref.rollout.name=vllm"
V1 = (NAME, "trainer.v1.trainer_mode=sync")
SIZES = ("data.gen_batch_size=1", "data.train_batch_size=64")


def test_the_prompts_that_trainer_v1_fetches_at_a_time_are_no_batch() -> None:
    config, remarks = convert(*V1, *SIZES)
    assert config.data.train_batch_size == 64
    assert any(each.startswith("data.gen_batch_size=1: prompts that verl's trainer v1 fetches") for each in remarks)
    found = convert_parsed(hydra.parse([NAME, *SIZES]), version="0.7")  # whose loader reads them
    assert found.values["data"]["train_batch_size"] == 1
    found = convert_parsed(hydra.parse([*V1, *SIZES, "trainer.use_v1=False"]))
    assert found.values["data"]["train_batch_size"] == 1


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        (("trainer.v1.trainer_mode=sync",), 0),
        (("trainer.v1.trainer_mode=colocate_async", "trainer.v1.colocate_async.num_warmup_batches=1"), 1),
        (("trainer.v1.trainer_mode=separate_async", "trainer.v1.separate_async.staleness_threshold=2"), 2),
        (("trainer.v1.trainer_mode=separate_async", "trainer.v1.separate_async.staleness_threshold=0.5"), 1),
    ],
)
def test_each_mode_of_trainer_v1_has_its_age_of_weights(arguments: tuple[str, ...], steps: int) -> None:
    config, _ = convert(NAME, *arguments)
    assert config.trainer.max_staleness == steps


def test_a_negative_number_of_samples_is_all_of_them() -> None:
    config, remarks = convert("trainer.log_val_generations=-1")
    assert config.trainer.log_val_generations == 1_000_000
    assert any("trainer.log_val_generations=-1" in each for each in remarks)


@pytest.mark.parametrize(
    "argument",
    [
        "trainer.save_freq=soon",
        "actor_rollout_ref.rollout.n=0",
        "data.max_prompt_length=-4",
        "actor_rollout_ref.rollout.val_kwargs.n=many",
        "data.val_files={a: 1}",
        "actor_rollout_ref.actor.ppo_epochs=0",
    ],
)
def test_a_value_that_corerl_refuses_is_named_and_its_default_written(argument: str) -> None:
    config, remarks = convert(argument)  # builds
    key = argument.partition("=")[0].removeprefix("actor_rollout_ref.")
    assert any(each.startswith(key) and "the default is written" in each for each in remarks)
    default, _ = convert()
    assert config == default


@pytest.mark.parametrize(("value", "saves"), [("True", True), ("False", False)])
def test_checkpoints_are_saved_during_training_if_verl_does(value: str, saves: bool) -> None:
    config, _ = convert(f"actor_rollout_ref.actor.checkpoint.async_save={value}")
    assert config.trainer.async_save is saves


def test_the_schedule_wsd_keeps_the_length_of_its_fall() -> None:
    optim = "actor_rollout_ref.actor.optim"
    megatron = ("--config-name=ppo_megatron_trainer", NAME, "trainer.total_training_steps=100")
    wsd = (f"{optim}.lr_decay_style=WSD", f"{optim}.lr_wsd_decay_steps=25", f"{optim}.lr_wsd_decay_style=cosine")
    config, _ = convert(*megatron, *wsd)
    expected = {"name": "wsd", "decay": "cosine", "decay_ratio": 0.25}  # 25 of 100 steps
    assert config.actor.optim.lr_scheduler_type == expected
    config, remarks = convert(*megatron, f"{optim}.lr_decay_style=constant", f"{optim}.lr_decay_steps=9")
    assert config.actor.optim.lr_scheduler_type == "constant"
    assert "actor.optim.lr_decay_steps=9: of a schedule that falls, which the command does not select" in remarks


@pytest.mark.parametrize(
    ("version", "norm"),
    [("0.6", 0.3), ("0.9", 0.7)],  # verl's FSDP workers before 0.8 read grad_clip, its engines optim.clip_grad
)
def test_the_clip_of_gradients_is_the_key_that_the_version_reads(version: str, norm: float) -> None:
    given = [NAME, "actor_rollout_ref.actor.grad_clip=0.3", "actor_rollout_ref.actor.optim.clip_grad=0.7"]
    found = convert_parsed(hydra.parse(given), version=version)
    assert found.values["actor"]["grad_clip"] == norm


def test_a_clip_that_todays_verl_does_not_read_is_written_with_a_remark() -> None:
    config, remarks = convert(NAME, "actor_rollout_ref.actor.grad_clip=0.3")
    assert config.actor.grad_clip == 0.3
    assert any(each.startswith("actor.grad_clip=0.3: verl 0.9 clips by actor.optim.clip_grad, 1.0") for each in remarks)


def test_the_loss_gpg_by_its_older_key() -> None:
    config, _ = convert("actor_rollout_ref.actor.use_gpg_loss=True")
    assert config.actor.policy_loss == "gpg"


def test_sizes_of_captured_graphs_reach_the_engine() -> None:
    config, _ = convert(NAME, "+actor_rollout_ref.rollout.cudagraph_capture_sizes=[1,2,4]")
    assert config.rollout.options == {"engine_args": {"cudagraph_capture_sizes": [1, 2, 4]}}


def test_options_of_a_feature_that_is_off_lose_nothing() -> None:
    model, fsdp = "actor_rollout_ref.model", "actor_rollout_ref.actor.fsdp_config"
    given = (f"{model}.mtp.method=mtp", f"{fsdp}.qat.mode=w4a16", f"{model}.mtp.num_speculative_tokens=2")
    _, remarks = convert(NAME, *given)
    assert remarks == [
        "model.mtp.method=mtp, model.mtp.num_speculative_tokens=2: model.mtp is off, as in CoreRL",
        "actor.fsdp_config.qat.mode=w4a16: actor.fsdp_config.qat is off, as in CoreRL",
    ]
    _, remarks = convert(NAME, *given, f"{model}.mtp.enable=True")
    assert any("CoreRL has no multi-token prediction yet" in each for each in remarks)


def test_a_value_that_verl_has_anyway_is_no_loss() -> None:
    given = [NAME, "data.audio_key=audios", "trainer.device=cuda", "actor_rollout_ref.model.path=m"]
    found = convert_parsed(hydra.parse(given))
    assert not [each for each in found.remarks if each.kind in ("missing", "unknown")]
    found = convert_parsed(hydra.parse([NAME, "data.audio_key=sounds"]))
    assert [each.kind for each in found.remarks if "audio_key" in str(each)] == ["missing"]
