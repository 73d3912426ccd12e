"""The trainer as the service has it: its ranks are workers of a runtime, and states are numbers there."""

import itertools
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from corerl.contracts.adapters import are_sent
from corerl.contracts.config import TrainConfig
from corerl.contracts.dispatch import Place, dispatch
from corerl.contracts.token_outputs import OfLogits
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.models import overridden, resolve_device
from corerl.registry.parts import select_rollout_backend
from corerl.trainer.workers import plugins_of
from corerl_tinker.errors import UserError
from corerl_tinker.training.checkpoints import About, Checkpoints
from corerl_tinker.training.data import LossRequest
from corerl_tinker.training.states import Adapter, TrainedState
from corerl_tinker.training.trainer import LossResult, Trainer
from corerl_torch.stepping import AdamStep

BASE = 0
"""number of the state without training"""


@dataclass(frozen=True)
class Refusal:
    """A UserError as a result: an error of one rank would end all."""

    message: str


@dataclass(frozen=True)
class Facts:
    """What the service knows of the model.

    Attributes:
        positions: that the model has; None: without a limit.
        has_head: the output layer is trained.
    """

    is_lora: bool
    has_head: bool
    vocabulary: int
    positions: int | None


@dataclass(frozen=True)
class Number:
    """A state, as an argument of a call."""

    number: int


class TrainerWorker:
    """A rank of the trainer, with the states of clients by their numbers."""

    def __init__(self, config: TrainConfig) -> None:
        registries = plugins_of(config).registries
        strategy = registries.training_strategies.select(config.actor.strategy, "actor.strategy")
        backend = select_rollout_backend(config.rollout, registries)
        sends = config.model.lora_rank > 0 and are_sent(config, strategy.entry.facts, backend.entry.facts)
        spec = strategy_spec(config)
        self.trainer = Trainer(strategy.load()(spec), spec, strategy.entry.name, sends_adapters=sends)
        self._states = {BASE: self.trainer.base()}

    def place(self) -> Place:
        """For :class:`corerl.contracts.workers.PlacedWorker`."""
        return Place(self.trainer.strategy.data_parallel_rank, self.trainer.strategy.data_parallel_size)

    def weights(self) -> Iterator[tuple[str, Any]]:
        """For :class:`corerl.contracts.workers.WeightSource`: of the held state."""
        return self.trainer.weights()

    @dispatch("rank_zero")
    def facts(self) -> Facts:
        slot, config = self.trainer.slot, self.trainer.weights_of_rank.config.get_text_config()
        return Facts(slot.is_lora, slot.has_head, config.vocab_size, getattr(config, "max_position_embeddings", None))

    @dispatch("all")
    def call(self, name: str, dropped: Sequence[int], number: int, *given: Any, **named: Any) -> Any:
        """A method of the trainer, on all ranks in the same order.

        Args:
            dropped: numbers of states that nobody has any more.
            number: of the state that the method makes, if it makes one.
        """
        for each in dropped:
            if (state := self._states.pop(each, None)) is not None:
                self.trainer.slot.drop(state)
        arguments = [self._states[each.number] if isinstance(each, Number) else each for each in given]
        try:
            result = getattr(self.trainer, name)(*arguments, **named)
        except UserError as error:
            return Refusal(str(error))
        if not isinstance(result, TrainedState):
            return result
        self._states[number] = result
        return None


@dataclass(eq=False, weakref_slot=True, slots=True)
class State:
    """A client's state, which the ranks have; it is freed there when nobody has this object any more.

    Attributes:
        sent: what an engine held when it got the weights, which it may have replaced (``EngineAdapters.since``).
    """

    number: int
    sent: int = 0


class Clients:
    """Requests of clients to the ranks; all methods are called in one thread.

    The methods are those of :class:`corerl_tinker.training.trainer.Trainer`.

    Args:
        worker: a :class:`TrainerWorker`, or a group of them.
    """

    def __init__(self, worker: Any, spec: StrategySpec) -> None:
        self._worker, self.spec = worker, spec
        self.facts: Facts = worker.facts()
        self._numbers, self._dropped = itertools.count(BASE + 1), deque[int]()
        self._base = State(BASE)

    def base(self) -> State:
        return self._base

    def new_state(self, adapter: Adapter) -> State:
        return self._made("new_state", adapter)

    def snapshot(self, state: State) -> State:
        return self._made("snapshot", Number(state.number))

    def load(self, store: Checkpoints, address: str, about: About, *, optimizer: bool) -> State:
        return self._made("load", store, address, about, optimizer=optimizer)

    def save(
        self, store: Checkpoints, address: str, about: About, state: State, *, optimizer: bool, overwrite: bool
    ) -> None:
        self._call("save", store, address, about, Number(state.number), optimizer=optimizer, overwrite=overwrite)

    def forward_backward(self, state: State, request: LossRequest) -> LossResult:
        result: LossResult = self._call("forward_backward", Number(state.number), request)
        return result

    def optim_step(self, state: State, step: AdamStep) -> float:
        norm: float = self._call("optim_step", Number(state.number), step)
        return norm

    def forward(self, state: State, sequences: list[list[int]], wanted: OfLogits) -> dict[str, Any]:
        found: dict[str, Any] = self._call("forward", Number(state.number), sequences, wanted)
        return found

    @contextmanager
    def sending(self, state: State) -> Iterator[Any]:
        """The source of a state's weights, while nothing else is called."""
        self._call("hold", Number(state.number))
        yield self._worker

    def _made(self, name: str, *given: Any, **named: Any) -> State:
        state = State(next(self._numbers))
        self._call(name, *given, number=state.number, **named)
        weakref.finalize(state, self._dropped.append, state.number)
        return state

    def _call(self, name: str, *given: Any, number: int = BASE, **named: Any) -> Any:
        """
        Raises:
            UserError: the client must change the request.
        """
        dropped = [self._dropped.popleft() for _ in range(len(self._dropped))]
        result = self._worker.call(name, dropped, number, *given, **named)
        if isinstance(result, Refusal):
            raise UserError(result.message)
        return result


def strategy_spec(config: TrainConfig) -> StrategySpec:
    """The trained model: log-probs are those of the model itself, at temperature 1."""
    actor = config.actor
    device = resolve_device(actor.device)
    limit = MicroBatching(max_sequences=actor.ppo_micro_batch_size_per_gpu)
    if actor.use_dynamic_bsz:
        limit = MicroBatching.by_tokens(actor.ppo_max_token_len_per_gpu, device)
    return StrategySpec(
        model=overridden(config.model, weights=True),
        device=device,
        micro_batching=limit,
        optim=actor.optim,
        seed=config.trainer.seed,
    )
