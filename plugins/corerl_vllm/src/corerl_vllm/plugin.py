"""The names registered by corerl-vllm."""

from typing import TYPE_CHECKING

from corerl import Register, hookimpl

if TYPE_CHECKING:
    from corerl.contracts.commands import Command
    from corerl.contracts.rollout_backends import RolloutBackendFactory


@hookimpl
def register_rollout_backends(register: "Register[RolloutBackendFactory]") -> None:
    register(
        "vllm",
        "corerl_vllm.backend:VllmBackend",
        options="corerl_vllm.options:VllmOptions",
        columns=("images",),
        records=("experts", "kept_tokens", "top_log_probs"),
        adapters=True,
        starts_beside_models=True,
        summary="vLLM in a process of its own, optionally in its own Python environment",
    )


@hookimpl
def register_commands(register: "Register[Command]") -> None:
    register("engine.install.vllm", "corerl_vllm.install:install", summary="Make a Python environment that holds vLLM.")
