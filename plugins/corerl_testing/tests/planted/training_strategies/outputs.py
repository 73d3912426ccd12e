"""Faults in a model's outputs and construction."""

import math
import os
import random
from collections.abc import Collection
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.losses import Mean
from corerl.contracts.objective import Objective
from corerl.contracts.throughput import ModelShape
from corerl.contracts.token_outputs import TokenOutputs, Wanted
from corerl.contracts.training_strategies import StrategySpec
from planted.training_strategies.wrapped import Strategy, planted


class IgnoresTemperature(Strategy):
    """log-probs are those of the logits as they are"""

    def asked(self, spec: StrategySpec) -> StrategySpec:
        return replace(spec, temperature=1.0)


class IgnoresKeptTokens(Strategy):
    """log-probs are over the whole vocabulary for every batch"""

    def forward(self, batch: Experience, wanted: Collection[Wanted]) -> TokenOutputs:
        return super().forward(replace(batch, columns={}), wanted)


class TrainsOnAllTokens(Strategy):
    """updates are over the whole vocabulary for every batch"""

    def update(self, mini_batch: Experience, objective: Objective) -> dict[str, Mean]:
        return super().update(replace(mini_batch, columns={}), objective)


class OfPadding(Strategy):
    """log_probs have numbers outside the responses"""

    def change(self, name: str, tensor: Tensor, batch: Experience) -> Tensor:
        return torch.where(batch.response_mask, tensor, -1.0) if name == "log_probs" else tensor


class HalfPrecision(Strategy):
    """outputs are in bf16"""

    def change(self, name: str, tensor: Tensor, batch: Experience) -> Tensor:
        return tensor.bfloat16()


class Bf16(Strategy):
    """the model computes in bf16 for every model.dtype"""

    def asked(self, spec: StrategySpec) -> StrategySpec:
        return replace(spec, model=replace(spec.model, dtype="bf16"))


class EntropyInBits(Strategy):
    """the entropy is in bits"""

    def change(self, name: str, tensor: Tensor, batch: Experience) -> Tensor:
        return tensor / math.log(2) if name == "entropy" else tensor


class SumOfPi(Strategy):
    """sum_pi_squared is the sum of pi"""

    def change(self, name: str, tensor: Tensor, batch: Experience) -> Tensor:
        return batch.response_mask.float() if name == "sum_pi_squared" else tensor


class Unnormalised(Strategy):
    """vocabulary_log_probs do not add up to 1"""

    def change(self, name: str, tensor: Tensor, batch: Experience) -> Tensor:
        return tensor + batch.response_mask[..., None] if name == "vocabulary_log_probs" else tensor


class FrozenAtThree(Strategy):
    """a model without an optimizer is run at temperature 3"""

    def asked(self, spec: StrategySpec) -> StrategySpec:
        return spec if spec.optim else replace(spec, temperature=3.0)


class Everything(Strategy):
    """the entropy is returned whether it is wanted or not"""

    def forward(self, batch: Experience, wanted: Collection[Wanted]) -> TokenOutputs:
        return super().forward(batch, {*wanted, "entropy"})


class AnswersFromMemory(Strategy):
    """the outputs of an earlier equal batch are returned again, for any weights"""

    def __init__(self, spec: StrategySpec) -> None:
        super().__init__(spec)
        self.answers: dict[tuple[int, ...], TokenOutputs] = {}

    def forward(self, batch: Experience, wanted: Collection[Wanted]) -> TokenOutputs:
        key = (len(wanted), *batch.input_ids.flatten().tolist())
        if key not in self.answers:
            self.answers[key] = super().forward(batch, wanted)
        return self.answers[key]


class PaddedWithItsWidth(Strategy):
    """a position in the padding moves every response by one column more"""

    def forward(self, batch: Experience, wanted: Collection[Wanted]) -> TokenOutputs:
        outputs = super().forward(batch, wanted)
        extra = batch.response_mask.shape[1] - int(batch.response_lengths.max())
        given = {name: tensor for name, tensor in outputs._asdict().items() if tensor is not None}
        return TokenOutputs(**{name: tensor.roll(extra, dims=1) for name, tensor in given.items()})


class EndsAfter1024(Strategy):
    """of a response's log-probs those after the first 1024 are 0"""

    def change(self, name: str, tensor: Tensor, batch: Experience) -> Tensor:
        columns = torch.arange(tensor.shape[1]) < 1024
        return torch.where(columns, tensor, 0.0) if name == "log_probs" else tensor


class NeedsAToken(Strategy):
    """a response without tokens is an error"""

    def update(self, mini_batch: Experience, objective: Objective) -> dict[str, Mean]:
        if not bool((mini_batch.response_lengths > 0).all()):
            raise ValueError("a response without tokens has no last one")
        return super().update(mini_batch, objective)


class ValuesAfterTheToken(Strategy):
    """a value is the one after its token"""

    def change(self, name: str, tensor: Tensor, batch: Experience) -> Tensor:
        if name != "values":
            return tensor
        moved = torch.cat([tensor[:, 1:], torch.zeros_like(tensor[:, :1])], dim=1)
        return torch.where(batch.response_mask, moved, 0.0)


class ValuesLessTheirMean(Strategy):
    """values are centred in each micro-batch"""

    def change(self, name: str, tensor: Tensor, batch: Experience) -> Tensor:
        if name != "values":
            return tensor
        limit = self.spec.micro_batching.max_sequences or 3
        return torch.cat([part - part.mean() * (part != 0) for part in torch.split(tensor, limit)])


class OneSeed(Strategy):
    """random weights have the seed 0"""

    def asked(self, spec: StrategySpec) -> StrategySpec:
        return replace(spec, seed=0)


class HeadOfTheGlobalGenerator(Strategy):
    """a value head is drawn from torch's global generator"""

    def __init__(self, spec: StrategySpec) -> None:
        super().__init__(spec)
        if spec.head == "value":
            with torch.no_grad():
                self.inner.model.score.weight.normal_(std=0.02)


class HeadOfItsNumber(Strategy):
    """a value head's seed counts the critics of the process"""

    critics = 0

    def asked(self, spec: StrategySpec) -> StrategySpec:
        if spec.head == "lm":
            return spec
        HeadOfItsNumber.critics += 1
        return replace(spec, seed=HeadOfItsNumber.critics)


class OneHead(Strategy):
    """a value head has the seed 0"""

    def asked(self, spec: StrategySpec) -> StrategySpec:
        return replace(spec, seed=0) if spec.head == "value" else spec


class RandomBody(Strategy):
    """a critic's body is random"""

    def asked(self, spec: StrategySpec) -> StrategySpec:
        model = replace(spec.model, load_format="dummy")
        return replace(spec, model=model) if spec.head == "value" else spec


class SaltedByTheProcess(Strategy):
    """a hash that differs from process to process seeds the value head"""

    def asked(self, spec: StrategySpec) -> StrategySpec:
        return replace(spec, seed=hash(f"critic {spec.seed}") % 2**31) if spec.head == "value" else spec


class Draws(Strategy):
    """forward() draws a number from torch's global generator"""

    def forward(self, batch: Experience, wanted: Collection[Wanted]) -> TokenOutputs:
        torch.rand(1)
        return super().forward(batch, wanted)


class Seeds(Strategy):
    """building it seeds Python's and numpy's generators"""

    def asked(self, spec: StrategySpec) -> StrategySpec:
        random.seed(spec.seed)
        np.random.seed(spec.seed)
        return spec


class TwoRanks(Strategy):
    """one process calls itself one of two"""

    def __init__(self, spec: StrategySpec) -> None:
        super().__init__(spec)
        self.data_parallel_size = 2


class RankOfTheEnvironment(Strategy):
    """the data-parallel rank is read from an unset variable"""

    def __init__(self, spec: StrategySpec) -> None:
        super().__init__(spec)
        self.data_parallel_rank = int(os.environ.get("DATA_PARALLEL_RANK", "-1"))


class CountsTwice(Strategy):
    """tied weights are counted twice in shape()"""

    def shape(self) -> ModelShape:
        shape = super().shape()
        return replace(shape, parameters=2 * shape.parameters)


FAULTS = [
    planted(IgnoresTemperature, "temperature", "log_probs under softmax(logits / 0.5) is up to"),
    planted(IgnoresKeptTokens, "kept_tokens", "log_probs over kept tokens is up to"),
    planted(TrainsOnAllTokens, "kept_tokens", "update 1 over kept tokens has the metric"),
    planted(OfPadding, "log_probs", "log_probs is not 0 outside the responses"),
    planted(HalfPrecision, "log_probs", "torch.bfloat16 on cpu: it must be"),
    planted(Bf16, "log_probs", "errors of this size are those of bf16 arithmetic, and fp32 was asked for"),
    planted(EntropyInBits, "entropy", "entropy under softmax(logits / 1) is up to"),
    planted(SumOfPi, "sum_pi_squared", "sum_pi_squared under softmax(logits / 1) is up to"),
    planted(Unnormalised, "vocabulary_log_probs", "vocabulary_log_probs under softmax(logits / 1) is up to"),
    planted(FrozenAtThree, "frozen", "the log-probs of a model with optim=None are not those of one that is trained"),
    planted(Everything, "only_what_is_wanted", "forward() returned entropy where log_probs alone was wanted"),
    planted(AnswersFromMemory, "forward_after_updates", "log_probs after updates are up to"),
    planted(PaddedWithItsWidth, "padding_changes_nothing", "columns of padding change log_probs by"),
    planted(EndsAfter1024, "long_responses", "log_probs of responses of 1200 tokens, of none and of one are up to"),
    planted(NeedsAToken, "long_responses", "a response without tokens has no last one"),
    planted(ValuesAfterTheToken, "values", "another token at place 4 changed the value before it"),
    planted(ValuesLessTheirMean, "values_do_not_depend_on_the_batch", "with max_sequences=1 values are up to"),
    planted(OneSeed, "random_weights_follow_the_seed", "another seed gave the same weights"),
    planted(HeadOfTheGlobalGenerator, "head_follows_the_seed", "two new critics with the same seed have other values"),
    planted(HeadOfItsNumber, "head_follows_the_seed", "two new critics with the same seed have other values"),
    planted(OneHead, "head_follows_the_seed", "two new critics with seeds 4 and 5 have the same values"),
    planted(RandomBody, "body_is_the_models", "of a new critic is not the one that model.path holds"),
    planted(SaltedByTheProcess, "same_in_a_fresh_process", "in a fresh process critic of two updates and a critic is"),
    planted(Draws, "random_state_untouched", "forward() with head=lm changed a global random state"),
    planted(Seeds, "random_state_untouched", "building with head=lm changed a global random state"),
    planted(TwoRanks, "one_rank", "calls itself data-parallel rank 0 of 2"),
    planted(RankOfTheEnvironment, "one_rank", "calls itself data-parallel rank -1 of 1"),
    planted(CountsTwice, "shape", "shape() is ModelShape(parameters=101888"),
]
