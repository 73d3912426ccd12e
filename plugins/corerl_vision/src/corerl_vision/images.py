"""Images from anybody's data: opened within limits, from bytes or from files beside the data."""

import base64
import binascii
import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from corerl.errors import DataError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")

MOST_PIXELS = 2**26
"""of an image; a decoded one takes 3 bytes a pixel"""

MOST_BYTES = 2**26
"""of an image file"""


def open_image(value: Any, where: str, folder: Path | None) -> Image.Image:
    """An image as RGB, turned as its EXIF tag says; transparent pixels are on white, 16 bits are scaled to 8.

    Args:
        value: bytes of an image file; a PIL image; ``data:image/…;base64,…``; the path of a file in ``folder``; or a
            mapping with ``bytes``, ``path`` or ``image`` of these, as Hugging Face data sets have it.
        where: the place of the image, for error messages.
        folder: of the data; None: no file is read.

    Raises:
        DataError: the value is no such image, is too large, or names a file outside of the folder or a URL.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the size is checked here
            return _decoded(_opened(value, where, folder), where)
    except DataError:
        raise
    except Exception as error:  # decoders raise errors of many kinds for damaged files
        raise DataError(f"{where}: cannot be read as an image ({' '.join(str(error).split())[:200]})") from error


def _opened(value: Any, where: str, folder: Path | None) -> Image.Image:
    if isinstance(value, Mapping):
        return _opened(_content(value, where), where, folder)
    if isinstance(value, Image.Image):
        return value
    if isinstance(value, str):
        value = _from_data_url(value, where) if value.startswith("data:") else _from_file(value, where, folder)
    if not isinstance(value, bytes | bytearray | memoryview):
        raise DataError(f"{where}: must be the bytes of an image file, not {type(value).__name__}")
    if len(value) > MOST_BYTES:
        raise DataError(f"{where}: has {len(value):,} bytes; an image file has {MOST_BYTES:,} at most")
    return Image.open(io.BytesIO(value), formats=FORMATS)


def _content(value: Mapping[str, Any], where: str) -> Any:
    given = [value[name] for name in ("bytes", "image", "path") if value.get(name) is not None]
    if not given or isinstance(given[0], Mapping):
        raise DataError(f"{where}: must have bytes, an image or a path, and has {', '.join(map(str, value)) or 'none'}")
    return given[0]


def _from_data_url(url: str, where: str) -> bytes:
    kind, _, text = url.partition(",")
    if not (kind.startswith("data:image/") and kind.endswith(";base64")):
        raise DataError(f"{where}: a data URL must begin with data:image/…;base64, and not with {kind[:40]!r}")
    if len(text) > 2 * MOST_BYTES:
        raise DataError(f"{where}: has {len(text):,} characters; an image file has {MOST_BYTES:,} bytes at most")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise DataError(f"{where}: is no base64 ({error})") from error


def _from_file(name: str, where: str, folder: Path | None) -> bytes:
    """The bytes of a file in the folder of the data, links resolved."""
    if "://" in name:
        raise DataError(f"{where}: {name[:100]!r} is a URL, and no image is read from a network: store its bytes")
    if folder is None:
        raise DataError(f"{where}: {name[:100]!r} names a file, and none is read here: give the image's bytes")
    root = folder.resolve()
    path = (root / name).resolve()
    if not path.is_relative_to(root):
        raise DataError(f"{where}: {name[:100]!r} is outside of the folder of the data ({root}): move it there")
    if not path.is_file():
        raise DataError(f"{where}: there is no file {path}")
    if path.stat().st_size > MOST_BYTES:
        raise DataError(f"{where}: {path} has {path.stat().st_size:,} bytes; an image file has {MOST_BYTES:,} at most")
    return path.read_bytes()


def _decoded(image: Image.Image, where: str) -> Image.Image:
    width, height = image.size
    if not width or not height or width * height > MOST_PIXELS:
        raise DataError(f"{where}: has {width} × {height} pixels; an image has 1 to {MOST_PIXELS:,}")
    turned = ImageOps.exif_transpose(image)
    return _opaque(_of_8_bits(image if turned is None else turned, where))


def _of_8_bits(image: Image.Image, where: str) -> Image.Image:
    """Grey pixels of 16 bits as pixels of 8; in mode I, which Pillow gives them too, values beyond 255 are of 16 bits.

    Raises:
        DataError: pixels of another range, which has no white.
    """
    if not image.mode.startswith(("I", "F")):
        return image
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise DataError(f"{where}: has pixels of 32 bits (mode {image.mode}): give 8 or 16 bits")
    is_long = image.mode != "I" or values.max() > 255
    scaled = (values.astype(np.uint32) * 255 + 32767) // 65535 if is_long else values
    grey = Image.fromarray(scaled.astype(np.uint8))
    clear = image.info.get("transparency")
    if clear is not None:
        grey.putalpha(Image.fromarray(np.where(values == clear, 0, 255).astype(np.uint8)))
    return grey


def _opaque(image: Image.Image) -> Image.Image:
    """The image as RGB on a white ground."""
    if not image.has_transparency_data:
        return image.convert("RGB")
    clear = image.info.get("transparency")
    if isinstance(clear, tuple) and max(clear) > 255:  # of a file of 16 bits, whose colours Pillow cuts to 8
        image = image.copy()
        image.info["transparency"] = tuple(value >> 8 for value in clear)
    over = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
    ground = Image.new("RGBA", over.size, "white")
    return Image.alpha_composite(ground, over).convert("RGB")


def as_png(image: Image.Image) -> bytes:
    """The image as the bytes of a PNG file."""
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()
