import pytest
import torch

from corerl.contracts.experience import collate
from corerl.contracts.reward_managers import RewardResult
from corerl.telemetry.metrics import merge_means
from corerl_torch.batch_metrics import score_metrics, sequence_length_metrics, step_metrics


def experience():
    batch = collate([[1, 2], [3]], [[4], [5, 6, 7]], [0, 0], log_probs=[[-0.1], [-0.2, -0.3, -0.4]])
    batch.rewards = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.5]])
    batch.advantages = batch.returns = torch.tensor([[1.0, 0.0, 0.0], [-1.0, -1.0, -1.0]])
    batch.old_log_probs = batch.rollout_log_probs.clone()
    return batch


def test_step_metrics_by_hand():
    """Two responses of 1 and 3 tokens to prompts of 2 and 1: rows of 3 and 4 tokens, 4 of them trained."""
    batch = experience()
    batch.values = torch.tensor([[0.5, 9.0, 9.0], [-0.5, -1.0, -1.5]])
    batch.rollout_log_probs = torch.log(torch.tensor([[0.5, 1.0, 1.0], [0.25, 0.5, 0.75]]))
    batch.old_log_probs = torch.log(torch.tensor([[0.4, 1.0, 1.0], [0.25, 0.2, 0.75]]))
    results = [RewardResult(1.0, {"format": 1.0}), RewardResult(0.5)]
    metrics = merge_means([step_metrics(batch, results, [False, True], max_prompt_length=2, responses=2)])
    cut = [(batch.select(torch.tensor([row])), results[row : row + 1], [row == 1], 2, 2) for row in (0, 1)]
    of_parts = merge_means(step_metrics(*part) for part in cut)
    assert metrics == pytest.approx(of_parts | {"reward/groups_without_spread": 0.0}, abs=1e-6)  # of whole groups
    metrics |= sequence_length_metrics(batch.lengths, 2)
    expected = {
        "critic/score": (0.75, 1.0, 0.5),
        "critic/rewards": (0.75, 1.0, 0.5),
        "critic/advantages": ((1 - 3) / 4, 1.0, -1.0),
        "critic/returns": ((1 - 3) / 4, 1.0, -1.0),
        "critic/values": ((0.5 - 0.5 - 1.0 - 1.5) / 4, 0.5, -1.5),
        "response_length": (2.0, 3.0, 1.0),
        "prompt_length": (1.5, 2.0, 1.0),
        "global_seqlen": (3.5, 4.0, 3.0),
    }
    spreads = {
        f"{name}/{each}": value
        for name, values in expected.items()
        for each, value in zip(("mean", "max", "min"), values, strict=True)
    }
    assert metrics == pytest.approx(
        spreads
        | {
            # errors 0.5, -0.5, 0, 0.5: variance 3 / 16 - 1 / 64; returns 1, -1, -1, -1: variance 1 - 1 / 4
            "critic/vf_explained_var": 1 - (3 / 16 - 1 / 64) / (3 / 4),
            "response_length/clip_ratio": 0.5,
            "prompt_length/clip_ratio": 0.5,
            "global_seqlen/balanced_max": 4.0,
            "global_seqlen/balanced_min": 3.0,
            "global_seqlen/minmax_diff": 1.0,
            "reward/format/mean": 1.0,
            "reward/error_ratio": 0.0,
            "reward/groups_without_spread": 0.0,
            "training/rollout_probs_diff_mean": (0.1 + 0.3) / 4,
            "training/rollout_probs_diff_max": 0.3,
        },
        abs=1e-6,
    )


@pytest.mark.parametrize(("ranks", "most", "fewest"), [(1, 20, 20), (2, 11, 9), (4, 9, 0)])
def test_balanced_lengths_are_of_the_shares_that_ranks_get(ranks, most, fewest):
    """Rows of 9, 5 and 6 tokens: two ranks get 9 and 5 + 6; four get a row each, and one has none."""
    metrics = sequence_length_metrics(torch.tensor([9, 5, 6]), ranks)
    names = [f"global_seqlen/{name}" for name in ("balanced_max", "balanced_min", "minmax_diff")]
    assert [metrics[name] for name in names] == [most, fewest, most - fewest]


def test_failed_samples_are_counted_by_kind():
    failures = [RewardResult(None, error="x", error_kind=kind) for kind in ("timeout", "crash", "timeout", None)]
    parts = failures[:1], [*failures[1:], *[RewardResult(1.0)] * 2], [RewardResult(1.0)] * 2
    found = merge_means(score_metrics(part, 8) for part in parts)
    assert {name: value for name, value in found.items() if "errors" in name} == {
        "reward/errors/crash/count": 1.0,
        "reward/errors/crash/rate": 0.125,
        "reward/errors/other/count": 1.0,
        "reward/errors/other/rate": 0.125,
        "reward/errors/timeout/count": 2.0,
        "reward/errors/timeout/rate": 0.25,
    }


def test_failed_samples_are_in_no_score_and_are_counted():
    metrics = step_metrics(experience(), [RewardResult(1.0), RewardResult(None, error="x")], [False, False], 9, 2)
    assert (metrics["critic/score/mean"].value, metrics["reward/error_ratio"].value) == (1.0, 0.5)
