"""Runs with an environment, on the CPU with hf: the calculator, the grid walk, and one from a file."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corerl.cli.main import run
from corerl.telemetry.metrics_log import read_metrics
from corerl_tools.evaluation.files import read_rows

pytest.importorskip("corerl_envs")

SHAPE = ["--vocab-size=300", "--hidden-size=48", "--layers=2", "--heads=2", "--kv-heads=2", "--max-positions=512"]

TALK = """
from corerl_envs import Start, Turn

class Talk:
    def reset(self, task, seed):
        return Start(state=[seed])

    async def step(self, state, response):
        state.append(response)
        if len(state) % 7 == 6 and state[0] % 5 == 0:
            raise OSError("no more")
        return Turn([{"role": "user", "content": "more?"}], reward=float(len(response)), done=len(state) > 3)

    def close(self):
        pass
"""


def cold_start(folder: Path, chats: Path, steps: int) -> Path:
    """A model that has seen these conversations."""
    assert run(["tiny-model", f"--out={folder}/random", f"--corpus={chats}", *SHAPE]) == 0
    config = folder / "sft.yaml"
    config.write_text(
        f"""
        model: {{path: {folder}/random}}
        output: {folder}/model
        data: {{train_files: [{chats}], train_batch_size: 16, max_length: 256}}
        optim: {{lr: 5e-3, lr_warmup_steps: 5}}
        trainer: {{device: cpu, total_training_steps: {steps}}}
        """
    )
    assert run(["sft", str(config)]) == 0
    return folder / "model"


def train(folder: Path, model: Path, data: Path, *overrides: str) -> list[dict[str, float]]:
    """The metrics of each step of a run of three."""
    config = folder / "config.yaml"
    config.write_text(
        f"""
        model: {{path: {model}}}
        data: {{train_files: [{data}], train_batch_size: 4, max_prompt_length: 96, max_response_length: 96}}
        actor: {{device: cpu, optim: {{lr: 1e-3}}, ppo_mini_batch_size: 4}}
        rollout: {{n: 4, multi_turn: {{max_assistant_turns: 4, max_turn_length: 24}}}}
        trainer: {{total_training_steps: 3, log_rollouts_freq: 1, output_dir: {folder}/runs}}
        """
    )
    assert run(["train", str(config), *overrides]) == 0
    [path] = (folder / "runs").rglob("metrics.jsonl")
    return [step for step in read_metrics(path) if "env/turns/mean" in step]


def rollouts(folder: Path) -> list[dict[str, object]]:
    paths = sorted((folder / "runs").rglob("rollouts/step_*.parquet"))
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


def test_the_grid_walk(tmp_path: Path) -> None:
    sizes = ["--train-size=16", "--test-size=4", "--sft-size=64", "--moves=3"]
    assert run(["prepare", "grid-walk", f"--out={tmp_path}/data", *sizes]) == 0
    model = cold_start(tmp_path, tmp_path / "data" / "sft.parquet", steps=40)
    steps = train(
        tmp_path,
        model,
        tmp_path / "data" / "train.parquet",
        "rollout.multi_turn.environment=grid_walk",
        "rollout.multi_turn.score_response=false",
        f"data.val_files=[{tmp_path}/data/test.parquet]",
    )
    assert len(steps) == 3
    for step in steps:
        assert step["env/turns/mean"] > 1
        assert step["env/tokens/mean"] > 0
        assert step["critic/score/mean"] == pytest.approx(step["env/reward/mean"], abs=1e-5)
        assert step["training/rollout_probs_diff_max"] < 1e-4  # the trainer sees the very tokens that were generated
        assert step["env/failed/ratio"] == 0
    [metrics] = (tmp_path / "runs").rglob("metrics.jsonl")
    evaluated = [step for step in read_metrics(metrics) if "val-aux/env/turns/mean" in step]
    assert evaluated and all(
        step["val-core/corerl/grid_walk/reward/mean@1"] == pytest.approx(step["val-aux/env/reward/mean"])
        for step in evaluated
    )
    for row in rollouts(tmp_path):
        talk = json.loads(str(row["episode"]))
        assert [message["role"] for message in talk] == (["assistant", "user"] * 4)[: len(talk)]


def test_the_calculator_is_called_and_its_answer_is_scored(material: Path, tmp_path: Path) -> None:
    rows = pq.read_table(material / "data" / "train.parquet").to_pylist()
    instruction = " Use <calc>."
    chats = [
        {
            "messages": [
                {"role": "user", "content": row["prompt"][0]["content"] + instruction},
                {"role": "assistant", "content": f"<calc>{row['extra_info']['question'].removesuffix(' = ?')}</calc>"},
                {"role": "tool", "content": row["reward_model"]["ground_truth"]},
                {"role": "assistant", "content": row["extra_info"]["answer"]},
            ]
        }
        for row in rows
    ]
    pq.write_table(pa.Table.from_pylist(chats), tmp_path / "chats.parquet")
    model = cold_start(tmp_path, tmp_path / "chats.parquet", steps=150)
    steps = train(
        tmp_path,
        model,
        material / "data" / "train.parquet",
        "rollout.multi_turn.environment=calculator",
        f"rollout.multi_turn.environment.instruction='{instruction}'",
    )
    assert all(step["env/tool_calls/mean"] > 0.5 for step in steps)
    assert all(step["env/reward/mean"] == 0 for step in steps)
    assert any(step["reward/scorer/mean"] > 0 for step in steps)
    assert max(step["training/rollout_probs_diff_max"] for step in steps) < 1e-4
    answered = [row for row in rollouts(tmp_path) if row["score"] == 1]
    assert any(
        json.loads(str(row["episode"]))[1]["role"] == "tool" for row in answered if len(str(row["episode"])) > 80
    )


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["algorithm.adv_estimator=remax"],
        ["trainer.max_staleness=1"],
        ["algorithm.adv_estimator={name: gae, gamma: 0.9, lam: 0.9}", "algorithm.use_kl_in_reward=true"],
        ["algorithm.filter_groups.enable=true", "algorithm.rollout_correction.rollout_rs=seq_mean_k1"],
    ],
    ids=["grpo", "remax", "stale", "gae", "filtered"],
)
def test_an_environment_from_a_file_with_whatever_else_a_run_does(
    overrides: list[str], material: Path, tmp_path: Path
) -> None:
    (tmp_path / "talk.py").write_text(TALK)
    for needed in ("corerl_ppo", "corerl_dapo"):
        pytest.importorskip(needed)
    steps = train(
        tmp_path,
        material / "model",
        material / "data" / "train.parquet",
        f"rollout.multi_turn.environment={tmp_path}/talk.py:Talk",
        "rollout.multi_turn.score_response=false",
        "rollout.multi_turn.max_turn_length=4",
        *overrides,
    )
    assert len(steps) == 3
    assert all(step["env/turns/max"] <= 4 for step in steps)
    assert all(step["training/rollout_probs_diff_max"] < 1e-4 for step in steps[:1])
    assert all(step["training/nonfinite_samples"] == 0 for step in steps)


def test_episodes_are_generated_scored_and_evaluated_by_the_commands(
    material: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "talk.py").write_text(TALK + "\n    def end(self, state):\n        return 100.0\n")
    out, scored = tmp_path / "out.parquet", tmp_path / "scored.parquet"
    keys = [f"--model={material}/model", f"--data={material}/data/test.parquet", "--n=2", "--log-probs", f"--out={out}"]
    keys += ["data.max_response_length=64", "actor.device=cpu", "rollout.multi_turn.max_turn_length=4"]
    keys += [f"rollout.multi_turn.environment={tmp_path}/talk.py:Talk"]
    assert run(["generate", *keys]) == 0
    rows = [row for _, row in read_rows(str(out))]
    assert {sum(message["role"] == "assistant" for message in row["episode"]) for row in rows} >= {3}
    for row in rows:
        assert len(row["token_ids"]) == len(row["response_mask"]) == row["response_length"]
        assert row["environment_error"] is None or row["environment_error"].endswith("OSError: no more")
        turns = [message["content"] for message in row["episode"] if message["role"] == "assistant"]
        assert row["environment_reward"] == 100 + sum(map(len, turns)) or row["environment_error"]
        assert "score" not in row
    assert run(["generate", *keys, "rollout.multi_turn.max_assistant_turns=1"]) == 2
    assert "multi_turn.max_assistant_turns" in capsys.readouterr().err
    assert run(["score", str(out), f"--out={scored}"]) == 0
    for _, row in read_rows(str(scored)):
        if row["environment_error"] is None:
            assert row["score"] == row["components"]["scorer"] + row["environment_reward"]
        else:
            assert (row["score"], row["error"]) == (None, row["environment_error"])
    assert run(["generate", *keys, "--overwrite", "rollout.multi_turn.score_response=false"]) == 0
    assert all(
        row["score"] == (None if row["environment_error"] else row["environment_reward"])
        for _, row in read_rows(str(out))
    )
    assert run(["eval", str(out)]) == 0


def test_what_is_wrong_with_an_environment_is_said_before_a_model_is_loaded(
    refused: Callable[..., None], write: Callable[..., str], rows: list[dict[str, object]]
) -> None:
    refused(["rollout.multi_turn.environment=grid_walks"], "rollout.multi_turn.environment", "grid_walk")
    unscored = write([{**row, "data_source": "acme/nobody"} for row in rows])
    refused(["rollout.multi_turn.environment=grid_walk", unscored], "acme/nobody", "no scorer")
    refused(["rollout.multi_turn.max_assistant_turns=0"], "max_assistant_turns", "at least 1")
