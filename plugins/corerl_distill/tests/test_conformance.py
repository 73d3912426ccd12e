"""The kit's checks, and the claims of every form and divergence by enumeration."""

import pytest

from corerl.plugins import load_plugins
from corerl_testing import checks_of, conformance_tests

test_conformance = conformance_tests("corerl-distill")

LOSSES = load_plugins((), ()).registries.policy_losses


@pytest.mark.parametrize("task_reward", [False, True], ids=["", "task"])
@pytest.mark.parametrize(
    "options",
    [
        {"divergence": "forward_kl"},
        {"divergence": "jsd", "beta": 0.3, "coefficient": 0.5},
        {"form": "top_k", "top_k": 1},
        {"form": "top_k", "top_k": 2, "divergence": "jsd"},
        {"form": "top_k", "top_k": 3, "divergence": "forward_kl"},
        {"form": "sampled", "coefficient": 2.0},
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_the_gradient_is_that_of_the_divergence_at_the_policy_that_sampled(options, task_reward):
    entry = next(entry for entry in LOSSES if entry.name == "distill")
    found = {check.name: check for check in checks_of(LOSSES, entry, {**options, "use_task_reward": task_reward})}
    found["claims"].run()
