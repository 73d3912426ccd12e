"""Gradients and AdamW: megatron-core's on CUDA, where alone they run, torch's with sums over ranks on the CPU."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from corerl.contracts.config import OptimConfig
from corerl.contracts.training_strategies import StrategySpec
from corerl_megatron.options import MegatronOptions
from corerl_megatron.parallel import Layout
from corerl_torch.optimizer import build_optimizer, build_schedule


class Optimizer(Protocol):
    """What a strategy does with gradients.

    Attributes:
        pieces: what is run: the pieces of the model, wrapped where gradients need it.
        schedule: of the learning rate.
    """

    pieces: Sequence[nn.Module]
    schedule: Any

    def reduce(self) -> float:
        """Sum gradients over ranks, where the last backward pass has not; their norm."""
        ...

    def step(self) -> float:
        """Clip, update the weights, forget the gradients; the learning rate of the step."""
        ...

    def zero_grad(self) -> None: ...

    def gradient(self, parameter: Tensor) -> Tensor:
        """Of one of this rank's parameters."""
        ...

    def take_rate(self) -> None:
        """Give the optimizer the schedule's present learning rate."""
        ...

    def state(self) -> Iterator[Tensor]:
        """Every tensor that the optimizer keeps beside the weights."""
        ...


class LibraryOptimizer:
    """megatron-core's gradient buffers and optimizer, which keeps float32 weights where the model's are bf16."""

    def __init__(
        self, pieces: Sequence[nn.Module], config: TransformerConfig, spec: StrategySpec, options: MegatronOptions
    ) -> None:
        assert spec.optim is not None
        self.optim = spec.optim
        # megatron-core reads back wrong moments of a value head beside a tied copy of the embedding
        head_apart = spec.head == "value" and options.pipeline_model_parallel_size > 1
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
        for group in self.optimizer.param_groups:
            group["lr"] = float(self.schedule.get_last_lr()[0])
            group["weight_decay"] = self.optim.weight_decay * group["wd_mult"]

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
        """Give torch's AdamW, which megatron-core uses where it finds no other, the state of no step, to be saved."""
        for optimizer in self._inner():
            if not isinstance(optimizer, torch.optim.AdamW):
                continue
            for parameter in (each for group in optimizer.param_groups for each in group["params"]):
                if not optimizer.state[parameter]:
                    moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                    optimizer.state[parameter] = {"step": torch.zeros((), dtype=torch.float32), **moments}

    def load(self, state: Any) -> None:
        """Take what megatron-core's checkpoint holds of the optimizer.

        Its distributed optimizer stumbles over torch's AdamW, which keeps the number of steps beside the moments: it is
        away while those are filled, and each parameter gets its own, where the library gave one tensor to all.
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
        """The optimizers that megatron-core's are made of."""
        return [each.optimizer for each in self._chained() if each.optimizer is not None]


class PlainOptimizer:
    """torch's AdamW on this rank's part of the weights; gradients are summed over the ranks with other tokens."""

    def __init__(self, pieces: Sequence[nn.Module], spec: StrategySpec, ranks: Layout) -> None:
        assert spec.optim is not None
        self.pieces, self.ranks, self.limit = pieces, ranks, spec.grad_clip
        (self.model,) = pieces
        self.optimizer = build_optimizer(self.model, spec.optim)
        self.schedule = build_schedule(self.optimizer, spec.optim, spec.total_steps)
        self.norm = 0.0

    def reduce(self) -> float:
        tensor, total = self.ranks.tensor, torch.zeros((), dtype=torch.float64)
        for name, parameter in self.model.named_parameters():
            gradient = parameter.grad = self.gradient(parameter)
            if self.ranks.gradients.size > 1:
                dist.all_reduce(gradient, group=self.ranks.gradients.group)
            if tensor.size > 1 and ("q_layernorm" in name or "k_layernorm" in name):  # of its own heads
                dist.all_reduce(gradient, group=tensor.group)
            if getattr(parameter, "tensor_model_parallel", False) or tensor.rank == 0:
                total += gradient.double().square().sum()
        if tensor.size > 1:
            dist.all_reduce(total, group=tensor.group)
        self.norm = float(total.sqrt())
        return self.norm

    def step(self) -> float:
        nn.utils.clip_grads_with_norm_(self.model.parameters(), self.limit, torch.tensor(self.norm))
        lr = float(self.schedule.get_last_lr()[0])
        self.optimizer.step()
        self.schedule.step()
        self.zero_grad()
        return lr

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
    """megatron-core's reduction, without its division by the number of tokens."""
    finalize_model_grads(pieces, None, **named)


def _schedule(optim: OptimConfig, total_steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    """The rates alone: megatron-core's optimizers are none of torch's."""
    alone = torch.optim.SGD([torch.zeros(1)], lr=optim.lr)
    schedule = build_schedule(alone, optim, total_steps)
    alone.step()  # or the schedule would warn that it is ahead
    return schedule
