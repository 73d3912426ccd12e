"""Pixels of image files as a viewer on white paper shows them."""

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from corerl.errors import DataError
from corerl_vision.images import open_image


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pixels(value: Any) -> list[tuple[int, ...]]:
    image = open_image(value, "row 0", None)
    assert image.mode == "RGB"
    return [image.getpixel((column, 0)) for column in range(image.width)]


def two(mode: str, first: Any, second: Any) -> Image.Image:
    image = Image.new(mode, (2, 1))
    image.putpixel((0, 0), first)
    image.putpixel((1, 0), second)
    return image


def palette(first: int = 0, second: int = 1) -> Image.Image:
    image = two("P", first, second)
    image.putpalette([0, 0, 0, 10, 20, 30])
    return image


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png16(colours: int, values: list[int], clear: list[int] | None = None) -> bytes:
    """A PNG file of two pixels with 16 bits a value, written by hand; ``clear``: the colour that is transparent."""
    size = chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 1, 16, colours, 0, 0, 0))
    transparent = chunk(b"tRNS", struct.pack(f">{len(clear)}H", *clear)) if clear else b""
    data = chunk(b"IDAT", zlib.compress(b"\0" + struct.pack(f">{len(values)}H", *values)))
    return b"\x89PNG\r\n\x1a\n" + size + transparent + data + chunk(b"IEND", b"")


WHITE, BLACK = (255, 255, 255), (0, 0, 0)
CLEAR_BLACK = (0, 0, 0, 0)

TRANSPARENT = {
    "RGBA": (saved(two("RGBA", CLEAR_BLACK, (9, 8, 7, 255))), [WHITE, (9, 8, 7)]),
    "half transparent": (saved(two("RGBA", (0, 0, 0, 51), (255, 0, 0, 255))), [(204, 204, 204), (255, 0, 0)]),
    "WebP": (saved(two("RGBA", CLEAR_BLACK, (9, 8, 7, 255)), "WEBP", lossless=True), [WHITE, (9, 8, 7)]),
    "LA": (saved(two("LA", (0, 0), (0, 255))), [WHITE, BLACK]),
    "palette": (saved(palette(), transparency=0), [WHITE, (10, 20, 30)]),
    "palette with shades": (saved(palette(), transparency=bytes([0, 255])), [WHITE, (10, 20, 30)]),
    "GIF": (saved(palette(), "GIF", transparency=0), [WHITE, (10, 20, 30)]),
    "RGB with a clear colour": (saved(two("RGB", BLACK, (9, 8, 7)), transparency=BLACK), [WHITE, (9, 8, 7)]),
    "grey with a clear shade": (saved(two("L", 0, 7), transparency=0), [WHITE, (7, 7, 7)]),
    "16 bits, RGBA": (png16(6, [0, 0, 0, 0, 65535, 0, 0, 65535]), [WHITE, (255, 0, 0)]),
    "16 bits, grey with a clear shade": (png16(0, [4660, 65535 // 5], [4660]), [WHITE, (51, 51, 51)]),
    "16 bits, RGB with a clear colour": (png16(2, [4660] * 3 + [65535, 0, 0], [4660] * 3), [WHITE, (255, 0, 0)]),
    "Pillow's RGBa": (two("RGBA", CLEAR_BLACK, (9, 8, 7, 255)).convert("RGBa"), [WHITE, (9, 8, 7)]),
    "Pillow's La": (two("LA", (0, 0), (0, 255)).convert("La"), [WHITE, BLACK]),
    "Pillow's PA": (two("PA", (0, 0), (0, 255)), [WHITE, BLACK]),
}


@pytest.mark.parametrize("name", TRANSPARENT)
def test_transparent_pixels_are_white(name: str) -> None:
    value, expected = TRANSPARENT[name]
    assert pixels(value) == expected


@pytest.mark.parametrize("value", [saved(palette()), palette(), saved(palette(), "GIF")])
def test_an_opaque_palette_keeps_its_colours(value: Any) -> None:
    assert pixels(value) == [BLACK, (10, 20, 30)]


def grey(values: list[float], dtype: Any) -> Image.Image:
    return Image.fromarray(np.array([values], dtype))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (png16(0, [0, 65535]), [0, 255]),
        (png16(0, [100 * 257, 32768]), [100, 128]),
        (grey([0, 65535], np.uint16), [0, 255]),
        (grey([0, 51 * 257], np.int32), [0, 51]),
        (grey([0, 200], np.int32), [0, 200]),
    ],
)
def test_grey_of_16_bits_is_scaled(value: Any, expected: list[int]) -> None:
    assert pixels(value) == [(each,) * 3 for each in expected]


@pytest.mark.parametrize("value", [grey([0, 70000], np.int32), grey([-1, 3], np.int32), grey([0, 1], np.float32)])
def test_pixels_of_another_range_are_an_error(value: Any) -> None:
    with pytest.raises(DataError, match=r"^row 0: has pixels of 32 bits \(mode [IF]\): give 8 or 16 bits$"):
        pixels(value)
