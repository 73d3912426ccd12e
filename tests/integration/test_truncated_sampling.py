"""Truncated sampling in training: the kept sets of the engine are replayed, and the gradient is exact."""

import asyncio
import itertools
import json
import math

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.experience import collate
from corerl.contracts.losses import LossOutput
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.contracts.token_columns import TokenColumn, TokenValues
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.objective import PolicyObjective

VOCABULARY, LENGTH, PROMPT, TEMPERATURE = 5, 3, [1], 0.8

LIMITS = [{"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.3}, {"top_k": 4, "top_p": 0.9, "min_p": 0.05}]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """A model of 5 tokens whose distributions differ from even ones."""
    torch.manual_seed(3)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = Qwen2Config(vocab_size=VOCABULARY, num_key_value_heads=1, initializer_range=0.6, **sizes)
    folder = tmp_path_factory.mktemp("five_tokens")
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def log_distributions(model, response, kept):
    """(T, V) float64 log-probs over the kept tokens, with the gradient; -inf elsewhere."""
    logits = model(torch.tensor([[*PROMPT, *response]])).logits[0, len(PROMPT) - 1 : -1] / TEMPERATURE
    return torch.stack(
        [
            torch.full_like(row, -torch.inf).index_put((torch.tensor(own),), row[own].log_softmax(0))
            for row, own in zip(logits, kept, strict=True)
        ]
    )


def kept_sets(model, params):
    """Prefix -> the kept tokens that the engine ``hf`` would record after it."""
    from corerl_hf.sampling import Recorded, Sampler, SamplingArrays

    sampler = Sampler(SamplingArrays.of([params]), torch.device("cpu"), Recorded(kept=True))
    found = {}
    for length in range(LENGTH):
        for prefix in itertools.product(range(VOCABULARY), repeat=length):
            logits = model(torch.tensor([[*PROMPT, *prefix]])).logits[0, -1:].float().detach()
            drawn = sampler(logits, torch.tensor([0.5], dtype=torch.float64))
            found[prefix] = sorted(drawn.columns["kept_tokens"][0].tolist())
    return found


def flat_gradient(model):
    return torch.cat([parameter.grad.double().flatten() for parameter in model.parameters()])


def reinforce(inputs):
    return LossOutput(-inputs.advantages * inputs.log_probs)


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_the_expected_gradient_is_that_of_the_truncated_policy(model_dir, limit):
    """Summed over all sequences of three of five tokens; without replay it is another."""
    from corerl_fsdp.token_model import TokenModel
    from corerl_torch.loading import load_model

    exact = Qwen2ForCausalLM.from_pretrained(model_dir).double()
    kept = kept_sets(exact, SamplingParams(1, temperature=TEMPERATURE, **limit))
    assert min(map(len, kept.values())) < VOCABULARY
    rewards = torch.randn(VOCABULARY**LENGTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    responses, probabilities, value = [], [], 0.0
    for number, response in enumerate(itertools.product(range(VOCABULARY), repeat=LENGTH)):
        own = [kept[response[:step]] for step in range(LENGTH)]
        if all(token in each for token, each in zip(response, own, strict=True)):
            rows = log_distributions(exact, response, own)
            probability = rows.gather(1, torch.tensor(response)[:, None]).sum().exp()
            value = value + probability * rewards[number]
            responses.append((response, own, float(rewards[number])))
            probabilities.append(float(probability))
    assert sum(probabilities) == pytest.approx(1.0, abs=1e-12)
    exact.zero_grad()
    value.backward()

    spec = StrategySpec(ModelConfig(path=str(model_dir), dtype="fp32"), "cpu", MicroBatching(), temperature=TEMPERATURE)
    batch = collate([PROMPT] * len(responses), [each for each, _, _ in responses], [0] * len(responses))
    recorded = [
        TokenValues(np.concatenate(own).astype(np.int32), np.array([len(each) for each in own], np.int32))
        for _, own, _ in responses
    ]
    column = TokenColumn.collate(recorded, batch.lengths.tolist())
    batch.advantages = torch.tensor([[reward] * LENGTH for *_, reward in responses])
    batch.loss_weights = torch.tensor(probabilities, dtype=torch.float64)[:, None].expand(-1, LENGTH)
    batch.old_log_probs = torch.zeros(batch.response_mask.shape)
    gradients = {}
    for name, columns in {"replay": {"kept_tokens": column}, "none": {}}.items():
        batch.columns = columns
        for packed, chunk in ((True, None), (False, 7)):
            trained = load_model(spec.model, "lm", device="cpu", dtype=torch.float32)
            model = TokenModel(trained, spec, use_remove_padding=packed, logits_chunk_size=chunk)
            objective = PolicyObjective(reinforce)
            objective(model(batch, objective.wanted), batch).loss.backward()
            gradients[name, packed] = -flat_gradient(trained)
    true = flat_gradient(exact)
    for packed in (True, False):
        assert (gradients["replay", packed] - true).norm() < 1e-5 * true.norm()
        assert (gradients["none", packed] - true).norm() > 0.05 * true.norm()


@pytest.mark.parametrize("limit", [*LIMITS, {}], ids=str)
def test_the_log_probs_of_the_engine_are_those_of_the_trainer(model_dir, limit):
    from corerl_fsdp.single_device import SingleDeviceStrategy
    from corerl_hf.backend import HfBackend
    from corerl_hf.options import HfOptions

    model = ModelConfig(path=str(model_dir), dtype="fp32")
    rollout = RolloutConfig(record=["kept_tokens", "top_log_probs"], top_log_probs=2)
    backend = HfBackend(model, rollout, device="cpu", options=HfOptions(max_batch_size=9))
    sampling = SamplingParams(9, n=8, temperature=TEMPERATURE, stop_token_ids=(4,), **limit)
    prompts = [[1], [2, 3, 3], [0, 1]]
    requests = [GenerationRequest(str(number), prompt, sampling) for number, prompt in enumerate(prompts)]
    pairs = [
        (prompt, completion)
        for prompt, completions in zip(prompts, asyncio.run(backend.generate(requests)), strict=True)
        for completion in completions
    ]
    backend.close()
    completions = [completion for _, completion in pairs]
    batch = collate(
        [prompt for prompt, _ in pairs],
        [completion.token_ids for completion in completions],
        [0] * len(pairs),
        log_probs=[completion.log_probs for completion in completions],
    )
    lengths = batch.lengths.tolist()
    assert len(set(lengths)) > 5
    for name in completions[0].columns:
        batch.columns[name] = TokenColumn.collate([each.columns[name] for each in completions], lengths)
    spec = StrategySpec(model, "cpu", MicroBatching(max_tokens=20), temperature=TEMPERATURE)
    given = SingleDeviceStrategy(spec).forward(batch, ["log_probs"]).log_probs
    torch.testing.assert_close(given, batch.rollout_log_probs, rtol=0, atol=1e-5)
    assert (batch.columns["kept_tokens"].values.numel() > 0) == bool(limit)
    for completion in completions:
        likely = completion.columns["top_log_probs"], completion.columns["top_tokens"]
        for place, (token, log_prob) in enumerate(zip(completion.token_ids, completion.log_probs, strict=True)):
            values, ids = (column.cut(place, place + 1).values.tolist() for column in likely)
            assert values == sorted(values, reverse=True) and len(ids) <= 2
            assert token not in ids or values[ids.index(token)] == pytest.approx(log_prob, abs=1e-5)


def test_a_run_with_replay_has_no_mismatch(workplace, train):
    options = ["rollout.top_p=0.9", "rollout.top_k=50", "rollout.min_p=0.01", "rollout.record=[kept_tokens]"]
    kl = ["actor.use_kl_loss=true", "actor.kl_loss_type=full", "actor.entropy_coeff=0.01"]
    assert train(*options, *kl).code == 0
    [folder] = workplace.run_folders
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(steps) == 2
    for metrics in steps:
        assert metrics["rollout_corr/log_prob_abs_diff"] < 1e-5
        assert 0 < metrics["actor/entropy"] < math.log(50)
