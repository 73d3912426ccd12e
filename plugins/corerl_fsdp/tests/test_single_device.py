import copy
import dataclasses
import errno
import os
import resource

import pytest
import torch

from corerl.checkpoint.writing import described
from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.experience import collate
from corerl.contracts.objective import ObjectiveOutput
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import ModelError, NonFiniteError
from corerl.objective import loss_weights
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.recomputing import recompute_activations
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_torch.supervised import SupervisedObjective

ONE_PIECE = MicroBatching(max_sequences=100)


def strategy(model_dir, micro_batching=ONE_PIECE, optim=None, options=None, **changes):
    model = ModelConfig(path=str(model_dir), load_format="dummy", **changes.pop("model", {}))
    optim = optim or OptimConfig(lr=1e-2, weight_decay=0.1)
    return SingleDeviceStrategy(
        StrategySpec(model=model, device="cpu", micro_batching=micro_batching, optim=optim, total_steps=10, **changes),
        options,
    )


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)

    def tokens(length):
        return torch.randint(50, (length,), generator=generator).tolist()

    prompts = [tokens(length) for length in (3, 7, 1, 5)]
    responses = [tokens(length) for length in (6, 2, 9, 4)]
    experience = collate(prompts, responses, [0, 0, 1, 1])
    experience.loss_weights = loss_weights(experience.response_mask, "token-mean")
    return experience


def reference_log_probs(model, experience, temperature):
    """Row by row, in plain transformers and float64."""
    model = copy.deepcopy(model).double().eval()
    rows = []
    for row in range(len(experience)):
        start, length = int(experience.prompt_lengths[row]), int(experience.lengths[row])
        ids = experience.input_ids[row : row + 1, :length]
        log_probs = torch.log_softmax(model(input_ids=ids).logits[0] / temperature, dim=-1)
        rows.append(log_probs[start - 1 : length - 1].gather(1, ids[0, start:, None]).squeeze(1))
    return rows, model


@pytest.mark.parametrize("micro_batching", [ONE_PIECE, MicroBatching(max_sequences=1), MicroBatching(max_tokens=20)])
def test_log_probs_are_those_of_a_plain_forward_row_by_row(model_dir, micro_batching):
    experience = batch()
    one = strategy(model_dir, micro_batching, temperature=0.7)
    result = one.forward(experience, ["log_probs", "entropy"])
    rows, model = reference_log_probs(one.model, experience, 0.7)
    for row, expected in enumerate(rows):
        torch.testing.assert_close(result.log_probs[row, : len(expected)].double(), expected, rtol=0, atol=1e-5)
    assert (result.log_probs[~experience.response_mask] == 0).all()
    ids = experience.input_ids[:1, :9]
    distribution = torch.distributions.Categorical(logits=model(input_ids=ids).logits[0, 2:8] / 0.7)
    torch.testing.assert_close(result.entropy[0, :6].double(), distribution.entropy(), rtol=0, atol=1e-5)


def test_one_update_is_a_hand_written_adamw_step(model_dir):
    experience = batch()
    ours = strategy(model_dir)
    model = copy.deepcopy(ours.model)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], lr=1e-2
    )
    losses = []
    for row in range(len(experience)):
        start, length = int(experience.prompt_lengths[row]), int(experience.lengths[row])
        ids = experience.input_ids[row : row + 1, :length]
        logits = model(input_ids=ids).logits[0, start - 1 : length - 1]
        losses.append(torch.nn.functional.cross_entropy(logits, ids[0, start:], reduction="sum"))
    loss = torch.stack(losses).sum() / 21
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

    metrics = ours.update(experience, SupervisedObjective())
    assert metrics["loss"].total == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["grad_norm"].total == pytest.approx(norm.item(), rel=1e-4)
    assert metrics["lr"].total == 1e-2
    expected = dict(model.named_parameters())
    for name, weight in ours.weights():
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=2e-4)


def gradient(one, experience):
    """The gradient that an update steps along, taken before the step clears it."""
    seen = {}
    take_step = one._step

    def record():
        seen.update({name: parameter.grad.clone() for name, parameter in one.model.named_parameters()})
        return take_step()

    one._step = record
    one.update(experience, SupervisedObjective())
    return seen


def layer_passes(one):
    """The passes of each layer in an update, and the gradient."""
    passes = [0] * len(one.model.model.layers)
    for number, layer in enumerate(one.model.model.layers):

        def count(*_, number=number):
            passes[number] += 1

        layer.mlp.register_forward_pre_hook(count)
    return passes, gradient(one, batch())


@pytest.mark.parametrize(
    ("recompute", "everything", "expected"),
    [
        (None, False, [1, 1]),
        (None, True, [2, 2]),
        (0, True, [1, 1]),
        (1, False, [2, 1]),
        (2, False, [2, 2]),
        (9, True, [2, 2]),
    ],
)
def test_the_first_layers_are_recomputed_and_the_gradient_is_the_same(model_dir, recompute, everything, expected):
    _, plain = layer_passes(strategy(model_dir))
    options = TorchOptions(recompute_layers=recompute)
    one = strategy(model_dir, model={"enable_gradient_checkpointing": everything}, options=options)
    passes, recomputed = layer_passes(one)
    assert passes == expected
    for name, true in plain.items():
        assert torch.equal(recomputed[name], true), name


class OfOldCode(torch.nn.Linear):
    """A model whose layers are not those of transformers: it recomputes all or none."""

    asked = None

    def gradient_checkpointing_enable(self, options):
        self.asked = options


def test_a_model_of_old_code_recomputes_all_layers_or_none():
    old, everything = OfOldCode(1, 1), ModelConfig("none", enable_gradient_checkpointing=True)
    recompute_activations(old, TorchOptions(), ModelConfig("none"))
    assert old.asked is None
    recompute_activations(old, TorchOptions(), everything)
    assert old.asked == {"use_reentrant": False}
    with pytest.raises(ModelError, match="OfOldCode has no layers for recompute_layers"):
        recompute_activations(old, TorchOptions(recompute_layers=1), everything)


@pytest.mark.parametrize("micro_batching", [MicroBatching(max_sequences=1), MicroBatching(max_tokens=24)])
def test_the_gradient_does_not_depend_on_the_micro_batches(model_dir, micro_batching):
    whole = gradient(strategy(model_dir), batch())
    cut = gradient(strategy(model_dir, micro_batching), batch())
    for name, expected in whole.items():
        assert (cut[name] - expected).norm() <= 1e-5 * expected.norm() + 1e-9, name


def test_gradient_checkpointing_changes_no_gradient(model_dir):
    plain = gradient(strategy(model_dir), batch())
    checkpointed = gradient(strategy(model_dir, model={"enable_gradient_checkpointing": True}), batch())
    for name, expected in plain.items():
        torch.testing.assert_close(checkpointed[name], expected)


@pytest.mark.parametrize("options", [TorchOptions(use_remove_padding=True), TorchOptions(logits_chunk_size=2)])
def test_packing_and_chunks_change_no_gradient(model_dir, options):
    one = strategy(model_dir)
    plain = gradient(one, batch())
    changed = gradient(SingleDeviceStrategy(one.spec, options), batch())
    for name, expected in plain.items():
        assert (changed[name] - expected).norm() <= 1e-5 * expected.norm() + 1e-9, name


def test_bf16_computes_in_bf16_and_keeps_float32_weights(model_dir):
    one = strategy(model_dir, model={"dtype": "bf16"})
    exact = strategy(model_dir).forward(batch(), ["log_probs"]).log_probs
    rounded = one.forward(batch(), ["log_probs"]).log_probs
    assert 1e-6 < (rounded - exact).abs().max() < 0.1
    one.update(batch(), SupervisedObjective())
    assert {weight.dtype for _, weight in one.weights()} == {torch.float32}


def test_a_checkpoint_without_the_optimizer_begins_a_new_one_at_the_schedules_rate(model_dir, tmp_path):
    light = TorchOptions(save_optimizer=False)
    straight = SingleDeviceStrategy(strategy(model_dir).spec, light)
    straight.update(batch(0), SupervisedObjective())
    straight.save(tmp_path)()
    assert (tmp_path / "optimizer.pt").stat().st_size < 10_000
    with pytest.raises(ModelError, match="holds no state of the optimizer; the option save_optimizer=false"):
        strategy(model_dir, seed=5).load(tmp_path)
    resumed = SingleDeviceStrategy(strategy(model_dir, seed=5).spec, light)
    resumed.load(tmp_path)
    straight.optimizer.state.clear()
    rates = [one.update(batch(1), SupervisedObjective())["lr"] for one in (straight, resumed)]
    assert rates[0] == rates[1]
    for (name, left), (_, right) in zip(straight.weights(), resumed.weights(), strict=True):
        assert torch.equal(left, right), name


def test_training_after_save_and_load_goes_on_bit_for_bit(model_dir, tmp_path):
    straight, resumed = strategy(model_dir), strategy(model_dir, seed=5)
    straight.update(batch(0), SupervisedObjective())
    straight.save(tmp_path)()
    resumed.load(tmp_path)
    for one in (straight, resumed):
        one.update(batch(1), SupervisedObjective())
    for (name, left), (_, right) in zip(straight.weights(), resumed.weights(), strict=True):
        assert torch.equal(left, right), name


def test_an_optimizer_that_changed_holds_after_loading(model_dir, tmp_path):
    """One AdamW step in float64 by the new values, from the moments of the checkpoint."""
    before = strategy(model_dir)
    before.update(batch(0), SupervisedObjective())
    before.save(tmp_path)()
    changed = OptimConfig(lr=3e-3, weight_decay=0.4, betas=[0.7, 0.95], eps=1e-4, lr_scheduler_type="linear")
    after = strategy(model_dir, optim=changed, seed=5)
    after.load(tmp_path)
    named = dict(after.model.named_parameters())
    moments = {
        name: [after.optimizer.state[each][moment].double() for moment in ("exp_avg", "exp_avg_sq")]
        for name, each in named.items()
    }
    weights = {name: each.detach().double() for name, each in named.items()}
    slopes = gradient(after, batch(1))
    lr = 3e-3 * (1 - 1 / 10)
    for name, each in named.items():
        slope = slopes[name].double()
        first = 0.7 * moments[name][0] + 0.3 * slope
        second = 0.95 * moments[name][1] + 0.05 * slope**2
        decayed = weights[name] * (1 - lr * (0.4 if each.dim() >= 2 else 0.0))
        step = (first / (1 - 0.7**2)) / ((second / (1 - 0.95**2)).sqrt() + 1e-4)
        torch.testing.assert_close(each.detach().double(), decayed - lr * step, rtol=1e-4, atol=1e-7)


def test_offload_and_onload_change_nothing(model_dir):
    moved, still = strategy(model_dir), strategy(model_dir)
    for one in (moved, still):
        one.update(batch(0), SupervisedObjective())
    moved.offload()
    moved.onload()
    for one in (moved, still):
        one.update(batch(1), SupervisedObjective())
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(moved.weights(), still.weights(), strict=True))


def test_weight_names_are_those_of_hugging_face_and_tied_weights_come_once(model_dir):
    one = strategy(model_dir)
    names = [name for name, _ in one.weights()]
    assert len(names) == len(set(names))
    assert set(names) <= set(one.model.state_dict())
    assert ("lm_head.weight" in names) == (not one.model.config.tie_word_embeddings)


def test_a_loss_that_is_not_finite_leaves_the_weights_alone(model_dir):
    one = strategy(model_dir)
    before = {name: weight.clone() for name, weight in one.weights()}

    class Broken:
        wanted = frozenset({"log_probs"})

        def __call__(self, outputs, experience):
            lengths = experience.response_lengths[:, None]
            return ObjectiveOutput(torch.where(lengths == 9, float("nan"), 1.0).mul(outputs.log_probs).sum())

    with pytest.raises(NonFiniteError, match="nan") as caught:
        one.update(batch(), Broken())
    assert caught.value.rows == (2,)
    assert all(torch.equal(weight, before[name]) for name, weight in one.weights())
    one.update(batch(), SupervisedObjective())


def test_a_model_without_an_optimizer_takes_no_gradient(model_dir):
    frozen = SingleDeviceStrategy(StrategySpec(ModelConfig(path=str(model_dir), load_format="dummy"), "cpu", ONE_PIECE))
    assert not any(parameter.requires_grad for parameter in frozen.model.parameters())
    assert frozen.forward(batch(), ["log_probs"]).entropy is None


def test_random_weights_depend_on_the_seed_alone(model_dir):
    torch.manual_seed(123)
    first = dict(strategy(model_dir, seed=1).weights())
    torch.manual_seed(456)
    second = dict(strategy(model_dir, seed=1).weights())
    other = dict(strategy(model_dir, seed=2).weights())
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("dtype", "tolerance"), [("fp32", 1e-3), ("bf16", 5e-2)])
def test_cuda_agrees_with_the_cpu(model_dir, dtype, tolerance):
    spec = strategy(model_dir).spec
    model = ModelConfig(path=str(model_dir), load_format="dummy", dtype=dtype)
    ours = SingleDeviceStrategy(dataclasses.replace(spec, model=model, device="cuda"))
    expected = strategy(model_dir).forward(batch(), ["log_probs", "entropy"])
    result = ours.forward(batch(), ["log_probs", "entropy"])
    torch.testing.assert_close(result.log_probs, expected.log_probs, rtol=0, atol=tolerance)
    torch.testing.assert_close(result.entropy, expected.entropy, rtol=0, atol=tolerance)
    whole = gradient(strategy(model_dir), batch())
    for name, grad in gradient(ours, batch()).items():
        assert (grad.cpu() - whole[name]).norm() <= 10 * tolerance * whole[name].norm() + 1e-6, name
    ours.offload()
    assert {weight.device.type for _, weight in ours.weights()} == {"cpu"}
    ours.onload()
    assert {weight.device.type for _, weight in ours.weights()} == {"cuda"}


def test_a_full_disk_is_its_own_error_in_a_checkpoint(model_dir, tmp_path):
    one = strategy(model_dir)
    one.update(batch(), SupervisedObjective())
    write = one.save(tmp_path)
    write()
    smaller, larger = sorted(tmp_path.iterdir(), key=lambda file: file.stat().st_size)[-2:]
    assert (smaller.name, larger.name) == ("weights.safetensors", "optimizer.pt")
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (smaller.stat().st_size, most))
    try:
        with pytest.raises(Exception) as raised:
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
    assert described(raised.value) == f"[Errno {errno.EFBIG}] {os.strerror(errno.EFBIG)}"
