"""Router replay by ``torch``: beside the backend ``hf``, and beside routers written by hand."""

import asyncio
import dataclasses
import random

import numpy as np
import pytest
import torch
from rank_jobs import chosen_experts

from corerl.contracts.agents import AgentResult
from corerl.contracts.config import ModelConfig, OptimConfig, RolloutConfig
from corerl.contracts.experience import collate
from corerl.contracts.rollout_backends import SamplingParams
from corerl.contracts.token_columns import TokenColumn
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.data.prompts import Prompt
from corerl.errors import ModelError, RunError
from corerl.rollout.groups import Group
from corerl.rollout.recorder import Recorder
from corerl.rollout.rows import rollouts_of
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_hf.backend import HfBackend
from corerl_hf.options import HfOptions
from corerl_testing.training_ranks import AllOutputs, rank_batch
from families import write_config

SHAPE = (2, 8, 2)
"""layers, experts of each, and chosen ones"""

LOG_PROBS = frozenset({"log_probs"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("moe"), "qwen3_moe", initializer_range=0.3)


def strategy(folder, *, model=None, optim=True, head="lm", cut=None, **options):
    config = ModelConfig(str(folder), load_format="dummy", **{"dtype": "fp32", **(model or {})})
    cut = cut or MicroBatching(max_sequences=2)
    spec = StrategySpec(config, "cpu", cut, OptimConfig(lr=1e-2) if optim else None, head=head, total_steps=10)
    return SingleDeviceStrategy(spec, TorchOptions(**options))


def routers(model):
    return [module for module in model.modules() if type(module).__name__ == "Qwen3MoeTopKRouter"]


def disturb(model, size=1.0):
    """Add noise to the routers of a trainer."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for router in routers(model):
            router.weight += size * torch.randn(router.weight.shape, generator=generator)


class Letters:
    stop_token_ids = (0,)

    def opening(self, token_ids):
        return ""

    def decode(self, rows):
        return ["".join(chr(97 + token % 26) for token in row) for row in rows]


class Policy:
    """The backend, as the model of an episode."""

    def __init__(self, backend):
        self.backend = backend

    async def complete(self, request, on_sent=lambda: None):
        on_sent()
        return (await self.backend.generate([request]))[0]


def generated(folder, seed=0):
    """An episode of ``hf`` with turns and branches, as a batch, and the log-probs of ``hf``."""
    config, rollout = ModelConfig(str(folder), load_format="dummy", dtype="fp32"), RolloutConfig(record=["experts"])
    backend, draw = HfBackend(config, rollout, device="cpu", options=HfOptions()), random.Random(seed)
    group = Group(
        Prompt(0, (1, 2, 3), [{"role": "user", "content": "Go."}], "acme", "4", {}),
        11,
        SamplingParams(200),
        "t-0",
        "train",
        0,
    )
    model = Recorder(Policy(backend), Letters(), group, 0, 10)

    async def play():
        paths = [[1, 2, 3]]
        for _ in range(6):
            path = draw.choice(paths)
            read = [draw.randrange(10, 50) for _ in range(draw.randrange(3))] if len(path) > 3 else []
            sampled = await model.generate([*path, *read], max_tokens=draw.randrange(1, 6))
            paths.append([*path, *read, *sampled.token_ids])

    asyncio.run(play())
    backend.close()
    return rollouts_of(model, AgentResult(1.0)).experience()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_log_probs_are_those_of_the_engine(folder, packed, seed):
    """Each trained token of turns and branches, although the trainer's routers would choose others."""
    batch = generated(folder, seed)
    assert batch.columns["experts"].counts.sum() == sum(batch.lengths) - len(batch)
    mask = batch.response_mask
    trainer = strategy(folder, use_remove_padding=packed)
    given = trainer.forward(batch, LOG_PROBS).log_probs
    torch.testing.assert_close(given[mask], batch.rollout_log_probs[mask], rtol=0, atol=1e-5)
    disturb(trainer.model, 1e-3)
    replayed = trainer.forward(batch, LOG_PROBS).log_probs
    assert (replayed - given)[mask].abs().max() < 0.05


def by_hand(folder, batch, choices, disturbed=True):
    """The strategy, with routers that a test has written: a softmax over given (rows, tokens, layers, k) experts."""
    true = strategy(folder, cut=MicroBatching(max_sequences=100))
    if disturbed:
        disturb(true.model)
    order = torch.argsort(batch.lengths, descending=True, stable=True)
    for number, router in enumerate(routers(true.model)):

        def forward(states, router=router, number=number):
            logits = torch.nn.functional.linear(states, router.weight)
            chosen = choices[order][:, :, number].flatten(0, 1)
            own = logits.topk(SHAPE[2]).indices
            chosen = torch.where(chosen < 0, own, chosen)
            return logits, logits.gather(1, chosen).softmax(dim=-1), chosen

        router.forward = forward
    return true


def dense(column, width):
    """(rows, ``width``, layers, k) experts; -1 where none is known."""
    found = torch.full((*column.counts.shape, SHAPE[0], SHAPE[2]), -1)
    found[column.counts > 0] = column.values.long()
    return found[:, :width]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("packed", "rows"), [(False, 1), (False, 3), (True, 1), (True, 3), (True, 100)])
def test_outputs_and_gradients_are_those_of_routers_with_these_experts(folder, packed, rows, checkpointing):
    """The layers run again in the backward pass with the experts of their own micro-batch."""
    batch = rank_batch()
    batch.columns["experts"] = chosen_experts(batch, *SHAPE)
    true = by_hand(folder, batch, dense(batch.columns["experts"], batch.input_ids.shape[1] - 1))
    given = strategy(
        folder,
        model={"enable_gradient_checkpointing": checkpointing},
        use_remove_padding=packed,
        cut=MicroBatching(max_sequences=rows),
    )
    disturb(given.model)
    gradients = [gradient(each, batch) for each in (given, true)]
    for name, expected in gradients[1].items():
        assert (gradients[0][name] - expected).norm() <= 1e-5 * expected.norm() + 1e-7, name
    assert gradients[1]["model.layers.0.mlp.gate.weight"].norm() > 1e-3  # it flows through the gates


def gradient(strategy, batch):
    found = {}

    def step():
        found.update({name: each.grad.clone() for name, each in strategy.model.named_parameters()})
        return 0.0

    strategy._step = step
    found["log_probs"] = strategy.forward(batch, LOG_PROBS).log_probs
    strategy.update(batch, AllOutputs())
    return found


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_without_a_replay_disturbed_routers_choose_others(folder, dtype):
    batch = generated(folder)
    trainer = strategy(folder, model={"dtype": dtype})
    disturb(trainer.model, 0.3)
    mask, chosen = batch.response_mask, {}
    for name, rows in {"replayed": batch, "free": dataclasses.replace(batch, columns={})}.items():
        seen = []
        hooks = [
            each.register_forward_hook(lambda _, __, output, seen=seen: seen.append(output[2]))
            for each in routers(trainer.model)
        ]
        log_probs = trainer.forward(rows, LOG_PROBS).log_probs[mask]
        chosen[name] = torch.cat([each.flatten() for each in seen]), log_probs
        for hook in hooks:
            hook.remove()
    changed = (chosen["free"][0] != chosen["replayed"][0]).float().mean()
    assert changed > 0.1 and (chosen["free"][1] - chosen["replayed"][1]).abs().max() > 1e-3


def test_a_replay_ends_with_its_batch(folder):
    trainer, batch = strategy(folder), rank_batch()
    free = trainer.forward(batch, LOG_PROBS).log_probs
    batch.columns["experts"] = chosen_experts(batch, *SHAPE)
    assert not trainer.forward(batch, LOG_PROBS).log_probs.equal(free)
    batch.columns.clear()
    assert trainer.forward(batch, LOG_PROBS).log_probs.equal(free)


def test_tokens_without_experts_are_routed_freely(folder):
    trainer, batch = strategy(folder, use_remove_padding=True), rank_batch()
    free = trainer.forward(batch, LOG_PROBS).log_probs
    column = chosen_experts(batch, *SHAPE)
    nothing = TokenColumn(column.values[:0], torch.zeros_like(column.counts))
    batch.columns["experts"] = nothing
    assert trainer.forward(batch, LOG_PROBS).log_probs.equal(free)


@pytest.mark.parametrize("changes", [{"optim": False}, {"head": "value"}])
def test_critic_and_reference_choose_themselves(folder, changes):
    model, batch = strategy(folder, **changes), rank_batch()
    wanted = {"values"} if "head" in changes else LOG_PROBS
    free = model.forward(batch, wanted)
    batch.columns["experts"] = chosen_experts(batch, *SHAPE)
    for name in wanted:
        assert getattr(model.forward(batch, wanted), name).equal(getattr(free, name))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            lambda own: own[:, :1],
            "has 1 × 2 experts of each token, and the trained model has 2 layers with experts × 2",
        ),
        (lambda own: own[:, :, :1], "has 2 × 1 experts of each token"),
        (lambda own: own.flatten(1), "has 4 experts of each token"),
        (lambda own: torch.full_like(own, 8), "names expert 8, and a layer of the trained model has 8"),
        (lambda own: torch.full_like(own, -3, dtype=torch.int16), "names expert -3"),
    ],
)
def test_a_column_of_another_model_is_one_error(folder, values, message):
    batch = rank_batch()
    column = chosen_experts(batch, *SHAPE)
    batch.columns["experts"] = TokenColumn(values(column.values), column.counts)
    with pytest.raises(RunError, match=message):
        strategy(folder).forward(batch, LOG_PROBS)


def test_a_dense_model_cannot_replay(tmp_path):
    batch = rank_batch()
    batch.columns["experts"] = chosen_experts(batch, *SHAPE)
    with pytest.raises(ModelError, match="qwen2 has no experts"):
        strategy(write_config(tmp_path, "qwen2")).forward(batch, LOG_PROBS)


def test_experts_travel_as_bytes(folder):
    values = generated(folder).columns["experts"].values
    assert values.dtype == torch.uint8 and values.shape[1:] == (2, 2) and np.prod(values.shape[1:]) == 4


@pytest.mark.parametrize("same", [True, False])
def test_shared_prefixes_are_those_with_the_same_experts(folder, same):
    """A group's prompt, whose experts were recorded once, or by each request with a difference at its third token."""
    prompt = [5, 6, 7, 8, 9, 10]
    batch = collate([prompt] * 3, [[11, 12], [13], [14, 15, 16]], [0, 0, 0])
    column = chosen_experts(batch, *SHAPE)
    width = column.counts[:, :5].sum(dim=1).unique().item()
    starts = (column.counts.sum(dim=1).cumsum(0) - column.counts.sum(dim=1)).tolist()
    for start in starts[1:]:
        column.values[start : start + width] = column.values[:width]
        column.values[start + 2] = column.values[2] if same else (column.values[2] + start) % 8
    batch.columns["experts"] = column
    given, true = (
        strategy(folder, use_remove_padding=True, share_prefixes=shares, cut=MicroBatching(max_sequences=3))
        for shares in (True, False)
    )
    assert given.token_model.trie(batch).tokens() == sum(batch.lengths - 1) - 2 * (5 if same else 2)
    torch.testing.assert_close(
        given.forward(batch, LOG_PROBS).log_probs, true.forward(batch, LOG_PROBS).log_probs, rtol=0, atol=1e-5
    )
