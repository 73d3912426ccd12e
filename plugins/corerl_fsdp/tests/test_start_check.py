"""Outputs of strategies beside those of plain transformers: families with noise in training, and heads of their own."""

import random
import re

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from corerl.contracts.config import ModelConfig
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import ModelError
from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.options import FsdpOptions, TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_testing.training_reference import OPTIM, batch, split_rows, step
from corerl_torch.families import modes, probe

SIZES = {"vocab_size": 259, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
MLP = {"intermediate_size": 48}
DECODER = {"decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48}
ENCODER = {"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48}

FAMILIES = {
    "hidden_dropout_prob": transformers.BioGptConfig(**SIZES, **MLP),
    "a head beside the base model, layerdrop": transformers.OPTConfig(
        **SIZES, ffn_dim=48, word_embed_proj_dim=16, layerdrop=0.1, dropout=0.0
    ),
    "a decoder in a wrapper": transformers.BartConfig(
        vocab_size=259, d_model=32, **DECODER, **ENCODER, is_decoder=True, is_encoder_decoder=False
    ),
    "jitter": transformers.PhimoeConfig(
        **SIZES, **MLP, num_key_value_heads=2, num_local_experts=4, input_jitter_noise=0.1, router_jitter_noise=0.1
    ),
    "a default of the family": transformers.SeedOssConfig(**SIZES, **MLP, num_key_value_heads=2, head_dim=8),
    "names of its own": transformers.GPT2Config(vocab_size=259, n_embd=32, n_layer=2, n_head=4),
}


class OddConfig(Qwen2Config):
    model_type = "odd"


class Odd(Qwen2ForCausalLM):
    """Its logits depend on the token that is read, which its output layer alone does not get."""

    config_class = OddConfig

    def forward(self, input_ids=None, **named):
        result = super().forward(input_ids=input_ids, **named)
        result.logits = result.logits + 5 * torch.nn.functional.one_hot(input_ids, result.logits.shape[-1])
        return result


class RareConfig(Qwen2Config):
    model_type = "rare"


class Rare(Qwen2ForCausalLM):
    """In training, it leaves out its body once in a thousand passes, by Python's own random numbers."""

    config_class = RareConfig

    def forward(self, input_ids=None, **named):
        if self.training and random.random() < 1e-3:
            input_ids = torch.zeros_like(input_ids)
        return super().forward(input_ids=input_ids, **named)


class NoisyConfig(Qwen2Config):
    model_type = "noisy"


class Noisy(Qwen2ForCausalLM):
    config_class = NoisyConfig

    def forward(self, input_ids=None, **named):
        result = super().forward(input_ids=input_ids, **named)
        result.logits = result.logits + torch.rand(())
        return result


@pytest.fixture(scope="module", autouse=True)
def registered():
    for kind in (Odd, Rare, Noisy):
        AutoConfig.register(kind.config_class.model_type, kind.config_class)
        AutoModelForCausalLM.register(kind.config_class, kind)


@pytest.fixture
def without_small_models(monkeypatch):
    """As for a config of which no small model can be made."""
    monkeypatch.setattr(probe, "LARGEST", 0)
    probe._probe.cache_clear()
    yield
    probe._probe.cache_clear()


def saved(folder, config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model.eval()


def strategy(folder, kind=SingleDeviceStrategy, **options):
    modes._tell.cache_clear()
    model = ModelConfig(str(folder), dtype="fp32", enable_gradient_checkpointing=True)
    made = (FsdpOptions if kind is FsdpStrategy else TorchOptions)(**options)
    return kind(StrategySpec(model, "cpu", MicroBatching(max_sequences=3), OPTIM, total_steps=9), made)


@torch.no_grad()
def own_log_probs(model, rows):
    """By plain transformers, row by row."""
    found = []
    for prompt, response in split_rows(rows):
        logits = model(input_ids=torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        found.append(torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(response)[:, None])[:, 0])
    return torch.cat(found)


def log_probs(one, rows):
    return one.forward(rows, {"log_probs"}).log_probs[rows.response_mask]


@pytest.mark.parametrize("kind", [SingleDeviceStrategy, FsdpStrategy])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_policy_has_the_log_probs_of_its_own_forward_in_every_pass(tmp_path, name, kind, capsys):
    model, rows = saved(tmp_path, FAMILIES[name]), batch(0)
    one = strategy(tmp_path, kind, use_remove_padding=True)
    for _ in range(2):
        torch.testing.assert_close(log_probs(one, rows), own_log_probs(model, rows), rtol=0, atol=1e-5)
    line = f"{type(model).__name__} is trained in evaluation mode, at the same cost: training mode draws random numbers"
    assert line in capsys.readouterr().err and not one.token_model.training


@pytest.mark.parametrize("kind", [SingleDeviceStrategy, FsdpStrategy])
def test_a_family_without_noise_is_in_training_mode(tmp_path, kind, capsys):
    saved(tmp_path, Qwen2Config(**SIZES, **MLP, num_key_value_heads=2))
    assert strategy(tmp_path, kind).token_model.training
    assert "mode" not in capsys.readouterr().err


@pytest.mark.parametrize("recompute", [None, 0, 1])
def test_layers_in_evaluation_mode_are_recomputed_with_the_same_gradient(tmp_path, recompute):
    saved(tmp_path, FAMILIES["names of its own"])
    passes, plain = [], strategy(tmp_path, recompute_layers=0)
    one = strategy(tmp_path, recompute_layers=recompute)
    for number, layer in enumerate(one.model.transformer.h):
        layer.mlp.register_forward_pre_hook(lambda *_, number=number: passes.append(number))
    assert step(one, batch(0)) == step(plain, batch(0))
    counts = [passes.count(number) for number in range(2)]
    forward = min(counts)
    assert counts == {None: [forward, forward], 0: [3, 3], 1: [6, 3]}[recompute]
    assert forward == (6 if recompute is None else 3)  # 7 rows in micro-batches of 3
    for name, weight in plain.model.named_parameters():
        assert torch.equal(weight, one.model.get_parameter(name)), name


@pytest.mark.parametrize(
    "config",
    [
        transformers.MambaConfig(vocab_size=259, hidden_size=32, num_hidden_layers=2, state_size=4),
        transformers.JetMoeConfig(**SIZES, **MLP, num_key_value_heads=2, kv_channels=8, num_local_experts=4),
    ],
    ids=["named layers within named layers", "no recomputation by transformers"],
)
def test_families_with_layers_of_their_own_kind_are_sharded_and_recomputed(tmp_path, config):
    model, rows = saved(tmp_path, config), batch(0)
    one, ranks = strategy(tmp_path), strategy(tmp_path, FsdpStrategy)
    true = own_log_probs(model, rows)
    for each in (one, ranks):
        torch.testing.assert_close(log_probs(each, rows), true, rtol=0, atol=1e-5)
    alone, sharded = step(one, rows), step(ranks, rows)
    assert sharded["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-4)


@pytest.mark.parametrize("kind", [SingleDeviceStrategy, FsdpStrategy])
@pytest.mark.parametrize("small", [True, False])
def test_a_head_that_reads_more_than_hidden_states_is_computed_by_the_own_forward(
    tmp_path, kind, small, capsys, request
):
    if not small:
        request.getfixturevalue("without_small_models")
    model, rows = saved(tmp_path, OddConfig(**SIZES, **MLP, num_key_value_heads=2)), batch(0)
    one = strategy(tmp_path, kind, logits_chunk_size=5)
    torch.testing.assert_close(log_probs(one, rows), own_log_probs(model, rows), rtol=0, atol=1e-5)
    printed = capsys.readouterr().err
    assert (
        "log-probs of Odd are those of its own forward, because its output layer alone gives others (off by" in printed
    )
    plain = transformers.Qwen2ForCausalLM.from_pretrained(tmp_path)
    assert (own_log_probs(plain.eval(), rows) - own_log_probs(model, rows)).abs().max() > 0.1
    before = log_probs(one, rows)
    step(one, rows)
    assert not torch.equal(log_probs(one, rows), before)
    with pytest.raises(ModelError, match=r"^model\.path: Odd gives no hidden states"):
        one.forward(rows, {"hidden_states"})


@pytest.mark.parametrize("kind", [SingleDeviceStrategy, FsdpStrategy])
@pytest.mark.parametrize("small", [True, False])
def test_noise_that_two_passes_would_hardly_show_is_found(tmp_path, kind, small, capsys, request):
    if not small:
        request.getfixturevalue("without_small_models")
    saved(tmp_path, RareConfig(**SIZES, **MLP, num_key_value_heads=2))
    state = random.getstate()
    assert not strategy(tmp_path, kind).token_model.training
    assert random.getstate() == state
    assert "Rare is trained in evaluation mode" in capsys.readouterr().err


@pytest.mark.parametrize("small", [True, False])
def test_a_model_without_repeatable_or_causal_outputs_is_refused(tmp_path, small, request):
    if not small:
        request.getfixturevalue("without_small_models")
    bidirectional = transformers.BertConfig(**SIZES, **MLP)
    for config, why in (
        (NoisyConfig(**SIZES, **MLP, num_key_value_heads=2), "it computes with random numbers in evaluation mode, too"),
        (bidirectional, "outputs of a row depend on later tokens or on the rows beside it"),
    ):
        saved(tmp_path, config)
        with pytest.raises(ModelError, match=rf"^model\.path: \w+ is no causal .*: {re.escape(why)}"):
            strategy(tmp_path)
    bidirectional.is_decoder = True
    model, rows = saved(tmp_path, bidirectional), batch(0)
    torch.testing.assert_close(log_probs(strategy(tmp_path), rows), own_log_probs(model, rows), rtol=0, atol=1e-5)
