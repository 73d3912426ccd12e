"""Geometry3K (Lu et al., 2021, arXiv 2105.04165), as published on the hub by hiyouga: diagrams and questions."""

from collections.abc import Mapping
from typing import Any

from corerl.errors import DataError
from corerl_tools.prepare.contract import Dropped, PromptRow, text_of

INSTRUCTION = "Think first, within <think> and </think>, and then output the final answer within \\boxed{}."
"""the form that the scorer ``geometry3k`` asks for"""


class Geometry3k:
    """Records {images, problem, answer} to rows; ``problem`` has an ``<image>`` for each diagram."""

    hub = "hiyouga/geometry3k"

    def __call__(self, record: Mapping[str, Any]) -> PromptRow | Dropped:
        problem, answer = text_of(record, "problem"), text_of(record, "answer")
        images = [_bytes(image) for image in _list(record.get("images"))]
        if problem.count("<image>") != len(images):
            marks = problem.count("<image>")
            raise DataError(f"column 'problem' has {marks} <image> marks, and column 'images' {len(images)} images")
        if not answer.strip():
            return Dropped("empty answer")
        return PromptRow(
            data_source=self.hub,
            prompt=[{"role": "user", "content": f"{problem} {INSTRUCTION}"}],
            ability="math",
            ground_truth=answer,
            extra_info={"question": problem, "answer": answer},
            images=images,
        )


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise DataError(f"column 'images' should hold a list of images, found {type(value).__name__}")
    return value


def _bytes(image: Any) -> bytes:
    """The file of an image: {bytes, path}, or a PIL image of the package datasets."""
    from PIL import Image

    from corerl_vision.images import as_png

    if isinstance(image, Image.Image):
        return as_png(image)
    content = image.get("bytes") if isinstance(image, Mapping) else None
    if not isinstance(content, bytes):
        raise DataError(f"column 'images' should hold {{bytes, path}} with the bytes, found {type(image).__name__}")
    return content
