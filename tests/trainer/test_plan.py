"""A run before its models: its length, its updates, its data and its scorers."""

import dataclasses
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corerl.checkpoint import manifest
from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.data.sampler import PromptSampler
from corerl.errors import ConfigError, DataError
from corerl.plugins import load_plugins
from corerl.registry import Entry, Owner, Selected
from corerl.trainer.plan import Plan, make_plan


def plan(batch=12, size=60, **keys):
    """A plan over ``size`` prompts; ``keys`` are ``section__name=value``."""
    config = TrainConfig(ModelConfig("x"))
    config.data.train_batch_size, config.actor.device = batch, "cpu"
    for key, value in keys.items():
        section, _, name = key.partition("__")
        setattr(getattr(config, section), name, value)
    sampler = PromptSampler(size, batch, shuffle=False, seed=0)
    return Plan(config, None, None, None, None, None, [], sampler, {})


def test_a_run_is_so_many_epochs_or_so_many_steps():
    assert plan().total_steps == 5
    assert plan(trainer__total_epochs=3).total_steps == 15
    assert plan(trainer__total_epochs=3, trainer__total_training_steps=4).total_steps == 4


def test_updates_of_the_policy_are_mini_batches_times_epochs_and_none_in_the_critics_warm_up():
    assert plan(actor__ppo_mini_batch_size=4).updates_per_step == 3
    assert plan(actor__ppo_mini_batch_size=4, actor__ppo_epochs=2).updates_per_step == 6
    assert plan(actor__ppo_mini_batch_size=4).policy_updates == 15
    assert plan(actor__ppo_mini_batch_size=4, trainer__critic_warmup=2).policy_updates == 9
    assert plan(actor__ppo_mini_batch_size=4, trainer__critic_warmup=7).policy_updates == 3


def test_updates_of_the_critic_are_counted_by_its_own_sizes_or_else_the_actors():
    actor = {"actor__ppo_mini_batch_size": 4, "actor__ppo_epochs": 2}
    assert plan(**actor).critic_updates == 5 * 2 * 3
    assert plan(**actor, critic__ppo_mini_batch_size=6, critic__ppo_epochs=3).critic_updates == 5 * 3 * 2
    assert plan(**actor, trainer__critic_warmup=2).critic_updates == 30


def selected(kind, name):
    return Selected(Entry(kind, name, lambda: None, Owner("acme", "1")))


def test_the_plan_says_in_two_lines_what_it_will_do(made_up):
    made = plan(actor__ppo_mini_batch_size=4, rollout__n=3)
    made = dataclasses.replace(made, parts=made_up().parts, scorers={"a": selected("scorer", "exact")})
    assert str(made).splitlines() == [
        "5 steps of 12 prompts × 3 responses (36) in 3 updates each, on cpu",
        "scored: 'a' by 'exact'",
    ]
    played = dataclasses.replace(made, parts=dataclasses.replace(made.parts, agent=selected("agent", "calc")))
    assert str(played).splitlines()[1] == "scored: by the agent 'calc' and 'a' by 'exact'"
    alone = dataclasses.replace(played, scorers={})
    assert str(alone).splitlines()[1] == "scored: by the agent 'calc'"
    others = {"rollout.multi_turn.environment": selected("environment", "game")}
    driven = dataclasses.replace(alone, parts=dataclasses.replace(alone.parts, others=others))
    assert str(driven).splitlines()[1] == "scored: by the environment 'game'"


def write(path: Path, count: int, source: str, **columns) -> list[str]:
    rows = [
        {
            "data_source": source,
            "prompt": [{"role": "user", "content": f"{number}?"}],
            "reward_model": {"ground_truth": str(number)},
            **columns,
        }
        for number in range(count)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return [str(path)]


@pytest.fixture
def ready(made_up, tmp_path):
    """A config with ten prompts to train on, two to validate on, and batches of four."""
    made = made_up()
    data = made.config.data
    data.train_files = write(tmp_path / "train.parquet", 10, "acme/train")
    data.val_files = write(tmp_path / "val.parquet", 2, "acme/val")
    data.train_batch_size = made.config.actor.ppo_mini_batch_size = 4
    made.make = lambda: make_plan(made.config, made.parts, made.plugins)
    return made


def test_a_plan_reads_the_data_and_finds_the_scorer_of_each_source(ready, capsys):
    made = ready.make()
    assert (len(made.train_prompts), len(made.val_prompts)) == (10, 2)
    assert {source: scorer.entry.name for source, scorer in made.scorers.items()} == {
        "acme/train": "one",
        "acme/val": "one",
    }
    assert (made.total_steps, made.checkpoint) == (2, None)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["training data", "validation data"]
    assert not Path(ready.config.trainer.output_dir).exists()


def test_prompts_are_drawn_by_the_generated_batch_and_by_the_datas_own_seed(ready):
    def order(plan):
        return next(plan.sampler)

    default = order(ready.make())
    assert len(default) == 4
    ready.config.trainer.seed = 1
    other = order(ready.make())
    assert other != default
    ready.config.data.seed = 0
    assert order(ready.make()) == default
    ready.config.data.gen_batch_size = 6
    assert len(order(ready.make())) == 6
    ready.config.data.shuffle = False
    assert order(ready.make()) == [0, 1, 2, 3, 4, 5]


def test_there_may_be_no_validation_data(ready):
    ready.config.data.val_files = []
    made = ready.make()
    assert made.val_prompts == []
    assert list(made.scorers) == ["acme/train"]


def test_a_source_that_nobody_scores_is_refused_also_of_validation(ready, tmp_path):
    ready.config.data.val_files = write(tmp_path / "val.parquet", 2, "unheard/of")
    with pytest.raises(DataError, match="data_source 'unheard/of' has no scorer"):
        ready.make()


@pytest.mark.parametrize("scored", [True, False])
def test_episodes_need_a_scorer_only_where_their_words_are_scored(ready, tmp_path, scored):
    ready.config.data.train_files = write(tmp_path / "train.parquet", 10, "unheard/of")
    ready.parts = dataclasses.replace(ready.parts, agent=selected("agent", "calc"))
    ready.config.rollout.multi_turn.score_response = scored
    if scored:
        with pytest.raises(DataError, match="no scorer"):
            ready.make()
    else:
        assert ready.make().scorers == {}


def test_media_that_the_engine_does_not_take_are_refused(ready, tmp_path):
    ready.config.data.val_files = write(tmp_path / "val.parquet", 2, "acme/val", images=["a.png"])
    with pytest.raises(DataError, match=r"prompt 0 has 'images', and rollout backend 'mine' takes text alone"):
        ready.make()


def test_an_output_folder_that_cannot_be_written_is_refused_before_the_data_are_read(ready, tmp_path):
    (tmp_path / "file").write_text("")
    ready.config.trainer.output_dir = str(tmp_path / "file" / "runs")
    ready.config.data.train_files = ["nowhere.parquet"]
    with pytest.raises(ConfigError, match=r"^trainer.output_dir: "):
        ready.make()


def test_a_resumed_run_goes_on_with_the_prompts_that_come_next(ready, tmp_path, capsys):
    folder = tmp_path / "runs" / "default" / "20260101-000000"
    checkpoint = folder / "checkpoints" / "global_step_1"
    checkpoint.mkdir(parents=True)
    (folder / "config.yaml").write_text("")
    fresh = ready.make()
    assert fresh.checkpoint is None
    next(fresh.sampler)
    state = {
        "step": 1,
        "sampler": fresh.sampler.state_dict(),
        "kl_coef": None,
        "trackers": {},
        "config": dataclasses.asdict(ready.config),
        "versions": ready.parts.versions(),
    }
    (checkpoint / "state.json").write_text(json.dumps(state))
    manifest.write(checkpoint)
    resumed = ready.make()
    assert (resumed.checkpoint.step, resumed.sampler.state_dict()) == (1, fresh.sampler.state_dict())
    assert capsys.readouterr().err.splitlines()[-1] == f"resuming {checkpoint}"
    ready.config.actor.optim.lr = 0.5
    with pytest.raises(ConfigError, match=r"actor.optim.lr: 1e-06 -> 0.5"):
        ready.make()
    ready.plugins = load_plugins(tuple(ready.config.plugins.load), ("corerl-tools",))
    ready.make()
    assert capsys.readouterr().err.splitlines()[-2] == (
        "the configuration is not compared with that of the checkpoint: pip install corerl-tools"
    )


def test_a_template_whose_end_of_turn_stops_nothing_is_printed(ready, tiny_tokenizer_dir, tmp_path, capsys):
    other = tmp_path / "other"
    other.mkdir()
    for file in tiny_tokenizer_dir.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    settings = json.loads((other / "tokenizer_config.json").read_text())
    settings["eos_token"] = "<|endoftext|>"
    (other / "tokenizer_config.json").write_text(json.dumps(settings))
    ready.config.model.path = str(other)
    ready.make()
    assert capsys.readouterr().err.startswith("the chat template ends a turn with <|im_end|>, which is not among")
