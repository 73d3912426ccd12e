"""Workers: their parts are those of the config alone, and what they say of the strategy that they hold."""

import multiprocessing
import threading
from concurrent.futures import ProcessPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from corerl.contracts import adapters
from corerl.contracts.config import ActorConfig, ModelConfig, TrainConfig
from corerl.contracts.facts import BackendFacts, StrategyFacts
from corerl.contracts.throughput import ModelShape
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import RunError
from corerl.trainer import workers
from corerl.trainer.workers import CriticWorker, PolicyWorker, ReferenceWorker, _spec, parts_of


def owners(config):
    return {key: part.entry.owner.distribution for key, part in parts_of(config).selected()}


def test_another_process_selects_the_same_parts(made_up):
    config = made_up().config
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        there = pool.submit(owners, config).result(timeout=120)
    assert there == owners(config)
    assert there["actor.policy_loss"] == config.plugins.load[0]


class Strategy:
    """A weight of 1, and shares of 3."""

    data_parallel_size = 3

    def __init__(self):
        self.weight, self.asked = torch.ones(4), []

    def weights(self, dtype=None):
        self.asked.append(dtype)
        yield "w", self.weight.to(dtype or torch.float32)

    def shape(self):
        return ModelShape(7, 1, 1)

    def save(self, folder):
        (folder / "weights").touch()


@pytest.fixture
def policy():
    worker = PolicyWorker.__new__(PolicyWorker)
    worker.strategy, worker.sent_dtype, worker.sends_adapters = Strategy(), torch.bfloat16, False
    return worker


def test_weights_are_sent_in_the_dtype_that_the_engine_computes_with(policy):
    assert [weight.dtype for _, weight in policy.weights()] == [torch.bfloat16]
    assert policy.strategy.asked == [torch.bfloat16]


def test_adapters_are_sent_alone_by_strategies_that_have_them(policy):
    policy.sends_adapters = True
    with pytest.raises(RunError, match="Strategy has the fact adapters, and not the methods of AdaptingStrategy"):
        policy.weights()
    policy.strategy.adapters, policy.strategy.base = lambda dtype: ["adapter", dtype], lambda limit: None
    assert policy.weights() == ["adapter", torch.bfloat16]


@pytest.mark.parametrize(
    ("model", "chosen", "facts", "are"),
    [
        ({"lora_rank": 2}, None, (True, True), True),
        ({"lora_rank": 0}, "adapter", (True, True), False),
        ({"lora_rank": 2}, "merged", (True, True), False),
        ({"lora_rank": 2}, None, (False, True), False),
        ({"lora_rank": 2}, None, (True, False), False),
        ({"lora_rank": 2}, "adapter", (True, False), True),
        ({"lora_rank": 2, "lora_dora": True}, None, (True, True), False),
        ({"lora_rank": 2, "load_format": "dummy"}, None, (True, True), False),
    ],
)
def test_adapters_are_sent_as_asked_or_if_both_sides_can(model, chosen, facts, are):
    config = TrainConfig(model=ModelConfig("m", **model))
    config.rollout.lora = chosen
    strategy, backend = StrategyFacts(adapters=facts[0]), BackendFacts(adapters=facts[1])
    assert adapters.are_sent(config, strategy, backend) is are


@pytest.mark.parametrize(
    ("path", "rank", "can", "holds"),
    [
        (None, 2, True, True),
        ("m", 2, True, True),
        ("n", 2, True, False),
        (None, 0, True, False),
        (None, 2, False, False),
    ],
)
def test_the_policy_holds_the_reference_of_its_own_base_alone(path, rank, can, holds):
    config = TrainConfig(model=ModelConfig("m", lora_rank=rank))
    config.ref.path = path
    assert adapters.hold_reference(config, StrategyFacts(adapters=can)) is holds


def test_metrics_of_a_strategy_are_those_of_its_worker(policy):
    assert policy.measured() == {}
    policy.strategy.measured = lambda: {"weights/update_lost_in_rounding": 0.5}
    assert policy.measured() == {"weights/update_lost_in_rounding": 0.5}


def test_memory_of_a_device_is_in_gib(policy, monkeypatch):
    device = {"is_initialized": True, "max_memory_allocated": 3 * 2**30, "max_memory_reserved": 5 * 2**30}
    for name, value in device.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    assert policy.measured() == {"perf/max_memory_allocated_gb": 3.0, "perf/max_memory_reserved_gb": 5.0}


def test_the_shape_has_the_shares_that_a_batch_is_cut_into(policy):
    assert policy.shape() == ModelShape(7, 1, 1, workers=1, data_parallel_size=3)


@pytest.mark.parametrize("later", [False, True])
def test_a_strategy_writes_in_the_call_or_in_the_thread_that_it_leaves_the_writing_to(
    policy, tmp_path, monkeypatch, later
):
    folder, written = tmp_path / "actor", tmp_path / "written"
    folder.mkdir()
    written.mkdir()
    threads = []
    if later:
        write = policy.strategy.save
        policy.strategy.save = lambda folder: lambda: (write(folder), threads.append(threading.current_thread()))
    before = set(threading.enumerate())
    assert policy.save(folder, written) == 1
    for thread in set(threading.enumerate()) - before:
        thread.join(600)
    assert (written / "0").read_text() == ""
    assert {path.name for path in folder.iterdir()} == {"weights", "random-0.pt"}
    assert (threading.current_thread() not in threads) and len(threads) == later


@pytest.mark.parametrize(
    ("dynamic", "own", "limit"),
    [
        (True, {}, MicroBatching(max_tokens=100)),
        (True, {"tokens": 50, "sequences": 5}, MicroBatching(max_tokens=50)),
        (False, {}, MicroBatching(max_sequences=8)),
        (False, {"tokens": 50, "sequences": 5}, MicroBatching(max_sequences=5)),
    ],
)
def test_a_role_cuts_by_its_own_limit_or_else_by_the_actors(dynamic, own, limit):
    actor = ActorConfig(use_dynamic_bsz=dynamic, ppo_max_token_len_per_gpu=100, ppo_micro_batch_size_per_gpu=8)
    assert _spec(TrainConfig(ModelConfig("m"), actor=actor), **own).micro_batching == limit


@pytest.mark.parametrize(("device", "tokens"), [("cpu", 512), ("cuda", 16384)])
def test_the_tokens_of_a_micro_batch_follow_from_the_device(monkeypatch, device, tokens):
    monkeypatch.setattr(workers, "resolve_device", lambda asked: device)
    assert _spec(TrainConfig(ModelConfig("m"))).micro_batching == MicroBatching(max_tokens=tokens)
    assert _spec(TrainConfig(ModelConfig("m")), tokens=7).micro_batching == MicroBatching(max_tokens=7)


def test_each_role_has_the_model_the_limits_and_the_optimizer_of_its_section(monkeypatch):
    config = TrainConfig(ModelConfig("m"))
    config.actor.use_dynamic_bsz, config.actor.device, config.rollout.temperature = True, "cpu", 0.7
    config.critic.path, config.critic.ppo_max_token_len_per_gpu, config.critic.grad_clip = "value model", 10, 0.5
    config.critic.model = {"lora_rank": 2}
    config.ref.path, config.ref.log_prob_max_token_len_per_gpu, config.trainer.seed = "reference", 20, 5
    entry = SimpleNamespace(facts=SimpleNamespace(adapters=False))
    part = SimpleNamespace(load=lambda: lambda spec=None: spec, load_fact=lambda name: None, entry=entry)
    names = ("rollout_backend", "strategy", "critic_strategy", "value_loss", "policy_loss")
    parts = SimpleNamespace(**dict.fromkeys(names, part), kl_loss=None, ref_strategy=None)
    monkeypatch.setattr(workers, "parts_of", lambda config: parts)
    actor = config.actor
    own = {"optim": actor.optim, "total_steps": 6, "grad_clip": actor.grad_clip, "temperature": 0.7, "seed": 5}
    policy = StrategySpec(ModelConfig("m"), "cpu", MicroBatching(max_tokens=512), **own)
    assert PolicyWorker(config, 6).strategy == policy
    own = {"optim": config.critic.optim, "total_steps": 6, "grad_clip": 0.5, "seed": 5, "head": "value"}
    critic = StrategySpec(ModelConfig("value model", lora_rank=2), "cpu", MicroBatching(max_tokens=10), **own)
    assert CriticWorker(config, 6).strategy == critic
    reference = StrategySpec(ModelConfig("reference"), "cpu", MicroBatching(max_tokens=20), temperature=0.7, seed=5)
    assert ReferenceWorker(config).strategy == reference
    parts.ref_strategy = SimpleNamespace(load=lambda: lambda spec: ("own", spec))
    assert ReferenceWorker(config).strategy == ("own", reference)
