"""Training strategy ``torch``: one model on one device."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from corerl.batch.experience import Experience
from corerl.batch.micro_batches import micro_batches
from corerl.data.tokenizer import load_tokenizer
from corerl.errors import NonFiniteError
from corerl.models import compute_dtype, load_causal_lm
from corerl.objective import Objective
from corerl.registry.policy_losses import Mean, add_means
from corerl.registry.training_strategies import LogProbs, StrategySpec
from corerl.telemetry.throughput import ModelShape
from corerl_fsdp.optimizer import build_optimizer, build_schedule
from corerl_fsdp.response_logits import response_log_probs


class SingleDeviceStrategy:
    """One model on one device; weights that are trained are float32, compute is in ``model.dtype`` (autocast)."""

    data_parallel_rank = 0
    data_parallel_size = 1

    def __init__(self, spec: StrategySpec) -> None:
        self.spec = spec
        self.compute_dtype = compute_dtype(spec.model, spec.device)
        weights_dtype = self.compute_dtype if spec.optim is None else torch.float32
        self.model = load_causal_lm(spec.model, device=spec.device, dtype=weights_dtype, seed=spec.seed)
        self.model.train(spec.optim is not None)
        if spec.optim is None:
            self.model.requires_grad_(False)
            return
        if spec.model.enable_gradient_checkpointing:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.optimizer = build_optimizer(self.model, spec.optim)
        self.schedule = build_schedule(self.optimizer, spec.optim, spec.total_steps)

    @torch.no_grad()
    def log_probs(self, batch: Experience, *, entropy: bool = False) -> LogProbs:
        shape = batch.response_mask.shape
        result = LogProbs(torch.zeros(shape), torch.zeros(shape) if entropy else None)
        for rows in micro_batches(batch.lengths, self.spec.micro_batching):
            log_probs, entropies = self._forward(batch.select(rows).to(self.spec.device), entropy)
            result.log_probs[rows, : log_probs.shape[1]] = log_probs.cpu()
            if result.entropy is not None and entropies is not None:
                result.entropy[rows, : log_probs.shape[1]] = entropies.cpu()
        return result

    def update(self, mini_batch: Experience, objective: Objective) -> dict[str, Mean]:
        losses: list[Tensor] = []
        parts: dict[str, Tensor] = {}
        metrics: dict[str, Mean] = {}
        for rows in micro_batches(mini_batch.lengths, self.spec.micro_batching):
            micro_batch = mini_batch.select(rows).to(self.spec.device)
            output = objective(*self._forward(micro_batch, objective.needs_entropy), micro_batch)
            output.loss.backward()  # type: ignore[no-untyped-call]
            losses.append(output.loss.detach())
            for name, part in output.parts.items():
                parts[name] = parts[name] + part if name in parts else part
            add_means(metrics, output.metrics)
        grad_norm, lr = self._step(float(torch.stack(losses).sum()))
        once: dict[str, Tensor | float] = {**parts, "grad_norm": grad_norm, "lr": lr}
        return {name: Mean(float(mean.total), float(mean.count)) for name, mean in metrics.items()} | {
            name: Mean(float(value), 1.0) for name, value in once.items()
        }

    def shape(self) -> ModelShape:
        config = self.model.config.get_text_config()
        name = torch.cuda.get_device_name() if self.spec.device == "cuda" else ""
        return ModelShape(self.model.num_parameters(), config.num_hidden_layers, config.hidden_size, name)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.model.named_parameters():
            yield name, parameter.detach()

    def offload(self) -> None:
        self._move("cpu")

    def onload(self) -> None:
        self._move(self.spec.device)

    def save(self, folder: Path) -> None:
        save_file({name: tensor.contiguous() for name, tensor in self.weights()}, folder / "weights.safetensors")
        state = {"optimizer": self.optimizer.state_dict(), "schedule": self.schedule.state_dict()}
        torch.save(state, folder / "optimizer.pt")

    def load(self, folder: Path) -> None:
        stored = load_file(folder / "weights.safetensors", device=self.spec.device)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(stored[name])
        state = torch.load(folder / "optimizer.pt", map_location=self.spec.device, weights_only=True)
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])

    def export(self, folder: Path) -> None:
        weights = {name: tensor.to(self.compute_dtype) for name, tensor in self.model.state_dict().items()}
        self.model.save_pretrained(folder, state_dict=weights)
        load_tokenizer(self.spec.model).tokenizer.save_pretrained(folder)

    def _forward(self, batch: Experience, entropy: bool) -> tuple[Tensor, Tensor | None]:
        with self._autocast():
            return response_log_probs(self.model, batch, temperature=self.spec.temperature, entropy=entropy)

    def _autocast(self) -> AbstractContextManager[Any]:
        enabled = self.compute_dtype != torch.float32
        return torch.autocast(self.spec.device, dtype=self.compute_dtype, enabled=enabled)

    def _step(self, loss: float) -> tuple[float, float]:
        """Clip, check and take the optimizer step; the gradient norm before clipping and the rate of this step."""
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.spec.grad_clip))
        lr = float(self.schedule.get_last_lr()[0])
        finite = all(torch.isfinite(torch.tensor([loss, norm])).tolist())
        if finite:
            self.optimizer.step()
            self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        if not finite:
            raise NonFiniteError(f"loss {loss} with gradient norm {norm}: the optimizer step was not taken")
        return norm, lr

    def _move(self, device: str) -> None:
        self.model.to(device)
        if self.spec.optim is not None:
            for state in self.optimizer.state.values():
                for name, value in state.items():
                    if isinstance(value, Tensor):
                        state[name] = value.to(device)
        if device == "cpu" and self.spec.device == "cuda":
            torch.cuda.empty_cache()
