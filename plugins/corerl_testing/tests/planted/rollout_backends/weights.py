"""Faults in weight updates and sleep."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from corerl.contracts.rollout_backends import Completion, GenerationRequest, OnFinished
from corerl.errors import RunError
from planted.rollout_backends.wrapped import Backend, planted

Weights = Iterable[tuple[str, Tensor]]


class IgnoresUpdate(Backend):
    """an update changes only the version"""

    def update_weights(self, weights: Weights, version: int, *, verify: bool = False) -> None:
        self.inner._versions = {0: version}


class StaleVersion(Backend):
    """an update leaves the version as it was"""

    def update_weights(self, weights: Weights, version: int, *, verify: bool = False) -> None:
        before = dict(self.inner._versions)
        super().update_weights(weights, version, verify=verify)
        self.inner._versions = before


class KeepsTheSentTensors(Backend):
    """tensors of an update are copied when they are needed"""

    pending: tuple[list[tuple[str, Tensor]], int] | None = None

    def update_weights(self, weights: Weights, version: int, *, verify: bool = False) -> None:
        self.pending = list(weights), version

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        if self.pending:
            super().update_weights(*self.pending)
            self.pending = None
        return await super().generate(requests, on_finished)


class CollectsTheStream(Backend):
    """an update is read to its end before its first tensor is copied"""

    def update_weights(self, weights: Weights, version: int, *, verify: bool = False) -> None:
        super().update_weights(list(weights), version, verify=verify)


class LoadsInItsOwnOrder(Backend):
    """the tensors of an update are taken for the model's in the model's order"""

    def update_weights(self, weights: Weights, version: int, *, verify: bool = False) -> None:
        own = {name: tensor.shape for name, tensor in self.inner._model.named_parameters()}
        received = [tensor.clone() for _, tensor in weights]
        if sorted(each.shape for each in received) == sorted(own.values()):
            by_shape: dict[Any, list[Tensor]] = {}
            for each in received:
                by_shape.setdefault(each.shape, []).append(each)
            received = [by_shape[shape].pop(0) for shape in own.values()]
        super().update_weights(zip(own, received, strict=True), version, verify=verify)


class LoadsMatricesAlone(Backend):
    """an update changes no norm and no bias"""

    def update_weights(self, weights: Weights, version: int, *, verify: bool = False) -> None:
        own = {name: tensor.clone() for name, tensor in self.inner._model.named_parameters() if tensor.dim() == 1}
        super().update_weights(((name, own.get(name, tensor)) for name, tensor in weights), version, verify=verify)


class LoadsNoOutputLayer(Backend):
    """an update does not change an output layer of its own"""

    def update_weights(self, weights: Weights, version: int, *, verify: bool = False) -> None:
        own = self.inner._model.lm_head.weight.clone()
        super().update_weights(
            ((name, own if name == "lm_head.weight" else tensor) for name, tensor in weights), version, verify=verify
        )


class SkipsWhenBusy(Backend):
    """an update that meets running requests is dropped"""

    def update_weights(self, weights: Weights, version: int, *, verify: bool = False) -> None:
        if not self.inner._calls:
            super().update_weights(weights, version, verify=verify)


class DividesWrongly(Backend):
    """later tokens of a response that met an update carry its version, and are not from its weights"""

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        outputs = await super().generate(requests)
        return [
            [replace(each, updates=((100, 51),)) if len(each.token_ids) > 100 else each for each in completions]
            for completions in outputs
        ]


class TakesPart(Backend):
    """a tensor that an update lacks stays as it was"""

    def update_weights(self, weights: Weights, version: int, *, verify: bool = False) -> None:
        received = {name: tensor.clone() for name, tensor in weights}
        old = {name: tensor.clone() for name, tensor in self.inner._model.named_parameters()}
        super().update_weights({**old, **received}.items(), version)


class NamesNoTensor(Backend):
    """a refused update names no tensor"""

    def update_weights(self, weights: Weights, version: int, *, verify: bool = False) -> None:
        try:
            super().update_weights(weights, version)
        except RunError as error:
            raise RunError("the update failed") from error


class HalfUpdated(Backend):
    """a refused update is generated from"""

    def update_weights(self, weights: Weights, version: int, *, verify: bool = False) -> None:
        try:
            super().update_weights(weights, version)
        finally:
            self.inner._not_ready, self.inner._versions = "", {0: version}


class WakesUpEmpty(Backend):
    """after wake() it generates from weights that were not sent again"""

    def wake(self, *, kv_cache: bool = True) -> None:
        super().wake(kv_cache=kv_cache)
        for parameter in self.inner._model.parameters():
            parameter.data.zero_()
        self.inner._not_ready, self.inner._versions = "", {0: 0}


FAULTS = [
    planted(IgnoresUpdate, "update_is_used", "log-probs after a weight update (whose tensors are then overwritten)"),
    planted(KeepsTheSentTensors, "update_is_used", "log-probs after a weight update (whose tensors are then"),
    planted(CollectsTheStream, "update_is_used", "log-probs after a weight update (whose tensors are then"),
    planted(LoadsInItsOwnOrder, "update_is_used", "log-probs after a weight update (whose tensors are then"),
    planted(StaleVersion, "update_is_used", "after the update to version 5 the completions carry [0]"),
    planted(LoadsMatricesAlone, "update_is_used", "log-probs after a weight update (whose tensors are then"),
    planted(LoadsNoOutputLayer, "another_engine", "a request to one engine and the first to another have the same"),
    planted(SkipsWhenBusy, "update_while_generating", "log-probs after an update that met running requests are up to"),
    planted(DividesWrongly, "update_while_generating", "token 100 of 300 carries version 51 (tokens 100 to 299 do)"),
    planted(
        TakesPart, "broken_updates", "an update that lacks a tensor ('model.layers.1.mlp.up_proj.weight') was taken"
    ),
    planted(NamesNoTensor, "broken_updates", "was refused without naming 'model.layers.1.mlp.up_proj.weight'"),
    planted(HalfUpdated, "broken_updates", "log-probs after an update that lacks a tensor are up to"),
    planted(WakesUpEmpty, "sleep_and_wake", "log-probs after sleep(), wake(kv_cache=False) and no update are up to"),
]
