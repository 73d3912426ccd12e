"""Each family of docs/models.md on a random model of two layers: what the table says, no more and no less."""

import asyncio
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from corerl.contracts.config import ModelConfig, OptimConfig, RolloutConfig
from corerl.contracts.experience import collate
from corerl.contracts.rollout_backends import Completion, GenerationRequest, SamplingParams
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import ConfigError
from corerl.objective import PolicyObjective
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.reading import read_single
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_grpo.losses.vanilla import VanillaOptions, vanilla
from corerl_hf.backend import HfBackend
from corerl_hf.options import HfOptions
from corerl_testing.training_ranks import AllOutputs
from corerl_testing.training_reference import copied_weights
from corerl_testing.trees import tree_batch
from corerl_torch.families.columns import COLUMNS
from corerl_torch.families.table import FAMILIES, Family
from corerl_torch.weights import as_in_files
from family_models import write_model

STATES = {column.key: column for column in COLUMNS}
EXACT = 1e-5
PROMPTS = [[5, 9, 11], [20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31], [7, 7]]


@dataclass
class Built:
    """A family's folder, and strategies by their options, each built once."""

    family: Family
    folder: Path
    seen: dict[Any, Any] = field(default_factory=dict)

    def strategy(self, packs: bool = False, share: bool | None = None, **model: Any) -> SingleDeviceStrategy:
        config = ModelConfig(str(self.folder), dtype="fp32", **model)
        optim = OptimConfig(lr=1e-2, weight_decay=0.0)
        spec = StrategySpec(config, "cpu", MicroBatching(max_sequences=100), optim, total_steps=10)
        return SingleDeviceStrategy(spec, TorchOptions(use_remove_padding=packs, share_prefixes=share))

    def numbers(self, packs: bool, share: bool | None = None) -> tuple[SingleDeviceStrategy, Tensor, dict[str, Tensor]]:
        """The strategy, log-probs of a batch of trees, and the gradient of all its outputs."""
        key = (packs, share)
        if key not in self.seen:
            one, batch, objective = self.strategy(packs, share), tree_batch(1), AllOutputs()
            output = one._forward(batch, objective.wanted)
            objective(output, batch).loss.backward()  # type: ignore[no-untyped-call]
            gradient = {name: each.grad for name, each in one.model.named_parameters() if each.grad is not None}
            assert output.log_probs is not None
            self.seen[key] = one, output.log_probs.detach(), gradient
        found: tuple[SingleDeviceStrategy, Tensor, dict[str, Tensor]] = self.seen[key]
        return found

    def state(self, key: str) -> str:
        return self.family.state(STATES[key])


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.model_type)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    torch.set_num_threads(1)
    family: Family = request.param
    yield Built(family, write_model(tmp_path_factory.mktemp(family.model_type), family))


def assert_equal(given: tuple[Any, Tensor, dict[str, Tensor]], true: tuple[Any, Tensor, dict[str, Tensor]]) -> None:
    torch.testing.assert_close(given[1], true[1], rtol=EXACT, atol=EXACT)
    assert given[2].keys() == true[2].keys()
    for name, gradient in true[2].items():
        assert (given[2][name] - gradient).norm() <= EXACT * gradient.norm() + 1e-8, name


def test_packed_rows_have_the_numbers_of_padded_rows(built: Built) -> None:
    true, given = built.numbers(packs=False), built.numbers(packs=True, share=False)
    assert given[0].token_model.packs == (built.state("torch.packed") == "proven")
    assert_equal(given, true)
    batch = tree_batch(1)
    for row in (0, 7):  # no state of a row before it, no tokens behind it
        alone = batch.select(torch.tensor([row]))
        for one, together, _ in (true, given):
            own = one.forward(alone, {"log_probs"}).log_probs
            assert own is not None
            torch.testing.assert_close(own[0], together[row, : own.shape[1]], rtol=EXACT, atol=EXACT)


def test_shared_prefixes_have_the_numbers_of_plain_rows(built: Built) -> None:
    shares = built.state("torch.prefixes") == "proven"
    given = built.numbers(packs=True, share=None)
    assert given[0].token_model.shares_prefixes == shares
    assert_equal(given, built.numbers(packs=False))
    if not shares:
        with pytest.raises(ConfigError, match="share_prefixes: prefixes cannot be shared by"):
            built.strategy(packs=True, share=True)


def update(one: SingleDeviceStrategy) -> None:
    """A step of GRPO."""
    batch = tree_batch(1, rows=20)
    batch.advantages = torch.randn(batch.response_mask.shape, generator=torch.Generator().manual_seed(0))
    batch.old_log_probs = one.forward(batch, {"log_probs"}).log_probs
    one.update(batch, PolicyObjective(functools.partial(vanilla, options=VanillaOptions())))


def test_a_step_of_grpo_changes_the_trained_weights_alone(built: Built) -> None:
    one = built.strategy(packs=True)
    names = {name for name, _ in one.model.named_parameters()}
    before = {name: each.clone() for name, each in one.model.state_dict().items()}
    loose = {name: each.clone() for name, each in one.model.named_buffers()}
    update(one)
    for name, each in one.model.state_dict().items():
        changed = not torch.equal(each, before[name])
        assert changed == (name in names or name == "lm_head.weight"), name
    assert all(torch.equal(each, loose[name]) for name, each in one.model.named_buffers())
    embedding, output = one.model.get_input_embeddings().weight, one.model.get_output_embeddings().weight
    assert (embedding is output) == bool(one.model.config.tie_word_embeddings)


def assert_agree(backend: HfBackend, one: SingleDeviceStrategy, tolerance: float) -> None:
    """Log-probs of the engine's responses beside those of the trainer; prompts of three lengths are one batch."""
    requests = [
        GenerationRequest(str(number), prompt, SamplingParams(max_tokens=10, seed=number, n=2))
        for number, prompt in enumerate(PROMPTS)
    ]
    samples = [
        (request, each) for request, given in zip(requests, run(backend, requests), strict=True) for each in given
    ]
    batch = collate([each.prompt_ids for each, _ in samples], [each.token_ids for _, each in samples], [0] * 6)
    true = one.forward(batch, {"log_probs"}).log_probs
    assert true is not None
    for row, (_, sample) in zip(true, samples, strict=True):
        given = torch.tensor(sample.log_probs)
        torch.testing.assert_close(given, row[: len(given)], rtol=tolerance, atol=tolerance)


def run(backend: HfBackend, requests: list[GenerationRequest]) -> list[list[Completion]]:
    return asyncio.run(backend.generate(requests))


def engine(path: Path) -> HfBackend:
    return HfBackend(ModelConfig(str(path), dtype="fp32"), RolloutConfig(name="hf"), device="cpu", options=HfOptions())


def test_an_export_agrees_with_the_engine(built: Built, tmp_path: Path) -> None:
    one = built.strategy(packs=False)
    updated = engine(built.folder)
    update(one)
    one.export(tmp_path / "exported")
    exported = engine(tmp_path / "exported")
    updated.update_weights(one.weights(), version=1)
    stream = copied_weights(one)
    for backend in (exported, updated):  # bit for bit
        held = dict(as_in_files(backend._model.config, backend._model.state_dict().items()))
        assert held.keys() >= stream.keys() and all(torch.equal(held[name], each) for name, each in stream.items())
        assert_agree(backend, one, EXACT)


def test_a_checkpoint_keeps_every_tensor_of_the_files(built: Built, tmp_path: Path) -> None:
    one, other = built.strategy(packs=False), built.strategy(packs=False)
    update(one)
    one.save(tmp_path)()
    other.load(tmp_path)
    stream = copied_weights(one)
    named = as_in_files(one.model.config, read_single(tmp_path, ModelConfig(str(built.folder))))
    for found in (copied_weights(other), dict(named)):
        assert found.keys() == stream.keys() and all(torch.equal(found[name], each) for name, each in stream.items())


def test_adapters_merge_into_an_export(built: Built, tmp_path: Path) -> None:
    one = built.strategy(packs=True, lora_rank=2, target_modules=list(built.family.adapted) or "all-linear")
    before = copied_weights(one)
    update(one)
    assert any(not torch.equal(before[name], each) for name, each in copied_weights(one).items())
    one.export(tmp_path)
    assert_agree(engine(tmp_path), one, 1e-4)
