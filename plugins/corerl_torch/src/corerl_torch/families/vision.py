"""Families that read images, and what tests prove of each: the source of the section Images of docs/models.md.

This file imports neither torch nor transformers.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from corerl_torch.families.columns import Column, State
from corerl_torch.families.table import Family

HERE = "plugins/corerl_vision/tests"
AGREEMENT = f"{HERE}/test_agreement.py"
TOWER = f"{HERE}/test_tower.py"

VISION_COLUMNS: tuple[Column, ...] = (
    Column(
        "torch", "packed", "packed", "proven", f"{AGREEMENT}::test_gradients_of_packed_rows_are_those_of_padded_ones"
    ),
    Column("torch", "prefixes", "prefixes", "proven", f"{AGREEMENT}::test_rows_share_prefixes_as_the_table_says"),
    Column("torch", "step", "a step", "proven", f"{TOWER}::test_a_step_of_grpo_changes_the_tower_unless_it_is_frozen"),
    Column("torch", "lora", "LoRA", "proven", f"{TOWER}::test_adapters_merge_into_an_export"),
    Column("torch", "export", "export", "proven", f"{TOWER}::test_an_exported_folder_is_a_whole_model"),
    Column(
        "fsdp",
        "step",
        "a step",
        "proven",
        f"{TOWER}::test_ranks_with_and_without_images_make_the_update_of_one_device",
    ),
    Column("hf", "agrees", "log-probs", "proven", f"{AGREEMENT}::test_log_probs_are_those_of_transformers"),
    Column("hf", "export", "export", "proven", f"{TOWER}::test_an_update_of_weights_arrives_in_the_engine"),
    Column("hf", "videos", "videos", "refused", f"{HERE}/test_videos.py::test_a_family_without_videos_refuses_them"),
)

PADDED: Mapping[str, State] = MappingProxyType({"torch.packed": "padded", "torch.prefixes": "refused"})
VIDEOS: Mapping[str, State] = MappingProxyType({"hf.videos": "proven"})
OF_VIDEOS = MappingProxyType(
    {"hf.videos": f"{HERE}/test_videos.py::test_log_probs_of_a_video_are_those_of_transformers"}
)
BIDIRECTIONAL = "the tokens of an image see each other, so rows are padded"

VISION: Mapping[str, Family] = {
    "qwen2_5_vl": Family(
        "Qwen2.5-VL", "qwen2_5_vl", "Qwen2_5_VLConfig", "Qwen2.5-VL-3B … 72B", states=VIDEOS, proofs=OF_VIDEOS
    ),
    "qwen3_vl": Family("Qwen3-VL", "qwen3_vl", "Qwen3VLConfig", "Qwen3-VL-2B … 32B", states=VIDEOS, proofs=OF_VIDEOS),
    "gemma3": Family("Gemma 3", "gemma3", "Gemma3Config", "Gemma 3 4B … 27B", states=PADDED, note=BIDIRECTIONAL),
    "gemma4_small": Family(
        "Gemma 4, causal images", "gemma4", "Gemma4Config", "Gemma 4 E2B, E4B", note="sounds are not supported"
    ),
    "gemma4_large": Family(
        "Gemma 4, `use_bidirectional_attention: vision`",
        "gemma4",
        "Gemma4Config",
        "Gemma 4 26B-A4B, 31B",
        states=PADDED,
        note=BIDIRECTIONAL,
    ),
    "internvl": Family("InternVL", "internvl", "InternVLConfig", "InternVL3-1B-hf … 78B-hf"),
    "llava_onevision": Family(
        "LLaVA-OneVision",
        "llava_onevision",
        "LlavaOnevisionConfig",
        "llava-onevision-qwen2-0.5b-ov-hf … 72b",
        note="each image is divided into tiles, also in a prompt with several images",
    ),
}
"""name of a small model (``corerl tiny-vision-model``) → the family"""


def reads_images(config: Any) -> bool:
    """Whether a config of transformers has a vision tower."""
    return getattr(config, "vision_config", None) is not None


def dropout(config: Any) -> str:
    """The key of a dropout in the tower of images, which no comparison of texts can find; '' without one."""
    values = config.vision_config.to_dict() if reads_images(config) else {}
    found = (key for key, value in values.items() if "drop" in key and isinstance(value, int | float) and value)
    return next((f"vision_config.{key}" for key in found), "")


def unproven(model_type: str, backend: str) -> Iterator[str]:
    """The features of a backend that no test proves for a family; all of an unknown one."""
    family = vision_family_of(model_type)
    for column in VISION_COLUMNS:
        if column.backend == backend and (family is None or family.state(column) == "not proven"):
            yield column.title


def vision_family_of(model_type: str) -> Family | None:
    """The first family with a ``model_type`` of the whole model; None if there is none."""
    return next((each for each in VISION.values() if each.model_type == model_type), None)
