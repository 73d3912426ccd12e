"""Optimizers by their formulas in float64, schedules by hand, and the rules for both."""

import copy
import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from corerl.contracts.config import ModelConfig, OptimConfig, TrainConfig
from corerl.errors import UnknownNameError
from corerl.plugins import load_plugins
from corerl.registry.parts import resolve_parts
from corerl_torch.optimizer import (
    build_optimizer,
    clip_gradients,
    exceeds,
    initial_state,
    move_state,
    restore_optimizer,
)
from corerl_torch.optimizers import eight_bit, rules
from corerl_torch.optimizers.contract import StoresState
from corerl_torch.optimizers.muon import A, B, C
from corerl_torch.optimizers.partly_on_cpu import PartlyOnCpu, on_cpu
from corerl_torch.schedules import build_schedule, restore_schedule, selected_shape


class Model(nn.Module):
    """A matrix, experts, a vector, an embedding, an output layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.matrix, self.embedding = nn.Linear(6, 4), nn.Embedding(9, 6)
        self.experts = nn.Parameter(torch.randn(3, 4, 6))
        self.head = nn.Linear(6, 9, bias=False)

    def get_output_embeddings(self) -> nn.Module:
        return self.head


def with_gradients(model: nn.Module, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator) * 10 ** (seed - 1)
    return {name: parameter.grad.double() for name, parameter in model.named_parameters() if parameter.grad is not None}


def polar(matrix: torch.Tensor) -> torch.Tensor:
    """The iteration on the singular values alone, in float64."""
    left, sizes, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    sizes = sizes / sizes.square().sum(-1, keepdim=True).sqrt()
    for _ in range(5):
        sizes = A * sizes + B * sizes**3 + C * sizes**5
    assert sizes.min() > 0.6 and sizes.max() < 1.25
    return left @ torch.diag_embed(sizes) @ right


def test_a_norm_within_the_limit_leaves_every_bit_of_the_gradients():
    weight, kept = nn.Parameter(torch.zeros(50)), set()
    near = [1.0 + step * 2.0**-23 for step in range(-40, 3)]
    for norm in [*near, 0.0, 0.5, 0.9999, 1.5, 30.0, math.inf]:
        gradient = torch.linspace(-1, 1, 50)
        weight.grad = gradient.clone()
        clip_gradients([weight], 1.0, torch.tensor(norm))
        if not exceeds(norm, 1.0):
            assert torch.equal(weight.grad, gradient)
            kept.add(norm)
    assert kept >= {0.0, 0.5, 0.9999} and kept.isdisjoint({1.0, 1.5, 30.0, math.inf})


def test_muon_orthogonalises_matrices_and_each_expert() -> None:
    model = Model()
    config = OptimConfig(lr=0.1, weight_decay=0.3, optimizer="muon")
    optimizer = build_optimizer(model, config)
    names = ("matrix.weight", "experts")
    weights = {name: dict(model.named_parameters())[name].detach().double().clone() for name in names}
    momentum = {name: torch.zeros_like(weights[name]) for name in names}
    for seed in range(3):
        gradients = with_gradients(model, seed)
        optimizer.step()
        for name in names:
            momentum[name] = 0.95 * momentum[name] + gradients[name]
            towards = polar(gradients[name] + 0.95 * momentum[name])
            weights[name] = (1 - 0.1 * 0.3) * weights[name] - 0.1 * 0.2 * math.sqrt(6) * towards
            torch.testing.assert_close(dict(model.named_parameters())[name].double(), weights[name], rtol=0, atol=2e-5)


def test_muon_trains_vectors_embeddings_and_the_output_layer_as_adamw_does() -> None:
    model, other = Model(), Model()
    optimizers = [
        build_optimizer(each, OptimConfig(lr=0.1, weight_decay=0.3, optimizer=name))
        for each, name in ((model, "muon"), (other, "adamw"))
    ]
    for seed in range(3):
        for each, optimizer in zip((model, other), optimizers, strict=True):
            with_gradients(each, seed)
            optimizer.step()
    for name in ("matrix.bias", "embedding.weight", "head.weight"):
        torch.testing.assert_close(dict(model.named_parameters())[name], dict(other.named_parameters())[name])
    assert not torch.equal(model.matrix.weight, other.matrix.weight)


def test_a_state_of_muon_goes_on_and_a_damaged_one_is_refused() -> None:
    assert_resumes("muon")
    model = Model()
    optimizer = build_optimizer(model, OptimConfig(optimizer="muon"))
    with_gradients(model, 0)
    optimizer.step()
    stored = optimizer.state_dict()
    stored["state"][0]["momentum_buffer" if "momentum_buffer" in stored["state"][0] else "exp_avg"] = torch.zeros(2)
    with pytest.raises(ValueError, match="of parameter 0 has shape"):
        restore_optimizer(optimizer, stored, OptimConfig(optimizer="muon"))


def assert_resumes(name: str, model: type[nn.Module] = Model) -> None:
    straight, stopped = model(), model()
    optimizers = [build_optimizer(each, OptimConfig(lr=0.1, optimizer=name)) for each in (straight, stopped)]
    for seed in range(4):
        if seed == 2:
            stored = optimizers[1].state_dict()
            optimizers[1] = build_optimizer(stopped, OptimConfig(lr=0.1, optimizer=name))
            restore_optimizer(optimizers[1], stored, OptimConfig(optimizer=name))
        for each, optimizer in zip((straight, stopped), optimizers, strict=True):
            with_gradients(each, seed)
            optimizer.step()
    for ours, theirs in zip(straight.parameters(), stopped.parameters(), strict=True):
        assert torch.equal(ours, theirs)


class Wide(nn.Linear):
    """Enough numbers for 8 bits, which the block size does not divide."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(101, 97)


def test_moments_of_8_bits_are_near_those_of_adamw_and_take_two_bytes_a_weight() -> None:
    model, other = Wide(), Wide()
    config = OptimConfig(lr=1e-3, weight_decay=0.1)
    start = model.weight.detach().clone()
    ours, theirs = build_optimizer(model, OptimConfig(lr=1e-3, weight_decay=0.1, optimizer="adamw_8bit")), None
    theirs = build_optimizer(other, config)
    for seed in range(20):
        for each, optimizer in ((model, ours), (other, theirs)):
            with_gradients(each, seed % 3)
            optimizer.step()
    torch.testing.assert_close(model.bias, other.bias)  # too small for 8 bits
    moved = (other.weight - start).norm()
    assert 0 < (model.weight - other.weight).norm() / moved < 0.03
    state = ours.state[model.weight]
    size = sum(each.numel() * each.element_size() for each in state.values())
    assert size < 2.1 * model.weight.numel()


def test_a_state_of_8_bits_goes_on_bit_for_bit() -> None:
    assert_resumes("adamw_8bit", Wide)


def test_moments_of_8_bits_are_stored_as_those_of_adamw_and_taken_back_as_the_same_codes() -> None:
    model = Wide()
    optimizer = build_optimizer(model, OptimConfig(lr=1e-3, optimizer="adamw_8bit"))
    for seed in range(3):
        with_gradients(model, seed)
        optimizer.step()
    assert isinstance(optimizer, StoresState)
    for parameter in model.parameters():
        before = {name: value.clone() for name, value in optimizer.state[parameter].items()}
        stored = optimizer.stored(parameter)
        assert all(stored[name].shape == parameter.shape for name in ("exp_avg", "exp_avg_sq"))
        optimizer.state[parameter] = {"step": before["step"]}
        optimizer.take(parameter, stored)
        assert before.keys() == optimizer.state[parameter].keys()
        assert all(torch.equal(value, optimizer.state[parameter][name]) for name, value in before.items())


@pytest.mark.parametrize("signed", [True, False])
def test_a_code_is_the_nearest_and_a_positive_second_moment_stays_positive(signed: bool) -> None:
    table = eight_bit.codes(signed)
    assert len(table.unique()) == 256
    assert table[0] == (-table[-2] if signed else 0) and table[-1] == 1
    values = torch.randn(512) * 10 ** torch.linspace(-12, 3, 512)
    values = values if signed else values.abs()
    values[:3] = 0
    found, scales = eight_bit.encoded(values, 64, signed)
    back = eight_bit.decoded(found, scales, signed).flatten()
    assert (back[:3] == 0).all()
    shares = values.view(-1, 64) / scales[:, None]
    nearest = (shares[..., None] - table).abs().amin(-1)
    error = (back.view(-1, 64) / scales[:, None] - shares).abs()
    fine = error <= nearest + 1e-7
    if not signed:
        assert (back[3:] > 0).all()
        fine |= shares < table[1]
    assert fine.all()


def test_the_state_before_the_first_update_has_the_names_and_shapes_of_later_ones() -> None:
    for name in ("adamw", apart(1.0), "adamw_8bit", "muon"):
        model = Wide()
        optimizer = build_optimizer(model, OptimConfig(optimizer=name))
        start = {key: (value.shape, value.dtype) for key, value in initial_state(optimizer, model.weight).items()}
        with_gradients(model, 0)
        optimizer.step()
        assert start == {key: (value.shape, value.dtype) for key, value in optimizer.state[model.weight].items()}


def apart(fraction: float) -> dict[str, Any]:
    return {"name": "adamw", "offload_fraction": fraction}


@pytest.mark.parametrize(("fraction", "stages"), [(0.4, False), (0.4, True), (1.0, True)])
def test_a_part_of_adamw_on_the_cpu_has_its_bits_and_its_checkpoints(fraction: float, stages: bool) -> None:
    models = [Model(), Model()]
    plain, partly = (OptimConfig(lr=0.1, weight_decay=0.3, optimizer=each) for each in ("adamw", apart(fraction)))
    optimizers = [build_optimizer(each, config) for each, config in zip(models, (plain, partly), strict=True)]
    for seed in range(4):
        if seed == 2:  # each goes on from the state of the other
            stored = [copy.deepcopy(each.state_dict()) for each in optimizers]
            optimizers = [build_optimizer(each, config) for each, config in zip(models, (plain, partly), strict=True)]
            for optimizer, other, config in zip(optimizers, reversed(stored), (plain, partly), strict=True):
                restore_optimizer(optimizer, other, config)
        assert isinstance(optimizers[1], PartlyOnCpu)
        optimizers[1]._stages = stages
        for model, optimizer in zip(models, optimizers, strict=True):
            gradients = with_gradients(model, seed)
            model.matrix.bias.grad = None if seed == 1 else model.matrix.bias.grad
            optimizer.step()
            kept = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
            assert all(torch.equal(each.double(), gradients[name]) for name, each in kept.items())
    for ours, theirs in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(ours, theirs)
        assert all(
            torch.equal(optimizers[0].state[ours][n], optimizers[1].state[theirs][n]) for n in ("step", "exp_avg")
        )


def test_the_part_on_the_cpu_is_at_most_its_share_of_the_bytes_and_stays_there() -> None:
    sizes = (6, 3, 1)
    weights = [torch.nn.Parameter(torch.zeros(size)) for size in sizes]
    for fraction, numbers in ((0.0, []), (0.1, [2]), (0.45, [1, 2]), (0.7, [0, 2]), (1.0, [0, 1, 2])):
        found = on_cpu(weights, fraction)
        assert [number for number, each in enumerate(weights) if any(each is one for one in found)] == numbers
    optimizer = PartlyOnCpu([{"params": weights}], 0.7, lr=0.1, fused=True)
    for each in weights:
        each.grad = torch.ones_like(each)
    optimizer.step()
    move_state(optimizer, "meta")
    on = [optimizer.state[each]["exp_avg"].device.type for each in weights]
    assert on == ["cpu", "meta", "cpu"]


@pytest.mark.parametrize(
    ("value", "shares"),
    [
        ("constant", [1, 1, 1, 1, 1]),
        ("linear", [1, 0.75, 0.5, 0.25, 0]),
        ("cosine", [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0]),
        ({"name": "cosine", "num_cycles": 1}, [1, 0.5, 0, 0.5, 1]),
        ("cosine_with_restarts", [1, 0.5, 1, 0.5, 0]),
        ({"name": "wsd", "decay_ratio": 0.5}, [1, 1, 1, 0.5, 0]),
        ({"name": "wsd", "decay_ratio": 0.5, "decay": "sqrt"}, [1, 1, 1, 1 - math.sqrt(0.5), 0]),
        ({"name": "wsd", "decay_ratio": 0.5, "decay": "cosine"}, [1, 1, 1, 0.5, 0]),
    ],
)
def test_shapes(value: Any, shares: list[float]) -> None:
    shape = selected_shape(value).load()
    assert [shape(step / 4) for step in range(5)] == pytest.approx(shares)


def test_warm_up_as_a_share_of_the_run_and_the_last_rate() -> None:
    config = OptimConfig(lr=2.0, lr_warmup_steps_ratio=0.2, lr_scheduler_type="wsd", min_lr_ratio=0.1)
    optimizer = build_optimizer(nn.Linear(2, 2), config)
    schedule = build_schedule(optimizer, config, 10)
    seen = []
    for _ in range(11):
        seen.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert seen[:3] == pytest.approx([1.0, 2.0, 2.0])
    assert seen[-1] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("kind", "before", "after", "taken", "rate"),
    [
        ("linear", 4, 8, 4, 0.005),  # 1 - 4/8
        ("cosine", 8, 6, 3, 0.005),  # (1 + cos(pi / 2)) / 2
        ("linear", 8, 4, 6, 0.0),
    ],
)
def test_a_restored_schedule_has_the_rate_of_the_present_number_of_steps(
    kind: str, before: int, after: int, taken: int, rate: float
) -> None:
    config = OptimConfig(lr=0.01, lr_scheduler_type=kind)
    model = nn.Linear(2, 2)
    optimizers = [build_optimizer(model, config) for _ in range(2)]
    old, new = (build_schedule(each, config, total) for each, total in zip(optimizers, (before, after), strict=True))
    for _ in range(taken):
        optimizers[0].step()
        old.step()
    restore_schedule(new, old.state_dict())
    assert new.get_last_lr() == pytest.approx([rate, rate], abs=1e-12)
    optimizers[1].step()
    new.step()
    assert new.last_epoch == taken + 1


class Counting(torch.optim.SGD):
    """Its groups have an option, and a count of the steps."""

    def __init__(self, groups: Any, **values: Any) -> None:
        super().__init__(groups, **values)
        for group in self.param_groups:
            group.setdefault("count", 0)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        for group in self.param_groups:
            group["count"] += 1


@dataclasses.dataclass(frozen=True)
class CountingOptions:
    momentum: float = 0.5


def test_restored_groups_have_the_configs_values_and_the_state_that_an_optimizer_keeps_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = [Counting([nn.Parameter(torch.ones(2))], lr=lr, momentum=momentum) for lr, momentum in ((1, 0.5), (2, 0.9))]
    made[0].step()
    part = SimpleNamespace(options=CountingOptions(momentum=0.9))
    monkeypatch.setattr("corerl_torch.optimizer.selected", lambda value: part)
    restore_optimizer(made[1], made[0].state_dict(), OptimConfig(optimizer="counting"))
    [group] = made[1].param_groups
    assert (group["lr"], group["momentum"], group["count"]) == (2, 0.9, 1)


def test_the_state_of_another_optimizer_is_refused_with_the_option_that_begins_a_new_one() -> None:
    model = Wide()
    stored = build_optimizer(model, OptimConfig())
    with_gradients(model, 0)
    stored.step()
    for name in ("muon", "adamw_8bit"):
        with pytest.raises(ValueError, match=r"is missing, as in the state of another optimizer: .*\[model, extra\]"):
            other = OptimConfig(optimizer=name)
            restore_optimizer(build_optimizer(model, other), stored.state_dict(), other)


def config(**optim: Any) -> TrainConfig:
    made = TrainConfig(ModelConfig("m"))
    made.actor.optim = OptimConfig(**optim)
    return made


@pytest.mark.parametrize(
    ("optim", "strategy", "words"),
    [
        ({"optimizer": "muon"}, "megatron", "AdamW alone"),
        ({"optimizer": {"name": "adamw", "offload_fraction": 0.5}}, "megatron", "use its option optimizer_offload"),
        ({"lr_warmup_steps": 3, "lr_warmup_steps_ratio": 0.1}, "torch", "set one of them to 0"),
    ],
)
def test_what_a_strategy_cannot_use_is_refused(
    optim: dict[str, Any], strategy: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, registries = config(**optim), load_plugins().registries
    made.actor.strategy = strategy
    [error] = rules.violations(made, resolve_parts(made, registries))
    assert words in str(error)
    made.actor.strategy, made.actor.optim = "fsdp", OptimConfig(optimizer="muon")
    parts = resolve_parts(made, registries)
    assert list(rules.violations(made, parts)) == []
    facts = registries.optimizers.select("muon", "key").entry.facts
    monkeypatch.setitem(vars(facts), "sharded", False)
    [error] = rules.violations(made, parts)
    assert "does not share its state over ranks" in str(error)


def test_unknown_names_and_options_are_refused_with_the_rest_of_the_config() -> None:
    for optim in ({"optimizer": "muno"}, {"lr_scheduler_type": "wds"}):
        with pytest.raises(UnknownNameError):
            resolve_parts(config(**optim), load_plugins().registries)


MINE = """
import torch

def momentum(model, groups, config):
    return torch.optim.SGD(groups, lr=config.lr, momentum=0.9)
"""


def test_an_optimizer_of_a_file_goes_on_from_its_state(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    assert_resumes(f"{tmp_path}/mine.py:momentum")
    assert type(build_optimizer(Model(), OptimConfig(optimizer=f"{tmp_path}/mine.py:momentum"))) is torch.optim.SGD
