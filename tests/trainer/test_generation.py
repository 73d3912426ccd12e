"""``corerl generate`` below its command: parts, what they are made of, and what stands in the rows."""

import dataclasses
import json
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corerl.batch.rollouts import Episode
from corerl.contracts.config import DataConfig, ModelConfig, MultiTurnConfig, RolloutConfig, TrainConfig
from corerl.contracts.rollout_backends import SamplingParams
from corerl.data.prompts import Prompt
from corerl.errors import ConfigError, DataError
from corerl.plugins import load_plugins
from corerl.registry import Entry, Owner, Selected
from corerl.seeding import Seeds
from corerl_envs import Start, Turn
from corerl_testing.tiny_model import tiny_model
from corerl_tools.evaluation.files import read_rows
from corerl_tools.generate import generation
from corerl_tools.generate.generation import generate, plan_generation


def test_what_is_missing_is_cut_into_batches_each_within_its_gap():
    missing = [range(0, 5), range(7, 9), range(12, 16)]
    batches = [(items.start, items.stop) for items in generation._batches(missing, 2)]
    assert batches == [(0, 2), (2, 4), (4, 5), (7, 9), (12, 14), (14, 16)]


def test_the_digest_follows_what_the_responses_depend_on():
    prompt = Prompt(0, (1, 2), [], "s", "4", {})

    def digest(**changed):
        return generation._digest([dataclasses.replace(prompt, **changed)])

    assert digest() == digest(index=9, extra_info={"a": 1})
    others = [digest(token_ids=(1, 3)), digest(ground_truth="5"), digest(data_source="t"), digest(media={"images": 1})]
    assert len({digest(), *others}) == 5
    assert generation._digest([prompt, prompt]) != digest()
    assert len(digest()) == 16


def test_the_stamp_of_a_model_changes_when_one_of_its_files_is_written_again(tmp_path):
    def stamp():
        return generation._weights_stamp(TrainConfig(ModelConfig(str(tmp_path))))

    (tmp_path / "model.safetensors").write_text("weights")
    (tmp_path / "README.md").write_text("a")
    first = stamp()
    assert len(first) == 16
    (tmp_path / "README.md").write_text("bb")
    assert stamp() == first
    (tmp_path / "config.json").write_text("{}")
    second = stamp()
    assert second != first
    (tmp_path / "model.safetensors").write_text("other weights")
    assert stamp() != second
    assert generation._weights_stamp(TrainConfig(ModelConfig("org/name"))) == ""


def test_fields_are_plain_values_under_their_section():
    plain = generation._plain("sampling", SamplingParams(max_tokens=4, stop_token_ids=(2,)))
    assert plain["sampling.max_tokens"] == 4
    assert plain["sampling.stop_token_ids"] == [2]  # as JSON has it
    assert all(name.startswith("sampling.") for name in plain)


def plan(log_probs=False, n=1, **multi_turn):
    config = TrainConfig(ModelConfig("x"), rollout=RolloutConfig(n=n, multi_turn=MultiTurnConfig(**multi_turn)))
    return SimpleNamespace(config=config, sampling=SamplingParams(max_tokens=8, n=n), log_probs=log_probs)


def test_a_row_has_its_prompt_its_response_and_its_place(scored_rollouts):
    rollouts = scored_rollouts([0.0] * 4, n=2, lengths=[1, 2, 3, 4]).rollouts
    rows = list(generation._rows(plan(n=2), rollouts, [11, 12]))
    assert rows[3] == {
        "data_source": "acme/sums",
        "prompt": [],
        "response": "text 3",
        "ground_truth": "1",
        "extra_info": {},
        "prompt_index": 1,
        "sample": 1,
        "seed": 12,
        "prompt_length": 2,
        "response_length": 4,
        "max_response_length": 8,
        "finish_reason": "stop",
    }
    assert [(row["prompt_index"], row["sample"], row["seed"]) for row in rows] == [
        *((0, 0, 11), (0, 1, 11), (1, 0, 12), (1, 1, 12))
    ]
    [row, *_] = generation._rows(plan(log_probs=True, n=2), rollouts, [11, 12])
    assert (row["token_ids"], row["log_probs"]) == ([20], [-0.5])
    assert "response_mask" not in row


@pytest.mark.parametrize(("score_response", "score"), [(True, None), (False, 0.75)])
def test_an_episode_has_its_turns_and_a_score_where_the_environment_alone_gives_it(
    scored_rollouts, score_response, score
):
    rollouts = scored_rollouts([0.0]).rollouts
    object.__setattr__(rollouts, "episodes", [Episode([True, False], [{"role": "tool", "content": "4"}], reward=0.75)])
    [row] = generation._rows(plan(log_probs=True, score_response=score_response), rollouts, [11])
    assert (row["episode"], row["environment_reward"]) == ([{"role": "tool", "content": "4"}], 0.75)
    assert row["response_mask"] == [True, False]
    assert row.get("score") == score


@pytest.fixture
def ready(tmp_path):
    """``ready(section__key=value, …)``: a config of the tiny model, six prompts and ``hf``."""
    pytest.importorskip("corerl_hf")
    rows = [
        {"data_source": "s", "prompt": [{"role": "user", "content": f"{n}"}], "reward_model": {"ground_truth": "1"}}
        for n in range(6)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "prompts.parquet")

    def make(**keys):
        config = TrainConfig(
            ModelConfig(str(tiny_model()), dtype="fp32"),
            data=DataConfig(val_files=[str(tmp_path / "prompts.parquet")], max_response_length=4),
            rollout=RolloutConfig(n=2),
        )
        config.actor.device = "cpu"
        for key, value in keys.items():
            section, _, name = key.partition("__")
            setattr(getattr(config, section), name, value)
        return config

    return make


@pytest.fixture
def planned(ready, tmp_path):
    """``planned(out, **keys and arguments of plan_generation)``."""

    def make(out="out.parquet", greedy=False, batch_size=4, log_probs=False, **keys):
        arguments = {"greedy": greedy, "batch_size": batch_size, "log_probs": log_probs}
        return plan_generation(ready(**keys), load_plugins((), ()), tmp_path / out, **arguments)

    return make


def test_a_plan_says_what_will_be_generated_and_what_it_depends_on(planned):
    made = planned()
    assert str(made) == f"6 prompts × 2 responses from {tiny_model()}, by 'hf' on cpu"
    assert made.sampling.n == 2
    assert {"model", "state of the weights", "dtype", "backend", "seed", "log_probs", "prompts"} <= set(made.request)
    assert json.loads(json.dumps(made.request)) == made.request
    changed = {
        "dtype": planned(model__dtype="auto"),
        "seed": planned(trainer__seed=1),
        "log_probs": planned(log_probs=True),
        "sampling.temperature": planned(rollout__temperature=0.5),
    }
    for name, other in changed.items():
        assert {key for key in made.request if made.request[key] != other.request[key]} == {name}


def test_a_greedy_plan_is_one_response_a_prompt_whatever_rollout_says(planned):
    made = planned(greedy=True)
    assert (made.sampling.n, made.sampling.temperature) == (1, 0.0)


def test_the_environment_is_named_and_its_limits_are_part_of_the_request(planned, monkeypatch):
    pytest.importorskip("corerl_envs")
    names = [entry.name for entry in load_plugins((), ()).registries.environments]
    made = planned(rollout__multi_turn=MultiTurnConfig(environment=names[0], max_assistant_turns=3))
    assert str(made).endswith(f", in turns with '{names[0]}'")
    assert made.request["multi_turn.max_assistant_turns"] == 3
    assert not any(name.startswith("multi_turn.") for name in planned().request)


def test_requests_that_cannot_be_met_are_refused(planned, tmp_path):
    with pytest.raises(ConfigError, match=r"--out: must end in .parquet, not '.csv'"):
        planned("out.csv")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--out: "):
        planned("file/out.parquet")
    rows = [
        {
            "data_source": "s",
            "prompt": [{"role": "user", "content": "1"}],
            "reward_model": {"ground_truth": "1"},
            "images": ["a.png"],
        }
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "media.parquet")
    with pytest.raises(DataError, match="prompt 0 has 'images', and rollout backend 'hf' takes text alone"):
        planned(data__val_files=[str(tmp_path / "media.parquet")])


def test_an_engine_that_is_not_here_is_refused_before_the_model_is_read(planned, tmp_path):
    pytest.importorskip("corerl_vllm")
    nowhere = {"python": str(tmp_path / "python")}
    with pytest.raises(ConfigError, match=r"rollout\.options\.python"):
        planned(rollout__name="vllm", rollout__options=nowhere, model__path=str(tmp_path / "nowhere"))


def test_an_environment_is_closed_when_all_is_generated(planned):
    class Bell:
        closed = 0

        def reset(self, task, seed):
            return Start()

        def step(self, state, response):
            return Turn(reward=0.5, done=True)

        def close(self):
            Bell.closed += 1

    environment = Selected(Entry("environment", "bell", Bell, Owner("acme", "1")))
    agent = load_plugins((), ()).registries.agents.select("environment")
    out = generate(dataclasses.replace(planned(), agent=agent, others={"rollout.multi_turn.environment": environment}))
    assert [row["environment_reward"] for _, row in read_rows(str(out))] == [0.5] * 12
    assert Bell.closed == 1


def responses(path):
    return [(row["prompt_index"], row["sample"], row["response"]) for _, row in read_rows(str(path))]


def test_the_responses_depend_on_the_place_of_a_prompt_and_not_on_the_batches(planned, capsys):
    whole = generate(planned("whole.parquet", batch_size=6))
    parts = generate(planned("parts.parquet", batch_size=4))
    assert responses(whole) == responses(parts)
    assert [(prompt, sample) for prompt, sample, _ in responses(whole)] == [
        (prompt, sample) for prompt in range(6) for sample in range(2)
    ]
    seeds = [row["seed"] for _, row in read_rows(str(whole))]
    assert seeds[::2] == seeds[1::2] == Seeds(0).validation_requests(6)
    assert "were generated before" not in capsys.readouterr().err


def test_a_run_that_was_cut_off_generates_what_is_missing_and_a_complete_file_is_left_alone(
    planned, tmp_path, capsys, monkeypatch
):
    whole = responses(generate(planned("whole.parquet")))
    write, asked = generation.PartedFile.write, []

    def cut_off(file, items, table):
        asked.append(items)
        if len(asked) == 2:
            raise OSError("no space left")
        write(file, items, table)

    monkeypatch.setattr(generation.PartedFile, "write", cut_off)
    with pytest.raises(OSError, match="no space left"):
        generate(planned())
    assert not (tmp_path / "out.parquet").exists()
    capsys.readouterr()
    assert responses(generate(planned())) == whole
    assert asked == [range(0, 4), range(4, 6), range(4, 6)]
    assert "4 of 6 prompts were generated before" in capsys.readouterr().err
    generate(planned())
    assert f"{tmp_path}/out.parquet is already complete" in capsys.readouterr().err
    assert len(asked) == 3
    with pytest.raises(ConfigError, match="made with another seed"):
        generate(planned(trainer__seed=1))
    other = generate(planned(trainer__seed=1), overwrite=True)
    assert responses(other) != whole
