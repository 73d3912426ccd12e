"""The tokenizer of a model that reads images."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from corerl.contracts.config import ModelConfig
from corerl.contracts.token_columns import TokenValues
from corerl.data import Location
from corerl.errors import DataError, ModelError
from corerl_torch.media_store import COLUMN, DIGEST_BYTES, get
from corerl_torch.media_store import PLACEHOLDERS as PLACES
from corerl_torch.tokenizers import HFTokenizer, load_tokenizer
from corerl_vision.images import open_image
from corerl_vision.processing import Processed, Processor

REFERENCE = "media:"
"""begins the reference to a processed image; its digest follows"""

MARK = "<image>"
"""stands for an image in the texts of a row, as in verl's data"""


@dataclasses.dataclass(frozen=True)
class VisionTokenizer(HFTokenizer):
    """See :class:`corerl.contracts.tokenizers.MediaTokenizer`.

    Attributes:
        config: of the model, by transformers.
    """

    config: Any = None

    @cached_property
    def processor(self) -> Processor:
        """Loaded for the first row with an image."""
        return Processor(self.model, self.config, self.tokenizer)

    def place_media(
        self, messages: Sequence[Mapping[str, Any]], media: Mapping[str, Any], location: object
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """See :meth:`corerl.contracts.tokenizers.MediaTokenizer.place_media`."""
        images = _images(media, location)
        marks = sum(map(_marks, messages))
        if marks != len(images):
            raise DataError(
                f"{location}: the prompt has {marks} {MARK} mark{'' if marks == 1 else 's'}, and the column '{COLUMN}' "
                f"has {len(images)} image{'' if len(images) == 1 else 's'}: write one mark for each image"
            )
        if not images:
            return [dict(message) for message in messages], {}
        processed = [self._processed(image, number, location) for number, image in enumerate(images)]
        references = [REFERENCE + each.digest.hex() for each in processed]
        left = iter(references)
        return [{**each, "content": _content(each["content"], left)} for each in messages], {COLUMN: references}

    def encode_media(
        self, text: str, media: Mapping[str, Any], location: object, *, inside: bool = False
    ) -> tuple[list[int], dict[str, TokenValues]]:
        """The tokens of a rendered chat, each image's mark expanded as transformers' processor does it.

        Raises:
            DataError: an image cannot be read, or the chat template has not written one mark for each image.
        """
        images, encode = _images(media, location), self.encode_inside if inside else self.encode
        if not images:
            return encode([text])[0], {}
        processed = [self._processed(image, number, location) for number, image in enumerate(images)]
        parts = text.split(self.processor.mark)
        if len(parts) != len(images) + 1:
            raise DataError(
                f"{location}: the rendered prompt has {len(parts) - 1} times {self.processor.mark}, for {len(images)} "
                "images: the chat template must write it once for an image, and the texts must not contain it"
            )
        texts = [part for pair in zip(parts, [*(each.text for each in processed), ""], strict=True) for part in pair]
        [ids] = encode(["".join(texts)])
        return ids, {COLUMN: self._column(ids, processed, location)}

    def _processed(self, image: Any, number: int, location: object) -> Processed:
        where = f"{location}, column '{COLUMN}', image {number}"
        if isinstance(image, str) and image.startswith(REFERENCE):
            return self.processor.stored(image.removeprefix(REFERENCE), where)
        folder = Path(location.file).expanduser().parent if isinstance(location, Location) else None
        return self.processor.process(open_image(image, where, folder), where)

    def _column(self, ids: Sequence[int], processed: Sequence[Processed], location: object) -> TokenValues:
        """The digest of each image at the first of its tokens."""
        placeholders = np.flatnonzero(np.array(ids) == self.processor.placeholder_id)
        counts, place = np.zeros(len(ids), np.int32), 0
        for each in processed:
            own = get(each.digest)[PLACES]
            given = placeholders[place : place + len(own)]
            if not np.array_equal(given - given[:1], own):
                raise DataError(f"{location}: the texts of the prompt contain tokens that stand for images")
            counts[given[0]] = 1
            place += len(own)
        if place != len(placeholders):
            raise DataError(f"{location}: the texts of the prompt contain tokens that stand for images")
        values = np.frombuffer(b"".join(each.digest for each in processed), np.uint8)
        return TokenValues(values.reshape(len(processed), DIGEST_BYTES), counts)


def load_vision_tokenizer(model: ModelConfig) -> VisionTokenizer | None:
    """The tokenizer of a model with a vision tower; None for other models.

    Raises:
        ModelError: the tokenizer cannot be used.
    """
    from corerl_torch.loading import image_text_config

    if not Path(model.path).expanduser().is_dir():
        try:
            load_tokenizer(
                model
            )  # says within seconds that the hub cannot be reached; the config's reader tries for long
        except ModelError:
            return None
    config = image_text_config(model)
    if config is None:
        return None
    plain = load_tokenizer(model)
    own = {field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)}
    return VisionTokenizer(**own, config=config)


def _images(media: Mapping[str, Any], location: object) -> list[Any]:
    if others := sorted(set(media) - {COLUMN}):
        raise DataError(f"{location}: column '{others[0]}' is not supported: give the frames as '{COLUMN}'")
    images = media.get(COLUMN, [])
    if not isinstance(images, Sequence) or isinstance(images, str | bytes):
        raise DataError(f"{location}, column '{COLUMN}': must be a list of images, not {type(images).__name__}")
    return list(images)


def _marks(message: Mapping[str, Any]) -> int:
    content = message["content"]
    if isinstance(content, str):
        return content.count(MARK)
    return sum(part["type"] == "image" or str(part.get("text", "")).count(MARK) for part in content)


def _content(content: Any, references: Iterator[str]) -> Any:
    """A text with marks as parts, with references; parts of text with marks are divided."""
    if isinstance(content, str):
        return list(_parts(content, references)) if MARK in content else content
    parts: list[dict[str, Any]] = []
    for part in content:
        if part["type"] == "image":
            parts.append({"type": "image", "image": next(references)})
        else:
            parts += _parts(part["text"], references) if part["type"] == "text" else [part]
    return parts


def _parts(text: str, references: Iterator[str]) -> Iterator[dict[str, Any]]:
    first, *others = text.split(MARK)
    if first:
        yield {"type": "text", "text": first}
    for other in others:
        yield {"type": "image", "image": next(references)}
        if other:
            yield {"type": "text", "text": other}
