"""A run that is killed at any instant and started again gives what one gives that is not, bit for bit."""

import os
from collections import Counter
from signal import SIGKILL, SIGTERM

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corerl_testing.lives import Life, Outcome, Trip, trained_prompts

pytestmark = pytest.mark.xdist_group("ranks")

KILLS = (
    Trip("corerl_hf.decoding:Batch.advance", 12),  # generation, in the first steps: nothing is saved yet, or little
    Trip("corerl.rollout.stream:check_error_rate", 3),  # scoring
    Trip("corerl_fsdp.single_device:SingleDeviceStrategy._step", 6),  # update: of some mini-batches
    Trip("corerl.checkpoint.manifest:write", 2),  # saving: all but the manifest
    Trip("corerl.checkpoint.store:CheckpointStore._point", 1),  # saving: renamed, and latest is the one before
    Trip("corerl_hf.decoding:Batch.advance", 12, SIGTERM),  # the step is abandoned
    Trip("corerl_fsdp.single_device:SingleDeviceStrategy._step", 6, SIGTERM),  # the step is finished
)


SCORER = """
import random

import numpy as np
import torch

def score(response, ground_truth, data_source, extra_info):
    return len(response) % 2 + random.random() + np.random.random() + torch.rand(()).item()
"""
"""CoreRL itself draws from none of these; that it is in this process lets what it draws depend on what was saved"""

DRAWS = """
import random

from corerl import hookimpl

@hookimpl
def step_ended(step):
    random.random()
"""


@pytest.fixture
def begin(material, tmp_path):
    """Begin a life of the run called ``name``."""
    (tmp_path / "config.yaml").write_text(
        f"""
        model: {{path: {material}/model}}
        data: {{train_files: [{material}/data/train.parquet], val_files: [{material}/data/test.parquet],
               train_batch_size: 4, max_prompt_length: 64, max_response_length: 4}}
        algorithm: {{adv_estimator: gae, use_kl_in_reward: true, kl_ctrl: {{type: {{name: adaptive, horizon: 100}}}}}}
        actor: {{device: cpu, ppo_mini_batch_size: 2,
                optim: {{lr: 1e-2, lr_warmup_steps: 3, lr_scheduler_type: cosine}}}}
        rollout: {{n: 2}}
        reward: {{scorer: {tmp_path}/reward.py:score, manager: naive, num_workers: 1}}
        plugins: {{load: [{tmp_path}/draws.py]}}
        trainer: {{total_training_steps: 8, test_freq: 2, save_freq: 1, max_ckpt_to_keep: 3,
                  output_dir: {tmp_path}/runs}}
        """
    )
    (tmp_path / "reward.py").write_text(SCORER)
    (tmp_path / "draws.py").write_text(DRAWS)

    def start(name, trip=None, *keys):
        overrides = [f"tracking.experiment_name={name}", *keys]
        return Life(tmp_path / "config.yaml", overrides, tmp_path / f"{name}.log", trip)

    return start


@pytest.mark.skipif("CORERL_CHAOS" not in os.environ, reason="kills a run again and again: CORERL_CHAOS=1")
def test_a_run_that_is_killed_again_and_again_gives_the_same_metrics_and_weights(begin, tmp_path):
    straight = begin("straight")
    for trip in KILLS:
        code = {SIGKILL: -SIGKILL, SIGTERM: 128 + SIGTERM}[trip.number]
        assert begin("killed", trip).end() == code, (trip, (tmp_path / "killed.log").read_text())
    assert begin("killed").end() == 0, (tmp_path / "killed.log").read_text()
    assert straight.end() == 0
    [whole] = (tmp_path / "runs" / "straight").iterdir()
    killed = max((tmp_path / "runs" / "killed").iterdir())
    expected, found = Outcome.of(whole), Outcome.of(killed)
    assert [record["step"] for record in expected.metrics] == list(range(9))
    assert found.metrics == expected.metrics
    assert len(expected.files) > 6 and found.files == expected.files
    assert not [path.name for path in killed.rglob(".*.tmp")]


def test_bitwise_runs_give_equal_metrics_whether_killed_or_not_and_equal_log_probs(begin, tmp_path):
    keys = ("trainer.bitwise=true", "trainer.total_training_steps=4", "algorithm.adv_estimator=grpo")
    lives = [begin("first", None, *keys), begin("second", None, *keys)]
    for trip in KILLS[2:4]:
        assert begin("killed", trip, *keys).end() == -SIGKILL, (tmp_path / "killed.log").read_text()
    lives.append(begin("killed", None, *keys))
    assert [life.end() for life in lives] == [0, 0, 0], (tmp_path / "first.log").read_text()
    first, second, killed = (
        Outcome.of(max((tmp_path / "runs" / name).iterdir())) for name in ("first", "second", "killed")
    )
    assert first.metrics == second.metrics == killed.metrics
    differences = [record["training/rollout_probs_diff_max"] for record in first.metrics[1:]]
    assert differences == [0.0] * 4


FULL = (
    Trip("corerl.checkpoint.manifest:write", 2),  # the second checkpoint is not complete
    Trip("corerl_tools.finished_groups:write_groups", 3),
    Trip("corerl_fsdp.single_device:SingleDeviceStrategy._step", 6),  # update
)


@pytest.mark.skipif("CORERL_CHAOS" not in os.environ, reason="kills a run again and again: CORERL_CHAOS=1")
def test_groups_that_wait_to_be_trained_are_trained_once_whenever_a_run_is_killed(begin, tmp_path):
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{number} + 1 ="}],
            "data_source": "sums",
            "reward_model": {"style": "rule", "ground_truth": str(number)},
        }
        for number in range(32)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "once.parquet")
    keys = [f"data.train_files=[{tmp_path}/once.parquet]", "data.shuffle=false", "trainer.max_staleness=2"]
    waiting = 0
    for trip in FULL:
        killed = begin("ahead", trip, *keys, "trainer.log_rollouts_freq=1")
        assert killed.end() == -SIGKILL, (trip, (tmp_path / "ahead.log").read_text())
        run = max((tmp_path / "runs" / "ahead").iterdir())
        checkpoint = run / "checkpoints" / (run / "checkpoints" / "latest").read_text()
        waiting += (checkpoint / "groups.parquet").is_file()
    assert begin("ahead", None, *keys, "trainer.log_rollouts_freq=1").end() == 0, (tmp_path / "ahead.log").read_text()
    assert trained_prompts(run) == Counter(map(str, range(32)))
    assert waiting
