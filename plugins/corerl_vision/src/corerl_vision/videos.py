"""Videos as lists of frames: read within limits, and processed with the image processor of the model.

transformers' processors of videos need torchvision. Those of Qwen's families make of each frame the patches of an
image; a pair of frames shares a patch, whose first half is the first frame. So two processed images are a pair.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from corerl.errors import DataError
from corerl_vision.images import open_image

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
"""values of ``model_type`` whose videos are pairs of frames"""

RATE = 2.0
"""frames of a second, if a row does not say otherwise: that of Qwen's tools"""

MOST_FRAMES = 768

NAMES = ("video", "frames")
RATES = ("sample_fps", "fps")


class Video(NamedTuple):
    """
    Attributes:
        frames: RGB, all of one size.
        rate: frames of a second.
    """

    frames: list[Image.Image]
    rate: float


def open_video(value: Any, where: str, folder: Path | None) -> Video:
    """A video from a list of frames, or ``{video: frames, fps: …}`` as verl's data and Qwen's tools have it.

    Args:
        value: frames in the forms of :func:`~corerl_vision.images.open_image`.
        where: the place of the video, for error messages.
        folder: of the data; None: no file is read.

    Raises:
        DataError: it is no such video, such as a file, or a frame cannot be read.
    """
    rate: Any = RATE
    if isinstance(value, Mapping):
        rate = next((value[name] for name in RATES if value.get(name) is not None), RATE)
        value = next((value[name] for name in NAMES if value.get(name) is not None), value)
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = list(value)
    if not isinstance(value, list | tuple):
        raise DataError(f"{where}: must be a list of frames, which are images; files of videos are not read")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise DataError(f"{where}: has {rate!r:.50} frames a second, which must be a number above 0")
    if not 2 <= len(value) <= MOST_FRAMES:
        raise DataError(f"{where}: has {len(value)} frames; a video has 2 to {MOST_FRAMES}")
    frames = [open_image(each, f"{where}, frame {number}", folder) for number, each in enumerate(value)]
    if sizes := {frame.size for frame in frames} - {frames[0].size}:
        raise DataError(f"{where}: has frames of {frames[0].size} and of {min(sizes)} pixels: give frames of one size")
    return Video(frames, float(rate))


def sizes_of(folder: Path) -> Mapping[str, int] | None:
    """``shortest_edge`` and ``longest_edge`` of the model's processor of videos, in pixels; None: it has none.

    Args:
        folder: of the model.
    """
    for name, part in (("video_preprocessor_config.json", None), ("processor_config.json", "video_processor")):
        if (folder / name).is_file():
            settings = json.loads((folder / name).read_text())
            settings = settings if part is None else settings.get(part) or {}
            size = dict(settings.get("size") or {})
            least = size.get("shortest_edge", settings.get("min_pixels"))
            most = size.get("longest_edge", settings.get("max_pixels"))
            if least and most:
                return {"shortest_edge": int(least), "longest_edge": int(most)}
    return None


def of_a_frame(size: Mapping[str, int], frames: int, family: str) -> dict[str, int]:
    """The limits of a frame's pixels: those of the video, which Qwen3-VL and later families divide among the frames."""
    share = 1 if family in FAMILIES[:2] else frames + frames % 2
    return {name: max(1, pixels // share) for name, pixels in size.items()}


def in_pairs(patches: Sequence[NDArray[Any]], channels: int) -> NDArray[Any]:
    """(pairs × patches, width) of the patches of an even number of frames, (patches, width) each."""
    pairs = []
    for first, second in zip(patches[::2], patches[1::2], strict=True):
        both = [each.reshape(len(each), channels, 2, -1) for each in (first, second)]
        pairs.append(np.stack([both[0][:, :, 0], both[1][:, :, 1]], axis=2).reshape(first.shape))
    return np.concatenate(pairs)
