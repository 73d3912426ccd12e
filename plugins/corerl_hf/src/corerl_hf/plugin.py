"""The names registered by corerl-hf."""

from typing import TYPE_CHECKING

from corerl import Register, hookimpl

if TYPE_CHECKING:
    from corerl.contracts.commands import Command
    from corerl.contracts.rollout_backends import RolloutBackendFactory


@hookimpl
def register_rollout_backends(register: "Register[RolloutBackendFactory]") -> None:
    register(
        "hf",
        "corerl_hf.backend:HfBackend",
        options="corerl_hf.options:HfOptions",
        columns=("images",),
        records=("experts", "kept_tokens", "top_log_probs"),
        adapters=True,
        summary="transformers in this process: batched sampling with a KV cache, on the CPU or one GPU",
    )


@hookimpl
def register_commands(register: "Register[Command]") -> None:
    register("tiny-model", "corerl_hf.tiny_model:tiny_model", summary="Write a small random Qwen2 model folder.")
