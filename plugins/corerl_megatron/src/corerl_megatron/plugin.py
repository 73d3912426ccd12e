"""The names registered by corerl-megatron."""

from typing import TYPE_CHECKING

from corerl import Register, hookimpl

if TYPE_CHECKING:
    from corerl.contracts.presets import Preset
    from corerl.contracts.training_strategies import TrainingStrategyFactory


@hookimpl
def register_training_strategies(register: "Register[TrainingStrategyFactory]") -> None:
    register(
        "megatron",
        "corerl_megatron.strategy:MegatronStrategy",
        options="corerl_megatron.options:MegatronOptions",
        replays=("experts", "kept_tokens"),
        distributed=True,
        adapters=True,
        read_checkpoint="corerl_megatron.reading:read",
        summary="tensor, pipeline, context and expert parallel (megatron-core); AdamW",
    )


@hookimpl
def register_presets(register: "Register[Preset]") -> None:
    register(
        "grpo_megatron_qwen3_0_6b",
        "corerl_megatron.presets:qwen3_0_6b",
        summary="GRPO for Qwen3-0.6B on two cards of 24 GB, tensor parallel",
    )
    register(
        "grpo_megatron_qwen3_8b",
        "corerl_megatron.presets:qwen3_8b",
        summary="GRPO for Qwen3-8B on four cards of 48 GB, tensor parallel, optimizer offloaded",
    )
