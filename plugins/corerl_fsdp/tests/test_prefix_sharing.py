"""Shared prefixes beside plain packed rows: outputs and gradients of random trees.

Weights are float64; norms and outputs are float32. In float32 both gradients are 1e-6 to 3e-6 off that of float64.
"""

import pytest
import torch

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.experience import collate
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import ConfigError
from corerl.objective import loss_weights
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_fsdp.token_model import decoder_layers
from corerl_testing.tiny_model import tiny_model
from corerl_testing.training_ranks import AllOutputs
from corerl_testing.trees import tree_batch
from corerl_torch.supervised import SupervisedObjective
from families import write_config

WANTED = frozenset({"log_probs", "entropy", "sum_pi_squared"})
WHOLE = MicroBatching(max_sequences=100)


def strategy(share, *, folder=None, head="lm", cut=WHOLE, dtype=torch.float64, **model):
    model = ModelConfig(
        str(folder or tiny_model()), dtype="fp32", **({"load_format": "dummy"} if folder else {}), **model
    )
    spec = StrategySpec(model, "cpu", cut, OptimConfig(lr=1e-2), temperature=0.7, head=head, total_steps=10)
    one = SingleDeviceStrategy(spec, TorchOptions(use_remove_padding=True, share_prefixes=share))
    one.model.to(dtype)
    return one


def tokens_of(one):
    """A list that grows by the tokens of each forward pass of the layers."""
    seen = []
    decoder_layers(one.model)[0].register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))
    return seen


def outputs_and_gradient(one, batch, objective=None):
    """Outputs of the whole batch, and the gradient of a loss over its micro-batches."""
    objective = objective or AllOutputs()
    outputs = one.forward(batch, objective.wanted)
    for rows in one._cuts(batch):
        micro_batch = batch.select(rows)
        objective(one._forward(micro_batch, objective.wanted), micro_batch).loss.backward()
    gradients = [each.grad.flatten() for each in one.model.parameters() if each.grad is not None]
    return {name: getattr(outputs, name) for name in objective.wanted}, torch.cat(gradients)


def require_same(batch, objective=None, gradient_off=3e-7, **changes):
    (expected, true), (outputs, gradient) = (
        outputs_and_gradient(strategy(share, **changes), batch, objective) for share in (False, True)
    )
    for name, value in expected.items():
        off = (outputs[name] - value).abs() / value.abs().clamp(min=1)
        assert off.max() <= 1e-6, name
    assert (gradient - true).norm() <= gradient_off * true.norm()


@pytest.mark.parametrize("cut", [WHOLE, MicroBatching(max_sequences=3), MicroBatching(max_tokens=30)])
@pytest.mark.parametrize("seed", range(4))
def test_random_trees_give_equal_outputs_and_gradients(seed, cut):
    require_same(tree_batch(seed, 6 + 3 * seed), cut=cut)


@pytest.mark.parametrize("seed", range(4))
def test_random_trees_give_equal_outputs_and_gradients_in_float32(seed):
    require_same(tree_batch(seed), SupervisedObjective(), gradient_off=1e-6, dtype=torch.float32)


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_families_give_equal_outputs_and_gradients(family, tmp_path):
    require_same(tree_batch(1, vocabulary=50), folder=write_config(tmp_path, family))


def test_a_sliding_window_gives_equal_outputs_and_gradients(tmp_path):
    write_config(tmp_path, "qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=1)
    require_same(tree_batch(2, vocabulary=50), folder=tmp_path)


@pytest.mark.parametrize("changes", [{"lora_rank": 3}, {"enable_gradient_checkpointing": True}])
def test_adapters_and_recomputed_activations_give_equal_outputs_and_gradients(changes):
    require_same(tree_batch(3), **changes)


def test_a_critic_gives_equal_values_and_gradients():
    batch = tree_batch(4)
    batch.returns = torch.randn(batch.response_mask.shape, generator=torch.Generator().manual_seed(0))
    require_same(batch, AllOutputs("value"), head="value")


def test_the_log_probs_of_the_whole_vocabulary_are_equal():
    require_same(tree_batch(5), AllOutputs(vocabulary=True))


CASES = {
    "equal rows": ([[5, 6, 7]] * 3, [[8, 9, 10]] * 3, 5),
    "a row that begins another": ([[5, 6], [5, 6], [5]], [[7], [7, 8, 9], [6, 7, 8, 9, 4]], 5),
    "no common beginning": ([[5, 6], [6, 5]], [[7], [7, 8, 9]], 6),
    "a prompt of one token in common": ([[5], [5]], [[6, 7], [7, 6]], 3),
    "a response of which one token is left": ([[5, 6, 7], [5, 6, 7]], [[1], [2]], 3),
    "one row": ([[5, 6]], [[7, 8]], 3),
}


@pytest.mark.parametrize(("prompts", "responses", "computed"), CASES.values(), ids=CASES)
def test_special_rows_give_equal_outputs_and_gradients_from_each_token_once(prompts, responses, computed):
    batch = collate(prompts, responses, range(len(prompts)))  # each row in a group of its own
    batch.loss_weights = loss_weights(batch.response_mask, "token-mean")
    require_same(batch)
    one = strategy(None)
    seen = tokens_of(one)
    one.forward(batch, WANTED)
    assert seen == [computed]


def test_a_group_computes_its_prompt_once():
    batch = collate([[5] * 40] * 4, [[6 + row] * 8 for row in range(4)], [0] * 4)
    for share, tokens in ((True, 40 + 4 * 7), (False, 4 * 47)):
        one = strategy(share)
        seen = tokens_of(one)
        one.forward(batch, WANTED)
        assert seen == [tokens]


def test_sharing_is_off_if_rows_are_padded_and_refused_if_it_is_asked_for():
    spec = StrategySpec(ModelConfig(str(tiny_model())), "cpu", WHOLE)
    assert not SingleDeviceStrategy(spec, TorchOptions()).token_model.shares_prefixes
    with pytest.raises(ConfigError, match=r"share_prefixes: prefixes cannot be shared among padded rows \(use_remove"):
        SingleDeviceStrategy(spec, TorchOptions(share_prefixes=True))
