"""The rows of a step: samples that are left out, and the rows of the policy's updates."""

from dataclasses import replace

import pytest
import torch

from corerl.contracts.losses import values
from corerl.contracts.token_outputs import TokenOutputs
from corerl.errors import NonFiniteError

NAN = float("nan")


def test_samples_that_are_left_out_are_counted_before_and_after_the_advantages(trainer, batch):
    made = trainer()
    made.at(*batch([1.0, 2.0, 3.0]))
    made.batch.experience.rewards[1, 0] = NAN
    estimator = made.batch.estimator

    def third_is_nan(inputs):
        estimated = estimator(inputs)
        estimated.advantages[2, 0] = NAN
        return estimated

    made.batch.estimator = third_is_nan
    rows, metrics = made.batch.estimate(3, 1), made.batch.measure()
    assert metrics["training/nonfinite_samples"] == 2.0
    assert rows.trained.tolist() == [2, 0, 0]


def test_entropy_is_a_mean_over_trained_tokens(trainer, batch):
    made = trainer()
    made.at(*batch([1.0, 1.0, None], lengths=[1, 3, 2]))
    entropy = torch.tensor([[1.0, 7.0, 7.0], [2.0, 3.0, 4.0], [9.0, 9.0, 9.0]])
    made.batch.put("actor", TokenOutputs(entropy=entropy))
    assert values(made.batch.measured) == {"actor/entropy": 10 / 4}


def test_an_update_that_is_not_finite_names_the_step_and_the_samples_or_ends_the_run(trainer, batch, capsys):
    made = trainer()
    made.at(*batch())
    made.batch.refuse(3, NonFiniteError("loss is nan"), [1])
    assert capsys.readouterr().err.startswith("step 3: loss is nan; 1 samples (response 1 to prompt 1 of 'acme/sums')")
    made.batch.guard.skip = False
    with pytest.raises(NonFiniteError, match="loss is nan; 1 samples"):
        made.batch.refuse(3, NonFiniteError("loss is nan"), [1])


def test_the_numbers_of_rows_are_those_of_their_tensors(batch):
    _, experience = batch([1.0, None, 2.0], lengths=[2, 3, 4])
    experience.advantages[2] = 0.0
    numbers = experience.numbers()
    assert numbers.trained.tolist() == [2, 0, 4]
    assert numbers.has_advantage.tolist() == [True, False, False]
    assert numbers.lengths.tolist() == experience.lengths.tolist()
    rows = torch.tensor([2, 0])
    chosen, expected = numbers.select(rows), experience.select(rows).numbers()
    assert chosen.unit_ids is expected.unit_ids is None
    for name in ("lengths", "response_lengths", "group_ids", "trained", "has_advantage"):
        assert torch.equal(getattr(chosen, name), getattr(expected, name))


def test_media_of_prompts_do_not_travel_with_the_rows(batch):
    scored, _ = batch(n=2)
    assert scored.without_media() is scored
    seen = [replace(prompt, media={"images": ["a", "b"]}) for prompt in scored.rollouts.prompts]
    light = replace(scored, rollouts=replace(scored.rollouts, prompts=seen)).without_media()
    assert light.rollouts.prompts == [replace(prompt, media={}) for prompt in seen]
    assert light.rollouts.responses == scored.rollouts.responses
