"""Options of the training strategies; they import no torch."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from corerl import option
from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.errors import ConfigError
from corerl_check import Finding, Machine, ModelSize, TrainingShare, finding, whole
from corerl_torch.contents import LoadsParts, check_options

BYTES_PER_LOGIT = 12.0, 4.0
"""bytes of a logit's copies at a time, without and with compilation"""


GROUPS = "tensor_model_parallel_size", "ulysses_sequence_parallel_size", "context_parallel_size"
"""options whose ranks have the same rows, from the nearest ranks to the farthest"""


@dataclass(frozen=True)
class TorchOptions(LoadsParts):
    """Options of strategy ``torch``, beyond those of every strategy."""

    NAME: ClassVar[str] = "torch"
    written_by = "torch or fsdp"

    use_remove_padding: bool = option(False, "lay the rows of a micro-batch end to end; without computing padding")
    share_prefixes: bool | None = option(
        None,
        "compute common prefixes of packed rows once, such as a group's prompt; null: if the model and its attention "
        "can, and no ranks share rows",
    )
    recompute_layers: int | None = option(
        None,
        "layers, from the first, whose activations the backward pass computes again: as many as the memory needs; "
        "null: all with model.enable_gradient_checkpointing, else none",
        ge=0,
    )
    logits_chunk_size: int | None = option(
        1024, "positions whose logits exist at a time; null: those of the whole micro-batch", ge=1
    )
    compile: bool = option(
        False,
        "torch.compile the decoder layers and the logit statistics: faster, after about a minute at the start",
    )
    bitwise: bool = option(
        False, "log-probs equal, bit for bit, to those of an engine with the same option (set by trainer.bitwise)"
    )
    fp8: bool = option(
        False,
        "compute the products of the layers in FP8, on GPUs of compute capability 9.0; on cpu with the same rounding, "
        "slowly, to study (docs/precision.md)",
    )
    ema_decay: float | None = option(
        None,
        "keep an average of the trained weights, of which each update keeps this share; a teacher may have it; null: "
        "none",
        ge=0,
        le=1,
    )
    router_float32: bool = option(
        True, "routers of a mixture of experts compute in float32, with weights in model.dtype; false: in model.dtype"
    )
    router_aux_loss_coef: float = option(
        0.0, "coefficient of the load-balance loss of a mixture of experts, in updates of the policy", ge=0
    )
    router_bias_update_rate: float = option(
        0.0,
        "step of an update in the bias of experts with too much or too little load, for routers with such a bias "
        "(DeepSeek-V3, GLM-4 MoE)",
        ge=0,
    )
    freeze_vision_tower: bool = option(False, "train the language model alone; for models that read images")
    activation_offload: bool = option(
        False,
        "keep activations, or the inputs of recomputed layers, on the CPU until the backward pass needs them; does "
        "nothing on the CPU",
    )
    lora_export: Literal["merged", "adapter"] = option(
        "merged", "with model.lora_rank: export the model, or a folder that peft loads beside the base"
    )

    def share(self, size: ModelSize, ranks: int, model: ModelConfig, *, updated: bool) -> TrainingShare:
        """For `corerl check`: the whole model on each device."""
        undivided = whole(size, model, updated=updated)
        average = 4 * size.trained if updated and self.ema_decay is not None else 0
        return dataclasses.replace(
            undivided,
            weights=undivided.weights + average,
            at_rest=undivided.at_rest + average,
            recomputed=self.recomputed(size.layers, model) / size.layers,
            logit_positions=self.logits_chunk_size,
            offloads=self.activation_offload and size.device != "cpu",
            bytes_per_logit=BYTES_PER_LOGIT[self.compile],
        )

    def leaner(self) -> Iterator[Mapping[str, Any]]:
        """For `corerl check`: see :class:`corerl_check.SavesMemory`."""
        for chunk in (1024, 256):
            if self.logits_chunk_size is None or self.logits_chunk_size > chunk:
                yield {"logits_chunk_size": chunk}
        if not self.activation_offload and not self.compile:
            yield {"activation_offload": True}
        if not self.compile and not self.activation_offload and not self.bitwise:
            yield {"compile": True}
        if self.NAME == "torch":
            yield {"name": "fsdp", "param_offload": True, "optimizer_offload": True}
            yield {"name": "fsdp", "offload_policy": True}

    def recomputed(self, layers: int, model: ModelConfig) -> int:
        """The number of layers, of so many, whose activations are computed again."""
        if self.recompute_layers is None:
            return layers if model.enable_gradient_checkpointing else 0
        return min(self.recompute_layers, layers)

    def check(self, key: str, config: TrainConfig) -> None:
        """Raise ConfigError for ``fp8`` without kernels on this machine, and for options that exclude each other."""
        check_options(key, self)
        if self.activation_offload and self.compile:
            raise ConfigError(
                f"{key}.activation_offload", "cannot see the tensors of compiled layers: set compile=false"
            )
        if not self.fp8:
            return
        if self.bitwise:
            raise ConfigError(f"{key}.fp8", "has no bitwise log-probs: set one of the two to false")
        import torch

        from corerl_torch import fp8

        on_gpu = config.actor.device != "cpu" and torch.cuda.is_available()
        fp8.check(config.model, "cuda" if on_gpu else "cpu", f"{key}.fp8")

    @property
    def unshared(self) -> str:
        """Why rows cannot share prefixes, as far as the options say; '' if they can."""
        if self.router_aux_loss_coef:
            return "with a load-balance loss, which counts the tokens of every row (router_aux_loss_coef)"
        return "" if self.use_remove_padding else "among padded rows (use_remove_padding=false)"

    def examine(self, key: str, config: TrainConfig, machine: Machine) -> Iterator[Finding | ConfigError]:
        """For `corerl check`: the tokens of a group whose rows are as long as the config allows."""
        if self.unshared and self.share_prefixes:
            yield ConfigError(f"{key}.share_prefixes", f"prefixes cannot be shared {self.unshared}")
        found = list(self._family(key, config, machine))
        yield from found
        shares = not self.unshared and self.share_prefixes is not False
        if any(not isinstance(each, Finding) or each.severity == "warning" for each in found):
            shares = False  # the model's rows cannot be packed
        n, prompt, response = config.rollout.n, config.data.max_prompt_length, config.data.max_response_length
        if n > 1 and shares and key == "actor.strategy":
            rows, shared = n * (prompt + response), prompt + n * response
            yield finding(
                "note",
                f"{key}.share_prefixes",
                f"a prompt is computed once for its {n} responses: at most {prompt} + {n} x {response} = {shared:,} "
                f"tokens a group instead of {rows:,}, {rows / shared:.1f} times fewer",
            )

    def _family(self, key: str, config: TrainConfig, machine: Machine) -> Iterator[Finding | ConfigError]:
        if key == "actor.strategy":
            from corerl_torch.families.findings import look

            packs, ranks = self.use_remove_padding and not self.bitwise, self.ranks_of_a_row
            model, share, by = config.model, self.share_prefixes, self.sharing
            yield from look(self.NAME, key, model, machine, packs=packs, share_prefixes=share, ranks=ranks, sharing=by)

    @property
    def ranks_of_a_row(self) -> int:
        """Ranks that share the tokens of a row."""
        return 1

    @property
    def sharing(self) -> str:
        """The option by which they do."""
        return ""


@dataclass(frozen=True)
class FsdpOptions(TorchOptions):
    """Options of strategy ``fsdp``: all of ``torch``, and the sharding over ranks."""

    NAME: ClassVar[str] = "fsdp"

    timeout: float = option(600.0, "seconds that a rank waits for the others, also while they load the model", gt=0)
    fsdp_size: int = option(
        -1,
        "consecutive ranks that divide the weights (a shard group); the other groups have copies (HSDP); -1: all ranks",
    )
    reshard_after_forward: bool = option(
        True, "free a layer's gathered weights after its forward pass and gather them again in the backward pass"
    )
    reduce_dtype: Literal["fp32", "bf16"] = option(
        "fp32", "dtype in which ranks exchange gradients to sum them; bf16: half of the bytes, and rounded sums"
    )
    shard_gradients: bool = option(
        False, "sum gradients over ranks after every micro-batch, not after the last: more to send, less memory"
    )
    param_offload: bool = option(False, "keep the weights on the CPU between calls; does nothing on the CPU")
    optimizer_offload: bool = option(
        False, "keep the optimizer's state on the CPU between its steps; does nothing on the CPU"
    )
    offload_policy: bool = option(
        False,
        "keep weights, gradients and the optimizer's state on the CPU, where the optimizer steps; the weights of a "
        "layer are on the GPU while it computes (FSDP2's CPUOffloadPolicy)",
    )
    use_remove_padding: bool = option(True, "lay the rows of a micro-batch end to end; without computing padding")
    ulysses_sequence_parallel_size: int = option(
        1, "consecutive ranks that share rows: each has a slice of the tokens, and of the heads in attention", ge=1
    )
    context_parallel_size: int = option(
        1,
        "ranks that share rows: each has a part of the tokens, and in attention the keys and values of all; no number "
        "of heads limits the size",
        ge=1,
    )
    tensor_model_parallel_size: int = option(
        1, "consecutive ranks that divide the matrices of each layer and the vocabulary; they have the same rows", ge=1
    )
    expert_parallel_size: int = option(
        1, "consecutive ranks that divide the experts of each layer; tokens travel to them by all-to-all", ge=1
    )

    def share(self, size: ModelSize, ranks: int, model: ModelConfig, *, updated: bool) -> TrainingShare:
        """For `corerl check`: FSDP2 divides the stored tensors among all ranks, or those of a shard group.

        While it computes, a rank also holds the gathered weights of two layers and of the parts outside layers (of all
        layers, if they are not freed). Between the micro-batches of an update it holds its own float32 gradients of the
        whole model, unless ``shard_gradients`` divides them: the sum over ranks follows the last micro-batch.
        """
        undivided = super().share(size, ranks, model, updated=updated)
        ranks, tensor = self.shards(ranks), self.tensor_model_parallel_size
        on_gpu = size.device != "cpu"
        offloads = self.offload_policy and on_gpu
        trained = size.trained if updated else 0
        kept = 4 if self.ema_decay is None else 8  # float32 weights, and their average
        stored = (kept * trained + size.bytes * (size.parameters - trained)) / ranks
        freed = (ranks > tensor or offloads) and self.reshard_after_forward
        experts = size.in_experts if self.expert_parallel_size > 1 else 0
        away = experts * (1 - 1 / self.expert_parallel_size)  # on other ranks, to which tokens travel
        layer = size.layer - away / size.layers
        gathered = size.bytes * (size.beside + 2 * layer if freed else size.parameters - away) / tensor
        if ranks == tensor and (trained == 0 or size.bytes == 4) and not offloads:
            gathered = 0  # the stored weights are used directly
        moments = undivided.optimizer / ranks
        own = undivided.gradients * (1 - away / size.parameters) / tensor
        gradients = undivided.gradients / ranks if self.shard_gradients or offloads else own
        if offloads:
            stored = moments = 0.0
            gradients = (4 if trained else 0) * (size.beside + layer) / tensor  # before they are summed
        return dataclasses.replace(
            undivided,
            weights=stored + gathered,
            gradients=gradients,
            optimizer=moments,
            at_rest=(0 if self.param_offload and on_gpu else stored)
            + (0 if self.optimizer_offload and on_gpu else moments),
            optimizer_apart=self.optimizer_offload and on_gpu,
            context=self.ranks_of_a_row,
            whole_keys=self.context_parallel_size,
            tensor=tensor,
        )

    def leaner(self) -> Iterator[Mapping[str, Any]]:
        yield from super().leaner()
        if not self.sums_at_once:
            yield {"shard_gradients": True}
        for name in ("reshard_after_forward", "param_offload", "optimizer_offload"):
            if not getattr(self, name) and not self.offload_policy:
                yield {name: True}
        if not self.offload_policy:
            beside = {name: False for name in ("param_offload", "optimizer_offload") if getattr(self, name)}
            yield {"offload_policy": True, **beside}
        if self.fsdp_size != -1:
            yield {"fsdp_size": -1}
        for name in ("tensor_model_parallel_size", "expert_parallel_size"):
            yield {name: 2 * getattr(self, name)}

    @property
    def sums_at_once(self) -> bool:
        """Gradients are summed over ranks after every micro-batch."""
        return self.shard_gradients or self.offload_policy

    def shards(self, ranks: int) -> int:
        """Ranks that divide the weights, of so many."""
        return ranks if self.fsdp_size == -1 else self.fsdp_size * self.tensor_model_parallel_size

    def check(self, key: str, config: TrainConfig) -> None:
        """As that of ``torch``; raise ConfigError for groups of ranks and options that do not go together."""
        super().check(key, config)
        self.check_groups(key, adapters=config.model.lora_rank > 0)
        if self.offload_policy and (
            beside := [name for name in ("param_offload", "optimizer_offload") if getattr(self, name)]
        ):
            raise ConfigError(f"{key}.{beside[0]}", "must be false with offload_policy, which keeps all on the CPU")
        optim = config.critic.optim if key == "critic.strategy" else config.actor.optim
        if self.offload_policy and key != "ref.strategy" and "muon" in str(optim.optimizer):
            raise ConfigError(
                f"{key}.offload_policy", "has no optimizer muon, which gathers matrices on the GPU: use adamw"
            )
        if key == "actor.strategy":
            self._check_ranks(key, config)

    def _check_ranks(self, key: str, config: TrainConfig) -> None:
        """Raise ConfigError if the ranks with the same rows do not divide those of the actor."""
        given, together = config.runtime.options.get("ranks"), 1
        gpus = config.runtime.nnodes * config.runtime.n_gpus_per_node
        ranks = given.get("actor") if isinstance(given, Mapping) else None
        for name in GROUPS:
            size = getattr(self, name)
            together *= size
            if (ranks or gpus) % together:
                of = f" in groups of {together // size}" if together > size else ""
                whose = f"{ranks} ranks of the actor" if ranks else f"{gpus} GPUs"
                raise ConfigError(f"{key}.{name}", f"{size} does not divide the {whose}{of}")

    def check_groups(self, key: str, *, adapters: bool = False) -> None:
        """Raise ConfigError for a shard group of no size, and for groups and options that do not go together."""
        beside = {
            "expert_parallel_size": self.expert_parallel_size > 1,
            "fp8": self.fp8,
            "bitwise": self.bitwise,
            "ema_decay": self.ema_decay is not None,
            "model.lora_rank": adapters,
        }
        if self.tensor_model_parallel_size > 1 and (
            given := next((name for name, is_given in beside.items() if is_given), "")
        ):
            raise ConfigError(
                f"{key}.tensor_model_parallel_size", f"must be 1 with {given}, which does not divide matrices"
            )
        for name in GROUPS[1:]:
            if (size := getattr(self, name)) > 1 and not self.use_remove_padding:
                raise ConfigError(f"{key}.{name}", f"{size} slices packed rows: it needs use_remove_padding=true")
        if self.fsdp_size != -1 and self.fsdp_size < 1:
            raise ConfigError(f"{key}.fsdp_size", f"is {self.fsdp_size}, and must be a number of ranks, or -1 for all")
        if self.fsdp_size != -1 and self.expert_parallel_size > 1:
            raise ConfigError(f"{key}.fsdp_size", "must be -1 with expert_parallel_size, whose experts have no copies")

    @property
    def unshared(self) -> str:
        ranks = self.ulysses_sequence_parallel_size
        among = f"if {ranks} ranks share the tokens of a row (ulysses_sequence_parallel_size)"
        return super().unshared or (among if ranks > 1 else "")

    @property
    def ranks_of_a_row(self) -> int:
        return self.ulysses_sequence_parallel_size * self.context_parallel_size

    @property
    def sharing(self) -> str:
        return GROUPS[2 if self.context_parallel_size > 1 else 1]

    @property
    def peers(self) -> int:
        """Consecutive ranks that have the same rows."""
        return self.ranks_of_a_row * self.tensor_model_parallel_size

    def _family(self, key: str, config: TrainConfig, machine: Machine) -> Iterator[Finding | ConfigError]:
        yield from super()._family(key, config, machine)
        if key == "actor.strategy" and self.ulysses_sequence_parallel_size > 1:
            from corerl_torch.families.findings import config_of
            from corerl_torch.sequence_parallel import check_heads

            if (found := config_of(config.model)) is not None:
                heads = found.get_text_config().num_attention_heads
                try:
                    check_heads(self.ulysses_sequence_parallel_size, heads, self.tensor_model_parallel_size)
                except ConfigError as error:
                    yield error
        if self.tensor_model_parallel_size > 1:
            from corerl_fsdp.tensor_parallel import plan_of
            from corerl_torch.families.findings import config_of

            path = config.critic.path if key == "critic.strategy" else None
            found = config_of(dataclasses.replace(config.model, path=path or config.model.path))
            try:
                if found is not None:
                    plan_of(found, self.tensor_model_parallel_size, f"{key}.tensor_model_parallel_size")
            except ConfigError as error:
                yield error
