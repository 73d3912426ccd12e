"""The update of the strategy `torch` has the expected gradient: a model of three tokens, every group of two."""

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.objective import PolicyObjective
from corerl.plugins import load_plugins
from corerl_testing.enumerable import GAMES, Point, estimated, sampled
from corerl_testing.enumerable.expectation import joined

pytest.importorskip("corerl_grpo")

REGISTRIES = load_plugins().registries
EPS = 1e3
"""of AdamW, with the same rate: the first step is then -g / (1 + |g| / EPS)"""

OPTIM = OptimConfig(lr=EPS, eps=EPS, weight_decay=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    config = Qwen2Config(
        architectures=["Qwen2ForCausalLM"],
        dtype="float32",
        vocab_size=3,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=16,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        Qwen2ForCausalLM(config).save_pretrained(path)
    return path


def double(folder):
    return Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()


def table(model):
    """(4, 3): logits after the prompt, token 0, and after each first token: the states of a game of two tokens."""
    first = model(torch.tensor([[0]])).logits[:, -1]
    return torch.cat([first, model(torch.tensor([[0, 0], [0, 1], [0, 2]])).logits[:, -1]])


def by_strategy(folder, batch, loss):
    """The gradient of one update, by name."""
    model = ModelConfig(path=str(folder), dtype="fp32")
    spec = StrategySpec(model, "cpu", MicroBatching(max_sequences=16), OPTIM, grad_clip=1e6, total_steps=2)
    strategy = REGISTRIES.training_strategies.select("torch").load()(spec)
    before = {name: weight.clone() for name, weight in strategy.weights()}
    strategy.update(batch, PolicyObjective(loss))
    steps = {name: (before[name] - weight).double() for name, weight in strategy.weights()}
    return {name: step / (1 - step.abs() / EPS) for name, step in steps.items()}


@pytest.mark.parametrize(("estimator", "factor"), [("rloo", 1.0), ("dr_grpo", 0.5)])
def test_an_update_has_the_gradient_of_the_expected_score(folder, estimator, factor):
    [game] = [game for game in GAMES if game.name == "two tokens"]
    model = double(folder)
    logits = table(model)
    score = Point(game, logits, logits.detach())
    (score.probabilities * game.scores).sum().backward()
    true = {name: -weight.grad for name, weight in model.named_parameters()}

    point = Point(game, logits.detach(), logits.detach())
    groups = sampled(point, 2)
    found = estimated(groups, REGISTRIES.advantage_estimators.select(estimator).load())
    batch = joined(found, "seq-mean-token-sum").map(
        lambda name, column: column.float() if column.is_floating_point() and name != "loss_weights" else column
    )
    given = by_strategy(folder, batch, REGISTRIES.policy_losses.select("vanilla").load())
    size = max(float(gradient.abs().max()) for gradient in true.values())
    assert true.keys() == given.keys() and size > 0.01
    for name, gradient in true.items():
        torch.testing.assert_close(given[name], factor * gradient, rtol=0, atol=1e-5 * size, msg=name)
