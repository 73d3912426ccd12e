"""The commands ``sft``, ``dpo`` and ``reward-model``; the kind ``preference loss`` and its names."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from corerl import Register, hookimpl
from corerl.contracts.kinds import Kind

if TYPE_CHECKING:
    from corerl.contracts.commands import Command
    from corerl_supervised.contract import PreferenceLoss


@hookimpl
def add_kinds(add: Callable[[Kind], None]) -> None:
    add(Kind("preference_losses", "preference loss", "corerl_supervised.contract:PreferenceLoss"))


@hookimpl
def register_commands(register: "Register[Command]") -> None:
    commands = "corerl_supervised.commands"
    register("sft", f"{commands}:sft", summary="Fine-tune a model on chats: a supervised cold start.")
    register("dpo", f"{commands}:dpo", summary="Train a model on preferred and rejected responses (DPO, IPO).")
    register(
        "reward-model",
        f"{commands}:reward_model",
        summary="Train a reward model on preferences or on scored responses.",
    )


@hookimpl
def register_preference_losses(register: "Register[PreferenceLoss]") -> None:
    losses = "corerl_supervised.losses"
    register(
        "sigmoid",
        f"{losses}.sigmoid:sigmoid",
        options=f"{losses}.sigmoid:SigmoidOptions",
        summary="DPO: logistic loss of the difference, with label smoothing",
    )
    register(
        "bradley_terry",
        f"{losses}.sigmoid:sigmoid",
        options=f"{losses}.sigmoid:BradleyTerryOptions",
        summary="the same with a scale of 1: maximum likelihood of a reward model",
    )
    register(
        "hinge",
        f"{losses}.hinge:hinge",
        options=f"{losses}.hinge:HingeOptions",
        summary="SLiC: hinge loss of the difference",
    )
    register(
        "ipo",
        f"{losses}.ipo:ipo",
        options=f"{losses}.ipo:IpoOptions",
        summary="IPO: squared distance of the difference from a constant",
    )
