"""Towers of transformers' models that read images of any size: their indices, and attention within images and windows.

transformers computes bounds, positions and windows of the images from their sizes on the device, and its attention then
runs image by image and window by window: 22,600 calls and 96 waits for the device in a pass of Qwen2.5-VL-3B over 50
images of 448 × 448 pixels. Here the sizes stay on the CPU, the indices are transformers' own from there, and the
attention is one call a layer.
"""

import sys
from typing import Any

import torch
from torch import Tensor

from corerl.contracts.token_columns import moved
from corerl_torch import packed_attention

NAME = "corerl_flash_images"
"""of the attention; transformers passes bounds to functions whose names contain ``flash``"""

GRIDS = "image_grid_thw"
"""input with the sizes of images: (images, 3), frames, rows and columns of patches"""

FAMILIES = ("qwen2_5_vl", "qwen3_vl")
"""values of ``model_type``, whose towers take these indices"""


def tower_of(body: Any) -> Any | None:
    """The tower, if it takes indices; None otherwise.

    Args:
        body: a model of transformers without its output layer.
    """
    return body.visual if body.config.model_type in FAMILIES else None


def use_kernel(body: Any, device: str, dtype: torch.dtype) -> None:
    """Let the tower attend by torch's attention of variable length, in half precision on CUDA; otherwise no effect."""
    tower = tower_of(body)
    if tower is None or device != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return
    packed_attention.find_kernel()
    if not packed_attention.KNOWN:
        return
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attention)
    tower.config._attn_implementation = NAME


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    cu_seq_lens_q: Tensor,
    max_length_q: int,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of all patches of an image, or of a window, to each other.

    Args:
        query, key, value: (1, heads, patches, head size).
        cu_seq_lens_q: (images or windows + 1,) int32, the start of each one, and the end.

    Returns:
        (1, patches, heads, head size).
    """
    query, key, value = (each.squeeze(0).transpose(0, 1) for each in (query, key, value))
    bounds = (cu_seq_lens_q, cu_seq_lens_q, max_length_q, max_length_q)
    options: dict[str, Any] = {"scale": scaling} if "scale" in packed_attention.KNOWN else {}
    result: Tensor = packed_attention.varlen_attn(query, key, value, *bounds, **options)
    return result.unsqueeze(0), None


def with_indices(body: Any, features: dict[str, Tensor]) -> dict[str, Any]:
    """The inputs of ``get_image_features`` on the device of the body, with indices of the tower.

    Args:
        features: on the CPU.
    """
    tower, device = tower_of(body), body.device
    if tower is None or GRIDS not in features:
        return {name: moved(value, device) for name, value in features.items()}
    grids = features[GRIDS]
    others = {name: moved(value, device) for name, value in features.items() if name != GRIDS}
    with torch.inference_mode(False), torch.no_grad():  # gradients of a later pass may save them
        found = indices(tower, grids)
    there = {name: moved(value, device) if isinstance(value, Tensor) else value for name, value in found.items()}
    return {**others, GRIDS: grids, **there}


def indices(tower: Any, grids: Tensor) -> dict[str, Any]:
    """Arguments that the tower otherwise computes itself, by transformers' functions; on the device of ``grids``."""
    functions = vars(sys.modules[type(tower).__module__])
    merge = tower.spatial_merge_size
    bounds = functions["get_vision_attention_seqlens"](grids, tower.config)[0]
    found = {
        "position_ids": functions["get_vision_position_ids"](grids, merge),
        "cu_seqlens": bounds,
        "max_seqlen": _longest(bounds),
    }
    if find := functions.get("get_vision_window_index"):
        found["window_index"], windows = find(grids, merge, tower.window_size, tower.patch_size)
        found |= {"cu_window_seqlens": windows, "max_window_seqlen": _longest(windows)}
    if find := functions.get("get_vision_interpolation_indices_and_weights"):
        given = {
            "num_grid_per_side": tower.num_grid_per_side,
            "mode": tower.interpolation_mode,
            "align_corners": tower.interpolation_align_corners,
            "spatial_merge_size": merge,
        }
        found["interp_indices"], found["interp_weights"] = find(grids, **given)
    return found


def _longest(bounds: Tensor) -> int:
    return int(bounds.diff().max())
