"""GAE over turns, by hand."""

import torch

from corerl.contracts.advantage_estimators import AdvantageInputs, Turns
from corerl.plugins import Plugins

# One episode of two turns, of two tokens and one, with a read token between them; rewards of 1 and 2, values 0.5 and 3.
IDS = torch.tensor([[0, 0, -1, 1]], dtype=torch.int32)
REWARDS = torch.tensor([[0.0, 0.0, 0.0, 3.0]], dtype=torch.float64)
VALUES = torch.tensor([[0.5, 9.0, 0.0, 3.0]], dtype=torch.float64)
OWN = torch.tensor([[1.0, 0.0]], dtype=torch.float64)


def estimate(name="turn_gae", ids=IDS, **options):
    inputs = AdvantageInputs(REWARDS, IDS >= 0, torch.zeros(1).long(), values=VALUES, turns=Turns(ids, OWN))
    return Plugins().registries.advantage_estimators.select({"name": name, **options}, "here").load()(inputs)


def test_a_turn_is_one_action_and_its_value_is_that_of_its_first_token():
    found = estimate(gamma=0.9, lam=0.5, whiten=False)
    last = 2.0 - 3.0
    first = 1.0 + 0.9 * 3.0 - 0.5 + 0.45 * last
    torch.testing.assert_close(found.advantages, torch.tensor([[first, first, 0.0, last]], dtype=torch.float64))
    torch.testing.assert_close(
        found.returns, torch.tensor([[first + 0.5, first + 0.5, 0.0, last + 3.0]], dtype=torch.float64)
    )


def test_whitening_leaves_the_returns():
    whitened, plain = estimate(), estimate(whiten=False)
    assert torch.equal(whitened.returns, plain.returns)
    assert abs(float(whitened.advantages.sum())) < 1e-12 and not torch.equal(whitened.advantages, plain.advantages)
