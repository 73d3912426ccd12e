"""Objectives of pairs on a real model: against a float64 model, for any micro-batches, with other losses added."""

import json
from pathlib import Path

import pytest
import torch

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.data.report import Location
from corerl.data.tokenizer import load_tokenizer
from corerl.errors import RunError
from corerl.plugins import load_plugins
from corerl_supervised.data.conversations import ChatExample
from corerl_supervised.data.pairs import Pair
from corerl_supervised.dpo import pair_batch
from corerl_supervised.objectives import PointwiseObjective, PreferenceObjective
from corerl_supervised.tasks import batch_of, check_units
from corerl_testing.tiny_model import reference, response_log_probs, tiny_model

pytest.importorskip("corerl_fsdp")
BETA, REF = 0.1, 0.25
HERE = Location("pairs.jsonl", 1)


def example(prompt: str, response: str) -> ChatExample:
    ids = (*prompt.encode(), *response.encode())
    return ChatExample(ids, tuple(place >= len(prompt) for place in range(len(ids))))


PAIRS = [
    Pair(example("say red", "red, please"), example("say red", "no"), 0.0, HERE),
    Pair(example("hi", "a"), example("hi", "long rejected answer"), 0.5, HERE),
    Pair(example("1+1", "2!"), example("1+1", "3!"), 0.0, HERE),
    Pair(example("why", "because of it"), example("why", "so"), 0.0, HERE),
    Pair(example("go", "yes, I go"), example("go", "no, I do not go"), -0.25, HERE),
]


def preference_loss(name: str = "sigmoid", **options: float):  # type: ignore[no-untyped-def]
    return load_plugins((), ()).registries.preference_losses.select({"name": name, **options}, "loss").load()


def strategy(cut: MicroBatching, head: str = "lm", **options: object):  # type: ignore[no-untyped-def]
    from corerl_fsdp.options import TorchOptions
    from corerl_fsdp.single_device import SingleDeviceStrategy

    model = ModelConfig(path=str(tiny_model()), dtype="fp32")
    spec = StrategySpec(model, "cpu", cut, OptimConfig(lr=1e-3), grad_clip=1e9, head=head)  # type: ignore[arg-type]
    made = SingleDeviceStrategy(spec, TorchOptions(**options))
    made.found = {}  # type: ignore[attr-defined]
    take = made._step

    def step() -> float:
        named = made.model.named_parameters()
        made.found.update({n: p.grad.clone() for n, p in named if p.grad is not None})  # type: ignore[attr-defined]
        return take()

    made._step = step  # type: ignore[method-assign]
    return made


def batch(normalize: bool = False):  # type: ignore[no-untyped-def]
    made = pair_batch(PAIRS, length_normalize=normalize)
    made.ref_log_probs = torch.where(made.response_mask, -REF * torch.arange(1, made.response_mask.shape[1] + 1), 0.0)
    return made


def scores(model: torch.nn.Module, normalize: bool = False) -> list[torch.Tensor]:
    """log π - log π_ref of each response, by a float64 model and single forwards."""
    found = []
    for each in (e for pair in PAIRS for e in (pair.chosen, pair.rejected)):
        start = each.loss_mask.index(True)
        prompt, response = list(each.token_ids[:start]), list(each.token_ids[start:])
        own = response_log_probs(model, prompt, response).gather(1, torch.tensor(response)[:, None])[:, 0]
        ratio = own + REF * torch.arange(1, len(response) + 1)
        found.append(ratio.mean() if normalize else ratio.sum())
    return found


@pytest.mark.parametrize("normalize", [False, True])
def test_loss_gradient_and_metrics_are_those_of_a_float64_model(normalize: bool) -> None:
    model = reference(tiny_model())
    s = scores(model, normalize)
    margins = [pair.margin for pair in PAIRS]
    z = torch.stack([BETA * (s[2 * i] - s[2 * i + 1]) - margins[i] for i in range(len(PAIRS))])
    loss = torch.log1p(torch.exp(-z)).mean()
    loss.backward()
    made = strategy(MicroBatching(max_tokens=64))
    means = made.update(batch(normalize), PreferenceObjective(preference_loss()))
    assert means["loss"].value == pytest.approx(float(loss.detach()), rel=1e-5)
    differences = [float((s[2 * i] - s[2 * i + 1]).detach()) for i in range(len(PAIRS))]
    assert means["margin"].value == pytest.approx(sum(differences) / len(PAIRS), rel=1e-5)
    assert means["accuracy"].value == sum(each > 0 for each in differences) / len(PAIRS)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(made.found[name].double(), parameter.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("head", ["lm", "score"])
def test_the_gradient_is_the_same_for_every_cut(head: str, packed: bool) -> None:
    is_lm = head == "lm"
    output = "log_probs" if is_lm else "values"
    objective = PreferenceObjective(preference_loss(), output, sft_coef=0.3 * is_lm, center_coef=0.1 * (not is_lm))
    rows = batch()
    if not is_lm:
        rows.ref_log_probs = None
    whole = strategy(MicroBatching(max_sequences=100), head, use_remove_padding=packed)
    expected = whole.update(rows, objective)
    for limit in (MicroBatching(max_tokens=1), MicroBatching(max_tokens=60), MicroBatching(max_sequences=5)):
        made = strategy(limit, head, use_remove_padding=packed)
        means = made.update(rows, objective)
        assert means["accuracy"].count == len(PAIRS)
        for name in ("loss", "accuracy", "margin", "chosen", "rejected"):
            assert means[name].value == pytest.approx(expected[name].value, rel=1e-5, abs=1e-6), (limit, name)
        gradient, own = (torch.cat([each.flatten().double() for each in m.found.values()]) for m in (whole, made))
        assert float((own - gradient).norm() / gradient.norm()) < 1e-6, limit


def test_the_cross_entropy_of_the_preferred_response_is_a_mean_over_its_tokens_then_over_pairs() -> None:
    model = reference(tiny_model())
    means = []
    for pair in PAIRS:
        start = pair.chosen.loss_mask.index(True)
        prompt, response = list(pair.chosen.token_ids[:start]), list(pair.chosen.token_ids[start:])
        own = response_log_probs(model, prompt, response).gather(1, torch.tensor(response)[:, None])
        means.append(-float(own.mean().detach()))
    objective = PreferenceObjective(preference_loss("hinge"), sft_coef=2.0)
    found = strategy(MicroBatching(max_tokens=64)).update(batch(), objective)
    assert found["sft_loss"].value == pytest.approx(sum(means) / len(means), rel=1e-5)
    plain = strategy(MicroBatching(max_tokens=64)).update(batch(), PreferenceObjective(preference_loss("hinge")))
    assert found["loss"].value == pytest.approx(plain["loss"].value + 2 * found["sft_loss"].value, rel=1e-5)


@pytest.mark.parametrize("kind", ["squared_error", "cross_entropy"])
def test_scores_are_learned_by_a_regression(kind: str) -> None:
    examples = [ChatExample((5, 6, 7, 0), (False, False, False, True)), ChatExample((9, 0), (False, True))]
    rows = batch_of(examples)
    rows.rewards, rows.loss_weights = torch.tensor([[0.25], [1.0]]), torch.full((2, 1), 0.5, dtype=torch.float64)
    made = strategy(MicroBatching(max_sequences=1), "score")
    values = made.forward(rows, ["values"]).values.double()[:, 0]
    targets = torch.tensor([0.25, 1.0], dtype=torch.float64)
    p = 1 / (1 + torch.exp(-values))
    entropy = -(targets * torch.log(p) + (1 - targets) * torch.log(1 - p)).mean()
    expected = ((values - targets) ** 2).mean() if kind == "squared_error" else entropy
    means = made.update(rows, PointwiseObjective(kind))  # type: ignore[arg-type]
    assert means["loss"].value == pytest.approx(float(expected), rel=1e-6)


def test_a_strategy_that_separates_a_pair_is_found_out() -> None:
    made, rows = strategy(MicroBatching(max_sequences=1)), batch()
    made._cuts = lambda batch: [torch.tensor([row]) for row in range(len(batch))]
    means = made.update(rows, PreferenceObjective(preference_loss()))
    with pytest.raises(RunError, match=r"strategy 'mine' has put the rows of a pair .* \(0 of 5 pairs are whole\)"):
        check_units(rows, means, "mine")


def test_a_row_that_is_not_finite_is_found_alone() -> None:
    from corerl.errors import NonFiniteError

    made, rows = strategy(MicroBatching(max_tokens=64)), batch()
    assert rows.ref_log_probs is not None
    rows.ref_log_probs[4, 0] = float("nan")
    with pytest.raises(NonFiniteError) as caught:
        made.update(rows, PreferenceObjective(preference_loss()))
    assert caught.value.rows == (4,)


def test_an_exported_reward_model_gives_the_scores_of_training(tmp_path: Path) -> None:
    """As transformers reads the folder; its last real token decides, the padding behind it does not."""
    from transformers import AutoModelForSequenceClassification

    from corerl_supervised.config import RewardModelConfig
    from corerl_supervised.reward_model import RewardModelTask

    model = ModelConfig(path=str(tiny_model()))
    task = RewardModelTask(RewardModelConfig(model=model, output="out"), load_plugins((), ()).registries)
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"prompt": "hi", "chosen": "hello", "rejected": "no"}) + "\n")
    rows = task.load([str(tmp_path / "pairs.jsonl")], load_tokenizer(model)).rows
    made = strategy(MicroBatching(max_tokens=64), "score")
    made.update(task.batch(rows), task.objective())
    values = made.forward(task.batch(rows), ["values"]).values[:, 0]
    made.export(tmp_path / "out")
    file = tmp_path / "out" / "config.json"
    file.write_text(json.dumps(task.model_config(json.loads(file.read_text()))))
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval().requires_grad_(False)
    assert type(loaded).__name__ == "Qwen2ForSequenceClassification" and loaded.config.pad_token_id == 256
    found = [
        float(loaded(input_ids=torch.tensor([[*each.token_ids[:-1], 256, 256]])).logits[0, 0])
        for each in (rows[0].chosen, rows[0].rejected)
    ]
    assert found == pytest.approx(values.tolist(), abs=1e-5)


def test_a_reward_model_has_the_padding_of_its_tokenizer_or_none(tmp_path: Path) -> None:
    """Its classes read the score before the padding of config.json, which the base model may have named otherwise."""
    from corerl_supervised.config import RewardModelConfig
    from corerl_supervised.reward_model import RewardModelTask

    (tmp_path / "pairs.jsonl").write_text(json.dumps({"prompt": "hi", "chosen": "hello", "rejected": "no"}) + "\n")
    model = ModelConfig(path=str(tiny_model()))
    for padding in ("<|endoftext|>", None):
        task = RewardModelTask(RewardModelConfig(model=model, output="out"), load_plugins((), ()).registries)
        tokenizer = load_tokenizer(model)
        tokenizer.tokenizer.pad_token = padding
        task.load([str(tmp_path / "pairs.jsonl")], tokenizer)
        written = task.model_config({"architectures": ["Qwen2ForCausalLM"], "pad_token_id": 258})
        assert written["pad_token_id"] == (padding and 256)
