"""Runs with an agent whose episodes have branches, on the CPU with hf."""

from pathlib import Path

import pytest

from corerl.cli.main import run
from corerl.telemetry.metrics_log import read_metrics

BRANCHING = """
import asyncio
from corerl.contracts.agents import AgentResult

async def branching(task, model):
    "A draft, two ways to go on at the same time, another conversation, and the end of the first way."
    draft = await model.generate(task.prompt_ids, max_tokens=4)
    path = [*task.prompt_ids, *draft.token_ids]
    ways = await asyncio.gather(*(model.generate([*path, read], max_tokens=3) for read in (5, 6)))
    await model.generate([*reversed(task.prompt_ids)][:6], max_tokens=2)
    last = await model.generate([*path, 5, *ways[0].token_ids, 7], max_tokens=2)
    lengths = [float(len(each.token_ids)) for each in (draft, *ways)]
    return AgentResult(turn_rewards=lengths, reward=float(draft.token_ids[0] % 7))
"""

MOST = 5e-6
"""of the differences of probabilities between engine and trainer"""


@pytest.mark.parametrize(
    "options",
    [
        ["actor.loss_agg_mode=token-mean"],
        ["actor.loss_agg_mode=seq-mean-token-mean", "actor.use_kl_loss=true", "actor.strategy=fsdp"],
        ["algorithm.adv_estimator=gae", "algorithm.use_kl_in_reward=true", "trainer.max_staleness=1"],
    ],
    ids=["padded", "packed", "critic, ahead of training"],
)
def test_branches_are_trained_in_their_own_contexts(material: Path, tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "agent.py").write_text(BRANCHING)
    if "algorithm.adv_estimator=gae" in options:
        pytest.importorskip("corerl_ppo")
    config = tmp_path / "config.yaml"
    config.write_text("trainer: {total_training_steps: 2, log_rollouts_freq: 1}\n")
    settings = [
        f"model.path={material}/model",
        f"data.train_files=[{material}/data/train.parquet]",
        f"data.val_files=[{material}/data/test.parquet]",
        "data.train_batch_size=4",
        "data.max_prompt_length=64",
        "data.max_response_length=24",
        "actor.device=cpu",
        "actor.ppo_mini_batch_size=2",
        "rollout.n=3",
        f"rollout.agent={tmp_path}/agent.py:branching",
        "rollout.multi_turn.score_response=false",
        f"trainer.output_dir={tmp_path}/runs",
    ]
    assert run(["train", str(config), *settings, *options]) == 0
    [path] = (tmp_path / "runs").rglob("metrics.jsonl")
    steps = [step for step in read_metrics(path) if "agent/branches/mean" in step]
    assert len(steps) == 2
    for step in steps:
        assert step["agent/branches/mean"] == pytest.approx(2.0, abs=0.5)  # an early stop token leaves one out
        assert step["training/rollout_probs_diff_max"] < MOST or step["training/staleness/max"] > 0
        assert step["critic/score/mean"] > 0.5 and step["actor/grad_norm"] > 0
