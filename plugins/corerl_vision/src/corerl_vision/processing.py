"""The processor of a model: from an image to pixels and to the text that stands for it.

The image processor is transformers' one on Pillow and numpy: torchvision is not needed, and the pixels do not depend
on the machine. Each image is processed by itself, once, and stored (:mod:`corerl_torch.media_store`).
"""

import hashlib
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from corerl.contracts.config import ModelConfig
from corerl.errors import DataError, ModelError
from corerl_torch import media_store
from corerl_vision.images import as_png
from corerl_vision.videos import FAMILIES, Video, in_pairs, of_a_frame, sizes_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Processed(NamedTuple):
    """A stored image or video: its digest, and the text that stands for it."""

    digest: bytes
    text: str
    video: bool


class Processor:
    """The processor of a model's folder, with its tokenizer.

    Attributes:
        mark: the token that the chat template writes for an image.
        placeholder_id: the token whose embeddings the model replaces by an image.
        video_mark: the token that the chat template writes for a video; '' for a family without videos.
        placeholder_ids: tokens whose embeddings the model replaces by an image or a video.
    """

    def __init__(self, model: ModelConfig, config: Any, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._hf = load_processor(model, config, tokenizer)
        mark = getattr(self._hf, "image_token", None)
        placeholder = getattr(config, "image_token_id", None) or getattr(config, "image_token_index", None)
        if mark is None or placeholder is None:
            raise ModelError(f"model.path: {model.path} names no image token: {config.model_type} is not supported")
        self.mark, self.placeholder_id = str(mark), int(placeholder)
        self._family = str(config.model_type)
        self.video_mark = str(self._hf.video_token) if self._family in FAMILIES else ""
        self.placeholder_ids = {self.placeholder_id} | ({int(config.video_token_id)} if self.video_mark else set())
        self._video_size = sizes_of(Path(model.path).expanduser())
        self._tokenizer = tokenizer
        self._identity = f"{type(self._hf).__name__} {config.model_type} {self._hf.image_processor.to_json_string()}"

    def process(self, image: Image.Image, where: str) -> Processed:
        """Process an image, or find it in the store.

        Args:
            image: RGB.
            where: its place, for error messages.

        Raises:
            DataError: the processor refuses the image.
        """
        digest = hashlib.sha256(f"{self._identity} {image.size} ".encode() + image.tobytes()).digest()
        if media_store.path_of(digest).exists():
            return self.stored(digest.hex(), where)
        try:
            arguments = self._hf._merge_kwargs(tokenizer_init_kwargs=self._tokenizer.init_kwargs)["images_kwargs"]
            features, [text] = self._hf._process_images([image], **{**arguments, "return_tensors": "np"})
        except (ValueError, TypeError, ZeroDivisionError) as error:
            raise DataError(f"{where}: the processor refuses the image ({error})") from error
        stored = {name: np.asarray(value) for name, value in features.items()}
        stored[media_store.PLACEHOLDERS] = self._places(text)
        stored[media_store.SOURCE] = np.frombuffer(as_png(image), np.uint8)
        stored["text"] = np.frombuffer(text.encode(), np.uint8)
        media_store.put(digest, stored)
        return Processed(digest, text, video=False)

    def process_video(self, video: Video, where: str) -> Processed:
        """Process a video, or find it in the store.

        Raises:
            DataError: the family has no videos here, or the processor refuses a frame.
        """
        if self._family not in FAMILIES:
            raise DataError(f"{where}: videos of the family {self._family} are not supported: give frames as images")
        pixels = b"".join(frame.tobytes() for frame in video.frames)
        facts = f"{self._identity} video {self._video_size} {video.rate} {video.frames[0].size} {len(video.frames)} "
        digest = hashlib.sha256(facts.encode() + pixels).digest()
        if media_store.path_of(digest).exists():
            return self.stored(digest.hex(), where)
        frames = [*video.frames, *video.frames[-1:] * (len(video.frames) % 2)]
        size = {"size": of_a_frame(self._video_size, len(frames), self._family)} if self._video_size else {}
        try:
            given = [self._hf.image_processor([frame], return_tensors="np", **size) for frame in frames]
        except (ValueError, TypeError, ZeroDivisionError) as error:
            raise DataError(f"{where}: the processor refuses the video ({error})") from error
        grid = np.array([[len(frames) // 2, *given[0]["image_grid_thw"][0, 1:]]])
        text = self._text_of_video(grid, video)
        stored = {
            "pixel_values": in_pairs([each["pixel_values"] for each in given], channels=3),
            "image_grid_thw": grid,
            media_store.SECONDS: np.array([2 / video.rate]),
            media_store.PLACEHOLDERS: self._places(text),
            "text": np.frombuffer(text.encode(), np.uint8),
        }
        for number, frame in enumerate(video.frames):
            stored[f"{media_store.SOURCE}.{number}"] = np.frombuffer(as_png(frame), np.uint8)
        media_store.put(digest, stored)
        return Processed(digest, text, video=True)

    def _text_of_video(self, grid: Any, video: Video) -> str:
        """The text in the place of the mark of a video, by transformers' processor."""
        own = self._hf.image_processor
        self._hf.video_processor = SimpleNamespace(
            merge_size=own.merge_size, temporal_patch_size=own.temporal_patch_size
        )
        facts = SimpleNamespace(fps=video.rate, frames_indices=list(range(len(video.frames))))
        return str(self._hf.replace_video_token({"video_grid_thw": grid, "video_metadata": [facts]}, 0))

    def stored(self, digest: str, where: str) -> Processed:
        """A processed image by its digest in hexadecimal digits.

        Raises:
            DataError: it is no digest.
            RunError: the store has no such image.
        """
        try:
            key = bytes.fromhex(digest)
        except ValueError:
            key = b""
        if len(key) != media_store.DIGEST_BYTES:
            raise DataError(f"{where}: {digest[:80]!r} refers to no processed image")
        features = media_store.get(key)
        return Processed(key, bytes(features["text"]).decode(), media_store.SECONDS in features)

    def _places(self, text: str) -> Any:
        """Places of the placeholders in the text of an image, behind the first one."""
        ids = np.array(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        places = np.flatnonzero(np.isin(ids, list(self.placeholder_ids)))
        if not len(places):
            raise ModelError(f"the processor writes no token {self.placeholder_id} for an image: config.json is wrong")
        return places - places[0]


def load_processor(model: ModelConfig, config: Any, tokenizer: "PreTrainedTokenizerBase") -> Any:
    """transformers' processor of a model, with the image processor on Pillow, without those of videos and sounds.

    Raises:
        ModelError: the model has none, or it cannot be loaded.
    """
    import transformers
    from transformers.models.auto import processing_auto

    local = Path(model.path).expanduser().is_dir()
    path = str(Path(model.path).expanduser()) if local else model.path
    names: Any = vars(processing_auto)["PROCESSOR_MAPPING_NAMES"]
    name = names.get(config.model_type)
    auto: Any = transformers.AutoImageProcessor
    if name is None:
        raise ModelError(f"model.path: transformers has no processor for {config.model_type}")
    kind = getattr(transformers, name)
    try:
        images = auto.from_pretrained(
            path, backend="pil", local_files_only=local, trust_remote_code=model.trust_remote_code
        )
        settings, _ = kind.get_processor_dict(path, local_files_only=local)
        taken = set(inspect.signature(kind.__init__).parameters)
        settings = {key: value for key, value in settings.items() if key in taken and not key.endswith("processor")}
        parts = {"image_processor": images, "tokenizer": tokenizer}
        absent = dict.fromkeys(taken & {"video_processor", "feature_extractor", "audio_processor"})
        return _with_images_alone(kind)(**{**settings, **parts, **absent})
    except (OSError, ValueError, TypeError, ImportError, KeyError, AttributeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(f"model.path: the image processor of {model.path} cannot be loaded: {reason}") from error


def _with_images_alone(kind: type) -> Any:
    """The class of a processor that may lack those of videos, which need torchvision, and of sounds."""

    def check(self: Any, name: str, value: Any) -> Any:
        return None if value is None else kind.check_argument_for_proper_class(self, name, value)  # type: ignore[attr-defined]

    return type(kind.__name__, (kind,), {"check_argument_for_proper_class": check})
