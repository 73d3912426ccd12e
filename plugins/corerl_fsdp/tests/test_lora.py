"""Adapters under ``torch`` and on ranks of ``fsdp``, beside formulas in float64, plain transformers, and peft."""

import re

import pytest
import rank_jobs
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch.func import functional_call
from transformers import AutoModelForCausalLM, DeepseekV4Config, GPT2Config

from corerl.config.typed import build
from corerl.contracts.config import ModelConfig
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import ConfigError
from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.options import FsdpOptions, TorchOptions
from corerl_fsdp.reading import read_sharded
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_testing.tiny_model import reference, tiny_model
from corerl_testing.training_reference import OPTIM, batch, copied_weights, split_rows, step
from corerl_torch.families.cut import cut

RANK, ALPHA = 3, 6
TARGETS = ["q_proj", "down_proj"]
WHOLE = MicroBatching(max_sequences=100)


def strategy(*, kind=SingleDeviceStrategy, options=None, seed=1, path=None, **changes):
    lora = {"lora_rank": RANK, "lora_alpha": ALPHA, "target_modules": TARGETS, "dtype": "fp32", **changes}
    model = ModelConfig(str(path or tiny_model()), **lora)
    return kind(StrategySpec(model, "cpu", WHOLE, OPTIM, total_steps=10, seed=seed), options)


def adapters_of(one):
    return {name: each for name, each in one.model.named_parameters() if ".lora_" in name}


def moved(**changes):
    """A strategy whose B are no longer zero."""
    one = strategy(**changes)
    step(one, batch(5))
    return one


def log_probs(model, experience):
    """In plain transformers, row by row."""
    rows = []
    for prompt, response in split_rows(experience):
        logits = model(input_ids=torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        rows.append(torch.log_softmax(logits.double(), dim=-1).gather(1, torch.tensor(response)[:, None])[:, 0])
    return torch.cat(rows)


def test_the_gradient_of_adapters_is_that_of_the_formula_in_float64():
    one, experience = moved(), batch(0)
    base = reference(tiny_model())
    pairs = {name: each.detach().double().clone().requires_grad_() for name, each in adapters_of(one).items()}
    weights = dict(base.named_parameters())
    for name in list(weights):
        owner = name.removesuffix(".weight")
        if owner.endswith(tuple(TARGETS)):
            down, up = (pairs[f"{owner}.lora_{letter}.default.weight"] for letter in "AB")
            weights[name] = weights[name].detach() + ALPHA / RANK * up @ down
    loss = torch.zeros((), dtype=torch.float64)
    for row, (prompt, response) in enumerate(split_rows(experience)):
        output = functional_call(base, weights, kwargs={"input_ids": torch.tensor([prompt + response])})
        chosen = torch.log_softmax(output.logits[0, len(prompt) - 1 : -1], dim=-1)
        chosen = chosen.gather(1, torch.tensor(response)[:, None])[:, 0]
        loss = loss - (chosen * experience.loss_weights[row, : len(response)]).sum()
    loss.backward()
    seen = {}
    rank_jobs.run.record_gradient(one, seen)
    metrics = step(one, experience)
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert seen.keys() == pairs.keys() and len(pairs) == 8
    for name, pair in pairs.items():
        assert pair.grad.norm() > 0
        assert (seen[name] - pair.grad).norm() <= 1e-5 * pair.grad.norm(), name


@pytest.mark.parametrize("kind", [SingleDeviceStrategy, FsdpStrategy])
def test_at_the_start_the_model_is_the_base_and_an_update_moves_its_targets_alone(kind):
    one = strategy(kind=kind)
    base = load_file(tiny_model() / "model.safetensors")
    before = copied_weights(one)
    assert before.keys() == base.keys()
    assert all(torch.equal(before[name], base[name]) for name in base)
    step(one, batch(0))
    changed = {name for name, tensor in copied_weights(one).items() if not torch.equal(tensor, base[name])}
    layers = ("self_attn.q_proj", "mlp.down_proj")
    assert changed == {f"model.layers.{number}.{layer}.weight" for number in (0, 1) for layer in layers}
    states = sum(tensor.numel() for state in one.optimizer.state.values() for tensor in state.values())
    assert states < 2.1 * sum(each.numel() for each in adapters_of(one).values())


def test_merged_weights_in_a_plain_model_have_the_log_probs_of_the_adapters():
    one, experience = moved(target_modules="all-linear", exclude_modules=["gate_proj"]), batch(0)
    adapted = {name.partition(".lora_")[0].rpartition(".")[2] for name in adapters_of(one)}
    assert adapted == {"q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"}
    plain = AutoModelForCausalLM.from_pretrained(tiny_model())
    plain.load_state_dict(copied_weights(one), strict=False)
    given = one.forward(experience, {"log_probs"}).log_probs[experience.response_mask]
    base = log_probs(AutoModelForCausalLM.from_pretrained(tiny_model()), experience)
    torch.testing.assert_close(given.double(), log_probs(plain, experience), rtol=0, atol=1e-5)
    assert (given - base).abs().max() > 1e-2


@pytest.mark.parametrize("kind", [SingleDeviceStrategy, FsdpStrategy])
@pytest.mark.parametrize("export", ["merged", "adapter"])
def test_an_export_loads_in_plain_transformers_or_in_peft(tmp_path, kind, export):
    options = (TorchOptions if kind is SingleDeviceStrategy else FsdpOptions)(lora_export=export)
    one, experience = moved(kind=kind, options=options), batch(0)
    one.export(tmp_path)
    if export == "merged":
        assert (tmp_path / "generation_config.json").is_file()
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    else:
        base = AutoModelForCausalLM.from_pretrained(tiny_model())
        loaded = PeftModel.from_pretrained(base, str(tmp_path))
        assert not (tmp_path / "model.safetensors").exists()
    given = one.forward(experience, {"log_probs"}).log_probs[experience.response_mask]
    torch.testing.assert_close(given.double(), log_probs(loaded, experience), rtol=0, atol=1e-5)
    assert (tmp_path / "tokenizer.json").is_file()


@pytest.mark.parametrize("kind", [SingleDeviceStrategy, FsdpStrategy])
def test_training_goes_on_bit_for_bit_from_a_checkpoint_of_the_adapters_alone(tmp_path, kind):
    straight, resumed = strategy(kind=kind), strategy(kind=kind, seed=2)
    step(straight, batch(0))
    straight.save(tmp_path)()
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert size < (tiny_model() / "model.safetensors").stat().st_size  # AdamW of all of it would keep twice that
    resumed.load(tmp_path)
    for one in (straight, resumed):
        step(one, batch(1))
    left, right = copied_weights(straight), copied_weights(resumed)
    assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora_rank": 2}, "model.lora_rank: is 2, and that of the checkpoint .* 3"),
        ({"lora_rank": 0}, "model.lora_rank: is 0, and that of the checkpoint .* 3"),
        ({"lora_alpha": 1}, "model.lora_alpha: is 1, and that of the checkpoint .* 6"),
        ({"target_modules": ["q_proj"]}, r"model.target_modules: is \['q_proj'\], and that of the checkpoint"),
    ],
)
def test_a_checkpoint_of_other_adapters_is_refused(tmp_path, changes, message):
    strategy().save(tmp_path)()
    with pytest.raises(ConfigError, match=message):
        strategy(**changes).load(tmp_path)


def test_a_checkpoint_of_the_whole_model_is_refused_by_adapters(tmp_path):
    strategy(lora_rank=0).save(tmp_path)()
    with pytest.raises(ConfigError, match=r"model.lora_rank: is 3, and that of the checkpoint .* 0"):
        strategy().load(tmp_path)


@pytest.mark.xdist_group("ranks")
def test_two_ranks_export_and_resume_what_one_device_has(worlds, tmp_path):
    config = {"load_format": "auto", "lora_rank": 2, "target_modules": TARGETS}
    job = {"kind": "train", "model": str(tiny_model()), "config": config}
    straight = rank_jobs.run({**job, "seeds": [0, 1, 2]})["weights"]
    job |= {"fsdp": {"lora_export": "adapter"}}
    for name in ("saved", "exported"):
        (tmp_path / name).mkdir()
    saved = worlds[2].run(**job, seeds=[0, 1], save=str(tmp_path / "saved"))[0]["weights"]
    read = dict(read_sharded(tmp_path / "saved", ModelConfig(str(tiny_model()))))
    assert read.keys() == saved.keys() and all(torch.equal(read[name], weight) for name, weight in saved.items())
    resumed = worlds[2].run(**job, seeds=[2], load=str(tmp_path / "saved"), export=str(tmp_path / "exported"))
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model()), str(tmp_path / "exported"))
    exported = loaded.merge_and_unload().state_dict()
    for name, true in straight.items():
        for given in (resumed[0]["weights"][name], resumed[1]["weights"][name], exported[name]):
            torch.testing.assert_close(given, true, rtol=0, atol=1e-5)


def test_bf16_holds_the_base_in_bf16_and_adapters_in_float32():
    for kind in (SingleDeviceStrategy, FsdpStrategy):
        one = moved(kind=kind, dtype="bf16")
        dtypes = {(".lora_" in name, each.dtype) for name, each in one.model.named_parameters()}
        assert dtypes == {(True, torch.float32), (False, torch.bfloat16)}
        exact = moved(kind=kind).forward(batch(0), {"log_probs"}).log_probs
        assert (one.forward(batch(0), {"log_probs"}).log_probs - exact).abs().max() < 0.3


def test_a_model_without_an_optimizer_has_no_adapters():
    model = ModelConfig(str(tiny_model()), lora_rank=2)
    for kind in (SingleDeviceStrategy, FsdpStrategy):
        assert not adapters_of(kind(StrategySpec(model, "cpu", WHOLE)))


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"target_modules": []}, None, "model.target_modules: "),
        ({"exclude_modules": ["up_prj"]}, None, r"model.exclude_modules: the model has no layer up_prj \(did you mean"),
        ({"target_modules": ["q_prj"]}, None, "model.target_modules: .*q_prj.* not found in the base model"),
        ({"target_modules": ["q_proj", "v_prj"]}, None, r"model.target_modules: the model has no layer v_prj \(did"),
        ({"target_modules": ["q_proj", "model.lm_head"]}, None, "model.target_modules: .* no layer model.lm_head"),
        ({"target_modules": ["embed_tokens"]}, None, "model.target_modules: model.embed_tokens is no linear layer"),
        (
            {"lora_rank": 0},
            TorchOptions(lora_export="adapter"),
            "actor.strategy.lora_export: adapter needs model.lora_rank of at least 1, which is 0",
        ),
    ],
)
def test_adapters_that_cannot_be_are_refused(changes, options, message):
    with pytest.raises(ConfigError, match=message):
        strategy(options=options, **changes)


@pytest.mark.parametrize("kind", [SingleDeviceStrategy, FsdpStrategy])
@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("targets", [["q_proj", "lm_head"], ["lm_head"]])
def test_an_adapter_of_an_output_layer_with_the_weight_of_the_embedding_is_refused(kind, dora, targets):
    message = (
        r"model\.target_modules: lm_head has the same weight as model\.embed_tokens \(tied\), .* leave out lm_head, or "
        r"name it in model\.exclude_modules"
    )
    with pytest.raises(ConfigError, match=message):
        strategy(kind=kind, target_modules=targets, lora_dora=dora)


@pytest.mark.parametrize("kind", [SingleDeviceStrategy, FsdpStrategy])
@pytest.mark.parametrize(
    ("config", "layer"),
    [
        (GPT2Config(vocab_size=259, n_embd=32, n_layer=1, n_head=2), "transformer.h.0.attn.c_attn"),
        (cut(DeepseekV4Config(o_groups=2, o_lora_rank=8, index_n_heads=2)), "model.layers.0.self_attn.o_a_proj"),
    ],
    ids=["transposed weight", "groups of inputs"],
)
def test_a_layer_with_a_product_of_its_own_is_refused(tmp_path, kind, config, layer):
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    last = layer.rpartition(".")[2]
    message = rf"model\.target_modules: {layer} is no linear layer of torch: leave out {last}, or name it in model"
    with pytest.raises(ConfigError, match=message):
        strategy(kind=kind, path=tmp_path, target_modules=[last])


def test_an_excluded_output_layer_has_no_adapter():
    one = strategy(target_modules=["q_proj", "lm_head"], exclude_modules=["lm_head"])
    assert {name.partition(".lora_")[0].rpartition(".")[2] for name in adapters_of(one)} == {"q_proj"}


@pytest.mark.parametrize("kind", [SingleDeviceStrategy, FsdpStrategy])
@pytest.mark.parametrize("export", ["merged", "adapter"])
def test_an_adapter_of_an_output_layer_of_its_own_is_in_every_export(tmp_path, kind, export):
    folder = tiny_model(tied=False)
    options = (TorchOptions if kind is SingleDeviceStrategy else FsdpOptions)(lora_export=export)
    one, experience = moved(kind=kind, options=options, path=folder, target_modules=["q_proj", "lm_head"]), batch(0)
    one.export(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(folder)
    merged = export == "merged"
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path) if merged else PeftModel.from_pretrained(plain, tmp_path)
    given = one.forward(experience, {"log_probs"}).log_probs[experience.response_mask]
    torch.testing.assert_close(given.double(), log_probs(loaded, experience), rtol=0, atol=1e-5)
    streamed = AutoModelForCausalLM.from_pretrained(folder)
    streamed.load_state_dict(copied_weights(one), strict=False)
    torch.testing.assert_close(given.double(), log_probs(streamed, experience), rtol=0, atol=1e-5)
    base = log_probs(AutoModelForCausalLM.from_pretrained(folder), experience)
    assert (given - base).abs().max() > 1e-2
    assert not torch.equal(
        copied_weights(one)["lm_head.weight"], load_file(folder / "model.safetensors")["lm_head.weight"]
    )


@pytest.mark.parametrize("value", ["q_proj", {}, 3])
def test_target_modules_are_all_linear_or_names(value):
    with pytest.raises(ConfigError, match=rf"one of all-linear, or a list of strings, not {re.escape(repr(value))}"):
        build(ModelConfig, {"path": "x", "target_modules": value})
