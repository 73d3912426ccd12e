"""``model.dtype=fp16`` and the option ``fp8``, on the CPU."""

import pytest
import rank_jobs
import torch

from corerl.contracts.config import ActorConfig, ModelConfig, OptimConfig, TrainConfig
from corerl.contracts.experience import collate
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import ConfigError, NonFiniteError
from corerl.objective import loss_weights
from corerl_fsdp.options import FsdpOptions, TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_testing.training_ranks import AllOutputs, rank_batch
from corerl_testing.training_reference import copied_weights
from corerl_torch import loss_scale
from corerl_torch.supervised import SupervisedObjective
from families import write_config

SIZES = {"hidden_size": 32, "intermediate_size": 64, "tie_word_embeddings": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("model"), "qwen2", **SIZES)


def strategy(folder, dtype="fp16", **changes):
    model = ModelConfig(str(folder), load_format="dummy", dtype=dtype, **changes.pop("model", {}))
    spec = StrategySpec(
        model, "cpu", MicroBatching(max_sequences=2), OptimConfig(lr=1e-3), 10, **changes.pop("spec", {})
    )
    return SingleDeviceStrategy(spec, TorchOptions(**changes))


def batch(weight=1.0):
    """Four rows; their loss is multiplied by ``weight``."""
    generator = torch.Generator().manual_seed(3)
    prompts, responses = (
        [torch.randint(50, (length,), generator=generator).tolist() for length in lengths]
        for lengths in ((3, 7, 1, 5), (6, 2, 9, 4))
    )
    experience = collate(prompts, responses, [0, 0, 1, 1])
    experience.loss_weights = loss_weights(experience.response_mask, "token-mean") * weight
    return experience


def gradient(one, experience, *, clipped=True):
    """The whole gradient as one tensor, as the optimizer's step gets it, and the metrics."""
    seen, step = [], one._step

    def record():
        seen.append(torch.cat([each.grad.reshape(-1).double().clone() for each in one.model.parameters()]))
        return step()

    one._step = record
    metrics = one.update(experience, SupervisedObjective())
    return (seen or [None])[0], {name: mean.value for name, mean in metrics.items()}


def distance(found, true):
    return float((found - true).norm() / true.norm())


def cosine(found, true):
    return float(torch.nn.functional.cosine_similarity(found, true, dim=0))


@pytest.fixture(scope="module")
def exact(folder):
    """The gradient in float32, without clipping."""
    return gradient(strategy(folder, "fp32", spec={"grad_clip": 1e9}), batch())[0]


@pytest.mark.parametrize(
    ("options", "furthest", "least"),
    [
        ({"dtype": "fp16"}, 0.004, 0.99999),
        ({"dtype": "bf16"}, 0.03, 0.9995),
        ({"dtype": "fp32", "fp8": True}, 0.15, 0.99),
        ({"dtype": "bf16", "fp8": True, "use_remove_padding": True}, 0.15, 0.99),
        ({"dtype": "bf16", "fp8": True, "model": {"enable_gradient_checkpointing": True}}, 0.15, 0.99),
    ],
    ids=str,
)
def test_the_gradient_is_near_that_of_float32(folder, exact, options, furthest, least):
    found, _ = gradient(strategy(folder, spec={"grad_clip": 1e9}, **options), batch())
    assert furthest / 20 < distance(found, exact) < furthest and cosine(found, exact) > least


def test_gradients_below_the_smallest_number_of_float16_arrive(folder, exact):
    """The gradients at the logits are about 1e-9, which is 0 in float16; the scale is 65536."""
    found, _ = gradient(strategy(folder, spec={"grad_clip": 1e9}), batch(weight=1e-7))
    assert distance(found, exact * 1e-7) < 0.01
    unscaled = strategy(folder, spec={"grad_clip": 1e9})
    unscaled.loss_scale.value = 1.0
    assert distance(gradient(unscaled, batch(weight=1e-7))[0], exact * 1e-7) > 0.9


def test_the_norm_is_that_before_scaling_and_clipping(folder, exact):
    found, metrics = gradient(strategy(folder, spec={"grad_clip": 0.01}), batch())
    assert metrics["grad_norm"] == pytest.approx(float(exact.norm()), rel=0.01)
    assert float(found.norm()) == pytest.approx(0.01, rel=1e-3)
    assert (metrics["loss_scale"], metrics["overflows"]) == (65536, 0)


def test_an_overflow_changes_nothing_but_the_scale(folder):
    one, experience = strategy(folder), batch()
    one.update(experience, SupervisedObjective())
    before = {name: each.clone() for name, each in one.weights()}
    moments = [state["exp_avg"].clone() for state in one.optimizer.state.values()]
    one.loss_scale.value = loss_scale.LARGEST
    metrics = one.update(batch(weight=1e3), SupervisedObjective())
    assert "grad_norm" not in metrics and metrics["overflows"].value == 1 and metrics["lr"].value == 1e-3
    assert one.loss_scale.value == loss_scale.LARGEST / 2 == metrics["loss_scale"].value
    assert all(torch.equal(each, before[name]) for name, each in one.weights())
    assert all(
        torch.equal(state["exp_avg"], kept) for state, kept in zip(one.optimizer.state.values(), moments, strict=True)
    )
    assert one.schedule.last_epoch == 1 and all(each.grad is None for each in one.model.parameters())
    while one.update(batch(weight=1e3), SupervisedObjective())["overflows"].value:
        pass
    assert one.schedule.last_epoch == 2 and not torch.equal(
        dict(one.weights())["lm_head.weight"], before["lm_head.weight"]
    )


def test_a_loss_or_an_unscaled_gradient_that_is_not_finite_is_an_error_with_its_rows(folder):
    one = strategy(folder)
    with pytest.raises(NonFiniteError) as raised:
        one.update(batch(), AllOutputs(bad_row=1))
    assert tuple(raised.value.rows) == (1,) and one.loss_scale.value == loss_scale.INITIAL
    one.loss_scale.value = loss_scale.SMALLEST
    with pytest.raises(NonFiniteError):
        one.update(batch(weight=1e9), SupervisedObjective())


def test_a_run_goes_on_with_the_scale_of_its_checkpoint(folder, tmp_path):
    one, other = strategy(folder), strategy(folder)
    one.loss_scale.value = 2.0**10
    one.update(batch(), SupervisedObjective())
    one.save(tmp_path)()
    other.load(tmp_path)
    assert (other.loss_scale.value, other.loss_scale.taken) == (2.0**10, 1)
    plain = strategy(folder, "bf16")
    plain.load(tmp_path)
    plain.save(tmp_path / "..")
    for each in (one, other):
        each.update(batch(), SupervisedObjective())
    for (name, left), (_, right) in zip(one.weights(), other.weights(), strict=True):
        assert torch.equal(left, right), name


def test_log_probs_in_fp16_are_nearer_to_float32_than_those_in_bf16(folder):
    """arXiv 2510.26788: 10 bits of mantissa instead of 7."""
    exact, *halves = (
        strategy(folder, dtype).forward(batch(), ["log_probs"]).log_probs for dtype in ("fp32", "fp16", "bf16")
    )
    fp16, bf16 = ((each - exact).abs().mean() for each in halves)
    assert fp16 < bf16 / 4


def test_both_options_that_promise_other_bits_are_refused(folder):
    config = TrainConfig(ModelConfig(str(folder)), actor=ActorConfig(device="cpu"))
    FsdpOptions(fp8=True).check("actor.strategy", config)
    with pytest.raises(ConfigError, match=r"^critic\.strategy\.fp8: has no bitwise log-probs"):
        TorchOptions(fp8=True, bitwise=True).check("critic.strategy", config)


@pytest.mark.xdist_group("ranks")
def test_ranks_agree_and_drop_an_update_together(folder, worlds):
    job = {"model": str(folder), "config": {"dtype": "fp16"}, "fsdp": {}}
    expected = rank_jobs.run({"kind": "agree", "model": str(folder)})
    for each in worlds[2].run(kind="agree", **job):
        assert "error" not in each, each
        assert each["metrics"]["grad_norm"] == pytest.approx(expected["metrics"]["grad_norm"], rel=0.01)
        for name, true in expected["gradient"].items():
            assert (each["gradient"][name] - true).norm() < 0.02 * true.norm() + 1e-4, name
    for each in worlds[2].run(kind="agree", model=str(folder), fsdp={"fp8": True}):
        found, true = (
            torch.cat([of["gradient"][name].flatten() for name in expected["gradient"]]) for of in (each, expected)
        )
        assert 0.005 < distance(found, true) < 0.15
    dropped = worlds[2].run(kind="overflow", **job)
    assert dropped == [{"scales": [2.0**24, 2.0**23], "grad_norm": False, "moved": False}] * 2


def test_weights_after_log_probs_are_those_that_train(model_dirs):
    strategy = rank_jobs.run.strategy({"model": model_dirs["qwen2", True], "config": {"dtype": "bf16"}, "fsdp": {}})
    before = copied_weights(strategy)
    strategy.forward(rank_batch(), ["log_probs"])
    torch.testing.assert_close(copied_weights(strategy), before, rtol=0, atol=0)
