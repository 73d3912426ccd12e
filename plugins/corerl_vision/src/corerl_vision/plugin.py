"""The names registered by corerl-vision."""

from typing import TYPE_CHECKING

from corerl import Register, hookimpl

if TYPE_CHECKING:
    from corerl.contracts.commands import Command
    from corerl.contracts.config import ModelConfig
    from corerl_tools.prepare.contract import DatasetPreparer
    from corerl_vision.tokenizer import VisionTokenizer


@hookimpl
def load_tokenizer(model: "ModelConfig") -> "VisionTokenizer | None":
    from corerl_vision.tokenizer import load_vision_tokenizer

    return load_vision_tokenizer(model)


@hookimpl(optionalhook=True)
def register_dataset_preparers(register: "Register[DatasetPreparer]") -> None:
    register("geometry3k", "corerl_vision.geometry3k:Geometry3k", summary="geometry problems with diagrams")
    register(
        "shapes",
        "corerl_vision.shapes:Shapes",
        options="corerl_vision.options:ShapesOptions",
        summary="questions about coloured shapes, made here",
    )


@hookimpl
def register_commands(register: "Register[Command]") -> None:
    register(
        "tiny-vision-model",
        "corerl_vision.command:tiny_vision_model",
        summary="Write a small random model that reads images.",
    )
