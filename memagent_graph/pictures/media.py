"""Read the files of pictures within limits: what they are, and their pixels.

This runs in the process that converts documents.
"""

from __future__ import annotations

from base64 import b64encode
from io import BytesIO
from typing import Any

# Imported by name: `Image.open` would look for them in a process that may open no file.
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageOps,
    JpegImagePlugin,
    MpoImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

_PLUGINS = (
    BmpImagePlugin,
    GifImagePlugin,
    JpegImagePlugin,
    MpoImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

MOST_PIXELS = 80_000_000
"""Pixels above which a picture is refused: unpacking it would take 320 MB."""

MOST_BYTES = 32 << 20
"""Bytes of a picture's file above which it is refused."""

_LONGEST_SIDE = 2048
"""Longest side of a picture as models get it, in pixels: they scale it down to that themselves."""

_KINDS = {
    "BMP": "image/bmp",
    "GIF": "image/gif",
    "JPEG": "image/jpeg",
    "MPO": "image/jpeg",  # of cameras with two lenses
    "PNG": "image/png",
    "TIFF": "image/tiff",
    "WEBP": "image/webp",
}
"""Formats that are read. SVG, EMF and WMF are programs that draw, and PSD and ICO are rare."""

_FORMATS = [kind for kind in _KINDS if kind != "MPO"]
"""Kinds by what opens them: JPEG opens those of two lenses."""

_DESCRIBED = ("Description", "Title", "Comment", "comment")
_EXIF_DESCRIPTION = 0x010E

Image.MAX_IMAGE_PIXELS = None  # the limits here are stricter, and fail instead of warning


class PictureError(ValueError):
    """A picture is broken, of another kind, or exceeds a limit; the message says which."""


def open_picture(content: bytes) -> Any:
    """Open a picture; nothing but its header is read.

    Raises:
        PictureError: It is broken, of a kind that is not read, or exceeds a limit.
    """
    if len(content) > MOST_BYTES:
        message = f"it has {len(content):,} bytes, more than {MOST_BYTES:,}"
        raise PictureError(message)
    try:
        opened = Image.open(BytesIO(content), formats=_FORMATS)
    except MemoryError:
        raise
    except Exception as error:
        raise PictureError("it is broken, or not PNG, JPEG, GIF, WebP, BMP or TIFF") from error
    check_size(*opened.size)
    return opened


def check_size(width: int, height: int) -> None:
    """Check the size of a picture, in pixels.

    Raises:
        PictureError: It has no pixels, or too many.
    """
    if width < 1 or height < 1:
        raise PictureError("it has no pixels")
    if width * height > MOST_PIXELS:
        message = f"it has {width * height:,} pixels, more than {MOST_PIXELS:,}"
        raise PictureError(message)


def media_type_of(opened: Any) -> str:
    """Return the media type of an opened picture."""
    return _KINDS[opened.format]


def describe(opened: Any) -> str:
    """Return the description that a file of a picture has of itself; "" without one."""
    said = [opened.info.get(key) for key in _DESCRIBED]
    said.append(opened.getexif().get(_EXIF_DESCRIPTION))
    texts = (one.decode("utf-8", "replace") if isinstance(one, bytes) else one for one in said)
    return next((" ".join(str(text).split()) for text in texts if text), "")


def draw(opened: Any) -> Any:
    """Return an opened picture's first frame, upright, in RGB on white.

    Raises:
        PictureError: Its pixels are broken.
    """
    try:
        opened.seek(0)
        if opened.mode.startswith(("I", "F")):  # 16 bits and more: scaled by what there is
            low, high = opened.getextrema()
            scale = 255 / ((high - low) or 1)
            opened = opened.convert("F").point(lambda value: value * scale - low * scale)
            return opened.convert("L").convert("RGB")
        drawn = ImageOps.exif_transpose(opened)
        if drawn.has_transparency_data:
            paper = Image.new("RGBA", drawn.size, "white")
            paper.alpha_composite(drawn.convert("RGBA"))
            drawn = paper
        return drawn.convert("RGB")
    except MemoryError:
        raise
    except Exception as error:
        raise PictureError("its pixels are broken, or its end is missing") from error


def encode(drawn: Any, media_type: str) -> tuple[str, str]:
    """Return (media type, base64) of a drawn picture as models get it.

    It is encoded anew: models get neither a place that a camera noted nor bytes that a parser of
    theirs might stumble over.
    """
    drawn.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
    kept, kind = BytesIO(), "JPEG" if media_type == "image/jpeg" else "PNG"
    drawn.save(kept, kind, **({"quality": 90} if kind == "JPEG" else {}))
    return _KINDS[kind], b64encode(kept.getvalue()).decode()
