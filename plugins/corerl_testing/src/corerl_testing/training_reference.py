"""References for the checks of training strategies: plain transformers in float64, AdamW by its formulas."""

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.experience import Experience, collate
from corerl.contracts.losses import LossOutput
from corerl.contracts.objective import Objective
from corerl.contracts.token_outputs import Output, TokenOutputs, Wanted
from corerl.contracts.training_strategies import MicroBatching, StrategySpec, TrainingStrategy, TrainingStrategyFactory
from corerl.objective import ValueObjective, loss_weights
from corerl.registry import Selected
from corerl_testing import devices
from corerl_testing.deadline import Lane
from corerl_testing.results import CheckFailed
from corerl_testing.tiny_model import VOCABULARY, reference, response_log_probs, tiny_model
from corerl_torch.supervised import SupervisedObjective

DEADLINE = 300.0
"""seconds for one call of a strategy"""

WHOLE = MicroBatching(max_sequences=100)

OPTIM = OptimConfig(lr=1e-2, weight_decay=0.5, eps=1e-4)
"""an eps at which the rounding of a gradient near 0 changes no weight"""

FALLING = dataclasses.replace(OPTIM, lr_scheduler_type="linear")
"""a rate that identifies the schedule's step"""

SQUARED_ERROR = ValueObjective(lambda inputs: LossOutput((inputs.values - inputs.returns) ** 2))

PROMPT_LENGTHS = (3, 7, 1, 5, 9, 2, 4)
RESPONSE_LENGTHS = (6, 2, 9, 4, 1, 12, 7)


def build(
    selected: Selected[TrainingStrategyFactory], *, tied: bool = True, frozen: bool = False, **changes: Any
) -> TrainingStrategy:
    """The tiny model under a strategy, on the device of :func:`corerl_testing.devices.build`; its calls have deadlines.

    Args:
        changes: of the :class:`StrategySpec`.

    Raises:
        CheckSkipped: the strategy refuses the CPU, and there is no CUDA device.
    """
    model = ModelConfig(path=str(tiny_model(tied=tied)), dtype="fp32")
    spec = StrategySpec(model, "cpu", WHOLE, None if frozen else OPTIM, total_steps=10)
    spec = dataclasses.replace(spec, **changes)
    factory = selected.load()

    def build() -> TrainingStrategy:
        return devices.build(lambda device: factory(dataclasses.replace(spec, device=device)))[0]

    return cast(TrainingStrategy, _Guarded(_lane.within(DEADLINE, build, "building the strategy")))


_lane = Lane()


class _Guarded:
    """A strategy that is called in one thread, as in a worker, with a deadline for each call."""

    def __init__(self, strategy: TrainingStrategy) -> None:
        self._strategy = strategy

    def __getattr__(self, name: str) -> Any:
        attribute: Any = getattr(self._strategy, name)
        if not callable(attribute):
            return attribute
        return lambda *given, **named: _lane.within(DEADLINE, lambda: attribute(*given, **named), f"{name}()")

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        stream: Any = _lane.within(DEADLINE, lambda: iter(self._strategy.weights(dtype)), "weights()")
        try:
            while (item := _lane.within(DEADLINE, lambda: next(stream, None), "weights()")) is not None:
                yield item
        except GeneratorExit:  # the reader has stopped
            _lane.within(DEADLINE, getattr(stream, "close", lambda: None), "closing weights()")
            raise


def tolerance(strategy: TrainingStrategy) -> float:
    """Tolerance of a log-prob in float32: 1e-5 on the CPU, 1e-3 on a CUDA device."""
    return 1e-3 if next(iter(strategy.weights()))[1].is_cuda else 1e-5


def error(given: Tensor, true: Tensor) -> float:
    """The largest error, absolute for numbers below 1 and relative for larger ones."""
    return float(((given - true).abs() / true.abs().clamp(min=1)).max())


def batch(
    seed: int = 0, mode: str = "token-mean", *, rows: int = len(PROMPT_LENGTHS), vocabulary: int = VOCABULARY
) -> Experience:
    """The first rows of a batch of seven, with random tokens and all lengths, and the loss weights of ``mode``."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(lengths: Sequence[int]) -> list[list[int]]:
        return [torch.randint(vocabulary, (length,), generator=generator).tolist() for length in lengths[:rows]]

    experience = collate(tokens(PROMPT_LENGTHS), tokens(RESPONSE_LENGTHS), [0, 0, 1, 1, 2, 2, 2][:rows])
    experience.loss_weights = loss_weights(experience.response_mask, mode)
    return experience


def step(strategy: TrainingStrategy, experience: Experience, objective: Objective | None = None) -> dict[str, float]:
    """One update, supervised without an objective; returns its metrics as numbers."""
    means = strategy.update(experience, objective or SupervisedObjective())
    return {name: mean.value for name, mean in means.items()}


def copied_weights(strategy: TrainingStrategy) -> dict[str, Tensor]:
    """All weights, as independent copies on the CPU."""
    return {name: weight.detach().to("cpu", copy=True) for name, weight in strategy.weights()}


def distance(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """The Euclidean norm of the difference of two sets of weights."""
    return math.sqrt(sum(float((left[name].double() - right[name].double()).square().sum()) for name in right))


def require_equal(left: dict[str, Tensor], right: dict[str, Tensor], what: str) -> None:
    """Fail unless both have equal names and bits."""
    if left.keys() != right.keys():
        raise CheckFailed(f"{what}: the names of the weights differ")
    for name, tensor in left.items():
        if not torch.equal(tensor, right[name]):
            raise CheckFailed(f"{what}: the weight '{name}' differs")


def split_rows(experience: Experience) -> list[tuple[list[int], list[int]]]:
    """Prompt and response of each row."""
    rows = []
    for ids, start, length in zip(
        experience.input_ids.tolist(), experience.prompt_lengths.tolist(), experience.lengths.tolist(), strict=True
    ):
        rows.append((ids[:start], ids[start:length]))
    return rows


def true_outputs(model: Any, experience: Experience, output: Output, temperature: float) -> list[Tensor]:
    """One output of a float64 model, row by row, (tokens,) or (tokens, vocabulary) each."""
    rows = split_rows(experience)
    with torch.no_grad():
        return [_outputs_of_row(model, prompt, response, temperature)[output] for prompt, response in rows]


def _outputs_of_row(model: Any, prompt: list[int], response: list[int], temperature: float) -> dict[Output, Tensor]:
    log_probs = response_log_probs(model, prompt, response, temperature)
    return {
        "log_probs": log_probs.gather(1, torch.tensor(response)[:, None])[:, 0],
        "entropy": -(log_probs.exp() * log_probs).sum(dim=1),
        "sum_pi_squared": log_probs.exp().square().sum(dim=1),
        "vocabulary_log_probs": log_probs,
    }


def given_output(outputs: TokenOutputs, output: Output) -> Tensor:
    """A field of the result of ``forward``, which must exist."""
    tensor: Tensor | None = getattr(outputs, output)
    if tensor is None:
        raise CheckFailed(f"forward() did not return {output}, which was wanted")
    return tensor


class Reference:
    """AdamW on an objective, in float64, from the paper's formulas (Loshchilov and Hutter 2019, 1711.05101).

    Weight decay is on weights with two or more dimensions only. The objective gets the outputs of plain transformers
    for each row alone.
    """

    def __init__(self, optim: OptimConfig, grad_clip: float, *, temperature: float = 1.0, tied: bool = True) -> None:
        self.optim, self.grad_clip, self.temperature = optim, grad_clip, temperature
        self.model = reference(tiny_model(tied=tied))
        self.parameters: dict[str, Tensor] = dict(self.model.named_parameters())
        self._first = {name: torch.zeros_like(each) for name, each in self.parameters.items()}
        self._second = {name: torch.zeros_like(each) for name, each in self.parameters.items()}
        self._steps = 0

    def step(self, experience: Experience, objective: Objective | None = None) -> dict[str, float]:
        """One update; returns its parts, metrics and ``grad_norm``.

        Args:
            objective: None: the supervised one.
        """
        objective = objective or SupervisedObjective()
        self.model.zero_grad()
        output = objective(self.outputs(experience, objective.wanted), experience)
        output.loss.backward()  # type: ignore[no-untyped-call]
        gradients = {name: each.grad for name, each in self.parameters.items() if each.grad is not None}
        norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients.values()))
        scale = min(1.0, self.grad_clip / norm)
        self._adamw({name: gradient * scale for name, gradient in gradients.items()})
        parts = {name: float(part) for name, part in output.parts.items()}
        return {**parts, **{name: mean.value for name, mean in output.metrics.items()}, "grad_norm": norm}

    def outputs(self, experience: Experience, wanted: Collection[Wanted]) -> TokenOutputs:
        """(B, T) or (B, T, V) float64, with gradients."""
        width = experience.response_mask.shape[1]
        rows = [
            _outputs_of_row(self.model, prompt, response, self.temperature)
            for prompt, response in split_rows(experience)
        ]
        whole: dict[str, Any] = {}
        for name in (each for each in wanted if isinstance(each, str)):
            padded = [
                torch.cat([row[name], row[name].new_zeros(width - len(row[name]), *row[name].shape[1:])])
                for row in rows
            ]
            whole[name] = torch.stack(padded)
        return TokenOutputs(**whole)

    @torch.no_grad()
    def _adamw(self, gradients: dict[str, Tensor]) -> None:
        self._steps += 1
        beta1, beta2 = self.optim.betas
        for name, gradient in gradients.items():
            weight = self.parameters[name]
            self._first[name] = beta1 * self._first[name] + (1 - beta1) * gradient
            self._second[name] = beta2 * self._second[name] + (1 - beta2) * gradient**2
            first = self._first[name] / (1 - beta1**self._steps)
            second = self._second[name] / (1 - beta2**self._steps)
            decay = self.optim.weight_decay if weight.dim() >= 2 else 0.0
            weight -= self.optim.lr * (first / (second.sqrt() + self.optim.eps) + decay * weight)
