"""The division of a step, and the parts of a run that forbid it; corerl_ray's test_batch.py computes with shards."""

import itertools
from types import SimpleNamespace

import pytest

from corerl.contracts.config import RolloutCorrectionConfig
from corerl.contracts.losses import Combined, Mean
from corerl.contracts.rollout_correctors import NoCorrector, RolloutCorrector
from corerl.plugins import load_plugins
from corerl_correction.corrector import ImportanceCorrector
from corerl_torch.shards.cut import add_measures, divided
from corerl_torch.shards.readers import readers_of_all_groups


@pytest.mark.parametrize(
    ("groups", "tokens", "most", "parts"),
    [
        ([0, 0, 1, 1, 2, 2, 3, 3], [5] * 8, 2, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ([0, 0, 1, 1, 2, 2], [90, 90, 1, 1, 1, 1], 2, [[0, 1], [2, 3, 4, 5]]),  # by tokens, not by groups
        ([0, 1, 2], [1, 98, 1], 3, [[0], [1], [2]]),
        ([0, 0, 1], [4, 4, 4], 16, [[0, 1], [2]]),  # never a part without a group
        ([7, 7], [3, 3], 4, [[0, 1]]),
        ([1, 0, 1, 0], [3] * 4, 2, [[0, 2], [1, 3]]),  # groups in the order in which they come
    ],
)
def test_parts_have_whole_groups_and_about_equal_tokens(groups, tokens, most, parts):
    assert divided(groups, tokens, most) == parts


@pytest.mark.parametrize("most", [1, 2, 3, 7, 16])
def test_no_part_has_more_than_its_share_and_a_group(most):
    groups = [group for group in range(40) for _ in range(1 + group % 5)]
    tokens = [1 + 37 * row % 101 for row in range(len(groups))]
    parts = divided(groups, tokens, most)
    assert [row for part in parts for row in part] == list(range(len(groups)))
    assert all(groups[left[-1]] < groups[right[0]] for left, right in itertools.pairwise(parts))
    largest = max(sum(tokens[row] for row in range(len(groups)) if groups[row] == group) for group in range(40))
    assert max(sum(tokens[row] for row in part) for part in parts) <= sum(tokens) / most + largest


def test_measures_add_up_and_floats_do_not():
    parts = [{"a": Mean(1.0, 2), "m": Combined(3.0, max), "f": 1}, {"a": Mean(5.0, 1), "b": Mean(1.0, 1), "f": 2.5}]
    sums, floats = add_measures(parts)
    assert {name: each.value for name, each in sums.items()} == {"a": 2.0, "m": 3.0, "b": 1.0}
    assert floats == {"f": 2.5}


class Outside(RolloutCorrector):
    """Of another plugin."""


@pytest.mark.parametrize(
    ("estimator", "corrector", "readers"),
    [
        ("grpo", NoCorrector(), []),
        ("grpo", ImportanceCorrector(RolloutCorrectionConfig(rollout_is="token")), []),
        (
            "opo",
            ImportanceCorrector(RolloutCorrectionConfig(rollout_is="token", rollout_is_batch_normalize=True)),
            ["algorithm.rollout_correction"],
        ),
        ("gae", NoCorrector(), ["algorithm.adv_estimator=gae"]),
        ("turn_returns", Outside(), ["algorithm.adv_estimator=turn_returns", "algorithm.rollout_correction"]),
    ],
)
def test_parts_that_may_compare_groups_keep_a_step_in_one_process(estimator, corrector, readers):
    entry = load_plugins().registries.advantage_estimators.get(estimator)
    assert readers_of_all_groups(SimpleNamespace(adv_estimator=SimpleNamespace(entry=entry)), corrector) == readers
