"""Profiles of chosen steps and ranks: which files are written, and what they contain."""

import gzip
import json
import os

import pytest

from corerl.cli.main import run
from ray_clusters import local_cluster

further = pytest.mark.skipif("CORERL_EVERY_COMBINATION" not in os.environ, reason="set CORERL_EVERY_COMBINATION=1")

TINY = """
model: {{path: {material}/model}}
data:
  {{train_files: [{material}/data/train.parquet], train_batch_size: 4, max_prompt_length: 64, max_response_length: 6}}
actor: {{device: cpu, ppo_mini_batch_size: 4}}
rollout: {{n: 2}}
reward: {{scorer: {folder}/reward.py:score, manager: naive}}
trainer: {{total_training_steps: 2, val_before_train: false, save_huggingface: never}}
"""


@pytest.fixture
def train(material, tmp_path):
    """Train with overrides; returns the exit code and the paths of profiles, relative to their folder."""
    (tmp_path / "config.yaml").write_text(TINY.format(material=material, folder=tmp_path))
    (tmp_path / "reward.py").write_text("def score(response, *rest):\n    return float(len(response) % 2)\n")

    def start(*overrides):
        code = run(["train", str(tmp_path / "config.yaml"), f"trainer.output_dir={tmp_path / 'runs'}", *overrides])
        found = (tmp_path / "runs").rglob("profiles")
        return code, {str(path.relative_to(folder)): path for folder in found for path in folder.rglob("*.*")}

    return start


def events(path):
    with gzip.open(path) as file:
        return json.load(file)["traceEvents"]


def test_a_trace_of_one_step_has_generation_and_update_and_other_steps_have_none(train):
    code, files = train("trainer.profile={steps: [2]}", "actor.use_kl_loss=true")
    assert code == 0 and [*files] == ["step_2/actor+ref+rollout_rank0.trace.json.gz"]
    names = [event["name"] for event in events(files["step_2/actor+ref+rollout_rank0.trace.json.gz"])]
    assert any(name.startswith("autograd::engine") for name in names)  # of the update
    assert names.count("aten::searchsorted") >= 6  # of sampling, token by token
    assert "[memory]" not in names


@further
def test_memory_and_stacks_are_in_the_trace_of_a_cpu(train):
    _, files = train("trainer.profile={steps: [1], roles: [actor], memory: true, stacks: true}")
    assert [*files] == ["step_1/actor_rank0.trace.json.gz"]
    found = events(files["step_1/actor_rank0.trace.json.gz"])
    assert any(event["name"] == "[memory]" and event["args"]["Bytes"] > 0 for event in found)
    assert any("micro_batches" in event["name"] or "stepping" in event["name"] for event in found)


def test_a_wrong_option_is_refused_before_anything_is_loaded(train, capsys):
    code, files = train("trainer.profile={step: [1]}", "model.path=/nowhere")
    assert code == 2 and not files
    assert "trainer.profile.step: unknown key" in capsys.readouterr().err


@further
@pytest.mark.xdist_group("ray runs")
def test_ranks_of_ray_write_their_own_files(train):
    pytest.importorskip("ray")
    profile = "trainer.profile={steps: [1], ranks: [1], roles: [actor, rollout]}"
    with local_cluster(4):
        code, files = train(profile, "runtime={name: ray, options: {workers: 2}}", "actor.strategy=fsdp")
    assert code == 0
    assert sorted(files) == ["step_1/actor_rank1.trace.json.gz", "step_1/rollout_rank1.trace.json.gz"]
    names = {event["name"] for event in events(files["step_1/actor_rank1.trace.json.gz"])}
    assert any(name.startswith("autograd::engine") for name in names)
