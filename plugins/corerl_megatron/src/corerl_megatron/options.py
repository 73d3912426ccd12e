"""Options of strategy ``megatron``; they import no torch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from corerl import option
from corerl.contracts.config import ModelConfig, TrainConfig
from corerl_check import ModelSize, TrainingShare
from corerl_torch.contents import LoadsParts, check_options


@dataclass(frozen=True)
class MegatronOptions(LoadsParts):
    """The division of the model among ranks. Names are those of megatron-core."""

    written_by = "megatron"

    tensor_model_parallel_size: int = option(1, "ranks that share each layer's matrices", ge=1)
    pipeline_model_parallel_size: int = option(1, "ranks that share the layers", ge=1)
    virtual_pipeline_model_parallel_size: int | None = option(
        None, "pieces of the pipeline that each of its ranks has; null: one", ge=2
    )
    context_parallel_size: int = option(1, "ranks that share the tokens of a micro-batch", ge=1)
    expert_model_parallel_size: int = option(1, "ranks that share the experts of a mixture-of-experts model", ge=1)
    sequence_parallel: bool = option(
        False, "tensor-parallel ranks share the tokens in norms and residuals too: less memory, the same numbers"
    )
    use_distributed_optimizer: bool = option(True, "data-parallel ranks share the optimizer's state")
    recompute_granularity: Literal["full", "selective"] | None = option(
        None,
        "parts computed again in the backward pass; null: full with model.enable_gradient_checkpointing, else none",
    )
    recompute_method: Literal["uniform", "block"] = option(
        "uniform", "with full: all layers in groups of recompute_num_layers, or only so many of each stage"
    )
    recompute_num_layers: int = option(1, "with full: layers in a group, or in a stage", ge=1)
    recompute_modules: list[str] | None = option(None, "with selective: parts of a layer; null: core_attn")
    param_offload: bool = option(False, "keep the weights on the CPU between calls; does nothing on the CPU")
    grad_offload: bool = option(False, "free the gradients' memory between updates; does nothing on the CPU")
    optimizer_offload: bool = option(
        False, "keep the optimizer's state on the CPU between its steps; does nothing on the CPU"
    )
    save_optimizer: bool = option(
        True,
        "checkpoints hold the optimizer's state, and with bf16 its float32 weights; false: about a seventh of the size "
        "with bf16, and a resumed run begins with a new state from the weights in bf16",
    )
    use_mbridge: bool = option(False, "let the package mbridge convert weights (dense models), not the plugin's tables")
    lora_export: Literal["merged", "adapter"] = option(
        "merged", "with model.lora_rank: export the model, or a folder that peft loads beside the base"
    )
    logits_chunk_size: int | None = option(
        1024, "positions whose logits exist at a time; null: those of the whole micro-batch", ge=1
    )
    override_transformer_config: dict[str, Any] = option(
        help="further keys of megatron-core's TransformerConfig, such as fusions and dispatchers", factory=dict
    )
    timeout: float = option(600.0, "seconds that a rank waits for the others", gt=0)

    def leaner(self) -> Iterator[Mapping[str, Any]]:
        """For `corerl check`: see :class:`corerl_check.SavesMemory`."""
        for name in ("use_distributed_optimizer", "param_offload", "grad_offload", "optimizer_offload"):
            if not getattr(self, name):
                yield {name: True}
        for name in (
            *("tensor_model_parallel_size", "pipeline_model_parallel_size"),
            *("context_parallel_size", "expert_model_parallel_size"),
        ):
            yield {name: 2 * getattr(self, name)}
        if self.tensor_model_parallel_size > 1 and not self.sequence_parallel:
            yield {"sequence_parallel": True}
        for chunk in (1024, 256):
            if self.logits_chunk_size is None or self.logits_chunk_size > chunk:
                yield {"logits_chunk_size": chunk}

    def check(self, key: str, config: TrainConfig) -> None:
        """Raise ConfigError if the ranks cannot share the model of ``config``; ``key`` is the strategy's key."""
        from corerl_megatron.arithmetic import check_config

        check_options(key, self)
        check_config(key, config, self)

    def share(self, size: ModelSize, ranks: int, model: ModelConfig, *, updated: bool) -> TrainingShare:
        """For `corerl check`: weights are divided by tensor and pipeline ranks, those of experts by expert instead of
        tensor ranks; the optimizer's state also by data ranks.

        Weights have the compute dtype; the optimizer adds float32 weights and two moments; gradients are summed in
        float32. A pipeline's first rank holds the activations of as many micro-batches as the pipeline has ranks, so
        the activations of all layers exist at once (Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.3).
        """
        tensor, stages = self.tensor_model_parallel_size, self.pipeline_model_parallel_size
        dense, experts = size.parameters - size.in_experts, size.in_experts
        by, by_experts = tensor * stages, self.expert_model_parallel_size * stages
        parameters = dense / by + experts / by_experts
        shared = dense / max(by, ranks) + experts / max(by_experts, ranks)
        trained = parameters if updated else 0.0
        master = 4 if size.bytes < 4 else 0
        optimizer = (8 + master) * (shared if self.use_distributed_optimizer else parameters) if updated else 0.0
        weights, gradients = size.bytes * parameters, 4 * trained
        if updated and model.lora_rank:  # adapters, float32, of which some are whole on each tensor-parallel rank
            weights, gradients, optimizer = weights + 4 * size.trained, 4 * size.trained, 8 * size.trained
        full = self.recompute_granularity == "full" or (
            self.recompute_granularity is None and model.enable_gradient_checkpointing
        )
        return TrainingShare(
            weights=weights,
            gradients=gradients,
            optimizer=optimizer,
            at_rest=(0 if self.param_offload else weights)
            + (0 if self.grad_offload else gradients)
            + (0 if self.optimizer_offload else optimizer),
            optimizer_apart=self.optimizer_offload,
            tensor=tensor,
            sequence=tensor if self.sequence_parallel else 1,
            context=self.context_parallel_size,
            recomputed=float(full),
            logit_positions=self.logits_chunk_size,
        )
