"""Mixtures of experts in ``torch`` and on ranks: balance of the load, routers in float32, checkpoints."""

import pytest
import rank_jobs
import torch
from rank_jobs import chosen_experts
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import ConfigError
from corerl_fsdp.options import FsdpOptions, TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_testing.training_ranks import AllOutputs, assert_covered, rank_batch
from corerl_torch.experts import parallel
from corerl_torch.experts.grouped import expert_modules
from corerl_torch.families.table import FAMILIES
from families import write_config
from family_models import write_model

SHAPE = (2, 8, 2)
"""layers, experts of each, and chosen ones"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("moe"), "qwen3_moe", initializer_range=0.3, tie_word_embeddings=False)


def strategy(folder, *, cut=None, model=None, **options):
    config = ModelConfig(str(folder), **{"load_format": "dummy", "dtype": "fp32", **(model or {})})
    spec = StrategySpec(
        config, "cpu", cut or MicroBatching(max_sequences=2), OptimConfig(lr=1e-2), total_steps=10, grad_clip=1e9
    )
    return SingleDeviceStrategy(spec, TorchOptions(**options))


def updated(strategy, batch):
    """Gradient by name, and metrics, of an update."""
    gradient, step = {}, strategy._step

    def record():
        gradient.update({name: each.grad.clone() for name, each in strategy.model.named_parameters()})
        return step()

    strategy._step = record
    return gradient, {name: mean.value for name, mean in strategy.update(batch, AllOutputs()).items()}


def by_transformers(folder, batch):
    """Gradient and value of transformers' loss, of each layer, averaged over layers; all rows at once."""
    model = strategy(folder).model.train()
    real = (torch.arange(batch.input_ids.shape[1] - 1) < batch.lengths[:, None] - 1).long()
    logits = model(input_ids=batch.input_ids[:, :-1], output_router_logits=True, use_cache=False).router_logits
    loss = sum(load_balancing_loss_func((each,), 8, 2, real) for each in logits) / 2
    loss.backward()
    return {name: each.grad for name, each in model.named_parameters()}, loss.item()


@pytest.mark.parametrize(
    ("packed", "cut", "checkpointing"),
    [(True, {"max_sequences": 1}, False), (True, {"max_tokens": 20}, True), (False, {"max_sequences": 3}, True)],
)
def test_the_loss_is_that_of_transformers_for_every_division_into_micro_batches(folder, packed, cut, checkpointing):
    batch, options = rank_batch(), {"use_remove_padding": packed, "share_prefixes": False}
    given = {
        coefficient: updated(
            strategy(
                folder,
                cut=MicroBatching(**cut),
                model={"enable_gradient_checkpointing": checkpointing},
                router_aux_loss_coef=coefficient,
                **options,
            ),
            batch,
        )
        for coefficient in (0.0, 3.0)
    }
    true, value = by_transformers(folder, batch)
    assert given[3.0][1]["router_aux_loss"] == pytest.approx(value, rel=1e-5) and value > 2
    for name, gradient in true.items():
        difference = given[3.0][0][name] - given[0.0][0][name]
        assert gradient is None or (difference - 3 * gradient).norm() <= 1e-4 * gradient.norm() + 2e-6, name
    assert true["model.layers.1.mlp.gate.weight"].norm() > 1e-3


def test_replayed_choices_are_counted_without_a_further_pass(folder):
    batch, seen = rank_batch(), []
    batch.columns["experts"] = chosen_experts(batch, *SHAPE)
    trainer = strategy(folder, router_aux_loss_coef=1.0, use_remove_padding=True, cut=MicroBatching(max_sequences=100))
    trainer._count = None  # not called
    for router in trainer.balance.routers.modules:
        router.register_forward_hook(lambda _, __, outputs: seen.append(outputs[0].softmax(-1).mean(0)))
    metrics = updated(trainer, batch)[1]
    choices = batch.columns["experts"].values.long()
    fractions = [torch.bincount(choices[:, layer].flatten(), minlength=8) / len(choices) for layer in (0, 1)]
    true = sum(8 * (f * p).sum().item() for f, p in zip(fractions, seen, strict=True)) / 2
    assert metrics["router_aux_loss"] == pytest.approx(true, rel=1e-5)


def test_metrics_are_those_of_the_choices(folder):
    batch = rank_batch()
    trainer = strategy(folder, use_remove_padding=True, share_prefixes=False, cut=MicroBatching(max_sequences=100))
    seen = []
    for router in trainer.balance.routers.modules:
        router.register_forward_hook(lambda _, __, outputs: seen.append(outputs))
    metrics = updated(trainer, batch)[1]
    counts = [torch.bincount(chosen.flatten(), minlength=8) for _, _, chosen in seen]
    loads = [each.max().item() / each.float().mean().item() for each in counts]
    assert metrics["expert_load_max"] == pytest.approx(sum(loads) / 2)
    assert metrics["expert_load_worst"] == pytest.approx(max(loads))
    assert metrics["expert_load_min"] == pytest.approx(
        sum(e.min().item() / e.float().mean().item() for e in counts) / 2
    )
    entropy = sum(torch.distributions.Categorical(logits=each).entropy().mean().item() for each, _, _ in seen) / 2
    assert metrics["router_entropy"] == pytest.approx(entropy, rel=1e-5)
    assert sum(map(torch.Tensor.sum, counts)) == 2 * 2 * (batch.lengths - 1).sum()  # none is dropped


def test_the_bias_of_a_router_moves_against_its_load(tmp_path):
    family = next(each for each in FAMILIES if each.model_type == "deepseek_v3")
    trainer = strategy(write_model(tmp_path, family), model={"load_format": "auto"}, router_bias_update_rate=0.125)
    (router,) = {id(each): each for each in trainer.balance.routers.modules}.values()
    before, seen = router.e_score_correction_bias.clone(), []
    router.register_forward_hook(lambda _, __, outputs: seen.append(outputs[2]))
    trainer.update(rank_batch(), AllOutputs())
    width = len(before)
    padded = trainer.balance._counts[0]
    assert sum(torch.bincount(each.flatten(), minlength=width) for each in seen).sum() >= padded.sum() > 0
    moved = 0.125 * torch.sign(padded.mean() - padded).float()
    assert moved.abs().sum() > 0 and (router.e_score_correction_bias - before).equal(moved)


@pytest.mark.parametrize("in_float32", [True, False])
def test_routers_compute_in_float32(folder, in_float32):
    trainer = strategy(folder, model={"dtype": "bf16"}, router_float32=in_float32)
    seen = []
    router = trainer.balance.routers.modules[1]
    router.register_forward_hook(lambda _, states, outputs: seen.append((states[0], outputs)))
    trainer.forward(rank_batch(rows=2), {"log_probs"})
    states, (logits, weights, _) = seen[0]
    states, weight = states.flatten(0, -2).bfloat16(), router.weight.bfloat16()
    exact = torch.nn.functional.linear(states.float(), weight.float())
    assert (logits.dtype, weights.dtype) == ((torch.float32,) * 2 if in_float32 else (torch.bfloat16,) * 2)
    assert logits.equal(exact) == in_float32


@pytest.mark.parametrize(
    ("options", "key", "message"),
    [
        ({"router_bias_update_rate": 0.1}, "router_bias_update_rate", "the routers of qwen3_moe have no bias"),
        (
            {"router_aux_loss_coef": 1.0, "use_remove_padding": True, "share_prefixes": True},
            "share_prefixes",
            "prefixes cannot be shared with a load-balance loss",
        ),
    ],
)
def test_what_a_model_cannot_do_is_refused(folder, options, key, message):
    with pytest.raises(ConfigError, match=message) as caught:
        strategy(folder, **options)
    assert str(caught.value).startswith(f"actor.strategy.{key}: ")


def test_a_dense_model_has_no_load(tmp_path):
    dense = write_config(tmp_path, "qwen2")
    assert strategy(dense).balance is None
    with pytest.raises(ConfigError, match=r"router_aux_loss_coef: must be 0: .*qwen2 has no experts"):
        strategy(dense, router_aux_loss_coef=1.0)


class Replicas:
    """A group of expert parallel with so many replicas."""

    def __init__(self, size, replicas=1):
        self.size, self.replicas = size, torch.empty(replicas).view(-1)
        self.replicas.size = lambda: replicas


@pytest.mark.parametrize(
    ("family", "group", "message"),
    [
        ("qwen2", Replicas(2), "must be 1: the experts of qwen2 are not stacked"),
        ("qwen3_moe", Replicas(3), "3 does not divide the 8 experts of model.layers.0.mlp.experts"),
        ("qwen3_moe", Replicas(2, 5), "5 ranks with the same experts do not divide the width 32 of"),
    ],
)
def test_experts_that_ranks_cannot_divide_are_refused(tmp_path, family, group, message):
    model = strategy(write_config(tmp_path, family)).model
    with pytest.raises(ConfigError, match=f"actor.strategy.expert_parallel_size: {message}"):
        parallel.check_experts(model, expert_modules(model), group)


@pytest.mark.xdist_group("ranks")
def test_a_run_goes_on_with_the_same_and_with_another_division_of_the_experts(worlds, folder, tmp_path):
    """Bit for bit with the same, else to 1e-5; its weights are those of one device."""
    job = {"kind": "train", "model": str(folder), "fsdp": {"expert_parallel_size": 2}}
    whole = worlds[2].run(**job, seeds=[0, 1])
    first = worlds[2].run(**job, seeds=[0], save=str(tmp_path / "c"))
    assert "error" not in {**whole[0], **first[0]}
    same = worlds[2].run(**job, seeds=[1], load=str(tmp_path / "c"))
    for name, true in whole[0]["weights"].items():
        assert same[1]["weights"][name].equal(true), name
    alone = rank_jobs.run({"kind": "train", "model": str(folder), "seeds": [0, 1]})
    other = worlds[2].run(**{**job, "fsdp": {}}, seeds=[1], load=str(tmp_path / "c"))
    for found in (whole[0], other[0]):
        for name, true in alone["weights"].items():
            torch.testing.assert_close(found["weights"][name], true, rtol=0, atol=5e-5)


@pytest.mark.xdist_group("ranks")
def test_bf16_ranks_with_routers_in_float32_are_near_one_device(worlds, folder):
    """With replayed experts: rounding changes few choices."""
    job = {"kind": "agree", "model": str(folder), "config": {"dtype": "bf16"}, "experts": SHAPE}
    results = worlds[2].run(**job, fsdp={"expert_parallel_size": 2, "router_aux_loss_coef": 1.0})
    alone = rank_jobs.run({**job, "config": {"dtype": "fp32"}, "torch": {"router_aux_loss_coef": 1.0}})
    assert_covered(results)
    for result in results:
        assert "error" not in result, result["error"]
        assert {weight.dtype for weight in result["weights"].values()} == {torch.float32}
        assert result["metrics"]["router_aux_loss"] == pytest.approx(alone["metrics"]["router_aux_loss"], rel=1e-2)
        for name, true in alone["gradient"].items():
            assert (result["gradient"][name] - true).norm() <= 0.1 * true.norm() + 1e-6, name


def test_the_options_say_why_prefixes_are_not_shared():
    assert "load-balance loss" in FsdpOptions(router_aux_loss_coef=0.1).unshared and not FsdpOptions().unshared
