"""Adapters apart: alone to the engine hf, off for the reference, of peft's variants, beside peft itself."""

import asyncio
import dataclasses

import pytest
import rank_jobs
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from test_lora import batch, log_probs, moved, strategy
from transformers import AutoModelForCausalLM

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import ConfigError, RunError
from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.reading import read_single
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_hf.backend import HfBackend
from corerl_hf.options import HfOptions
from corerl_testing.tiny_model import tiny_model
from corerl_testing.training_reference import copied_weights, step

KINDS = [SingleDeviceStrategy, FsdpStrategy]
ALONE = MicroBatching(max_sequences=1)


def engine(lora, **changes):
    facts = {"lora_rank": 3, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj"], **changes}
    model = ModelConfig(str(tiny_model()), **facts)
    return HfBackend(model, RolloutConfig(lora=lora), device="cpu", options=HfOptions())


def sampled(backend, seed=0):
    """(prompts, responses, log-probs) of a few samples."""
    requests = [GenerationRequest(f"r{n}", [n + 1, n + 2, 7], SamplingParams(6, seed=seed + n)) for n in range(3)]
    answers = [completions[0] for completions in asyncio.run(backend.generate(requests))]
    prompts = [request.prompt_ids for request in requests]
    return prompts, [list(each.token_ids) for each in answers], [list(each.log_probs) for each in answers]


def trained_log_probs(one, prompts, responses):
    from corerl.contracts.experience import collate

    experience = collate(prompts, responses, [0] * len(prompts))
    return one.forward(experience, ["log_probs"]).log_probs[experience.response_mask].tolist()


def size_of(weights):
    return sum(each.numel() * each.element_size() for each in weights.values())


@pytest.mark.parametrize("rslora", [False, True])
def test_the_engine_samples_alike_with_an_adapter_and_with_merged_weights(rslora):
    one = moved(lora_rslora=rslora)
    apart, merged = engine("adapter", lora_rslora=rslora), engine("merged", lora_rslora=rslora)
    at_start = sampled(apart)
    apart.update_weights(one.adapters(torch.float32), 1)
    merged.update_weights(one.weights(torch.float32), 1)
    (prompts, responses, given), (_, same, other) = sampled(apart), sampled(merged)
    assert responses == same
    flat = [value for row in given for value in row]
    assert flat == pytest.approx([value for row in other for value in row], abs=1e-5)
    assert flat == pytest.approx(trained_log_probs(one, prompts, responses), abs=1e-5)
    assert at_start[2] != given


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_is_adapters_alone(kind):
    one = strategy(kind=kind)
    sent = dict(one.adapters(torch.bfloat16))
    trained = sum(each.numel() for each in one.model.parameters() if each.requires_grad)
    assert size_of(sent) == 2 * trained < size_of(dict(one.weights(torch.bfloat16))) / 20


def test_the_engine_refuses_adapters_of_another_model_and_then_generates_nothing():
    backend = engine("adapter")
    for changes, message in (
        ({"lora_rank": 2}, r"has shape \[2, 64\], the rollout model's has \[3, 64\]"),
        ({"target_modules": ["q_proj"]}, "is missing in the update"),
        ({"target_modules": ["q_proj", "down_proj", "k_proj"]}, "is unknown to the rollout model"),
    ):
        with pytest.raises(RunError, match=message):
            backend.update_weights(strategy(**changes).adapters(), 1)
        with pytest.raises(RunError, match="the last weight update was not complete"):
            sampled(backend)
    with pytest.raises(RunError, match="is unknown to the rollout model"):
        backend.update_weights(strategy().weights(), 1)
    backend.update_weights(strategy().adapters(), 2)
    assert sampled(backend)[1]


def test_an_engine_keeps_its_base_while_it_sleeps_and_needs_the_adapters_again():
    backend, one = engine("adapter"), moved()
    backend.update_weights(one.adapters(), 1)
    before = sampled(backend)
    backend.sleep()
    backend.wake()
    with pytest.raises(RunError, match="put to sleep"):
        sampled(backend)
    backend.update_weights(one.adapters(), 2)
    assert sampled(backend) == before


def test_an_engine_takes_no_random_numbers_of_the_process():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    engine("adapter")
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_without_adapters_the_policy_is_the_reference_bit_for_bit_and_trains_on_unchanged(kind, dtype):
    one, other = (moved(kind=kind, dtype=dtype) for _ in range(2))
    experience = batch(0)
    plain = kind(StrategySpec(dataclasses.replace(one.spec.model), "cpu", ALONE))
    with one.base(ALONE):
        base = one.forward(experience, ["log_probs"]).log_probs
    assert torch.equal(base, plain.forward(experience, ["log_probs"]).log_probs)
    assert not torch.equal(base, one.forward(experience, ["log_probs"]).log_probs)
    assert one.spec == other.spec
    for each in (one, other):
        step(each, experience)
    left, right = copied_weights(one), copied_weights(other)
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_an_error_within_the_reference_leaves_the_adapters_on():
    one = moved()
    before = one.forward(batch(0), ["log_probs"]).log_probs
    with pytest.raises(ValueError), one.base(ALONE):
        raise ValueError
    assert torch.equal(one.forward(batch(0), ["log_probs"]).log_probs, before)


VARIANTS = [{"lora_rslora": True}, {"lora_dora": True}, {"lora_rslora": True, "lora_dora": True}]


@pytest.mark.parametrize("changes", VARIANTS)
def test_rslora_and_dora_are_those_of_peft(changes, tmp_path):
    one, experience = moved(**changes), batch(0)
    own = {name.replace("model.", "base_model.model.model.", 1): each for name, each in lora_of(one).items()}
    names = {"use_rslora": changes.get("lora_rslora", False), "use_dora": changes.get("lora_dora", False)}
    config = LoraConfig(r=3, lora_alpha=6, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM", **names)
    theirs = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model()), config)
    theirs.load_state_dict({**theirs.state_dict(), **own})
    given = one.forward(experience, {"log_probs"}).log_probs[experience.response_mask]
    torch.testing.assert_close(given.double(), log_probs(theirs, experience), rtol=0, atol=1e-5)
    merged = theirs.merge_and_unload().state_dict()
    for name, each in copied_weights(one).items():
        torch.testing.assert_close(each, merged[name], rtol=0, atol=1e-5)


def lora_of(one):
    return {name: each.detach() for name, each in one.model.named_parameters() if ".lora_" in name}


@pytest.mark.parametrize("changes", [{"lora_rslora": True}, {"lora_dora": True}])
@pytest.mark.parametrize("kind", KINDS)
def test_exports_of_variants_load_in_peft_and_their_checkpoints_read_merged(changes, kind, tmp_path):
    options = TorchOptions(lora_export="adapter") if kind is SingleDeviceStrategy else None
    one, experience = moved(kind=kind, options=options, **changes), batch(0)
    folder = tmp_path / "saved"
    folder.mkdir()
    one.save(folder)()
    if kind is SingleDeviceStrategy:
        one.export(tmp_path)
        loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model()), str(tmp_path))
        given = one.forward(experience, {"log_probs"}).log_probs[experience.response_mask]
        torch.testing.assert_close(given.double(), log_probs(loaded, experience), rtol=0, atol=1e-5)
        assert load_file(tmp_path / "adapter_model.safetensors").keys() == dict(one.adapters()).keys()
        read = dict(read_single(folder, one.spec.model))
        for name, each in copied_weights(one).items():
            torch.testing.assert_close(read[name], each, rtol=0, atol=1e-6)
    resumed = strategy(kind=kind, seed=2, **changes)
    resumed.load(folder)
    for each in (one, resumed):
        step(each, batch(1))
    left, right = dict(one.adapters()), dict(resumed.adapters())
    assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("variant", ["lora_rslora", "lora_dora"])
def test_a_checkpoint_of_another_variant_is_refused(tmp_path, variant):
    strategy().save(tmp_path)()
    with pytest.raises(ConfigError, match=f"model.{variant}: is True, and that of the checkpoint .* False"):
        strategy(**{variant: True}).load(tmp_path)


def test_a_rank_above_the_sides_of_every_layer_is_refused():
    """One above the sides of some layers is not: peft adapts a gate of one row with any rank."""
    with pytest.raises(ConfigError, match=r"model.lora_rank: is 40, and no adapted layer has two sides above 32 \("):
        strategy(lora_rank=40, target_modules=["k_proj", "down_proj"])
    strategy(lora_rank=28, target_modules=["k_proj", "down_proj"])


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("variant", [{}, {"lora_dora": True}])
def test_two_ranks_send_the_adapters_of_one_device_and_have_its_reference(worlds, variant):
    config = {"load_format": "auto", "lora_rank": 2, "target_modules": ["q_proj", "down_proj"], **variant}
    job = {"kind": "apart", "model": str(tiny_model()), "config": config}
    single, ranks = rank_jobs.run(job), worlds[2].run(**job, fsdp={})
    for name, true in single["adapters"].items():
        for rank in ranks:
            torch.testing.assert_close(rank["adapters"][name], true, rtol=0, atol=1e-5)
    joined = torch.cat([rank["base"].sum(dim=1) for rank in ranks]).sort().values
    torch.testing.assert_close(joined, single["base"].sum(dim=1).sort().values, rtol=0, atol=1e-4)
