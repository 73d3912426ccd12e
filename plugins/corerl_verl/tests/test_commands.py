"""Commands of verl in the style of published ones keep their meaning, or say what they do not keep."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from corerl.cli.main import run
from corerl.registry.modules import load_file
from corerl_verl import from_verl
from corerl_verl.sources import Source, converted, read

ROOT = Path(__file__).parents[3]
COMMANDS = Path(__file__).parent / "commands"
FILES = sorted(COMMANDS.iterdir())
ENVIRONMENT = {"HOME": "/home/u", "PWD": "/work"}


@pytest.fixture(scope="module")
def measure() -> Any:
    return load_file(str(ROOT / "scripts" / "verl_commands.py"))


def source(name: str, launch: int = 1, *arguments: str) -> Source:
    return read([str(COMMANDS / f"{name}.sh"), *arguments], ENVIRONMENT, launch)


def config(name: str, launch: int = 1) -> tuple[dict[str, Any], list[str]]:
    result = converted(source(name, launch))
    return result.values, list(map(str, result.remarks))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_builds_passes_the_check_loses_no_key_and_changes_nothing_without_a_remark(file: Path, measure: Any) -> None:
    found = measure.outcomes(file)
    assert found
    for each in found:
        assert (each.error, each.wrong, each.lost, each.silent) == ("", (), (), ())


def test_there_are_forty_three() -> None:
    assert len(FILES) == 43


@pytest.mark.parametrize(
    ("name", "left_out", "difference"),
    [
        ("dapo_old", "model.enable_gradient_checkpointing", "checkpointing: verl True, here False"),
        ("gspo", "algorithm.kl_penalty", None),
        ("two_runs", "trainer.total_epochs", "epochs: verl 30, here 1"),
    ],
)
def test_the_comparison_sees_a_default_that_is_not_written(
    name: str, left_out: str, difference: str | None, measure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_verl, "WRITTEN", tuple(key for key in from_verl.WRITTEN if key != left_out))
    assert measure.outcome(source(name), name).silent == ((difference,) if difference else ())


def test_the_comparison_sees_a_lost_penalty(measure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [rule for rule in from_verl.RULES if rule.__name__ != "rewards"]
    monkeypatch.setattr(from_verl, "RULES", rules)
    silent = measure.outcome(source("dapo_buffer_new"), "x").silent
    assert [sentence for sentence in silent if "penalty" in sentence] == [
        "length penalty: verl (512, 0.5), here (None, 1.0)"
    ]


def test_dapo_penalises_and_filters_as_verl_does() -> None:
    old, _ = config("dapo_old")
    assert old["reward"]["manager"] == {
        "name": "dapo",
        "overlong_buffer_len": 4096,
        "overlong_penalty_factor": 1.0,
    }
    assert old["algorithm"]["filter_groups"]["filter"] == {"name": "dynamic_sampling", "metric": "acc"}
    assert (old["data"]["train_batch_size"], old["data"]["gen_batch_size"]) == (512, 1536)
    assert old["actor"]["optim"]["lr_warmup_steps"] == 10 * 512 // 32
    assert (old["runtime"]["nnodes"], old["runtime"]["options"]) == (16, {"address": "auto"})
    new, _ = config("dapo_new")
    assert new["reward"]["manager"] == "parallel"  # enable=False
    assert new["algorithm"]["filter_groups"]["filter"]["metric"] == "score"
    short, remarks = config("dapo_buffer_new")
    assert short["reward"]["manager"]["max_resp_len"] == 1024
    assert any("verl's penalty grows beyond it" in remark for remark in remarks)


def test_the_critic_has_a_strategy_with_its_own_options() -> None:
    values, remarks = config("ppo_gsm8k")
    assert values["critic"]["strategy"] == {"name": "fsdp", "param_offload": True}
    assert values["critic"]["value_loss"] == {"name": "clipped", "cliprange_value": 0.4}
    values, _ = config("engine_by_case")
    assert values["critic"]["strategy"] == {
        "name": "megatron",
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
    }
    assert values["actor"]["strategy"]["pipeline_model_parallel_size"] == 2
    values, remarks = config("reward_model")
    assert any("verl's size is that of all 8 GPUs, CoreRL's 16 that of one GPU" in remark for remark in remarks)
    assert (
        values["critic"]["model"]["enable_gradient_checkpointing"] != values["model"]["enable_gradient_checkpointing"]
    )


def test_engines_get_their_own_arguments_alone() -> None:
    values, remarks = config("grpo_megatron_annotated")
    assert values["rollout"]["options"] == {"engine_args": {"max_running_requests": 64}}
    assert values["rollout"]["val_kwargs"] == {"do_sample": True, "temperature": 0.6}
    assert remarks[0].startswith("the script: bash ends the command at a comment")
    values, _ = config("lora_sglang")
    assert values["rollout"]["options"] == {"attention_backend": "fa3", "load_format": "auto"}
    assert values["trainer"]["test_freq"] == -1


def test_functions_of_verl_are_called_through_adapters() -> None:
    values, remarks = config("own_functions")
    assert values["reward"]["scorer"] == {
        "name": "verl",
        "path": "./reward.py",
        "function": "score",
        "kwargs": {"weight": 0.5},
    }
    assert values["data"]["apply_chat_template_kwargs"] == {"enable_thinking": False}
    assert values["data"]["custom_cls"] == "./corerl_data.py:MyData"
    assert any("MyData = adapted(Data)" in remark for remark in remarks)
    values, _ = config("batch_function")
    assert values["reward"]["manager"] == {"name": "verl_batch", "path": "./reward.py", "function": "scores"}


def test_a_fully_asynchronous_step_lies_between_two_exchanges_of_weights() -> None:
    values, _ = config("fully_async")
    assert values["data"]["train_batch_size"] == 32 * 16
    assert values["trainer"]["total_training_steps"] == 100
    assert (values["trainer"]["max_staleness"], values["trainer"]["test_freq"]) == (1, 10)
    assert (values["rollout"]["nnodes"], values["rollout"]["n_gpus_per_node"]) == (1, 4)


def test_each_training_of_a_script_can_be_chosen() -> None:
    assert config("two_runs", 2)[0]["actor"]["optim"]["lr"] == 2e-6
    assert any("the script starts 2" in remark for remark in config("two_runs")[1])


def test_further_arguments_come_last(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(COMMANDS / "two_runs.sh")
    assert run(["config", "from-verl", "--launch", "2", file, "trainer.total_epochs=7"]) == 0
    out = capsys.readouterr().out
    assert yaml.safe_load(out)["trainer"]["total_epochs"] == 7
    headings = ("kept (", "changed in meaning:", "left out: no effect on the result:")
    assert all(f"# {heading}" in out for heading in headings[:2])
    assert "# read with the defaults of verl 0." in out


def test_a_config_of_verl_and_one_named_by_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config").mkdir()
    text = "defaults: [ppo_trainer, _self_]\ndata: {train_batch_size: 48, train_files: t.parquet}\n"
    (tmp_path / "config" / "mine.yaml").write_text(f"{text}actor_rollout_ref: {{rollout: {{name: vllm, n: 3}}}}\n")
    script = tmp_path / "run.sh"
    script.write_text("python3 -m verl.trainer.main_ppo --config-name=mine actor_rollout_ref.rollout.n=5\n")
    values = converted(read([str(script)], ENVIRONMENT)).values
    assert (values["data"]["train_batch_size"], values["rollout"]["n"]) == (48, 5)
    values = converted(read([str(tmp_path / "config" / "mine.yaml"), "data.seed=3"], ENVIRONMENT)).values
    assert (values["rollout"]["n"], values["data"]["seed"]) == (3, 3)
    assert run(["config", "from-verl", str(tmp_path / "none.sh")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_the_version_of_verl_is_guessed_or_given() -> None:
    assert converted(source("two_runs")).version == "0.5"  # without rollout.name, which is required since 0.6
    assert converted(source("gspo")).version == "0.9"
    assert converted(source("two_runs"), "0.3").values["actor"]["entropy_coeff"] == 0.001


def test_a_training_in_a_document_has_the_variables_of_its_shells() -> None:
    values, _ = config("slurm_document")
    assert (values["model"]["path"], values["actor"]["optim"]["lr"]) == ("/models/Qwen2.5-7B", 2e-6)
    values, _ = config("written_script")
    assert (values["rollout"]["n"], values["actor"]["optim"]["lr"]) == (16, 1e-6)
    values, _ = config("document_of_a_file")
    assert values["algorithm"]["adv_estimator"] == "grpo"
    values, _ = config("read_arrays")
    assert (values["rollout"]["n"], values["trainer"]["save_freq"], values["trainer"]["total_epochs"]) == (6, 7, 3)
    values, remarks = config("seeds_in_braces", 2)
    assert values["data"]["train_files"] == [f"/data/shard_{number}.parquet" for number in (1, 2, 3)]
    assert values["data"]["seed"] == 2 and "training 2 of 2" in remarks[0]


def test_an_array_that_is_set_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        'A=()\nTRAIN "${A[@]}" "${B[@]}"\n'.replace("TRAIN", "python3 -m verl.trainer.main_ppo")
    )
    found = read([str(tmp_path / "run.sh")], {})
    assert found.launch.arguments == []
    assert [str(remark) for remark in found.remarks] == ["$B: is set nowhere: the command gets no word for it"]


def test_interpolations_of_a_users_config_are_resolved(capsys: pytest.CaptureFixture[str]) -> None:
    own = str(COMMANDS / "own_config.yaml")
    values = converted(
        read([own, "trainer.project_name=${oc.env:NONE,p}-${data.train_batch_size}"], {"HOME": "/h"})
    ).values
    assert values["data"]["train_files"] == ["/h/data/train.parquet"]
    assert values["actor"]["ppo_mini_batch_size"] == 64
    assert values["tracking"]["project_name"] == "p-64"


def test_arguments_without_effect_are_not_kept(capsys: pytest.CaptureFixture[str]) -> None:
    rollout = "actor_rollout_ref.rollout"
    given = [f"{rollout}.name=sglang", f"{rollout}.limit_images=4", f"{rollout}.n=1", "trainer.resume_mode=x"]
    assert run(["config", "from-verl", *given, "trainer.max_actor_ckpt_to_keep=some"]) == 0
    printed = capsys.readouterr().out
    assert "rollout.limit_images=4: without effect, given the other arguments" in printed
    assert "trainer.max_actor_ckpt_to_keep=some: has no effect: a text is not read here" in printed
    assert "trainer.resume_mode=x: verl has auto, disable and resume_path; written as auto" in printed
    assert "# kept (2): rollout.name, rollout.n\n" in printed
