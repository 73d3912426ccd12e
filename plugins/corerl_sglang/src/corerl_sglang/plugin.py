"""The names registered by corerl-sglang."""

from typing import TYPE_CHECKING

from corerl import Register, hookimpl

if TYPE_CHECKING:
    from corerl.contracts.commands import Command
    from corerl.contracts.rollout_backends import RolloutBackendFactory


@hookimpl
def register_rollout_backends(register: "Register[RolloutBackendFactory]") -> None:
    register(
        "sglang",
        "corerl_sglang.backend:SglangBackend",
        options="corerl_sglang.options:SglangOptions",
        columns=("images",),
        records=("experts", "kept_tokens", "top_log_probs"),
        adapters=True,
        summary="SGLang on GPUs, in a process of its own, optionally in its own Python environment",
    )


@hookimpl
def register_commands(register: "Register[Command]") -> None:
    register(
        "engine.install.sglang", "corerl_sglang.install:install", summary="Make a Python environment that holds SGLang."
    )
