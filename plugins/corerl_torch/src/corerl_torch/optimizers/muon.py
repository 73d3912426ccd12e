"""Muon: matrices move along their orthogonalised momentum.

    M = momentum M + G
    O = NS(G + momentum M)                  nesterov; NS(M) without
    W = (1 - lr weight_decay) W - lr scale sqrt(max(rows, columns)) O

NS, the Newton-Schulz iteration, takes X = M / |M| to X = a X + b (X X') X + c (X X')² X, ``ns_steps`` times, with
a, b, c = 3.4445, -4.7750, 2.0315: its singular values end between 0.7 and 1.2. Embeddings, the output layer, vectors
and heads of one number are trained by AdamW. Experts of one tensor are matrices of their own.

Jordan et al. 2024, <https://kellerjordan.github.io/posts/muon/>; the scale, with which AdamW's learning rates hold: Liu
et al. 2025, "Muon is Scalable for LLM Training", arXiv 2502.16982, equation 4.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from corerl.contracts.config import OptimConfig
from corerl_torch.optimizers.options import MuonOptions

A, B, C = 3.4445, -4.7750, 2.0315


def muon(model: nn.Module, groups: list[dict[str, Any]], config: OptimConfig, *, options: MuonOptions) -> "Muon":
    """Matrices of the groups get groups of their own, behind each."""
    other = _vocabularies(model)
    parts: list[dict[str, Any]] = []
    for group in groups:
        matrices = [p for p in group["params"] if p.dim() >= 2 and min(p.shape[-2:]) > 1 and id(p) not in other]
        known = set(map(id, matrices))
        rest = [p for p in group["params"] if id(p) not in known]
        parts += [{**group, "params": rest, "matrices": False}, {**group, "params": matrices, "matrices": True}]
    return Muon([part for part in parts if part["params"]], config, options)


def _vocabularies(model: nn.Module) -> set[int]:
    """The weights with a row for each token."""
    found = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    outputs: Any = getattr(model, "get_output_embeddings", None)  # of transformers' models
    head = outputs() if outputs else None
    return found | ({id(head.weight)} if isinstance(head, nn.Module) else set())


class Muon(torch.optim.Optimizer):
    """Muon for groups with ``matrices``, AdamW for others; state of the weights' shapes, sharded as they are."""

    def __init__(self, groups: list[dict[str, Any]], config: OptimConfig, options: MuonOptions) -> None:
        self.options = options
        super().__init__(groups, {"lr": config.lr, "betas": tuple(config.betas), "eps": config.eps})

    def initial_state(self, parameter: Tensor) -> dict[str, Tensor]:
        """For :class:`corerl_torch.optimizers.contract.StartsState`."""
        weight = parameter.detach()
        matrices = next(
            group["matrices"] for group in self.param_groups if any(p is parameter for p in group["params"])
        )
        if matrices:
            return {"momentum_buffer": torch.zeros_like(weight)}
        step = torch.zeros((), dtype=torch.float32, device=parameter.device)
        return {"step": step, "exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update of every weight with a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state.update(self.initial_state(parameter))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                (self._matrix if group["matrices"] else _adamw)(parameter, state, group)

    def _matrix(self, parameter: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
        momentum, decay = state["momentum_buffer"], self.options.momentum
        momentum.mul_(decay).add_(parameter.grad)  # type: ignore[arg-type]
        towards = parameter.grad + decay * momentum if self.options.nesterov else momentum  # type: ignore[operator]
        length = self.options.scale * max(parameter.shape[-2:]) ** 0.5
        parameter.add_(_whole(towards, self.options.ns_steps), alpha=-group["lr"] * length)


def _whole(matrix: Tensor, steps: int) -> Tensor:
    """Orthogonalise a matrix; ranks that share one gather it, and keep their shares of the result."""
    if not isinstance(matrix, DTensor):
        return orthogonalised(matrix, steps)
    everywhere = [Replicate()] * matrix.device_mesh.ndim
    result = DTensor.from_local(orthogonalised(matrix.full_tensor(), steps), matrix.device_mesh, everywhere)
    return result.redistribute(placements=matrix.placements)


def orthogonalised(matrix: Tensor, steps: int) -> Tensor:
    """The Newton-Schulz iteration on the last two dimensions, in bfloat16 on CUDA; a matrix of zeros stays one."""
    x: Tensor = matrix.bfloat16() if matrix.is_cuda else matrix.float()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    size: Tensor = torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True)
    x = x / size.clamp(min=1e-20)
    for _ in range(steps):
        square = x @ x.mT
        x = A * x + (B * square + C * square @ square) @ x
    result: Tensor = x.mT if tall else x
    return result.to(matrix.dtype)


def _adamw(parameter: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
    (beta1, beta2), gradient = group["betas"], parameter.grad
    assert gradient is not None
    state["step"] += 1
    step = float(state["step"])
    state["exp_avg"].mul_(beta1).add_(gradient, alpha=1 - beta1)
    state["exp_avg_sq"].mul_(beta2).add_(gradient * gradient, alpha=1 - beta2)
    scale = (state["exp_avg_sq"].sqrt() / (1 - beta2**step) ** 0.5).add_(group["eps"])
    parameter.add_(state["exp_avg"] / scale, alpha=-group["lr"] / (1 - beta1**step))
