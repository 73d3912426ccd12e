"""The roles. A worker is built from the config alone, so that it can live in any process: it loads the same plugins."""

import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from corerl.checkpoint import random_state
from corerl.checkpoint.writing import write_and_report, writing
from corerl.contracts import adapters
from corerl.contracts.config import TrainConfig
from corerl.contracts.dispatch import Place, dispatch
from corerl.contracts.experience import Experience
from corerl.contracts.losses import Mean
from corerl.contracts.objective import Objective
from corerl.contracts.pieces import Piece, ShardedStrategy
from corerl.contracts.throughput import ModelShape
from corerl.contracts.token_outputs import OfLogitsFactory, TokenOutputs, Wanted
from corerl.contracts.training_strategies import (
    AveragingStrategy,
    MeasuredStrategy,
    MicroBatching,
    StrategySpec,
    TrainingStrategy,
)
from corerl.errors import ConfigError, RunError
from corerl.models import compute_dtype, critic_model, overridden, resolve_device
from corerl.objective import OwnPass, PolicyObjective, ValueObjective
from corerl.plugins import Plugins, load_plugins
from corerl.registry.parts import Parts, resolve_parts


def parts_of(config: TrainConfig) -> Parts:
    """The parts that a config selects, in whatever process this runs."""
    random_state.seed_rank(config.trainer.seed)
    return resolve_parts(config, plugins_of(config).registries)


def plugins_of(config: TrainConfig) -> Plugins:
    """The plugins of this process."""
    return load_plugins(tuple(config.plugins.load), tuple(config.plugins.disable))


class ModelWorker:
    """A model that a strategy runs."""

    strategy: TrainingStrategy

    def place(self) -> Place:
        return Place(self.strategy.data_parallel_rank, self.strategy.data_parallel_size)

    @dispatch("split")
    def forward(self, batch: Experience, wanted: Collection[Wanted]) -> TokenOutputs:
        return self.strategy.forward(batch, wanted)

    @dispatch("all")
    def offload(self) -> None:
        self.strategy.offload()

    @dispatch("all")
    def onload(self) -> None:
        self.strategy.onload()

    @dispatch("all")
    def apply(self, function: Callable[[Any], Any]) -> Any:
        """``function(self)``, for the hook ``around_step``."""
        return function(self)

    @dispatch("all")
    def free_cache(self) -> None:
        """Let other processes have the device's memory that torch keeps for tensors to come."""
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()


class TrainedWorker(ModelWorker):
    """A model that is updated as well, minimising an objective."""

    objective: Objective

    @dispatch("split", merge="rank_zero")
    def update(self, mini_batch: Experience) -> dict[str, Mean]:
        return self.strategy.update(mini_batch, self.objective)

    @dispatch("all")
    def save(self, folder: Path, written: Path) -> int:
        """Copy the state, and write it to ``folder`` in a thread where the strategy can.

        Args:
            written: where each rank leaves a file when it is done: empty, or with what went wrong.

        Returns:
            The number of ranks.

        Raises:
            SaveError: it could not be written.
        """
        rank, ranks = (os.environ.get(name, default) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
        states = random_state.present()
        with writing(folder):
            write = self.strategy.save(folder)

        def write_all() -> None:  # nothing before it may fail on one rank alone while others wait for it
            if write is not None:
                write()
            random_state.write(states, folder)

        arguments = (write_all, written / rank)
        threading.Thread(target=write_and_report, args=arguments, name="corerl-write", daemon=True).start()
        return int(ranks)

    @dispatch("all")
    def load(self, folder: Path) -> None:
        self.strategy.load(folder)
        random_state.restore(folder)


class PolicyWorker(TrainedWorker):
    """The policy: trained by the strategy, minimising the objective that the config selects.

    Args:
        total_updates: optimizer steps in the whole run.

    Attributes:
        own_pass: of the last :meth:`update_once`, until its outputs are taken.
    """

    own_pass: OwnPass

    def __init__(self, config: TrainConfig, total_updates: int) -> None:
        parts = parts_of(config)
        actor = config.actor
        self.sent_dtype = compute_dtype(config.model, resolve_device(actor.device))
        spec = replace(_spec(config), optim=actor.optim, total_steps=total_updates, grad_clip=actor.grad_clip)
        self.strategy = parts.strategy.load()(spec)
        self.sends_adapters = config.model.lora_rank > 0 and adapters.are_sent(
            config, parts.strategy.entry.facts, parts.rollout_backend.entry.facts
        )
        self.base_limit = _ref_spec(config).micro_batching
        of_logits: OfLogitsFactory | None = parts.policy_loss.load_fact("of_logits")
        loss_terms = plugins_of(config).hook.loss_terms
        self.objective = PolicyObjective(
            policy_loss=parts.policy_loss.load(),
            kl_type=parts.kl_loss.load() if parts.kl_loss and "logits" not in parts.kl_loss.entry.needs else None,
            kl_loss_coef=actor.kl_loss_coef,
            entropy_coeff=actor.entropy_coeff,
            of_logits=of_logits(config) if of_logits else None,
            terms=[term for given in loss_terms(config=config, parts=parts) for term in given or ()],
        )

    @dispatch("split", merge="rank_zero")
    def update_once(self, mini_batch: Experience) -> dict[str, Mean]:
        """The only :meth:`update` of a step: old log-probs are those of its own forward pass."""
        self.own_pass = OwnPass(self.objective)
        return self.strategy.update(replace(mini_batch, row_ids=torch.arange(len(mini_batch))), self.own_pass)

    @dispatch("split")
    def outputs_of_update(self, batch: Experience) -> TokenOutputs:
        """Log-probs and entropy before the last :meth:`update_once`, which had the same rows."""
        outputs = self.own_pass.outputs(batch.response_mask.shape)
        del self.own_pass
        return outputs

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """For :meth:`corerl.contracts.runtimes.Runtime.send_weights`: in the dtype that the engine computes with."""
        if self.sends_adapters:
            return self._adapting.adapters(self.sent_dtype)
        return self.strategy.weights(self.sent_dtype)

    def sharded_weights(self, dtype: torch.dtype | None = None) -> AbstractContextManager[Sequence[Piece] | None]:
        """For :class:`corerl.contracts.pieces.ShardedStrategy`: as :meth:`weights`."""
        if isinstance(self.strategy, ShardedStrategy) and not self.sends_adapters:
            return self.strategy.sharded_weights(dtype or self.sent_dtype)
        return nullcontext()

    @dispatch("split")
    def forward_averaged(self, batch: Experience, wanted: Collection[Wanted]) -> TokenOutputs:
        """:meth:`forward` with the strategy's average of past weights."""
        if not isinstance(self.strategy, AveragingStrategy):
            raise ConfigError("actor.strategy", f"{type(self.strategy).__name__} keeps no average of the weights")
        with self.strategy.averaged():
            return self.strategy.forward(batch, wanted)

    @dispatch("split")
    def forward_base(self, batch: Experience, wanted: Collection[Wanted]) -> TokenOutputs:
        """:meth:`forward` of the model without its adapters, in the reference's micro-batches."""
        with self._adapting.base(self.base_limit):
            return self.strategy.forward(batch, wanted)

    @property
    def _adapting(self) -> adapters.AdaptingStrategy:
        if isinstance(self.strategy, adapters.AdaptingStrategy):
            return self.strategy
        raise RunError(f"{type(self.strategy).__name__} has the fact adapters, and not the methods of AdaptingStrategy")

    @dispatch("rank_zero")
    def measured(self) -> dict[str, float]:
        """Metrics of the first worker: those of the strategy, and the peak memory of the GPU, in GiB."""
        metrics = dict(self.strategy.measured()) if isinstance(self.strategy, MeasuredStrategy) else {}
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            metrics["perf/max_memory_allocated_gb"] = torch.cuda.max_memory_allocated() / 2**30
            metrics["perf/max_memory_reserved_gb"] = torch.cuda.max_memory_reserved() / 2**30
        return metrics

    @dispatch("rank_zero")
    def shape(self) -> ModelShape:
        """The model's, and over how many workers it is spread."""
        workers = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        return replace(self.strategy.shape(), workers=workers, data_parallel_size=self.strategy.data_parallel_size)

    @dispatch("all")
    def export(self, folder: Path) -> None:
        """
        Raises:
            SaveError: it could not be written.
        """
        with writing(folder):
            self.strategy.export(folder)


class CriticWorker(TrainedWorker):
    """The value model, for estimators that need one: trained by a strategy, with an optimizer of its own.

    Args:
        total_updates: optimizer steps in the whole run.
    """

    def __init__(self, config: TrainConfig, total_updates: int) -> None:
        parts, critic = parts_of(config), config.critic
        assert parts.critic_strategy is not None and parts.value_loss is not None
        spec = _spec(config, critic.path, critic.ppo_max_token_len_per_gpu, critic.ppo_micro_batch_size_per_gpu)
        model = overridden(critic_model(config), weights=True)
        spec = replace(spec, model=model, head="value", temperature=1.0, total_steps=total_updates)
        self.strategy = parts.critic_strategy.load()(replace(spec, optim=critic.optim, grad_clip=critic.grad_clip))
        self.objective = ValueObjective(parts.value_loss.load())


class ReferenceWorker(ModelWorker):
    """The reference model, or another one at ``path``, never updated."""

    def __init__(self, config: TrainConfig, path: str | None = None) -> None:
        parts = parts_of(config)
        self.strategy = (parts.ref_strategy or parts.strategy).load()(_ref_spec(config, path))


def _ref_spec(config: TrainConfig, path: str | None = None) -> StrategySpec:
    ref = config.ref
    tokens, sequences = ref.log_prob_max_token_len_per_gpu, ref.log_prob_micro_batch_size_per_gpu
    return _spec(config, path or ref.path, tokens, sequences)


def _spec(
    config: TrainConfig, path: str | None = None, tokens: int | None = None, sequences: int | None = None
) -> StrategySpec:
    """A model without updates; the limits of its micro-batches are the role's own, or else the actor's."""
    actor = config.actor
    device = resolve_device(actor.device)
    limit = MicroBatching(max_sequences=sequences or actor.ppo_micro_batch_size_per_gpu)
    if actor.use_dynamic_bsz:
        limit = MicroBatching.by_tokens(tokens or actor.ppo_max_token_len_per_gpu, device)
    return StrategySpec(
        model=overridden(config.model if path is None else replace(config.model, path=path), weights=True),
        device=device,
        micro_batching=limit,
        temperature=config.rollout.temperature,
        seed=config.trainer.seed,
    )
