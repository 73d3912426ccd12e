"""Adapters of stacked experts, beside the formula in float64, peft, and the engine hf."""

import asyncio
import os
import shutil

import pytest
import rank_jobs
import torch
from peft import PeftModel
from torch.func import functional_call
from transformers import AutoModelForCausalLM, GptOssConfig, Qwen3MoeConfig

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.experience import collate
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import ConfigError
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.reading import read_single
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_hf.backend import HfBackend
from corerl_hf.options import HfOptions
from corerl_testing.tiny_model import tiny_model
from corerl_testing.training_reference import OPTIM, batch, copied_weights, split_rows, step
from corerl_torch import expert_adapters, lora
from corerl_torch.weights import as_in_files

SIZES = {
    "vocab_size": 259,
    "hidden_size": 32,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "num_experts_per_tok": 2,
}
QWEN = Qwen3MoeConfig(num_experts=4, moe_intermediate_size=16, **SIZES)
GPT_OSS = GptOssConfig(num_local_experts=4, **{**SIZES, "intermediate_size": 32})
RANK, ALPHA = 2, 6
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
TARGETS = ["q_proj", "experts"]


def filled(folder, config):
    """A folder with random weights, and a tokenizer."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    for file in tiny_model().iterdir():
        if "token" in file.name or "template" in file.name:
            shutil.copy(file, folder)
    return str(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {
        "qwen": filled(tmp_path_factory.mktemp("qwen"), QWEN),
        "gpt_oss": filled(tmp_path_factory.mktemp("gpt_oss"), GPT_OSS),
    }


def strategy(path, options=None, **changes):
    adapters = {"lora_rank": RANK, "lora_alpha": ALPHA, "target_modules": TARGETS, "dtype": "fp32", **changes}
    spec = StrategySpec(ModelConfig(path, **adapters), "cpu", MicroBatching(max_sequences=100), OPTIM, total_steps=10)
    return SingleDeviceStrategy(spec, options)


def moved(path, **changes):
    """B are no longer zero."""
    one = strategy(path, **changes)
    step(one, batch(5))
    return one


def with_pairs(weights, pairs, transposed):
    """The plain model's weights with s·BA added, written out expert by expert."""
    merged, scale = dict(weights), ALPHA / RANK
    for name in weights:
        owner, _, last = name.rpartition(".")
        if owner.endswith("q_proj") and last == "weight":
            merged[name] = (
                weights[name]
                + scale * pairs[f"{owner}.lora_B.default.weight"] @ pairs[f"{owner}.lora_A.default.weight"]
            )
        if owner.endswith("experts") and last in ("gate_up_proj", "down_proj"):
            wrapper = f"{owner}.base_layer" if last == "gate_up_proj" else owner
            left, right = (pairs[f"{wrapper}.lora_{side}.default.weight"] for side in "BA")
            own = []
            for expert, stack in enumerate(weights[name]):
                count = len(weights[name])
                columns = [left[:, place * count + expert] for place in range(RANK)]
                rows = right[expert * RANK : (expert + 1) * RANK]
                change = scale * torch.stack(columns, dim=1) @ rows
                own.append(stack + (change.T if transposed else change))
            merged[name] = torch.stack(own)
    return merged


@pytest.mark.parametrize("family", ["qwen", "gpt_oss"])
def test_gradients_and_merged_weights_are_those_of_the_formula_in_float64(folders, family):
    one, experience = moved(folders[family]), batch(0)
    base = AutoModelForCausalLM.from_pretrained(folders[family], dtype=torch.float64, **EAGER)
    pairs = {name: each.detach().double().requires_grad_() for name, each in lora.trained(one.model)}
    weights = {name: each.detach() for name, each in base.named_parameters()}
    merged = with_pairs(weights, pairs, family == "gpt_oss")
    own = {name: each.double() for name, each in copied_weights(one).items()}
    true = dict(as_in_files(base.config, ((name, each.detach()) for name, each in merged.items())))
    torch.testing.assert_close(own, true, rtol=0, atol=1e-6)
    loss = torch.zeros((), dtype=torch.float64)
    for row, (prompt, response) in enumerate(split_rows(experience)):
        output = functional_call(base, merged, kwargs={"input_ids": torch.tensor([prompt + response])})
        chosen = torch.log_softmax(output.logits[0, len(prompt) - 1 : -1], dim=-1)
        chosen = chosen.gather(1, torch.tensor(response)[:, None])[:, 0]
        loss = loss - (chosen * experience.loss_weights[row, : len(response)]).sum()
    loss.backward()
    seen = {}
    rank_jobs.run.record_gradient(one, seen)
    assert step(one, experience)["loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert seen.keys() == pairs.keys() and len(pairs) == 2 * 2 * 3
    for name, pair in pairs.items():
        assert pair.grad.norm() > 0
        assert (seen[name] - pair.grad).norm() <= 1e-5 * pair.grad.norm(), name


@pytest.mark.parametrize("family", ["qwen", "gpt_oss"])
def test_peft_an_export_and_a_checkpoint_have_the_merged_weights(folders, family, tmp_path):
    one = moved(folders[family], options=TorchOptions(lora_export="adapter"))
    true = copied_weights(one)
    one.export(tmp_path / "adapter")
    plain = AutoModelForCausalLM.from_pretrained(folders[family], dtype=torch.float32)
    loaded = PeftModel.from_pretrained(plain, str(tmp_path / "adapter")).merge_and_unload()
    named = dict(as_in_files(loaded.config, ((name, each.detach()) for name, each in loaded.named_parameters())))
    torch.testing.assert_close({name: named[name] for name in true}, true, rtol=0, atol=1e-6)
    (tmp_path / "saved").mkdir()
    (one.save(tmp_path / "saved") or (lambda: None))()
    stored = dict(as_in_files(loaded.config, read_single(tmp_path / "saved", one.spec.model)))
    torch.testing.assert_close({name: stored[name] for name in true}, true, rtol=0, atol=1e-6)


@pytest.mark.parametrize("way", ["adapter", "merged"])
def test_the_engine_agrees_with_the_trainer(folders, way):
    one = moved(folders["qwen"])
    backend = HfBackend(one.spec.model, RolloutConfig(name="hf", lora=way), device="cpu", options=HfOptions())
    backend.update_weights(one.adapters(torch.float32) if way == "adapter" else one.weights(), version=1)
    request = GenerationRequest("r", [3, 5, 7], SamplingParams(max_tokens=12, seed=1, n=2))
    [samples] = asyncio.run(backend.generate([request]))
    experience = collate([[3, 5, 7]] * 2, [list(each.token_ids) for each in samples], [0, 0])
    true = one.forward(experience, ["log_probs"]).log_probs
    for row, sample in zip(true, samples, strict=True):
        given = torch.tensor(sample.log_probs)
        torch.testing.assert_close(given, row[: len(given)], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_modules": "all-linear"}, "target_modules: stacked experts are adapted by their name alone"),
        ({"target_modules": ["q_proj", "down_proj"]}, "target_modules: stacked experts are adapted by their name"),
        ({"lora_dora": True}, "lora_dora: peft has no DoRA of experts"),
        ({"lora_rank": 17}, r"lora_rank: is 17, and the smaller side of .*experts\.down_proj is 16"),
    ],
)
def test_what_experts_cannot_have_is_refused(folders, changes, message):
    with pytest.raises(ConfigError, match=message):
        strategy(folders["qwen"], **changes)


def test_experts_of_a_model_without_them_and_attention_alone():
    model = ModelConfig(str(tiny_model()), lora_rank=2, target_modules=["q_proj", "experts"])
    with pytest.raises(ConfigError, match="the model has none"):
        lora.insert(AutoModelForCausalLM.from_pretrained(tiny_model()), model)
    mixture = AutoModelForCausalLM.from_config(QWEN)
    lora.insert(mixture, ModelConfig("m", lora_rank=2, target_modules=["q_proj", "o_proj"]))
    assert len(lora.parameters(mixture)) == 8 and not expert_adapters.wrapped(mixture)


@pytest.mark.skipif(os.environ.get("CORERL_EVERY_COMBINATION") != "1", reason="set CORERL_EVERY_COMBINATION=1")
@pytest.mark.xdist_group("ranks")
def test_two_ranks_train_the_adapters_of_one_device(worlds, folders):
    config = {"load_format": "auto", "lora_rank": 2, "target_modules": TARGETS}
    job = {"kind": "apart", "model": folders["qwen"], "config": config}
    single, ranks = rank_jobs.run(job), worlds[2].run(**job, fsdp={})
    for rank in ranks:
        assert "error" not in rank, rank["error"]
        for name, true in single["adapters"].items():
            torch.testing.assert_close(rank["adapters"][name], true, rtol=0, atol=1e-5)
