"""Models of transformers that read images: inputs, positions and the vision tower.

One way serves all families. The images of a batch, in the order of their tokens, are one call of the model's own
``get_image_features``. Places of images come from the column ``images``, not from token ids: an image token that the
policy samples is an ordinary token. Positions in several dimensions (M-RoPE) are those of ``get_rope_index``. A video
is an image of several frames.
"""

import contextlib
import functools
import inspect
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from corerl.contracts.token_columns import TokenColumn, TokenValues, moved
from corerl.errors import ConfigError, ModelError, RunError
from corerl_torch import media_store, tower
from corerl_torch.output_layer import body_of

TOWERS = frozenset({"visual", "vision_tower", "vision_model"})
"""names of the vision tower in models of transformers"""

TYPED = frozenset({"gemma3", "gemma4"})
"""values of ``model_type`` whose masks of attention are made from the types of tokens, as tests prove"""

KNOWN_ROWS = 4096
"""rows of images whose positions are remembered, at 24 bytes a token"""

IMAGE, VIDEO = 1, 2
"""types of tokens, as processors of transformers number them"""


class Image(NamedTuple):
    """An image in a row of tokens: the place of its first token, and the digest of the processed image."""

    start: int
    digest: bytes

    def places(self) -> Tensor:
        """(n,) int64, all tokens that stand for the image."""
        return self.start + torch.from_numpy(media_store.get(self.digest)[media_store.PLACEHOLDERS])

    def frames_apart(self) -> float:
        """Seconds between pairs of frames of a video; 0 for an image."""
        seconds = media_store.get(self.digest).get(media_store.SECONDS)
        return 0.0 if seconds is None else float(seconds[0])


def images_of(values: TokenValues | None) -> tuple[Image, ...]:
    """The images of a sequence with this column."""
    if values is None or not len(values.values):
        return ()
    starts = np.repeat(np.arange(len(values.counts)), values.counts)
    return tuple(Image(int(start), bytes(value)) for start, value in zip(starts, values.values, strict=True))


def images_of_rows(column: TokenColumn | None, rows: int) -> list[tuple[Image, ...]]:
    """The images of each row of a batch."""
    if column is None:
        return [()] * rows
    counts, values = column.counts.cpu().numpy(), column.values.cpu().numpy()
    ends = counts.sum(axis=1).cumsum()
    return [images_of(TokenValues(values[end - own.sum() : end], own)) for own, end in zip(counts, ends, strict=True)]


def reads_images(model: Any) -> bool:
    """Whether a model of transformers has a vision tower."""
    return hasattr(model.base_model, "get_image_features")


def in_tower(name: str) -> bool:
    """Whether a weight of this name belongs to a vision tower."""
    return not TOWERS.isdisjoint(name.split("."))


def freeze_tower(model: Any, key: str) -> None:
    """Exclude the vision tower from training.

    Raises:
        ConfigError: the model has none.
    """
    towers = [module for name in sorted(TOWERS) if (module := getattr(model.base_model, name, None)) is not None]
    if not towers:
        raise ConfigError(
            key, f"{type(model).__name__} has no vision tower ({', '.join(sorted(TOWERS))}): set it to false"
        )
    for each in towers:
        each.requires_grad_(False)


def sees_later_tokens(config: Any) -> bool:
    """Whether the tokens of an image attend to later tokens of the image: packed rows would not.

    Args:
        config: of a transformers model.
    """
    if config.model_type == "gemma4":  # the small ones are causal
        return bool(config.get_text_config().use_bidirectional_attention == "vision")
    return config.model_type in TYPED


class Ways(NamedTuple):
    """How a family of transformers places images and masks their tokens.

    Attributes:
        masks: results of ``get_placeholder_mask``: of images, videos and sounds.
        expanded: they have a dimension for the embedding.
        types: the argument for types of tokens, if masks of attention are made from them; otherwise ''.
    """

    masks: int
    expanded: bool
    types: str

    @classmethod
    def of(cls, body: type, family: str) -> "Ways":
        """Of the class of a model before its output layer.

        Raises:
            ModelError: the family has a way of its own.
        """
        if not hasattr(body, "get_placeholder_mask"):
            raise ModelError(
                f"model.path: the family {family} places images in its embeddings by a way of its own: it is not "
                "supported"
            )
        masked: Any = body
        names = inspect.signature(masked.get_placeholder_mask).parameters
        types = [
            name
            for name in ("token_type_ids", "mm_token_type_ids")
            if name in inspect.signature(masked.forward).parameters
        ]
        if types and not hasattr(body, "get_rope_index") and family not in TYPED:  # positions are the only use there
            raise ModelError(
                f"model.path: the family {family} makes masks of attention from {types[0]}, and no test proves them: "
                f"it is not supported, as {', '.join(sorted(TYPED))} are"
            )
        masks = 3 if "image_features" not in names else 2 if "video_features" in names else 1
        return cls(masks, "image_features" in names, types[0] if types and family in TYPED else "")


class ImageInputs:
    """Inputs of a model that reads images.

    Args:
        model: of transformers.
        every_pass: the tower runs in passes without images too, since other ranks hold shares of its weights.

    Raises:
        ModelError: the model has no vision tower, or places images or masks their tokens by a way of its own.
    """

    def __init__(self, model: Any, *, every_pass: bool = False) -> None:
        if not reads_images(model):
            raise ModelError(f"model.path: {type(model).__name__} reads text alone, and a prompt has images")
        self.body = body_of(model)
        names = inspect.signature(self.body.get_image_features).parameters
        self._names = {name for name in names if name != "kwargs"}
        self._ways = Ways.of(type(self.body), self.body.config.model_type)
        self._blank = self._blank_features() if every_pass else None
        self._known: dict[tuple[Image, ...], Tensor] = {}
        """images of a row -> positions to the last of them"""

    @property
    def has_own_positions(self) -> bool:
        """Positions of tokens depend on the images."""
        return hasattr(self.body, "get_rope_index")

    def positions(self, ids: Tensor, lengths: Sequence[int], images: Sequence[Sequence[Image]]) -> Tensor:
        """(3, B, S) int64 positions of right-padded rows, 0 in padding.

        Args:
            ids: (B, S).
            lengths: tokens of each row.
        """
        found = torch.zeros(3, *ids.shape, dtype=torch.int64)
        for row, (length, own) in enumerate(zip(lengths, images, strict=True)):
            index = self._to_the_last(tuple(image for image in own if image.start < length), ids[row, :length])
            end = index.shape[1]
            found[:, row, :end] = index
            if end < length:
                first = int(index.max()) + 1 if end else 0
                found[:, row, end:length] = torch.arange(first, first + length - end)
        return found.to(ids.device)

    def _to_the_last(self, images: tuple[Image, ...], ids: Tensor) -> Tensor:
        """(3, n) positions of a row's first tokens, to the last one of an image; later tokens count on from them.

        They are those of all responses to a prompt, and of all passes.
        """
        if not images:
            return torch.zeros(3, 0, dtype=torch.int64)
        if images not in self._known:
            end = 1 + max(int(image.places().max()) for image in images)
            types = torch.zeros(1, end, dtype=torch.int64)
            _check_whole(end, len(ids))
            for image in images:
                types[0, image.places()] = VIDEO if image.frames_apart() else IMAGE
            index, _ = self.body.get_rope_index(ids[None, :end].cpu(), types, **_grids(images))
            if len(self._known) >= KNOWN_ROWS:
                self._known.clear()
            self._known[images] = _behind_media(index[:, 0], types[0])
        _check_whole(self._known[images].shape[1], len(ids))
        return self._known[images]

    @contextlib.contextmanager
    def reading(
        self, shape: Sequence[int], images: Sequence[tuple[Image, Tensor]], *, typed: bool = True
    ) -> Iterator[dict[str, Any]]:
        """Further inputs of a forward pass of the body, which reads these images inside this context.

        Args:
            shape: of the input ids.
            images: each with the places of its tokens in the flattened input ids, (n,) int64; any order.
            typed: the ids are whole rows; otherwise they have no images and may continue others.
        """
        mask = torch.zeros(shape[0] * shape[1], dtype=torch.bool)
        ordered = sorted(images, key=lambda each: int(each[1][0]))
        for _, places in ordered:
            mask[places.cpu()] = True
        where = moved(mask.nonzero().squeeze(1), self.body.device)
        mask, tokens = moved(mask.view(*shape), self.body.device), int(mask.sum())
        inputs: dict[str, Any] = {self._ways.types: mask.long()} if self._ways.types and typed else {}
        # take places from the column
        replaced: dict[str, Any] = {"get_placeholder_mask": functools.partial(_masks, mask, tokens, ways=self._ways)}
        features = self._features([image.digest for image, _ in ordered]) if images else self._blank
        if features is not None:
            # pass no argument of the decoder's attention to the tower
            outputs = functools.partial(self.body.get_image_features, **features, return_dict=True)
            replaced["get_image_features"] = lambda *_, **__: outputs() if images else _emptied(outputs())
            inputs["pixel_values"] = features["pixel_values"]
        for name, function in replaced.items():
            setattr(self.body, name, function)
        text: Any = getattr(self.body, "language_model", None)
        deep = hasattr(text, "_deepstack_process")
        if deep:
            text._deepstack_process = functools.partial(_added, where)
        try:
            yield inputs
        finally:
            for name in replaced:
                delattr(self.body, name)
            if deep:
                del text._deepstack_process

    def _blank_features(self) -> dict[str, Tensor]:
        """A black image of few tokens."""
        vision = self.body.config.vision_config
        channels: int = getattr(vision, "in_channels", getattr(vision, "num_channels", 3))
        given: dict[str, Tensor] = {}
        if "image_grid_thw" in self._names:
            side = vision.spatial_merge_size
            shape: tuple[int, ...] = (side * side, channels * vision.temporal_patch_size * vision.patch_size**2)
            given["image_grid_thw"] = torch.tensor([[1, side, side]])
        elif "image_position_ids" in self._names:
            side = vision.pooling_kernel_size
            shape = (1, side * side, 3 * vision.patch_size**2)
            given["image_position_ids"] = torch.cartesian_prod(torch.arange(side), torch.arange(side)).flip(1)[None]
        elif not hasattr(vision, "image_size"):
            raise ConfigError(
                "actor.strategy",
                f"a model of the family {self.body.config.model_type} that reads images runs on one rank alone",
            )
        else:
            size = vision.image_size
            height, width = (size, size) if isinstance(size, int) else size
            shape = (1, channels, height, width)
            if "image_sizes" in self._names:
                given["image_sizes"] = torch.tensor([[height, width]])
            if pinpoints := getattr(self.body.config, "image_grid_pinpoints", None):
                shape = (
                    1,
                    1 + max(tall * wide for tall, wide in pinpoints) // (height * width),
                    channels,
                    height,
                    width,
                )
        device = torch.device("cpu") if self.body.device.type == "meta" else self.body.device
        return {"pixel_values": torch.zeros(shape, device=device)} | {
            name: value.to(device) for name, value in given.items()
        }

    def _features(self, digests: Sequence[bytes]) -> dict[str, Any]:
        """The model's inputs for these images, one below the other."""
        stored = [media_store.get(digest) for digest in digests]
        names = [name for name in stored[0] if name in self._names]
        if not names:
            raise RunError(f"processed images of another model: they have {', '.join(stored[0])}")
        pinned = self.body.device.type == "cuda"
        joined = {name: _below([torch.from_numpy(each[name]) for each in stored], pinned) for name in names}
        return tower.with_indices(self.body, joined)


def _check_whole(end: int, length: int) -> None:
    """
    Raises:
        RunError: the tokens of a row's last image end behind the row.
    """
    if end > length:
        raise RunError(f"a row of {length} tokens ends inside of an image, whose last token is number {end}")


def _feature(image: Image, name: str) -> Any:
    features = media_store.get(image.digest)
    if name not in features:
        raise RunError(f"a processed image of another model has no {name}")
    return features[name]


def _grids(images: Sequence[Image]) -> dict[str, Tensor]:
    """Arguments of ``get_rope_index``."""
    videos = [image for image in images if image.frames_apart()]
    stills = [image for image in images if not image.frames_apart()]
    named = {"image_grid_thw": stills, "video_grid_thw": videos}
    found = {
        name: torch.from_numpy(np.concatenate([_feature(image, "image_grid_thw") for image in each]))
        for name, each in named.items()
        if each
    }
    if videos:
        found["second_per_grid_ts"] = torch.tensor([image.frames_apart() for image in videos])
    return found


def _behind_media(index: Tensor, types: Tensor) -> Tensor:
    """(3, S) positions in which a text begins behind the largest position of the image or video before it.

    As Wang et al. 2024, arXiv 2409.12191, section 2.1, and as vLLM; transformers 5.24 leaves out the time of a video.
    """
    ends = (types[:-1].bool() & ~types[1:].bool()).nonzero().flatten() + 1
    for end in ends.tolist():
        index[:, end:] += index[:, :end].max() + 1 - index[0, end]
    return index


def _below(parts: Sequence[Tensor], pinned: bool) -> Tensor:
    """Tensors one below the other, in pinned memory if asked for; further dimensions are filled with 0."""
    sizes = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
    joined = torch.empty((sum(map(len, parts)), *sizes), dtype=parts[0].dtype, pin_memory=pinned)
    if any(list(part.shape[1:]) != sizes for part in parts):
        joined.zero_()
    first = 0
    for part in parts:
        joined[(slice(first, first + len(part)), *map(slice, part.shape[1:]))] = part
        first += len(part)
    return joined


def _emptied(outputs: Any) -> Any:
    """The outputs of a tower without their rows; gradients of 0 still pass through the tower."""
    for name in ("pooler_output", "deepstack_features"):
        if (given := getattr(outputs, name, None)) is not None:
            setattr(outputs, name, _without_rows(given))
    return outputs


def _without_rows(values: Any) -> Any:
    return values[:0] if isinstance(values, Tensor) else [_without_rows(each) for each in values]


def _added(where: Tensor, states: Tensor, _: Tensor, features: Tensor) -> Tensor:
    """In the place of ``_deepstack_process``: features of images are added at their tokens, without a search in a mask,
    for which both passes would wait.
    """
    flat = states.flatten(0, -2)
    return flat.index_copy(0, where, flat[where] + features.to(flat.device, flat.dtype)).view_as(states)


def _masks(mask: Tensor, tokens: int, *arguments: Any, ways: Ways, image_features: Any = None, **others: Any) -> Any:
    """In the place of ``get_placeholder_mask``: masks of images, and empty ones.

    Args:
        tokens: number of true elements.
    """
    if image_features is not None and tokens * image_features.shape[-1] != image_features.numel():
        raise RunError(f"{tokens} tokens stand for images, whose tower has {len(image_features)} outputs")
    own = mask.unsqueeze(-1) if ways.expanded else mask
    return own if ways.masks == 1 else (own, *[torch.zeros_like(own)] * (ways.masks - 1))


def row_images(images: Sequence[Sequence[Image]], tokens: Tensor, width: int) -> list[tuple[Image, Tensor]]:
    """The images of a layout, each with the places of its tokens.

    Args:
        images: of each row.
        tokens: (M,) int64, index of each input in the flattened (rows, ``width``) token ids, as of
            :class:`~corerl_torch.layout.Layout`. An image whose first token is no input is left out.
    """
    if not any(images):
        return []
    known = tokens.cpu()
    place_of = torch.full((len(images) * width,), -1)
    place_of[known[known >= 0]] = torch.arange(len(known))[known >= 0]
    found = []
    for row, own in enumerate(images):
        for image in own:
            places = place_of[row * width + image.places()] if image.start < width else place_of[:0]
            given = places >= 0
            if given.any() and not given.all():
                raise RunError("a row ends inside of an image, or shares a part of an image with another row")
            if given.any():
                found.append((image, places))
    return found
