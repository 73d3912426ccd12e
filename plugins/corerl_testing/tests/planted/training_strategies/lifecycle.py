"""Faults between updates: sent weights, checkpoints, exports, moves."""

import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.losses import Mean
from corerl.contracts.objective import Objective
from corerl.contracts.token_outputs import TokenOutputs, Wanted
from corerl.contracts.training_strategies import StrategySpec
from corerl_testing.tiny_model import tiny_model
from planted.training_strategies.wrapped import Strategy, planted


class WrappedNames(Strategy):
    """names of weights begin with that of a wrapper"""

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in super().weights(dtype):
            yield f"module.{name}", tensor


class TiedTwice(Strategy):
    """tied weights are sent under both names"""

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        yield from super().weights(dtype)
        yield "lm_head.weight", self.inner.model.get_output_embeddings().weight.detach()


class WithoutBiases(Strategy):
    """biases are not among the weights"""

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in super().weights(dtype):
            if "bias" not in name:
                yield name, tensor


class Swapped(Strategy):
    """gate_proj and up_proj go by each other's names"""

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        other = {"gate_proj": "up_proj", "up_proj": "gate_proj"}
        for name, tensor in super().weights(dtype):
            part = name.split(".")[-2]
            yield name.replace(part, other.get(part, part)), tensor


class WeightsOfTheFirstCall(Strategy):
    """the weights that are handed on are those of the first time"""

    kept: list[tuple[str, Tensor]] | None = None

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        if self.kept is None:
            self.kept = [(name, tensor.clone()) for name, tensor in super().weights(dtype)]
        yield from self.kept


class LocksWhileItStreams(Strategy):
    """weights that are not read to the end leave the model without gradients"""

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        trained = [parameter for parameter in self.inner.model.parameters() if parameter.requires_grad]
        self.inner.model.requires_grad_(False)
        yield from super().weights(dtype)
        for parameter in trained:
            parameter.requires_grad_(True)


class OneDtype(Strategy):
    """weights() returns the model's own dtype for every requested one"""

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        return super().weights()


class RoundsTwice(Strategy):
    """weights() in bf16 are rounded to fp16 on the way"""

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in super().weights():
            yield name, tensor if dtype is None else tensor.half().to(dtype)


class ForwardFreezes(Strategy):
    """after forward() the first layer is not trained"""

    def forward(self, batch: Experience, wanted: Collection[Wanted]) -> TokenOutputs:
        outputs = super().forward(batch, wanted)
        for name, parameter in self.inner.model.named_parameters():
            if ".layers.0." in name:
                parameter.requires_grad_(False)
        return outputs


class OneOptimizer(Strategy):
    """all strategies of a process share the moments of one optimizer"""

    moments: ClassVar[dict[str, Tensor]] = {}

    def update(self, mini_batch: Experience, objective: Objective) -> dict[str, Mean]:
        for name, parameter in self.inner.model.named_parameters():
            if parameter in self.inner.optimizer.state and name in self.moments:
                self.inner.optimizer.state[parameter]["exp_avg"].copy_(self.moments[name])
        metrics = super().update(mini_batch, objective)
        for name, parameter in self.inner.model.named_parameters():
            self.moments[name] = self.inner.optimizer.state[parameter]["exp_avg"].clone()
        return metrics


class ForgetsTheOptimizer(Strategy):
    """load() reads no moments"""

    def load(self, folder: Path) -> None:
        super().load(folder)
        self.inner.optimizer.state.clear()


class KeepsItsMoments(Strategy):
    """load() reads no moments if there are some already"""

    def load(self, folder: Path) -> None:
        own = {
            parameter: {name: value.clone() for name, value in state.items()}
            for parameter, state in self.inner.optimizer.state.items()
        }
        super().load(folder)
        self.inner.optimizer.state.update(own)


class ForgetsTheSchedule(Strategy):
    """load() begins the schedule anew"""

    def load(self, folder: Path) -> None:
        before = {**self.inner.schedule.state_dict()}
        super().load(folder)
        self.inner.schedule.load_state_dict(before)
        for group in self.inner.optimizer.param_groups:
            group["lr"] = group["initial_lr"]


class LoadsNoWeights(Strategy):
    """load() reads no weights"""

    def load(self, folder: Path) -> None:
        kept = [parameter.detach().clone() for parameter in self.inner.model.parameters()]
        super().load(folder)
        with torch.no_grad():
            for parameter, value in zip(self.inner.model.parameters(), kept, strict=True):
                parameter.copy_(value)


class WritesLate(Strategy):
    """the function returned by save() writes the weights of the time of its call"""

    def save(self, folder: Path) -> Callable[[], None]:
        return lambda: (super(WritesLate, self).save(folder) or (lambda: None))()


class LosesTheHead(Strategy):
    """a critic's head is not loaded"""

    def load(self, folder: Path) -> None:
        if self.spec.head == "lm":
            super().load(folder)
            return
        kept = self.inner.model.score.weight.detach().clone()
        super().load(folder)
        with torch.no_grad():
            self.inner.model.score.weight.copy_(kept)


class OffloadLosesState(Strategy):
    """offload() drops the optimizer's moments"""

    def offload(self) -> None:
        super().offload()
        self.inner.optimizer.state.clear()


class OnloadRewinds(Strategy):
    """onload() begins the schedule anew"""

    def onload(self) -> None:
        super().onload()
        if self.spec.optim is not None:
            for group in self.inner.optimizer.param_groups:
                group["lr"] = group["initial_lr"]


class OffloadNeedsAnOptimizer(Strategy):
    """offload() of a model that is never updated fails"""

    def offload(self) -> None:
        self.inner.optimizer.zero_grad()
        super().offload()


class ExportsTheFirstModel(Strategy):
    """export() copies model.path"""

    def export(self, folder: Path) -> None:
        tied = bool(self.inner.model.config.tie_word_embeddings)
        shutil.copytree(tiny_model(tied=tied), folder, dirs_exist_ok=True)


class ExportsNoTemplate(Strategy):
    """export() writes another chat template"""

    def export(self, folder: Path) -> None:
        super().export(folder)
        (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")


class ExportsWhatItTrained(Strategy):
    """export() writes the weights after the last update, which load() does not change"""

    def __init__(self, spec: StrategySpec) -> None:
        super().__init__(spec)
        self.last = self.copied()

    def copied(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.inner.model.parameters()]

    def update(self, mini_batch: Experience, objective: Objective) -> dict[str, Mean]:
        metrics = super().update(mini_batch, objective)
        self.last = self.copied()
        return metrics

    def export(self, folder: Path) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.inner.model.parameters(), self.last, strict=True):
                parameter.copy_(value)
        super().export(folder)


FAULTS = [
    planted(WrappedNames, "weight_names", "the weight 'module.model.embed_tokens.weight' is unknown to transformers"),
    planted(TiedTwice, "weight_names", "the weight 'model.embed_tokens.weight' of the tied model comes twice"),
    planted(
        WithoutBiases,
        "weight_names",
        "the weight 'model.layers.0.self_attn.q_proj.bias' of the tied model is missing",
    ),
    planted(Swapped, "weight_names", "up_proj.weight' is not the one that model.path holds"),
    planted(OneDtype, "weights_dtype", "weights(torch.bfloat16) gives 'model.embed_tokens.weight' in torch.float32"),
    planted(RoundsTwice, "weights_dtype", "weights(torch.bfloat16) is not weights() rounded once: the weight '"),
    planted(WeightsOfTheFirstCall, "update_is_adamw", "after update 2 the weight 'model.embed_tokens.weight' is up to"),
    planted(LocksWhileItStreams, "history_does_not_matter", "does not require grad"),
    planted(ForwardFreezes, "history_does_not_matter", "after a forward of the same batch update 1 has the metrics"),
    planted(OneOptimizer, "a_second_strategy", "a strategy beside others, and the same alone: the weight '"),
    planted(ForgetsTheOptimizer, "save_and_load", "training on after load(), beside one that went on: the weight '"),
    planted(KeepsItsMoments, "save_and_load", "training on after load(), beside one that went on: the weight '"),
    planted(ForgetsTheSchedule, "save_and_load", "training on after load(), beside one that went on: the weight '"),
    planted(LoadsNoWeights, "save_and_load", "after load(): the weight '"),
    planted(WritesLate, "save_and_load", "of read_checkpoint: the weight '"),
    planted(LosesTheHead, "save_and_load_a_critic", "after load(): the weight 'score.weight' differs"),
    planted(OffloadLosesState, "offload_and_onload", "training between offload() and onload(): the weight '"),
    planted(OnloadRewinds, "offload_and_onload", "training between offload() and onload(): the weight '"),
    planted(OffloadNeedsAnOptimizer, "offload_and_onload", "has no attribute 'optimizer'"),
    planted(ExportsTheFirstModel, "export", "the exported model's log-probs are up to"),
    planted(ExportsNoTemplate, "export", "the exported folder has another tokenizer or chat template than model.path"),
    planted(ExportsWhatItTrained, "export_after_load", "the model exported after load() has log-probs up to"),
]
