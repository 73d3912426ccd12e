"""The tokenizer of a model that reads images."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from corerl.contracts.config import ModelConfig
from corerl.contracts.token_columns import TokenValues
from corerl.data import Location
from corerl.errors import DataError, ModelError
from corerl_torch.media_store import COLUMN, DIGEST_BYTES, get
from corerl_torch.media_store import PLACEHOLDERS as PLACES
from corerl_torch.messages import normalized
from corerl_torch.tokenizers import HFTokenizer, load_tokenizer
from corerl_vision.images import open_image
from corerl_vision.processing import Processed, Processor
from corerl_vision.videos import FAMILIES, open_video

REFERENCE = "media:"
"""begins the reference to a processed image; its digest follows"""

MARK = "<image>"
COLUMNS = {MARK: COLUMN, "<video>": "videos"}
"""what stands for an image or a video in the texts of a row, as in verl's data → its column"""


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
        messages = normalized(messages, location)
        marks = [mark for message in messages for mark in _marks(message, self._pattern)]
        bare = [mark.text for mark in marks if mark.own is None]
        for mark, column in COLUMNS.items():
            found, given = bare.count(mark), len(self._listed(media, column, location))
            if found != given:
                raise DataError(
                    f"{location}: the prompt has {found} {mark} mark{'' if found == 1 else 's'}, and the column "
                    f"'{column}' has {given} {column[: None if given != 1 else -1]}: write one mark for each "
                    f"{column[:-1]}"
                )
        if not marks:
            return [dict(message) for message in messages], {}
        columns = {mark: iter(self._processed(media, column, location)) for mark, column in COLUMNS.items()}
        processed = [
            next(columns[mark.text]) if mark.own is None else self._of_part(mark, number, location)
            for number, mark in enumerate(marks)
        ]
        references = [REFERENCE + each.digest.hex() for each in processed]
        left, pattern = iter(references), self._pattern
        return [{**each, "content": _content(each["content"], left, pattern)} for each in messages], {
            COLUMN: references
        }

    def _of_part(self, mark: "_Mark", number: int, location: object) -> Processed:
        """The medium that a part of a message has itself."""
        if mark.text != MARK and not self._has_videos:
            raise DataError(f"{location}: videos are not supported for the family {self.config.model_type}")
        where = f"{location}, {mark.text.strip('<>')} {number} of the messages"
        return self._read(mark.own, COLUMNS[mark.text], where, _folder(location))

    @property
    def _has_videos(self) -> bool:
        return self.config.model_type in FAMILIES

    @property
    def _pattern(self) -> str:
        """A regular expression of the marks in texts of rows."""
        return "|".join(COLUMNS) if self._has_videos else MARK

    def encode_media(
        self, text: str, media: Mapping[str, Any], location: object, *, inside: bool = False
    ) -> tuple[list[int], dict[str, TokenValues]]:
        """The tokens of a rendered chat, each mark of an image or video expanded as transformers' processor does it.

        Raises:
            DataError: an image cannot be read, or the chat template has not written one mark for each image.
        """
        encode = self.encode_inside if inside else self.encode
        if not any(self._listed(media, column, location) for column in COLUMNS.values()):
            return encode([text])[0], {}
        processed = [each for column in COLUMNS.values() for each in self._processed(media, column, location)]
        own = {
            self.processor.mark: [each for each in processed if not each.video],
            self.processor.video_mark: [each for each in processed if each.video],
        }
        for mark, each in own.items():
            if mark and text.count(mark) != len(each):
                kind = "images" if mark == self.processor.mark else "videos"
                raise DataError(
                    f"{location}: the rendered prompt has {text.count(mark)} times {mark}, for {len(each)} {kind}: the "
                    f"chat template must write it once for each of the {kind}, and the texts must not contain it"
                )
        left, placed = {mark: iter(each) for mark, each in own.items()}, []

        def expanded(found: re.Match[str]) -> str:
            placed.append(next(left[found.group()]))
            return placed[-1].text

        [ids] = encode([re.sub("|".join(re.escape(mark) for mark in own if mark), expanded, text)])
        return ids, {COLUMN: self._column(ids, placed, location)}

    def _processed(self, media: Mapping[str, Any], column: str, location: object) -> list[Processed]:
        """Those of a column, each a reference or as read."""
        return [
            self._read(value, column, f"{location}, column '{column}', {column[:-1]} {number}", _folder(location))
            for number, value in enumerate(self._listed(media, column, location))
        ]

    def _read(self, value: Any, column: str, where: str, folder: Path | None) -> Processed:
        if isinstance(value, str) and value.startswith(REFERENCE):
            return self.processor.stored(value.removeprefix(REFERENCE), where)
        if column == COLUMN:
            return self.processor.process(open_image(value, where, folder), where)
        return self.processor.process_video(open_video(value, where, folder), where)

    def _listed(self, media: Mapping[str, Any], column: str, location: object) -> list[Any]:
        """The values of a column."""
        if others := sorted(set(media) - set(COLUMNS.values())):
            raise DataError(f"{location}: column '{others[0]}' is not supported: give {' or '.join(COLUMNS.values())}")
        given = media.get(column, [])
        if not isinstance(given, Sequence) or isinstance(given, str | bytes):
            raise DataError(f"{location}, column '{column}': must be a list of {column}, not {type(given).__name__}")
        if given and column != COLUMN and not self._has_videos:
            raise DataError(
                f"{location}: column '{column}' is not supported for the family {self.config.model_type}: give the "
                f"frames as '{COLUMN}'"
            )
        return list(given)

    def _column(self, ids: Sequence[int], processed: Sequence[Processed], location: object) -> TokenValues:
        """The digest of each image at the first of its tokens."""
        placeholders = np.flatnonzero(np.isin(ids, list(self.processor.placeholder_ids)))
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


class _Mark(NamedTuple):
    """A place of an image or a video in the texts: ``<image>``, ``<video>``, and the medium that a part has itself."""

    text: str
    own: Any = None


def _marks(message: Mapping[str, Any], pattern: str) -> list[_Mark]:
    """The marks of a message, in order; a part of type image or video is a mark."""
    content = message["content"]
    found: list[_Mark] = []
    for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        mark = f"<{part['type']}>"
        if mark not in COLUMNS:
            found += map(_Mark, re.findall(pattern, str(part.get("text", ""))))
        else:
            own = part.get(part["type"])
            found.append(_Mark(mark, part if own is not None and mark != MARK else own))
    return found


def _folder(location: object) -> Path | None:
    """The folder whose files a row may name."""
    return Path(location.file).expanduser().parent if isinstance(location, Location) else None


def _content(content: Any, references: Iterator[str], pattern: str) -> Any:
    """A text with marks as parts, with references; parts of text with marks are divided."""
    if isinstance(content, str):
        return list(_parts(content, references, pattern)) if re.search(pattern, content) else content
    parts: list[dict[str, Any]] = []
    for part in content:
        if part["type"] in ("image", "video"):
            parts.append({"type": part["type"], part["type"]: next(references)})
        else:
            parts += _parts(part["text"], references, pattern) if part["type"] == "text" else [part]
    return parts


def _parts(text: str, references: Iterator[str], pattern: str) -> Iterator[dict[str, Any]]:
    for piece in re.split(f"({pattern})", text):
        if piece in COLUMNS and re.fullmatch(pattern, piece):
            kind = piece.strip("<>")
            yield {"type": kind, kind: next(references)}
        elif piece:
            yield {"type": "text", "text": piece}
