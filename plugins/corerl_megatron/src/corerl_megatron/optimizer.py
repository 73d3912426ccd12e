"""Gradients and AdamW: megatron-core's on CUDA, which they need; torch's on the CPU, with sums over ranks."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from corerl.contracts.config import OptimConfig
from corerl.contracts.training_strategies import StrategySpec
from corerl_megatron import gathering
from corerl_megatron.options import MegatronOptions
from corerl_megatron.parallel import Layout
from corerl_torch.host_memory import HostBlock
from corerl_torch.optimizer import build_optimizer
from corerl_torch.schedules import build_schedule


class Optimizer(Protocol):
    """Gradients and updates of a strategy.

    Attributes:
        pieces: the pieces of the model to run, wrapped if gradients need it.
        schedule: schedule of the learning rate.
    """

    pieces: Sequence[nn.Module]
    schedule: Any

    def reduce(self) -> float:
        """Sum gradients over ranks, unless the last backward pass did; returns their norm."""
        ...

    def step(self) -> float:
        """Clip, update the weights, clear the gradients; returns the step's learning rate."""
        ...

    def zero_grad(self) -> None: ...

    def gradient(self, parameter: Tensor) -> Tensor:
        """The gradient of one of this rank's parameters."""
        ...

    def take_rate(self) -> None:
        """Give the optimizer the schedule's current rate and the config's other hyperparameters, also after a load."""
        ...

    def state(self) -> Iterator[Tensor]:
        """Every tensor that the optimizer keeps in addition to the weights."""
        ...


class LibraryOptimizer:
    """megatron-core's gradient buffers and optimizer; with a bf16 model it keeps float32 weights."""

    def __init__(
        self, pieces: Sequence[nn.Module], config: TransformerConfig, spec: StrategySpec, options: MegatronOptions
    ) -> None:
        assert spec.optim is not None
        self.optim = spec.optim
        # megatron-core restores wrong moments for a value head beside a tied copy of the embedding
        head_apart = spec.head != "lm" and options.pipeline_model_parallel_size > 1
        sharded = options.use_distributed_optimizer and not head_apart
        buckets = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=sharded)
        self.pieces = [DistributedDataParallel(config, buckets, piece) for piece in pieces]
        beta1, beta2 = spec.optim.betas
        self.optimizer: Any = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=spec.optim.lr,
                weight_decay=spec.optim.weight_decay,
                adam_beta1=beta1,
                adam_beta2=beta2,
                adam_eps=spec.optim.eps,
                clip_grad=spec.grad_clip,
                bf16=config.bf16,
                params_dtype=config.params_dtype,
                use_distributed_optimizer=sharded,
            ),
            self.pieces,
        )
        config.finalize_model_grads_func = _sum_gradients
        self.schedule = _schedule(spec.optim, spec.total_steps)

    def reduce(self) -> float:
        self.optimizer.prepare_grads()
        return float(self.optimizer.get_grad_norm() or 0.0)

    def step(self) -> float:
        self.take_rate()
        lr = float(self.schedule.get_last_lr()[0])
        self.optimizer.step()
        self.schedule.step()
        self.zero_grad()
        return lr

    def take_rate(self) -> None:
        own = {"lr": float(self.schedule.get_last_lr()[0]), "betas": tuple(self.optim.betas), "eps": self.optim.eps}
        for group in self.optimizer.param_groups:
            group.update(own, weight_decay=self.optim.weight_decay * group["wd_mult"])

    def zero_grad(self) -> None:
        for piece in self.pieces:
            piece.zero_grad_buffer()
        self.optimizer.zero_grad()

    def gradient(self, parameter: Tensor) -> Tensor:
        gradient: Tensor = parameter.main_grad  # type: ignore[attr-defined]
        return gradient

    def state(self) -> Iterator[Tensor]:
        for optimizer in self._inner():
            for group in optimizer.param_groups:
                yield from group["params"]
            for values in optimizer.state.values():
                yield from (value for value in values.values() if isinstance(value, Tensor))

    def begin(self) -> None:
        """Initialise the state of torch's AdamW, which megatron-core uses without other packages, so that it can be
        saved.
        """
        for optimizer in self._inner():
            if not isinstance(optimizer, torch.optim.AdamW):
                continue
            for parameter in (each for group in optimizer.param_groups for each in group["params"]):
                if not optimizer.state[parameter]:
                    moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                    optimizer.state[parameter] = {"step": torch.zeros((), dtype=torch.float32), **moments}

    def gathered_on_device(self, memory: HostBlock) -> AbstractContextManager[None]:
        """Within, megatron-core's tree has the state in parts of ``memory``: see :mod:`corerl_megatron.gathering`."""
        return gathering.gathered_on_device(self._chained(), memory)

    def load(self, state: Any) -> None:
        """Load the optimizer's part of a checkpoint of megatron-core.

        megatron-core's distributed optimizer cannot handle the step count that torch's AdamW keeps beside the moments:
        it is removed while the moments are filled. Afterwards each parameter gets its own, not one tensor shared by
        all.
        """
        chained = self._chained()
        for number, each in enumerate(chained):
            own = state if len(chained) == 1 else state[number]
            moments = own.pop("param_state", None)
            each.load_state_dict(own)
            if moments is None:
                continue
            steps = [values.pop("step", None) for values in each.optimizer.state.values()]
            each.load_parameter_state_from_fully_reshardable(moments)
            for values, step in zip(each.optimizer.state.values(), steps, strict=True):
                values.update({} if step is None else {"step": step.clone()})

    def _chained(self) -> list[Any]:
        chained: list[Any] = getattr(self.optimizer, "chained_optimizers", [self.optimizer])
        return chained

    def _inner(self) -> list[Any]:
        """The optimizers within megatron-core's optimizer."""
        return [each.optimizer for each in self._chained() if each.optimizer is not None]


class PlainOptimizer:
    """torch's AdamW on this rank's part of the trained weights; gradients are summed over the ranks with other tokens.

    For all weights on the CPU, and for adapters, whose state is small.
    """

    def __init__(self, pieces: Sequence[nn.Module], spec: StrategySpec, ranks: Layout) -> None:
        assert spec.optim is not None
        self.pieces, self.ranks, self.limit = pieces, ranks, spec.grad_clip
        self.model = nn.ModuleList(pieces)
        self.optimizer = build_optimizer(self.model, spec.optim)
        self.schedule = build_schedule(self.optimizer, spec.optim, spec.total_steps)
        self.norm = 0.0

    def reduce(self) -> float:
        tensor, pipeline = self.ranks.tensor, self.ranks.pipeline
        total = torch.zeros((), dtype=torch.float64, device=next(self.model.parameters()).device)
        for name, parameter in self._trained():
            gradient = parameter.grad = self.gradient(parameter)
            if self.ranks.gradients.size > 1:
                dist.all_reduce(gradient, group=self.ranks.gradients.group)
            if tensor.size > 1 and (  # gradients of this rank's heads, or tokens, only
                "q_layernorm" in name or "k_layernorm" in name or getattr(parameter, "sequence_parallel", False)
            ):
                dist.all_reduce(gradient, group=tensor.group)
            if getattr(parameter, "tensor_model_parallel", False) or tensor.rank == 0:
                total += gradient.double().square().sum()
        for group in (tensor, pipeline):
            if group.size > 1:
                dist.all_reduce(total, group=group.group)
        self.norm = float(total.sqrt())
        return self.norm

    def step(self) -> float:
        own = [parameter for _, parameter in self._trained()]
        nn.utils.clip_grads_with_norm_(own, self.limit, torch.tensor(self.norm))
        lr = float(self.schedule.get_last_lr()[0])
        self.optimizer.step()
        self.schedule.step()
        self.zero_grad()
        return lr

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, each) for name, each in self.model.named_parameters() if each.requires_grad)

    def take_rate(self) -> None:
        for group, lr in zip(self.optimizer.param_groups, self.schedule.get_last_lr(), strict=True):
            group["lr"] = lr

    def zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def gradient(self, parameter: Tensor) -> Tensor:
        return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad

    def state(self) -> Iterator[Tensor]:
        for values in self.optimizer.state.values():
            yield from values.values()


def _sum_gradients(pieces: list[nn.Module], number_of_tokens: Tensor | None = None, **named: Any) -> None:
    """megatron-core's reduction, without the division by the number of tokens."""
    finalize_model_grads(pieces, None, **named)


def _schedule(optim: OptimConfig, total_steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    """A schedule on a dummy optimizer: megatron-core's optimizers are not torch optimizers."""
    alone = torch.optim.SGD([torch.zeros(1)], lr=optim.lr)
    schedule = build_schedule(alone, optim, total_steps)
    alone.step()  # otherwise the schedule warns about its order
    return schedule
