"""Synchronous runs give the numbers of the code before generation was a stream of groups (commit 7b7eecd5).

Responses and scores are equal. Metrics agree to 1e-4: since then the loss takes exp instead of exp2, which differs in
the last bit. With that commit's loss, all metrics of such runs are equal bit for bit. Runs with a batch filter differ:
a dropped group is replaced at once, not in rounds.
"""

import json
from pathlib import Path

import pytest

from corerl.cli.main import run
from golden import golden

RUNS = {
    "plain": [],
    "remax": [
        *("algorithm.adv_estimator=remax", "algorithm.use_kl_in_reward=true", "actor.use_kl_loss=false"),
        "data.shuffle=false",
    ],
    "critic": ["algorithm.adv_estimator=gae"],
}
RECORDED = json.loads((Path(__file__).parent / "golden.json").read_text())


@pytest.mark.parametrize("name", RUNS)
def test_a_synchronous_run_repeats_the_golden_run(name, material, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(
        f"""
        model: {{path: {material}/model}}
        data: {{train_files: [{material}/data/train.parquet], val_files: [{material}/data/test.parquet],
               train_batch_size: 8, max_prompt_length: 64, max_response_length: 6}}
        actor: {{device: cpu, optim: {{lr: 1e-2}}, ppo_mini_batch_size: 4, use_kl_loss: true}}
        rollout: {{n: 4}}
        reward: {{scorer: {tmp_path}/reward.py:score}}
        trainer: {{total_training_steps: 4, test_freq: 2, log_rollouts_freq: 1, output_dir: {tmp_path}/runs}}
        """
    )
    (tmp_path / "reward.py").write_text(
        "def score(response, ground_truth, data_source, extra_info):\n    return float(len(response) % 2)\n"
    )
    assert run(["train", str(config), *RUNS[name]]) == 0
    [folder] = (tmp_path / "runs" / "default").iterdir()
    for now, then in zip(golden(folder), RECORDED[name], strict=True):
        assert now.pop("responses") == then.pop("responses"), f"step {now['step']}"
        assert now == {key: pytest.approx(value, rel=1e-4, abs=1e-6) for key, value in then.items()}
