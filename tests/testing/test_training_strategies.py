"""The checks of training strategies, held against ``torch`` with one mistake each."""

import math
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from corerl.batch.experience import Experience
from corerl.errors import ConfigError, NonFiniteError
from corerl.objective import Objective, ObjectiveOutput
from corerl.registry.base import Entry, Owner, Selected
from corerl.registry.losses import Mean
from corerl.registry.training_strategies import Output, StrategySpec, TokenOutputs
from corerl.testing import training_strategies
from corerl.testing.results import CheckFailed, CheckSkipped
from corerl.testing.tiny_model import tiny_model

Torch: Any = pytest.importorskip("corerl_fsdp.single_device").SingleDeviceStrategy


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def asked_for(change: Callable[[StrategySpec], StrategySpec]) -> type:
    """``torch`` that builds something else than what it is asked for."""

    class Another(Torch):  # type: ignore[misc]
        def __init__(self, spec: StrategySpec) -> None:
            super().__init__(change(spec))

    return Another


def optim(spec: StrategySpec, **changes: Any) -> StrategySpec:
    return spec if spec.optim is None else replace(spec, optim=replace(spec.optim, **changes))


IgnoresTemperature = asked_for(lambda spec: replace(spec, temperature=1.0))
NoClipping = asked_for(lambda spec: replace(spec, grad_clip=1e9))
NoWeightDecay = asked_for(lambda spec: optim(spec, weight_decay=0.0))
NoWarmUp = asked_for(lambda spec: optim(spec, lr_warmup_steps=0))
FrozenAtOne = asked_for(lambda spec: spec if spec.optim else replace(spec, temperature=3.0))
OneSeed = asked_for(lambda spec: replace(spec, seed=0))


class DecaysEverything(Torch):  # type: ignore[misc]
    def __init__(self, spec: StrategySpec) -> None:
        super().__init__(spec)
        self.optimizer.param_groups[1]["weight_decay"] = 0.5


class Scaled:
    """An objective times a number that depends on the micro-batch."""

    def __init__(self, objective: Objective, scale: Callable[[Experience], float]) -> None:
        self.objective, self.scale = objective, scale
        self.wanted = objective.wanted

    def __call__(self, outputs: TokenOutputs, batch: Experience) -> ObjectiveOutput:
        output = self.objective(outputs, batch)
        return ObjectiveOutput(output.loss * self.scale(batch), output.parts, output.metrics)


class NormalisesEachMicroBatch(Torch):  # type: ignore[misc]
    def update(self, mini_batch: Experience, objective: Objective) -> Any:
        def scale(batch: Experience) -> float:
            assert batch.loss_weights is not None
            return 1.0 / float(batch.loss_weights.sum())

        return super().update(mini_batch, Scaled(objective, scale))


class CountsMaskedRows(Torch):  # type: ignore[misc]
    def update(self, mini_batch: Experience, objective: Objective) -> Any:
        return super().update(mini_batch, Scaled(objective, lambda batch: 0.1 * len(batch)))


class LastMicroBatchMetrics(Torch):  # type: ignore[misc]
    def update(self, mini_batch: Experience, objective: Objective) -> Any:
        last: dict[str, Mean] = {}

        class Watched(Scaled):
            def __call__(self, outputs: TokenOutputs, batch: Experience) -> ObjectiveOutput:
                output = super().__call__(outputs, batch)
                last.update(output.metrics)
                return output

        return super().update(mini_batch, Watched(objective, lambda _: 1.0)) | last


class NormAfterClipping(Torch):  # type: ignore[misc]
    def update(self, mini_batch: Experience, objective: Objective) -> Any:
        metrics = super().update(mini_batch, objective)
        return metrics | {"grad_norm": Mean(min(metrics["grad_norm"].value, self.spec.grad_clip), 1.0)}


class Draws(Torch):  # type: ignore[misc]
    def update(self, mini_batch: Experience, objective: Objective) -> Any:
        torch.rand(1)
        return super().update(mini_batch, objective)


class ChangesTheBatch(Torch):  # type: ignore[misc]
    def update(self, mini_batch: Experience, objective: Objective) -> Any:
        assert mini_batch.loss_weights is not None
        mini_batch.loss_weights *= 2
        return super().update(mini_batch, objective)


class NeverUpdatesCritics(Torch):  # type: ignore[misc]
    def _step(self) -> float:
        return 0.0 if self.spec.head == "value" else float(super()._step())


class TakesNaN(Torch):  # type: ignore[misc]
    def update(self, mini_batch: Experience, objective: Objective) -> Any:
        try:
            return super().update(mini_batch, objective)
        except NonFiniteError:
            return {}


class NamesNoRows(Torch):  # type: ignore[misc]
    def update(self, mini_batch: Experience, objective: Objective) -> Any:
        try:
            return super().update(mini_batch, objective)
        except NonFiniteError as error:
            raise NonFiniteError(str(error)) from error


class RaisesTooLate(Torch):  # type: ignore[misc]
    def _nonfinite(self, *arguments: Any) -> NonFiniteError:
        error: NonFiniteError = super()._nonfinite(*arguments)
        with torch.no_grad():
            next(self.model.parameters()).mul_(0.999)
        return error


class LowersTheRate(Torch):  # type: ignore[misc]
    def _nonfinite(self, *arguments: Any) -> NonFiniteError:
        for group in self.optimizer.param_groups:
            group["lr"] /= 2
        error: NonFiniteError = super()._nonfinite(*arguments)
        return error


class Changed(Torch):  # type: ignore[misc]
    """Changes what ``forward`` returns."""

    def forward(self, batch: Experience, wanted: Collection[Output]) -> TokenOutputs:
        outputs: TokenOutputs = super().forward(batch, wanted)
        given = {name: tensor for name, tensor in outputs._asdict().items() if tensor is not None}
        return TokenOutputs(**{name: self.change(name, tensor, batch) for name, tensor in given.items()})

    def change(self, name: str, tensor: Tensor, batch: Experience) -> Tensor:
        raise NotImplementedError


class EntropyInBits(Changed):
    def change(self, name: str, tensor: Tensor, batch: Experience) -> Tensor:
        return tensor / math.log(2) if name == "entropy" else tensor


class SumOfPi(Changed):
    def change(self, name: str, tensor: Tensor, batch: Experience) -> Tensor:
        return batch.response_mask.float() if name == "sum_pi_squared" else tensor


class Unnormalised(Changed):
    def change(self, name: str, tensor: Tensor, batch: Experience) -> Tensor:
        return tensor + batch.response_mask[..., None] if name == "vocabulary_log_probs" else tensor


class OfPadding(Changed):
    def change(self, name: str, tensor: Tensor, batch: Experience) -> Tensor:
        return torch.where(batch.response_mask, tensor, -1.0) if name == "log_probs" else tensor


class HalfPrecision(Changed):
    def change(self, name: str, tensor: Tensor, batch: Experience) -> Tensor:
        return tensor.bfloat16()


class ValuesAfterTheToken(Changed):
    def change(self, name: str, tensor: Tensor, batch: Experience) -> Tensor:
        moved = torch.cat([tensor[:, 1:], torch.zeros_like(tensor[:, :1])], dim=1)
        return torch.where(batch.response_mask, moved, 0.0)


class Everything(Torch):  # type: ignore[misc]
    def forward(self, batch: Experience, wanted: Collection[Output]) -> TokenOutputs:
        outputs: TokenOutputs = super().forward(batch, {*wanted, "entropy"})
        return outputs


class WrappedNames(Torch):  # type: ignore[misc]
    def weights(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in super().weights():
            yield f"module.{name}", tensor


class TiedTwice(Torch):  # type: ignore[misc]
    def weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from super().weights()
        yield "lm_head.weight", self.model.get_output_embeddings().weight.detach()


class WithoutBiases(Torch):  # type: ignore[misc]
    def weights(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in super().weights():
            if "bias" not in name:
                yield name, tensor


class Swapped(Torch):  # type: ignore[misc]
    def weights(self) -> Iterator[tuple[str, Tensor]]:
        other = {"gate_proj": "up_proj", "up_proj": "gate_proj"}
        for name, tensor in super().weights():
            part = name.split(".")[-2]
            yield name.replace(part, other.get(part, part)), tensor


class ForgetsTheOptimizer(Torch):  # type: ignore[misc]
    def load(self, folder: Path) -> None:
        super().load(folder)
        self.optimizer.state.clear()


class ForgetsTheSchedule(Torch):  # type: ignore[misc]
    def load(self, folder: Path) -> None:
        before = {**self.schedule.state_dict()}
        super().load(folder)
        self.schedule.load_state_dict(before)
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"]


class LoadsNoWeights(Torch):  # type: ignore[misc]
    def load(self, folder: Path) -> None:
        kept = [parameter.detach().clone() for parameter in self.model.parameters()]
        super().load(folder)
        with torch.no_grad():
            for parameter, value in zip(self.model.parameters(), kept, strict=True):
                parameter.copy_(value)


class OffloadLosesState(Torch):  # type: ignore[misc]
    def offload(self) -> None:
        super().offload()
        self.optimizer.state.clear()


class ExportsTheFirstModel(Torch):  # type: ignore[misc]
    def export(self, folder: Path) -> None:
        shutil.copytree(tiny_model(tied=bool(self.model.config.tie_word_embeddings)), folder, dirs_exist_ok=True)


class ExportsNoTemplate(Torch):  # type: ignore[misc]
    def export(self, folder: Path) -> None:
        super().export(folder)
        (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")


class TwoRanks(Torch):  # type: ignore[misc]
    data_parallel_size = 2


class CountsTwice(Torch):  # type: ignore[misc]
    def shape(self) -> Any:
        shape = super().shape()
        return replace(shape, parameters=2 * shape.parameters)


def run(strategy: Any, name: str) -> None:
    entry: Entry[Any] = Entry("training strategy", "t", strategy, Owner("tests"))
    dict(training_strategies.checks(Selected(entry)))[name]()


@pytest.mark.parametrize("name", ["log_probs", "update_is_adamw", "save_and_load", "weight_names"])
def test_a_good_strategy_passes(name: str) -> None:
    """All checks of ``torch`` are run by the tests of its plugin."""
    run(Torch, name)


@pytest.mark.parametrize(
    ("strategy", "name", "words"),
    [
        (IgnoresTemperature, "temperature", r"log_probs under softmax\(logits / 0.5\) is up to"),
        (OfPadding, "log_probs", "log_probs is not 0 outside the responses"),
        (HalfPrecision, "log_probs", "torch.bfloat16 on cpu: it must be .* float32, on the CPU"),
        (EntropyInBits, "entropy", r"entropy under softmax\(logits / 1\) is up to"),
        (SumOfPi, "sum_pi_squared", r"sum_pi_squared under softmax\(logits / 1\) is up to"),
        (Unnormalised, "vocabulary_log_probs", r"vocabulary_log_probs under softmax\(logits / 1\) is up to"),
        (FrozenAtOne, "frozen", "the log-probs of a model with optim=None are not those of one that is trained"),
        (Everything, "only_what_is_wanted", r"forward\(\) returned entropy where log_probs alone was wanted"),
        (
            NoWeightDecay,
            "update_is_adamw",
            "after update 1 the weight 'model.embed_tokens.weight' is up to .* off AdamW",
        ),
        (DecaysEverything, "update_is_adamw", "the weight '.*(norm.weight|bias)' is up to .* off AdamW by hand"),
        (NoClipping, "gradient_clipping", r"off AdamW by hand \(.*grad_clip=0.02\)"),
        (NormAfterClipping, "gradient_clipping", r"update 1 has the metric grad_norm=0.02, and by hand"),
        (NoWarmUp, "learning_rate_schedule", r"gave the rates lr · \(1, "),
        (NormalisesEachMicroBatch, "micro_batches_change_nothing", "with max_sequences=1 the update differs by"),
        (LastMicroBatchMetrics, "micro_batches_change_nothing", "with max_sequences=1 the metric length is"),
        (CountsMaskedRows, "masked_rows_change_nothing", "rows without a true mask change the update by"),
        (TakesNaN, "non_finite", "an update with a loss that is NaN was taken"),
        (NamesNoRows, "non_finite", r"rows \(1, 5\) have a loss that is NaN, and NonFiniteError names \(\)"),
        (RaisesTooLate, "non_finite", "after a loss that is NaN and NonFiniteError: the weight '.*' differs"),
        (LowersTheRate, "non_finite", "in the update after one with a loss that is NaN: the weight '.*' differs"),
        (ValuesAfterTheToken, "values", "another token at place 4 changed the value before it"),
        (NeverUpdatesCritics, "values_are_learned", "60 updates toward fixed returns took the squared error from"),
        (ForgetsTheOptimizer, "save_and_load", r"training on after load\(\), .*: the weight '.*' differs"),
        (ForgetsTheOptimizer, "save_and_load_a_critic", r"training on after load\(\), .*: the weight '.*' differs"),
        (ForgetsTheSchedule, "save_and_load", r"training on after load\(\), .*: the weight '.*' differs"),
        (LoadsNoWeights, "save_and_load", r"after load\(\): the weight '.*' differs"),
        (
            OffloadLosesState,
            "offload_and_onload",
            r"training between offload\(\) and onload\(\): the weight '.*' differs",
        ),
        (WrappedNames, "weight_names", "the weight 'module.model.embed_tokens.weight' is unknown to transformers"),
        (TiedTwice, "weight_names", "the weight 'model.embed_tokens.weight' of the tied model comes twice"),
        (
            WithoutBiases,
            "weight_names",
            "the weight 'model.layers.0.self_attn.q_proj.bias' of the tied model is missing",
        ),
        (Swapped, "weight_names", "up_proj.weight' is not the one that model.path holds"),
        (ExportsTheFirstModel, "export", "the exported model's log-probs are up to .* off those of the trained one"),
        (ExportsNoTemplate, "export", "the exported folder has another tokenizer or chat template than model.path"),
        (TwoRanks, "one_rank", "calls itself data-parallel rank 0 of 2"),
        (CountsTwice, "shape", r"shape\(\) is ModelShape\(parameters=101888"),
        (Draws, "random_state_untouched", r"update\(\) with head=lm changed a global random state"),
        (OneSeed, "random_weights_follow_the_seed", "another seed gave the same weights"),
        (ChangesTheBatch, "batch_unchanged", "changed the batch's loss_weights"),
    ],
)
def test_a_mistake_is_caught(strategy: Any, name: str, words: str) -> None:
    with pytest.raises(CheckFailed, match=words):
        run(strategy, name)


def test_a_strategy_for_another_device_is_passed_over() -> None:
    def cuda_only(spec: StrategySpec) -> Any:
        raise ConfigError("actor.device", "this strategy trains on cuda")

    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(CheckSkipped, match=r"it does not run here: .* trains on cuda"):
        run(cuda_only, "log_probs")
