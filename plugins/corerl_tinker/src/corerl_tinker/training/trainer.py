"""The model that is trained: requests of clients, one at a time, each on the client's own weights.

All methods run in one thread.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from corerl.contracts.adapters import AdaptingStrategy
from corerl.contracts.experience import Experience
from corerl.contracts.token_outputs import OfLogits
from corerl.contracts.training_strategies import StrategySpec, TrainingStrategy
from corerl.errors import ConfigError, NonFiniteError
from corerl.models import compute_dtype
from corerl_tinker.errors import UserError
from corerl_tinker.training.checkpoints import About, Checkpoints, adapter_of
from corerl_tinker.training.data import LossRequest, rows_of
from corerl_tinker.training.objective import TinkerObjective
from corerl_tinker.training.states import Adapter, Slot, TrainedState
from corerl_torch import lora
from corerl_torch.stepping import AdamStep, SteppedStrategy, take_step


@dataclass(frozen=True, eq=False)
class LossResult:
    """The answer to a forward_backward.

    Attributes:
        log_probs: of each datum, (T,) or (T, K) float32, as its targets.
        loss: sum of the terms of all tokens.
    """

    log_probs: list[NDArray[np.float32]]
    loss: float


class Trainer:
    """A strategy's model with the states of clients; on several ranks, all call all methods in the same order.

    Args:
        sends_adapters: the engine has the base, and gets the adapters of a client alone.

    Raises:
        ConfigError: the strategy cannot be stepped.
    """

    def __init__(
        self, strategy: TrainingStrategy, spec: StrategySpec, name: str, *, sends_adapters: bool = False
    ) -> None:
        if not isinstance(strategy, SteppedStrategy):
            raise ConfigError("actor.strategy", f"'{name}' takes no single steps, as Tinker's clients do: use torch")
        self.strategy, self.spec, self._sends_adapters = strategy, spec, sends_adapters
        self.weights_of_rank = strategy.trained_weights()
        self.slot = Slot(self.weights_of_rank)
        self._base: TrainedState = self.slot.present()
        if self.slot.is_lora:
            self._base = self.slot.new_adapter(Adapter(spec.model.lora_rank, spec.model.lora_alpha))
        self._sent_dtype = compute_dtype(spec.model, spec.device)

    def base(self) -> TrainedState:
        """The model without training."""
        return self._base

    def new_state(self, adapter: Adapter) -> TrainedState:
        """The state of a new client; without adapters, the whole model's.

        Raises:
            UserError: the rank is larger than the server's.
        """
        if not self.slot.is_lora:
            return self._base.copy()
        if adapter.rank > self.spec.model.lora_rank:
            most = f"at most {self.spec.model.lora_rank}, model.lora_rank of the server"
            raise UserError(f"rank {adapter.rank} is too large: this server trains adapters of rank {most}")
        return self.slot.new_adapter(adapter)

    def snapshot(self, state: TrainedState) -> TrainedState:
        """A copy of a client's weights, for sampling."""
        self.slot.hold(state)
        return self.slot.present()

    def forward_backward(self, state: TrainedState, request: LossRequest) -> LossResult:
        """The loss of a request; with ``backward``, its gradient is added to the client's.

        Raises:
            UserError: the loss is not finite; the client's gradients are dropped.
        """
        self.slot.hold(state)
        rows = rows_of([[*datum.tokens.tolist()] for datum in request.data])
        rank, size = self.strategy.data_parallel_rank, self.strategy.data_parallel_size
        own = torch.arange(rank, len(rows), size)
        objective = TinkerObjective(request, counts=bool(len(own)))
        rows = rows.select(own if len(own) else torch.zeros(1, dtype=torch.int64))
        if request.backward:
            self._backward(state, rows, objective)
        else:
            objective(self.strategy.forward(rows, objective.wanted), rows)
        loss, log_probs = self._together(objective, request)
        if not math.isfinite(loss):
            self.weights_of_rank.optimizer.zero_grad(set_to_none=True)
            raise UserError(f"the loss is {loss}: all accumulated gradients of this model were dropped")
        numbered = [each.numpy() for each in log_probs]
        shaped = [each[:, 0] if datum.is_flat else each for each, datum in zip(numbered, request.data, strict=True)]
        return LossResult(shaped, loss)

    def _together(self, objective: TinkerObjective, request: LossRequest) -> tuple[float, list[Tensor]]:
        """The loss and the log-probs of all ranks' rows."""
        sizes = [datum.targets.shape for datum in request.data]
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return objective.loss, [objective.log_probs[row] for row in range(len(sizes))]
        device, speaks = self.spec.device, self.weights_of_rank.speaks
        own = objective if speaks else TinkerObjective(request, counts=False)  # ranks may share rows
        loss = torch.tensor(own.loss, dtype=torch.float64, device=device)
        parts = [own.log_probs.get(row, torch.zeros(size)).reshape(-1) for row, size in enumerate(sizes)]
        whole = torch.cat(parts).to(device)
        dist.all_reduce(loss)
        dist.all_reduce(whole)
        split = torch.split(whole.cpu(), [rows * columns for rows, columns in sizes])
        return float(loss), [part.view(size) for part, size in zip(split, sizes, strict=True)]

    def hold(self, state: TrainedState) -> None:
        """Put a state into the model, for :meth:`weights`."""
        self.slot.hold(state)

    def optim_step(self, state: TrainedState, step: AdamStep) -> float:
        """Take an AdamW step; returns the gradient norm before clipping.

        Raises:
            UserError: there is no gradient, or it is not finite; nothing changes, the gradients are dropped.
        """
        self.slot.hold(state)
        if not self.slot.has_gradient():
            raise UserError("there is no gradient to step with: send forward_backward before optim_step")
        try:
            return take_step(self.weights_of_rank, step)
        except NonFiniteError as error:
            raise UserError(str(error)) from error

    def save(
        self, store: Checkpoints, address: str, about: About, state: TrainedState, *, optimizer: bool, overwrite: bool
    ) -> None:
        """Write a client's state; see :meth:`corerl_tinker.training.checkpoints.Checkpoints.write`."""
        self.slot.put_aside()
        store.write(address, about, self.slot, state, optimizer=optimizer, overwrite=overwrite)

    def load(self, store: Checkpoints, address: str, about: About, *, optimizer: bool) -> TrainedState:
        """The state of a checkpoint, without gradients.

        Raises:
            UserError: the checkpoint does not fit this server's model, or is damaged.
        """
        adapter = adapter_of(about)
        if (adapter is not None) != self.slot.is_lora:
            kinds = ("all weights", "adapters") if self.slot.is_lora else ("adapters", "all weights")
            raise UserError(f"{address} holds {kinds[0]}, and this server trains {kinds[1]}")
        state = self.new_state(adapter or Adapter(1, 1.0))
        store.read(address, about, self.slot, state, optimizer=optimizer)
        return state

    def forward(self, state: TrainedState, sequences: list[list[int]], wanted: OfLogits) -> dict[str, Tensor]:
        """Results of a function of the logits at every position of sequences: name -> (B, T, ...)."""
        self.slot.hold(state)
        outputs = self.strategy.forward(rows_of(sequences), {wanted})
        assert outputs.of_logits is not None
        return {name: each.cpu() for name, each in outputs.of_logits.items()}

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Of the held state, or its adapter alone: :class:`corerl.contracts.workers.WeightSource`."""
        if not self._sends_adapters:
            return self.strategy.weights(self._sent_dtype)
        return self._adapters(self.slot.scale() / lora.scale(vars(self.spec.model)))

    def _adapters(self, factor: float) -> Iterator[tuple[str, Tensor]]:
        """The adapter for an engine with the server's scale: B has the rest, in float32 before it is rounded."""
        for name, tensor in cast(AdaptingStrategy, self.strategy).adapters(torch.float32):
            scaled = tensor * factor if ".lora_B." in name else tensor
            yield name, scaled.to(self._sent_dtype)

    def _backward(self, state: TrainedState, rows: Experience, objective: TinkerObjective) -> None:
        cast(SteppedStrategy, self.strategy).accumulate(rows, objective)
        self.slot.drop_gradients(state.adapter)
