import json

import pytest
import torch

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import RequestError
from corerl_torch.loss_scale import FILE, GROWTH_INTERVAL, INITIAL, LARGEST, SMALLEST, LossScale


def spec(dtype, optim=True):
    model = ModelConfig("m", dtype=dtype)
    return StrategySpec(model, "cpu", MicroBatching(max_sequences=1), OptimConfig() if optim else None)


def test_only_a_trained_model_in_fp16_is_scaled():
    assert LossScale.of(spec("fp16")).value == INITIAL
    for other in (spec("bf16"), spec("auto"), spec("fp16", optim=False)):
        scale = LossScale.of(other)
        assert (scale.enabled, scale.value, scale.metrics(overflowed=False)) == (False, 1.0, {})
        assert not scale.overflowed(1.0, float("inf")) and scale.value == 1.0


def test_an_overflow_halves_the_scale_and_a_row_of_updates_without_one_doubles_it():
    scale = LossScale(True)
    assert scale.overflowed(1.0, float("inf")) and scale.overflowed(1.0, float("nan"))
    assert scale.value == INITIAL / 4
    for _ in range(GROWTH_INTERVAL - 1):
        assert not scale.overflowed(1.0, 2.0)
    assert scale.value == INITIAL / 4
    scale.overflowed(1.0, 2.0)
    assert (scale.value, scale.taken) == (INITIAL / 2, 0)
    scale.value, scale.taken = LARGEST, GROWTH_INTERVAL - 1
    scale.overflowed(1.0, 2.0)
    assert scale.value == LARGEST


def test_a_loss_that_is_not_finite_and_a_gradient_that_no_scale_saves_are_no_overflow():
    scale = LossScale(True)
    assert not scale.overflowed(float("nan"), float("nan")) and scale.value == INITIAL
    scale.value = SMALLEST
    assert not scale.overflowed(1.0, float("inf")) and scale.value == SMALLEST


def test_gradients_within_are_scaled_and_earlier_ones_are_kept_to_the_last_bit():
    weight = torch.nn.Parameter(torch.randn(7, generator=torch.Generator().manual_seed(0)))
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    weight.grad = before = torch.randn(7) / 3
    kept = before.clone()
    with LossScale(True).scaled([weight, frozen]) as scale:
        assert scale == INITIAL and torch.equal(weight.grad, kept * INITIAL)
        (weight.sum() * scale).backward()
    torch.testing.assert_close(weight.grad, kept + 1, rtol=1e-6, atol=0)
    with LossScale(True).scaled([weight]):
        pass
    torch.testing.assert_close(weight.grad, kept + 1, rtol=1e-6, atol=0)


def test_the_scale_of_a_checkpoint_is_read_if_there_is_one(tmp_path):
    scale = LossScale(True)
    scale.load(tmp_path)
    assert scale.value == INITIAL
    scale.value, scale.taken = 8.0, 3
    (tmp_path / FILE).write_text(scale.state())
    other = LossScale(True)
    other.load(tmp_path)
    assert (other.value, other.taken) == (8.0, 3)
    plain = LossScale(False)
    plain.load(tmp_path)
    assert plain.value == 1.0


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "null", "{}", json.dumps({"value": 3.0, "taken": 0}), json.dumps({"value": 0.5, "taken": 0})]
    + [json.dumps({"value": 8, "taken": each}) for each in (-1, GROWTH_INTERVAL, 1.5, True)]
    + ['{"value": NaN, "taken": 0}', '{"value": Infinity, "taken": 0}'],
)
def test_a_damaged_scale_is_one_line_that_names_the_file(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    scale = LossScale(True)
    with pytest.raises(RequestError, match=FILE):
        scale.load(tmp_path)
    assert scale.value == INITIAL
