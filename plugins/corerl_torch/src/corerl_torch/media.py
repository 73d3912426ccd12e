"""Models of transformers that read images: inputs, positions and the vision tower.

One way serves all families. The images of a batch, in the order of their tokens, are one call of the model's own
``get_image_features``. Places of images come from the column ``images``, not from token ids: an image token that the
policy samples is an ordinary token. Positions in several dimensions (M-RoPE) are those of ``get_rope_index``.
"""

import contextlib
import functools
import inspect
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from corerl.contracts.token_columns import TokenColumn, TokenValues
from corerl.errors import ConfigError, ModelError, RunError
from corerl_torch import media_store, tower
from corerl_torch.output_layer import body_of

TOWERS = ("visual", "vision_tower", "vision_model")
"""names of the vision tower in models of transformers"""

BIDIRECTIONAL = frozenset({"gemma3", "gemma3n", "gemma4", "gemma4_unified"})
"""values of ``model_type`` whose image tokens see later ones: rows cannot be packed"""

IMAGE = 1
"""type of an image token, as processors of transformers number them"""


class Image(NamedTuple):
    """An image in a row of tokens: the place of its first token, and the digest of the processed image."""

    start: int
    digest: bytes

    def places(self) -> Tensor:
        """(n,) int64, all tokens that stand for the image."""
        return self.start + torch.from_numpy(media_store.get(self.digest)[media_store.PLACEHOLDERS])


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


def freeze_tower(model: Any, key: str) -> None:
    """Exclude the vision tower from training.

    Raises:
        ConfigError: the model has none.
    """
    towers = [module for name in TOWERS if (module := getattr(model.base_model, name, None)) is not None]
    if not towers:
        raise ConfigError(key, f"{type(model).__name__} has no vision tower ({', '.join(TOWERS)}): set it to false")
    for each in towers:
        each.requires_grad_(False)


class ImageInputs:
    """Inputs of a model that reads images.

    Args:
        model: of transformers.
        every_pass: the tower runs in passes without images too, since other ranks hold shares of its weights.

    Raises:
        ConfigError: with ``every_pass``, no empty image of the family is known.
        ModelError: the model has no vision tower.
    """

    def __init__(self, model: Any, *, every_pass: bool = False) -> None:
        if not reads_images(model):
            raise ModelError(f"model.path: {type(model).__name__} reads text alone, and a prompt has images")
        self.body = body_of(model)
        names = inspect.signature(self.body.get_image_features).parameters
        self._names = {name for name in names if name != "kwargs"}
        self._masks = "video_features" in inspect.signature(self.body.get_placeholder_mask).parameters
        self._takes_types = "token_type_ids" in inspect.signature(self.body.forward).parameters
        self._blank = self._blank_features() if every_pass else None

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
        found = torch.zeros(3, *ids.shape, dtype=torch.int64, device=ids.device)
        for row, (length, own) in enumerate(zip(lengths, images, strict=True)):
            own = [image for image in own if image.start < length]
            if not own:
                found[:, row, :length] = torch.arange(length, device=ids.device)
                continue
            grids = torch.from_numpy(np.concatenate([_feature(image, "image_grid_thw") for image in own]))
            types = torch.zeros(1, length, dtype=torch.int64)
            for image in own:
                types[0, image.places()] = IMAGE
            index, _ = self.body.get_rope_index(ids[row : row + 1, :length].cpu(), types, image_grid_thw=grids)
            found[:, row, :length] = index[:, 0].to(ids.device)
        return found

    @contextlib.contextmanager
    def reading(self, shape: Sequence[int], images: Sequence[tuple[Image, Tensor]]) -> Iterator[dict[str, Any]]:
        """Further inputs of a forward pass of the body, which reads these images inside this context.

        Args:
            shape: of the input ids.
            images: each with the places of its tokens in the flattened input ids, (n,) int64; any order.
        """
        mask = torch.zeros(shape[0] * shape[1], dtype=torch.bool)
        if not images and self._blank is None:
            yield self._types(mask.view(*shape).to(self.body.device))
            return
        ordered = sorted(images, key=lambda each: int(each[1][0]))
        for _, places in ordered:
            mask[places.cpu()] = True
        mask = mask.view(*shape).to(self.body.device)
        features = self._features([image.digest for image, _ in ordered]) if images else self._blank
        assert features is not None
        compute, marked = self.body.get_image_features, mask.unsqueeze(-1)
        # pass no argument of the decoder's attention to the tower, and take places from the column
        outputs = functools.partial(compute, **features, return_dict=True)
        self.body.get_image_features = lambda *_, **__: outputs() if images else _emptied(outputs())
        self.body.get_placeholder_mask = functools.partial(_masks, marked, pair=self._masks)
        try:
            yield {"pixel_values": features["pixel_values"], **self._types(mask)}
        finally:
            del self.body.get_image_features, self.body.get_placeholder_mask

    def _blank_features(self) -> dict[str, Tensor]:
        """A black image of one token."""
        vision = self.body.config.vision_config
        if "image_grid_thw" not in self._names or not isinstance(vision.patch_size, int):
            raise ConfigError(
                "actor.strategy",
                f"a model of the family {self.body.config.model_type} that reads images runs on one rank alone",
            )
        side, channels = vision.spatial_merge_size, getattr(vision, "in_channels", 3)
        width = channels * vision.temporal_patch_size * vision.patch_size**2
        device = torch.device("cpu") if self.body.device.type == "meta" else self.body.device
        pixels = torch.zeros(side * side, width, device=device)
        return {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, side, side]], device=device)}

    def _types(self, mask: Tensor) -> dict[str, Tensor]:
        return {"token_type_ids": mask.long()} if self._takes_types else {}

    def _features(self, digests: Sequence[bytes]) -> dict[str, Any]:
        """The model's inputs for these images, one below the other."""
        stored = [media_store.get(digest) for digest in digests]
        names = [name for name in stored[0] if name in self._names]
        if not names:
            raise RunError(f"processed images of another model: they have {', '.join(stored[0])}")
        joined = {name: _below([torch.from_numpy(each[name]) for each in stored]) for name in names}
        return tower.with_indices(self.body, joined)


def _feature(image: Image, name: str) -> Any:
    features = media_store.get(image.digest)
    if name not in features:
        raise RunError(f"a processed image of another model has no {name}")
    return features[name]


def _below(parts: Sequence[Tensor]) -> Tensor:
    """Tensors one below the other; further dimensions are filled with 0."""
    sizes = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
    filled = []
    for part in parts:
        missing = [(0, size - own) for size, own in zip(sizes, part.shape[1:], strict=True)]
        filled.append(torch.nn.functional.pad(part, [each for pair in reversed(missing) for each in pair]))
    return torch.cat(filled)


def _emptied(outputs: Any) -> Any:
    """The outputs of a tower without their rows; gradients of 0 still pass through the tower."""
    for name in ("pooler_output", "deepstack_features"):
        if (given := getattr(outputs, name, None)) is not None:
            setattr(outputs, name, _without_rows(given))
    return outputs


def _without_rows(values: Any) -> Any:
    return values[:0] if isinstance(values, Tensor) else [_without_rows(each) for each in values]


def _masks(mask: Tensor, *arguments: Any, pair: bool, image_features: Any = None, **others: Any) -> Any:
    """In the place of ``get_placeholder_mask``: (1 if ``pair`` else no) mask of videos, which is empty."""
    if image_features is not None and mask.sum() * image_features.shape[-1] != image_features.numel():
        raise RunError(f"{int(mask.sum())} tokens stand for images, whose tower has {len(image_features)} outputs")
    return (mask, torch.zeros_like(mask)) if pair else mask


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
